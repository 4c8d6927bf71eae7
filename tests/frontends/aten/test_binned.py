"""Histograms of ids are sums of one-hots, held against PyTorch; counts of experts over ranks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import shardproof
from shardproof.engine.algebra.affine import affine
from shardproof.engine.plan.ir import Shard
from shardproof.frontends.aten import Lowering, rule_of
from tests.frontends.aten.evaluated import evaluated
from tests.frontends.fx.graphs import Writer, verified


@pytest.mark.parametrize("seed", range(20))
def test_a_histogram_of_ids_is_what_pytorch_says(seed: int) -> None:
    """Bins of one id, of several, of none; ids beyond the last one."""
    rng = np.random.default_rng(seed)
    size, count, low = int(rng.integers(1, 7)), int(rng.integers(1, 9)), int(rng.integers(-1, 2))
    bins = [int(rng.integers(1, 6)), low, low + int(rng.integers(1, 6))]
    if seed % 4 == 0 and size > 1:
        bins = [size, 0, size - 1]
    ids = rng.integers(0, size, count)
    lo = Lowering()
    given = lo.hold(Shard("ids", (count,), (count,), (affine(0),), "int64", domain=(0, size)))
    lo.expected = [((count,), "float64")]
    cast, histogram = rule_of("aten.to.dtype"), rule_of("aten.histc.default")
    assert cast is not None
    assert histogram is not None
    numbers = cast(lo, given, "float64")
    lo.expected = [((bins[0],), "float64")]
    made = lo.real(histogram(lo, numbers, *bins))
    assert not any(op.name == "relu" for op in lo.ops)  # no comparison of numbers
    wanted = torch.histc(torch.tensor(ids).double(), *bins)
    got = evaluated(lo, {v: ids for v, _ in lo.bound})[made.number]
    np.testing.assert_array_equal(got, wanted.numpy())


def counts(rank: int = 0, ranks: int = 1, most: int = 3, reduces: bool = True) -> dict[str, Any]:
    """How many of eight rows choose each of four experts: by one-hots on one device, by a histogram
    of each rank's rows."""
    w = Writer(rank)
    rows = 8 // ranks
    scores = w.given("scores", (rows, 4))
    ids = w.call("ids", "aten.argmax.default", [scores, 1], (rows,), "int64")
    if ranks == 1:
        hot = w.call("hot", "aten.one_hot.default", [ids, 4], (rows, 4), "int64")
        total = w.call("total", "aten.sum.dim_IntList", [hot, [0]], (4,), "int64")
        return w.output(w.call("real", "aten.to.dtype", [total, "float32"], (4,)))
    real = w.call("real", "aten.to.dtype", [ids, "float32"], (rows,))
    total = w.call("total", "aten.histc.default", [real, 4, 0, most], (4,))
    if reduces:
        total = w.call("all", "_c10d_functional.all_reduce.default", [total, "sum", "dp"], (4,))
    return w.output(total)


@pytest.mark.parametrize(
    ("changed", "verdict"),
    [({}, "proved"), ({"most": 2}, "refuted"), ({"reduces": False}, "refuted")],
)
def test_counts_of_experts_over_ranks(
    changed: dict[str, Any], verdict: str, tmp_path: Path
) -> None:
    result = verified(tmp_path, counts(), [counts(rank, 2, **changed) for rank in range(2)])
    assert result.verdict == verdict, result.reason
    if verdict == "proved":
        assert shardproof.check(tmp_path / "run").ok
