"""Inputs without entries: a part of a table that a configuration leaves no columns."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import shardproof
from tests.frontends.fx.graphs import Writer, verified


def scores(rank: int = 0, ranks: int = 1, wrong: bool = False) -> dict[str, Any]:
    """x [3, 4] times a table [4, 6] under which another one [0, 6] lies; each rank has columns."""
    w = Writer(rank)
    own = 6 // ranks
    x = w.given("x", (3, 4))
    table, rest = w.given("table", (4, own)), w.given("rest", (0, 6))
    part = w.call("part", "aten.slice.Tensor", [rest, 1, 0, own], (0, own))
    whole = w.call("whole", "aten.cat.default", [[table, part], 0], (4, own))
    y = w.call("y", "aten.mm.default", [x, whole], (3, own))
    y = w.call("z", "aten.exp.default" if wrong else "aten.tanh.default", [y], (3, own))
    if ranks > 1:
        y = w.call("turned", "aten.t.default", [y], (own, 3))
        gather = "_c10d_functional.all_gather_into_tensor.default"
        y = w.call("all", gather, [y, ranks, "tp"], (6, 3))
        y = w.call("back", "aten.t.default", [y], (3, 6))
    return w.output(y)


@pytest.mark.parametrize("wrong", [False, True])
def test_a_table_without_rows_is_nothing(wrong: bool, tmp_path: Path) -> None:
    ranks = [scores(rank, 2, wrong) for rank in range(2)]
    result = verified(tmp_path, scores(), ranks)
    assert result.verdict == ("refuted" if wrong else "proved"), result.reason
    assert wrong or shardproof.check(tmp_path / "run").ok
