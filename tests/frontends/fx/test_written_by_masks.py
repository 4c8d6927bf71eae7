"""What is written by a mask or by ids: features of images among tokens, minus infinity at the best
score, and the largest entry so far."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import shardproof
from tests.frontends.fx.graphs import Writer, verified

ROWS, TOKENS, WIDTH, EXPERTS = 2, 4, 6, 4
ITEM = "<built-in function getitem>"


def images(rank: int = 0, ranks: int = 1, wrong: bool = False) -> dict[str, Any]:
    """Features of images, in order, at tokens that are 3; a rank has some columns."""
    w = Writer(rank)
    width = WIDTH // ranks
    shape = (ROWS, TOKENS, width)
    ids = w.given("ids", (ROWS, TOKENS), "int64")
    table, features = w.given("table", (9, width)), w.given("features", (3, width))
    rows = w.call("rows", "aten.embedding.default", [table, ids], shape)
    mask = w.call("mask", "aten.eq.Scalar", [ids, 3], (ROWS, TOKENS), "bool")
    mask = w.call("column", "aten.unsqueeze.default", [mask, -1], (ROWS, TOKENS, 1), "bool")
    mask = w.call("wide", "aten.expand.default", [mask, list(shape)], shape, "bool")
    if wrong:
        features = w.call("twice", "aten.mul.Tensor", [features, 2.0], (3, width))
    return w.output(w.call("y", "aten.masked_scatter.default", [rows, mask, features], shape))


def second_best(rank: int = 0, ranks: int = 1, wrong: bool = False) -> dict[str, Any]:
    """The softmax of scores without the largest one, which is minus infinity (Phi's experts)."""
    w = Writer(rank)
    rows = 8 // ranks
    scores = w.given("scores", (rows, EXPERTS))
    w.call("max", "aten.max.dim", [scores, 1, True], None)
    first = w.call("first", ITEM, [{"n": "max"}, 1], (rows, 1), "int64")
    minus = 0.0 if wrong else {"float": "-Infinity"}
    rest = w.call("rest", "aten.scatter.value", [scores, 1, first, minus], (rows, EXPERTS))
    return w.output(w.call("share", "aten.softmax.int", [rest, -1], (rows, EXPERTS)))


def so_far(rank: int = 0, ranks: int = 1, wrong: bool = False) -> dict[str, Any]:
    """The largest entries up to each place of a row."""
    w = Writer(rank)
    rows = 8 // ranks
    x = w.given("x", (rows, WIDTH))
    name = "cummin" if wrong else "cummax"
    w.call("both", f"aten.{name}.default", [x, 1], None)
    return w.output(w.call("y", ITEM, [{"n": "both"}, 0], (rows, WIDTH)))


@pytest.mark.parametrize("wrong", [False, True])
@pytest.mark.parametrize("make", [images, second_best, so_far])
def test_what_masks_and_ids_write(make: Any, wrong: bool, tmp_path: Path) -> None:
    ranks = [make(rank, 2, wrong) for rank in range(2)]
    result = verified(tmp_path, make(), ranks)
    assert result.verdict == ("refuted" if wrong else "proved"), result.reason
    assert wrong or shardproof.check(tmp_path / "run").ok
