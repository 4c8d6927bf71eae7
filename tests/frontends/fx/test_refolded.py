"""Views whose rows are made of other rows: relative positions, beside PyTorch and beside ranks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

import shardproof
from shardproof.frontends.fx import replay
from shardproof.frontends.fx.records import Graph
from shardproof.frontends.graphs.relations import Relations
from tests.frontends.fx.graphs import Writer, verified

HEADS, QUERIES = 4, 3


def aligned(
    rank: int = 0, ranks: int = 1, first: int = 1, columns: int = 2 * QUERIES
) -> dict[str, Any]:
    """Scores of queries by distances, aligned by a view, times a rank's part of weights of heads,
    added up over heads."""
    w = Writer(rank)
    heads = HEADS // ranks
    scores = w.given("scores", (heads, QUERIES, columns))
    weights = w.given("weights", (heads, 1, 1))
    turned = (heads, columns, QUERIES)
    x = w.call("turned", "aten.view.default", [scores, list(turned)], turned)
    rows = (heads, columns - 1, QUERIES)
    x = w.call("rows", "aten.slice.Tensor", [x, 1, first, first + columns - 1], rows)
    back = (heads, QUERIES, columns - 1)
    x = w.call("back", "aten.view.default", [x, list(back)], back)
    square = (heads, QUERIES, QUERIES)
    x = w.call("near", "aten.slice.Tensor", [x, 2, 0, QUERIES], square)
    x = w.call("weighted", "aten.mul.Tensor", [x, weights], square)
    x = w.call("summed", "aten.sum.dim_IntList", [x, [0]], square[1:])
    if ranks > 1:
        reduce = "_c10d_functional.all_reduce.default"
        x = w.call("all", reduce, [x, "sum", "tp"], square[1:])
    return w.output(x)


@pytest.mark.parametrize("columns", [4, 5, 6, 7])
def test_aligned_scores_are_those_of_pytorch(columns: int) -> None:
    graph = msgspec.convert(aligned(columns=columns), Graph)
    replayed = replay.validated(graph, [graph], Relations())
    assert (replayed.replayed, replayed.agrees) == (True, True), replayed


@pytest.mark.parametrize(("first", "verdict"), [(1, "proved"), (0, "refuted")])
def test_ranks_align_the_scores_of_their_heads(first: int, verdict: str, tmp_path: Path) -> None:
    result = verified(tmp_path, aligned(), [aligned(rank, 2, first) for rank in range(2)])
    assert result.verdict == verdict, result.reason
    if verdict == "proved":
        assert shardproof.check(tmp_path / "run").ok


def drawn(random: np.random.Generator) -> dict[str, Any]:
    """Views, parts and permutations of a tensor, one after the other."""
    w = Writer(0)
    shape = [2, *random.integers(2, 6, 2).tolist()]
    x = w.given("x", shape)
    for step in range(4):
        kind = random.integers(3)
        if kind == 0:
            shape = [2, *(shape[1:][::-1] if random.integers(2) else [shape[1] * shape[2], 1])]
            x = w.call(f"view{step}", "aten.reshape.default", [x, list(shape)], list(shape))
        elif kind == 1:
            dim = int(random.integers(1, 3))
            start = int(random.integers(shape[dim]))
            shape = [n - start if d == dim else n for d, n in enumerate(shape)]
            args = [x, dim, start, start + shape[dim]]
            x = w.call(f"part{step}", "aten.slice.Tensor", args, list(shape))
        else:
            shape = [shape[0], shape[2], shape[1]]
            x = w.call(f"turned{step}", "aten.permute.default", [x, [0, 2, 1]], list(shape))
    return w.output(w.call("y", "aten.exp.default", [x], list(shape)))


@pytest.mark.parametrize("seed", range(40))
def test_views_of_views_are_those_of_pytorch(seed: int) -> None:
    graph = msgspec.convert(drawn(np.random.default_rng(seed)), Graph)
    replayed = replay.validated(graph, [graph], Relations())
    assert (replayed.replayed, replayed.agrees) == (True, True), replayed
