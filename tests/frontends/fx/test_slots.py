"""Caches of keys that ids read and write: pages by tables of blocks, slots of each sequence."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import shardproof
from tests.frontends.fx.graphs import Writer, verified

ROWS, BLOCKS, SIZE, HEADS, WIDTH = 3, 6, 2, 2, 4


def paged(rank: int = 0, ranks: int = 1, wrong: bool = False) -> dict[str, Any]:
    """Sums over the keys of the pages of each sequence, of which a rank has some heads."""
    w = Writer(rank)
    own = HEADS // ranks
    cache, query = w.given("cache", (BLOCKS, SIZE, own, WIDTH)), w.given("q", (ROWS, own, WIDTH))
    table = w.given("table", (ROWS, 2), "int64")
    pages = w.call("pages", "aten.index.Tensor", [cache, [table]], (ROWS, 2, SIZE, own, WIDTH))
    flat = (ROWS, 2 * SIZE, own, WIDTH)
    keys = w.call("keys", "aten.flatten.using_ints", [pages, 1, 2], flat)
    if wrong:
        keys = w.call("more", "aten.mul.Tensor", [keys, keys], flat)
    formula = "bhd,bthd->bht"
    y = w.call("y", "aten.einsum.default", [formula, [query, keys]], (ROWS, own, 2 * SIZE))
    return w.output(y)


def written(rank: int = 0, ranks: int = 1, wrong: bool = False) -> dict[str, Any]:
    """A key of each sequence written into its slot, of which a rank has some heads."""
    w = Writer(rank)
    own = HEADS // ranks
    shape = (ROWS, SIZE, own, WIDTH)
    cache, key = w.given("cache", shape), w.given("key", (ROWS, own, WIDTH))
    slot = w.given("slot", (ROWS,), "int64")
    every = w.call("every", "aten.arange.default", [ROWS], (ROWS,), "int64")
    if wrong:
        key = w.call("twice", "aten.mul.Scalar", [key, 2.0], (ROWS, own, WIDTH))
    y = w.call("y", "aten.index_put.default", [cache, [every, slot], key], shape)
    return w.output(y)


@pytest.mark.parametrize("graph", [paged, written])
@pytest.mark.parametrize(("wrong", "verdict"), [(False, "proved"), (True, "refuted")])
def test_caches_are_read_and_written_by_ids(
    graph: Any, wrong: bool, verdict: str, tmp_path: Path
) -> None:
    ranks = [graph(rank, 2, wrong) for rank in range(2)]
    result = verified(tmp_path, graph(), ranks)
    assert result.verdict == verdict, result.reason
    if verdict == "proved":
        assert shardproof.check(tmp_path / "run").ok
