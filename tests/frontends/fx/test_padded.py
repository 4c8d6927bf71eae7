"""Positions beside padding: running sums of a mask, and another number where it is zero."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import shardproof
from tests.frontends.fx.graphs import Writer, verified

ROWS, TOKENS, WIDTH, MOST = 2, 4, 4, 6


def positions(w: Writer, wrong: str) -> Any:
    """``(mask.cumsum(-1) - 1).masked_fill(mask == 0, 1)``."""
    shape = (ROWS, TOKENS)
    mask = w.given("mask", shape, "int64")
    sums = w.call("sums", "aten.cumsum.default", [mask, -1], shape, "int64")
    less = 2 if wrong == "sums" else 1
    places = w.call("places", "aten.sub.Tensor", [sums, less], shape, "int64")
    other = w.given("other", shape, "int64") if wrong == "mask" else mask
    test = "gt" if wrong == "test" else "eq"
    pad = w.call("pad", f"aten.{test}.Scalar", [other, 0], shape, "bool")
    number = {"number": 2, "none": MOST}.get(wrong, 1)
    return w.call("filled", "aten.masked_fill.Scalar", [places, pad, number], shape, "int64")


def rows(rank: int = 0, ranks: int = 1, wrong: str = "") -> dict[str, Any]:
    """Rows by positions, and the gradient of their table; a rank has some columns."""
    w = Writer(rank)
    width = WIDTH // ranks
    shape = (ROWS, TOKENS, width)
    places = positions(w, wrong)
    table, given = w.given("table", (MOST, width)), w.given("given", shape)
    w.call("rows", "aten.embedding.default", [table, places], shape)
    gradient = [given, places, MOST, -1, False]
    w.call("gradient", "aten.embedding_dense_backward.default", gradient, (MOST, width))
    return w.output({"n": "rows"}, {"n": "gradient"})


def angles(rank: int = 0, ranks: int = 1, wrong: str = "") -> dict[str, Any]:
    """Positions as numbers times frequencies, of which a rank has some."""
    w = Writer(rank)
    shape = (ROWS, TOKENS, WIDTH // ranks)
    places = positions(w, wrong)
    number = w.call("number", "aten.to.dtype", [places, "float32"], (ROWS, TOKENS))
    column = w.call("column", "aten.unsqueeze.default", [number, -1], (ROWS, TOKENS, 1))
    frequencies = w.given("frequencies", (WIDTH // ranks,))
    return w.output(w.call("y", "aten.mul.Tensor", [column, frequencies], shape))


@pytest.mark.parametrize(
    ("make", "wrong", "expected"),
    [
        (rows, "", "proved"),
        (rows, "number", "refuted"),
        (angles, "", "proved"),
        (angles, "number", "refuted"),
    ],
)
def test_positions_beside_padding(make: Any, wrong: str, expected: str, tmp_path: Path) -> None:
    result = verified(tmp_path, make(), [make(rank, 2, wrong) for rank in range(2)])
    assert result.verdict == expected, result.reason
    assert wrong or shardproof.check(tmp_path / "run").ok


@pytest.mark.parametrize("wrong", ["mask", "sums", "test", "none"])
def test_what_may_be_no_row_is_not_proved(wrong: str, tmp_path: Path) -> None:
    """Both sides alike: of a place that is kept before the first one nobody says what is read."""
    result = verified(tmp_path, rows(0, 1, wrong), [rows(rank, 2, wrong) for rank in range(2)])
    assert result.verdict == "inconclusive"
    assert "is not understood" in str(result.reason)
