"""Ranks that give a collective elements of unlike types: bytes are moved, not numbers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.frontends.fx.graphs import Writer, verified

ROWS, WIDTH = 3, 4


def product(rank: int = 0, ranks: int = 1, dtype: str = "float32") -> dict[str, Any]:
    """A product of which a rank has some features; the sum is taken in ``dtype``."""
    w = Writer(rank)
    own = WIDTH // ranks
    x, weight = w.given("x", (ROWS, own)), w.given("weight", (own, 2))
    y = w.call("y", "aten.mm.default", [x, weight], (ROWS, 2))
    if ranks > 1:
        wide = w.call("wide", "aten.to.dtype", [y, dtype], (ROWS, 2), dtype)
        reduced = "_c10d_functional.all_reduce.default"
        z = w.call("all", reduced, [wide, "sum", "tp"], (ROWS, 2), dtype)
        y = w.call("z", "aten.to.dtype", [z, "float32"], (ROWS, 2))
    return w.output(y)


@pytest.mark.parametrize(
    ("types", "verdict"),
    [
        (("float64", "float64"), "proved"),
        (("float64", "float32"), "invalid input"),
    ],
)
def test_ranks_reduce_elements_of_one_type(
    types: tuple[str, str], verdict: str, tmp_path: Path
) -> None:
    ranks = [product(rank, 2, dtype) for rank, dtype in enumerate(types)]
    result = verified(tmp_path, product(), ranks)
    assert result.verdict == verdict, result.reason
    assert (verdict == "proved") != ("all_reduce.default of float32" in result.reason)
