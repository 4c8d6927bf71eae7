"""Stacks of tables that ranks divide, of which the program takes each by its number."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import shardproof
from tests.frontends.fx.graphs import Writer, verified

TABLES = 4


def lookups(rank: int = 0, ranks: int = 1, wrong: str = "") -> dict[str, Any]:
    """Rows [3, 4, 2] that three ids each choose in four tables [5, 2]; a rank has some tables."""
    w = Writer(rank)
    count = TABLES // ranks
    ids = w.given("ids", (3, TABLES), "int64")
    tables = w.given("tables", (count, 5, 2))
    rows = []
    for n in range(count):
        column = n if wrong == "ids" else rank * count + n
        own = w.call(f"ids{n}", "aten.select.int", [ids, 1, column], (3,), "int64")
        table = w.call(f"table{n}", "aten.select.int", [tables, 0, n], (5, 2))
        rows.append(w.call(f"rows{n}", "aten.embedding.default", [table, own], (3, 2)))
    chosen = w.call("stack", "aten.stack.default", [rows, 1], (3, count, 2))
    if ranks > 1:
        front = w.call("front", "aten.transpose.int", [chosen, 0, 1], (count, 3, 2))
        gather = "_c10d_functional.all_gather_into_tensor.default"
        whole = w.call("all", gather, [front, ranks, "tp"], (TABLES, 3, 2))
        chosen = w.call("back", "aten.transpose.int", [whole, 0, 1], (3, TABLES, 2))
    return w.output(chosen)


def verdict(folder: Path, ranks: int, wrong: str = "") -> Any:
    return verified(folder, lookups(), [lookups(rank, ranks, wrong) for rank in range(ranks)])


@pytest.mark.parametrize("ranks", [2, 4])
def test_tables_of_ranks_are_those_of_the_stack(ranks: int, tmp_path: Path) -> None:
    result = verdict(tmp_path, ranks)
    assert result.verdict == "proved", result.reason
    assert shardproof.check(tmp_path / "run").ok


def test_ids_of_another_table_are_refuted(tmp_path: Path) -> None:
    assert verdict(tmp_path, 2, "ids").verdict == "refuted"
