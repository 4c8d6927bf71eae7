"""Lists of modules that ranks divide: each rank's numbers are its own, or the single device's."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import shardproof
from shardproof.frontends.fx.lists import List, divided
from shardproof.frontends.fx.records import Graph, Node
from tests.frontends.fx.graphs import Writer, verified

EXPERTS = 4


def experts(rank: int = 0, ranks: int = 1, names: str = "own", wrong: str = "") -> dict[str, Any]:
    """The sum of experts, each with a gate's entry; a rank has some of them, numbered from 0
    (``own``) or as on the single device (``same``)."""
    w = Writer(rank)
    count = EXPERTS // ranks
    first = rank * count
    numbers = range(first, first + count) if names == "same" else range(count)
    x, gate = w.given("x", (3, 4)), w.given("gate", (3, EXPERTS))
    given = [w.given(f"experts_{n}_up", (4, 4)) for n in numbers]
    total: Any = None
    for n, weight in enumerate(given):
        at = first + n if wrong != "gate" else n
        share = w.call(f"s{n}", "aten.slice.Tensor", [gate, 1, at, at + 1], (3, 1))
        each = w.call(f"m{n}", "aten.mm.default", [x, weight], (3, 4))
        each = w.call(f"r{n}", "aten.relu.default", [each], (3, 4))
        each = w.call(f"e{n}", "aten.mul.Tensor", [each, share], (3, 4))
        total = each if total is None else w.call(f"t{n}", "aten.add.Tensor", [total, each], (3, 4))
    if ranks > 1:
        reduce = "_c10d_functional.all_reduce.default"
        total = w.call("all", reduce, [total, "sum", "ep"], (3, 4))
    return w.output(total)


def verdict(folder: Path, ranks: int, names: str, wrong: str = "") -> Any:
    graphs = [experts(rank, ranks, names, wrong) for rank in range(ranks)]
    return verified(folder, experts(), graphs)


@pytest.mark.parametrize("names", ["own", "same"])
@pytest.mark.parametrize("ranks", [2, 4])
def test_experts_of_ranks_are_those_of_the_single_device(
    names: str, ranks: int, tmp_path: Path
) -> None:
    result = verdict(tmp_path, ranks, names)
    assert result.verdict == "proved", result.reason
    assert shardproof.check(tmp_path / "run").ok
    text = " ".join(map(str, result.assumptions))
    assert ("inputs experts_#_up are 4 of which" in text) == (names == "own"), text


@pytest.mark.parametrize("names", ["own", "same"])
def test_experts_with_the_gate_of_others_are_refuted(names: str, tmp_path: Path) -> None:
    assert verdict(tmp_path, 2, names, "gate").verdict == "refuted"


def test_a_rank_with_the_name_of_no_expert_is_refused(tmp_path: Path) -> None:
    texts = [json.dumps(experts(rank, 2, "same")) for rank in range(2)]
    ranks = [json.loads(text.replace("experts_3_up", "experts_7_up")) for text in texts]
    result = verified(tmp_path, experts(), ranks)
    assert result.verdict == "invalid input"
    assert "the single side has no such input" in result.reason


def graph(names: list[str], rows: int = 2) -> Graph:
    nodes = [Node(n, "placeholder", n, [], {}, [rows], "float32") for n in names]
    read = Node("y", "call_function", "aten.cat.default", [[{"n": n} for n in names]], {}, [2])
    end = Node("output", "output", "output", [[{"n": "y"}]], {})
    return Graph(0, [*nodes, read, end])


def test_lists_explain_every_input_that_no_rank_has() -> None:
    whole = graph([f"layers_{i}_w{j}" for i in range(2) for j in range(4)])
    part = graph([f"layers_{i}_w{j}" for i in range(2) for j in range(2)])
    lists = divided(whole, [part, part])
    assert lists == [List("layers_0_w#", 4, 2), List("layers_1_w#", 4, 2)]
    assert lists[0].owners((0, 1))["layers_0_w1"] == ("layers_0_w1", "layers_0_w3")


@pytest.mark.parametrize(
    ("whole", "part"),
    [
        (["w0", "w1", "bias"], ["w0"]),
        (["w0", "w1", "w2"], ["w0", "w1"]),
        (["w1", "w2"], ["w1"]),
        (["primals_0", "primals_1"], ["primals_0"]),
        (["w00", "w01"], ["w00"]),
    ],
)
def test_other_names_are_no_list(whole: list[str], part: list[str]) -> None:
    assert divided(graph(whole), [graph(part)] * 2) == []


def test_tensors_of_another_shape_are_no_list() -> None:
    assert divided(graph(["w0", "w1"]), [graph(["w0"], 1)] * 2) == []
