"""Rows that `nonzero` chooses: an expert of some of the tokens, whose number depends on data."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

import shardproof
from shardproof.frontends.fx import replay
from shardproof.frontends.fx.records import Graph
from shardproof.frontends.graphs.relations import Relations
from tests.frontends.fx.graphs import Change, Writer, argument, named, reduced, ref, target, write

ROWS, WIDTH, INNER = 5, 3, 4
VIEW = "aten.view.default"


def expert(rank: int = 0, ranks: int = 1) -> dict[str, Any]:
    """The tokens of which a score is positive go through an MLP, whose inner dimension is divided;
    the results are written back, and the weights have gradients."""
    w, inner, some = Writer(rank), INNER // ranks, f"R{rank}u0"
    x, score = w.given("x", (ROWS, WIDTH)), w.given("score", (ROWS,))
    up, down = w.given("up", (inner, WIDTH)), w.given("down", (WIDTH, inner))
    g = w.given("g", (ROWS, WIDTH))
    mask = w.call("mask", "aten.gt.Scalar", [score, 0], (ROWS,), "bool")
    at = w.call("at", "aten.nonzero.default", [mask], (some, 1), "int64")
    size = w.call("size", "aten.sym_size.int", [at, 0], None)
    holds = w.call("ge", "<built-in function ge>", [size, 0], None)
    w.call("assert", "aten._assert_scalar.default", [holds, "at least none"], None)
    few = w.call("le", "<built-in function le>", [size, ROWS], None)
    w.call("assert_1", "aten._assert_scalar.default", [few, "at most all"], None)
    own = w.call("own", "aten.index.Tensor", [x, [at]], (some, 1, WIDTH))
    flat = w.call("flat", VIEW, [own, [size, WIDTH]], (some, WIDTH))
    turned = w.call("t", "aten.t.default", [up], (WIDTH, inner))
    h = w.call("mm", "aten.mm.default", [flat, turned], (some, inner))
    y = w.call("gelu", "aten.gelu.default", [h], (some, inner))
    back = w.call("t_1", "aten.t.default", [down], (inner, WIDTH))
    z = w.call("mm_1", "aten.mm.default", [y, back], (some, WIDTH))
    z = w.call("wide", VIEW, [z, [size, 1, WIDTH]], (some, 1, WIDTH))
    zeros = w.call("zeros", "aten.zeros_like.default", [x], (ROWS, WIDTH))
    out = w.call("out", "aten.index_put.default", [zeros, [at], z], (ROWS, WIDTH))
    over = w.call("over", "aten.index_put.default", [x, [at], z], (ROWS, WIDTH))
    # What arrives for the rows, and what that makes of the weights and of x.
    dz = w.call("dz", "aten.index.Tensor", [g, [at]], (some, 1, WIDTH))
    dz = w.call("dz_1", VIEW, [dz, [size, WIDTH]], (some, WIDTH))
    dy = w.call("dy", "aten.mm.default", [dz, down], (some, inner))
    dh = w.call("dh", "aten.gelu_backward.default", [dy, h], (some, inner))
    turned = w.call("t_2", "aten.t.default", [dh], (inner, some))
    dup = w.call("dup", "aten.mm.default", [turned, flat], (inner, WIDTH))
    dx = w.call("dx", "aten.mm.default", [dh, up], (some, WIDTH))
    dx = w.call("dx_1", VIEW, [dx, [size, 1, WIDTH]], (some, 1, WIDTH))
    none = w.call("none", "aten.new_zeros.default", [dx, [ROWS, WIDTH]], (ROWS, WIDTH))
    added = w.call("added", "aten.index_put.default", [none, [at], dx, True], (ROWS, WIDTH))
    if ranks > 1:
        out, added = (reduced(w, n, v, (ROWS, WIDTH)) for n, v in (("o", out), ("a", added)))
    return w.output(out, added, dup, over)


def verdict(tmp_path: Path, *changes: Change, which: tuple[int, ...] = (0, 1)) -> Any:
    graphs = [expert(rank, 2) for rank in range(2)]
    for rank in which:
        for change in changes:
            change(graphs[rank])
    relations = tmp_path / "relations.toml"
    relations.write_text(
        "".join(
            f'[[outputs]]\nsingle = "{a}"\nparallel = "{b}"\n' + ("shard = 0\n" if a == b else "")
            for a, b in (("out", "o_wait"), ("added", "a_wait"), ("dup", "dup"))
        )
    )
    single = write(tmp_path / "single", [expert()])
    parallel = write(tmp_path / "parallel", graphs)
    return shardproof.verify(
        single, parallel, relations=relations, out=tmp_path / "run", cache=False
    )


def test_an_expert_of_some_tokens_is_proved(tmp_path: Path) -> None:
    result = verdict(tmp_path)
    assert result.verdict == "proved", result.reason
    assert shardproof.check(tmp_path / "run").ok


def test_what_is_carried_for_such_rows_is_what_pytorch_computes() -> None:
    graph = msgspec.convert(_sized(expert()), Graph)
    replayed = replay.validated(graph, [graph], Relations())
    assert (replayed.replayed, replayed.agrees, replayed.compared) == (True, True, 8), replayed


def _sized(graph: dict[str, Any]) -> dict[str, Any]:
    """Sizes that are names as the reader makes them of a file."""
    for node in graph["nodes"]:
        node["shape"] = node["shape"] and [-1 if isinstance(n, str) else n for n in node["shape"]]
    return graph


WRONG: dict[str, tuple[Change, tuple[int, ...]]] = {
    "other tokens": (argument("mask", 1, 1), (0, 1)),
    "other tokens on one rank": (target("mask", "aten.lt.Scalar"), (1,)),
    "no sum over the ranks": (argument("o_wait", 0, ref("out")), (0, 1)),
    "written over what was there": (argument("out", 0, ref("x")), (0, 1)),
    "another activation": (target("gelu", "aten.silu.default"), (0, 1)),
    "another gradient": (argument("dup", 1, ref("dz_1")), (1,)),
}


@pytest.mark.parametrize("what", WRONG)
def test_wrong_experts_are_refuted(tmp_path: Path, what: str) -> None:
    change, which = WRONG[what]
    result = verdict(tmp_path, change, which=which)
    assert result.verdict == "refuted", result.reason


def _summed(graph: dict[str, Any]) -> None:
    at = next(i for i, n in enumerate(graph["nodes"]) if n["name"] == "wide")
    node = {**named(graph, "mm_1"), "name": "total", "target": "aten.cumsum.default"}
    graph["nodes"][at]["args"][0] = ref("total")
    graph["nodes"].insert(at, {**node, "args": [ref("mm_1"), 0]})


def test_what_mixes_such_rows_is_refused(tmp_path: Path) -> None:
    result = verdict(tmp_path, _summed)
    assert result.verdict == "invalid input"
    reason = "total: not supported: aten.cumsum.default: rows of which data says how many there are"
    assert reason in result.reason


def gathered(rank: int = 0, ranks: int = 1) -> dict[str, Any]:
    """Numbers, with a constant that is gathered added to them."""
    w, size = Writer(rank), 4 // ranks
    x = w.given("x", (4,))
    own = w.call("own", "aten.zeros.default", [[size]], (size,))
    if ranks > 1:
        gather = "_c10d_functional.all_gather_into_tensor.default"
        own = w.call("all", gather, [own, ranks, "3"], (4,))
        own = w.call("here", "_c10d_functional.wait_tensor.default", [own], (4,))
    return w.output(w.call("out", "aten.add.Tensor", [x, own], (4,)))


@pytest.mark.parametrize("wrong", [(), (1,), (0, 1)])
def test_a_gathered_constant_is_one_where_all_ranks_have_it(
    tmp_path: Path, wrong: tuple[int, ...]
) -> None:
    graphs = [gathered(rank, 2) for rank in range(2)]
    for rank in wrong:
        target("own", "aten.ones.default")(graphs[rank])
    single = write(tmp_path / "single", [gathered()])
    parallel = write(tmp_path / "parallel", graphs)
    result = shardproof.verify(single, parallel, out=tmp_path / "run", cache=False)
    assert result.verdict == ("refuted" if wrong else "proved"), result.reason
