"""Rows that computed ids choose: many ids one row, some of the rows, and rows that there are not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

import shardproof
from shardproof.frontends.fx import replay
from shardproof.frontends.fx.records import Graph
from shardproof.frontends.graphs.relations import Relations
from tests.frontends.fx.graphs import Writer, argument, model, ref, write

IDS, ROWS, WIDTH = 7, 5, 3


def looked_up(low: int, high: int, less: int) -> dict[str, Any]:
    """``where(low <= id < high, id - less, 0)`` chooses rows, entries, and what gets a gradient."""
    w = Writer(0)
    ids = w.given("ids", (IDS,), "int64")
    table, entries = w.given("table", (ROWS, WIDTH)), w.given("entries", (IDS, ROWS))
    gradient = w.given("gradient", (IDS, WIDTH))
    below = w.call("lt", "aten.lt.Scalar", [ids, low], (IDS,), "bool")
    above = w.call("ge", "aten.ge.Scalar", [ids, high], (IDS,), "bool")
    mask = w.call("or", "aten.bitwise_or.Tensor", [below, above], (IDS,), "bool")
    own = w.call("sub", "aten.sub.Tensor", [ids, less], (IDS,), "int64")
    w.node("zero", "get_attr", "zero", [], None)
    zero = w.call("none", "aten.lift_fresh_copy.default", [ref("zero")], (), "int64")
    own = w.call("own", "aten.index_put.default", [own, [mask], zero], (IDS,), "int64")
    rows = w.call("rows", "aten.embedding.default", [table, own], (IDS, WIDTH))
    w.node("other", "get_attr", "other", [], None)
    other = w.call("number", "aten.lift_fresh_copy.default", [ref("other")], ())
    filled = w.call("filled", "aten.index_put.default", [rows, [mask], other], (IDS, WIDTH))
    every = w.call("every", "aten.arange.default", [IDS], (IDS,), "int64")
    picked = w.call("picked", "aten.index.Tensor", [entries, [every, own]], (IDS,))
    wide = [gradient, own, ROWS, -1, False]
    added = w.call("added", "aten.embedding_dense_backward.default", wide, (ROWS, WIDTH))
    return w.output(rows, picked, added, filled)


@pytest.mark.parametrize(("low", "high", "less"), [(0, 5, 0), (2, 6, 2), (3, 5, 3), (2, 3, 0)])
def test_rows_of_computed_ids_are_those_of_pytorch(low: int, high: int, less: int) -> None:
    graph = msgspec.convert(looked_up(low, high, less), Graph)
    relations = Relations(domains={"ids": (0, 8)}, constants={"other": 3})
    replayed = replay.validated(graph, [graph], relations)
    assert (replayed.replayed, replayed.agrees, replayed.compared) == (True, True, 8), replayed


def test_a_row_that_is_none_is_read_also_where_it_is_zeroed_later(tmp_path: Path) -> None:
    """Twin: `test_a_right_graph_is_proved_without_relations`."""
    graphs = [model(rank, 2) for rank in range(2)]
    for graph in graphs:
        argument("rows", 1, ref("sub"))(graph)
    single = write(tmp_path / "single", [model()])
    result = shardproof.verify(single, write(tmp_path / "parallel", graphs), out=tmp_path / "run")
    assert result.verdict == "refuted", result.reason
    assert any("reads memory that nothing has written" in text for text in result.assumptions)
