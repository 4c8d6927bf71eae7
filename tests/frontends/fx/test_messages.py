"""All-to-alls of parts of different sizes: messages, which agree on all ranks or are no program."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import shardproof
from shardproof.frontends.fx.messages import as_messages
from shardproof.frontends.fx.records import Graph, Node
from tests.frontends.fx.graphs import Writer, verified

EXCHANGE = "_c10d_functional.all_to_all_single.default"
ROWS, WIDTH = 6, 2


def exchange(
    w: Writer, name: str, x: Any, received: list[int], sent: list[int]
) -> tuple[Any, tuple[int, int]]:
    shape = sum(received), WIDTH
    return w.call(name, EXCHANGE, [x, received, sent, "0"], shape), shape


def single() -> dict[str, Any]:
    w = Writer(0)
    x = w.given("x", (2 * ROWS, WIDTH))
    up = w.given("up", (WIDTH, WIDTH))
    y = w.call("y", "aten.mm.default", [x, up], (2 * ROWS, WIDTH))
    return w.output(w.call("z", "aten.relu.default", [y], (2 * ROWS, WIDTH)))


#: How many rows go from each of two ranks to each, and how many rank 0 has then.
SENT = [[4, 2], [1, 5]]


def rank(
    number: int, sent: list[list[int]] = SENT, received: list[list[int]] | None = None
) -> dict[str, Any]:
    """Rows that other ranks compute, and send back; a last exchange that nobody reads on rank 1."""
    w = Writer(number)
    x, up = w.given("x", (ROWS, WIDTH)), w.given("up", (WIDTH, WIDTH))
    own = received or [[row[n] for row in sent] for n in range(2)]
    there, shape = exchange(w, "there", x, own[number], sent[number])
    there = w.call("y", "aten.mm.default", [there, up], shape)
    back, shape = exchange(w, "back", there, sent[number], own[number])
    return w.output(w.call("z", "aten.relu.default", [back], (ROWS, WIDTH)))


def verdict(folder: Path, graphs: list[dict[str, Any]]) -> Any:
    return verified(folder, single(), graphs)


@pytest.mark.parametrize("sent", [SENT, [[0, 6], [6, 0]], [[6, 0], [3, 3]], [[3, 3], [3, 3]]])
def test_rows_come_back(sent: list[list[int]], tmp_path: Path) -> None:
    result = verdict(tmp_path, [rank(n, sent) for n in range(2)])
    assert result.verdict == "proved", result.reason
    assert shardproof.check(tmp_path / "run").ok


def test_rows_of_the_other_rank_are_refuted(tmp_path: Path) -> None:
    """Each rank keeps what it was sent."""
    graphs = [rank(n, [[0, 6], [6, 0]]) for n in range(2)]
    for graph in graphs:
        (end,) = (node for node in graph["nodes"] if node["name"] == "z")
        end["args"] = [{"n": "y"}]
    assert verdict(tmp_path, graphs).verdict == "refuted"


def test_parts_of_other_sizes_than_are_sent_are_no_program(tmp_path: Path) -> None:
    received = [[4, 2], [1, 5]]
    graphs = [rank(n, SENT, received) for n in range(2)]
    result = verdict(tmp_path, graphs)
    assert result.verdict == "refuted", result.reason


def nodes(received: list[int], sent: list[int]) -> Graph:
    x = Node("x", "placeholder", "x", [], {}, [4, 2], "float32")
    args = [{"n": "x"}, received, sent, "g"]
    y = Node("y", "call_function", EXCHANGE, args, {}, [4, 2], "float32")
    end = Node("output", "output", "output", [[{"n": "y"}]], {})
    return Graph(0, [x, y, end])


def test_all_to_alls_of_equal_parts_stay_what_they_are() -> None:
    equal = [nodes([2, 2], [2, 2])] * 2
    assert as_messages(equal, {}) == equal


def test_one_rank_with_other_sizes_makes_messages_of_all() -> None:
    first, second = as_messages([nodes([2, 2], [2, 2]), nodes([2, 1], [2, 2])], {})
    targets = [node.target for node in first.nodes]
    sent, posted, received = (targets.index(f"comm.{n}") for n in ("send", "post_recv", "recv"))
    assert posted < sent < received
    assert [n.shape for n in second.nodes if n.target == "comm.recv"] == [[2, 2]]
    assert first.nodes[-2].target == "aten.cat.default"
