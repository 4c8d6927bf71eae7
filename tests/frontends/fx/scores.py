"""Scores of words, of which each rank has some columns."""

from __future__ import annotations

from typing import Any

from shardproof.frontends.fx.records import GETITEM
from tests.frontends.fx.graphs import Writer

ROWS, WORDS, WIDTH = 5, 6, 4


def of_rank(w: Writer, ranks: int) -> Any:
    """The scores of a rank's own words for each row, [rows, words / ranks]."""
    own = WORDS // ranks
    x, head = w.given("x", (ROWS, WIDTH)), w.given("head", (WIDTH, own))
    return w.call("z", "aten.mm.default", [x, head], (ROWS, own))


def word(w: Writer, scores: Any) -> Any:
    """What one device gives: the word of the largest score of each row."""
    return w.output(w.call("y", "aten.argmax.default", [scores, -1], (ROWS,), "int64"))


def largest_of(w: Writer, scores: Any) -> tuple[Any, Any]:
    """The largest of a rank's own scores of each row, and its place among these."""
    w.call("m", "aten.max.dim", [scores, -1], None)
    value = w.call("v", GETITEM, [{"n": "m"}, 0], (ROWS,))
    return value, w.call("i", GETITEM, [{"n": "m"}, 1], (ROWS,), "int64")
