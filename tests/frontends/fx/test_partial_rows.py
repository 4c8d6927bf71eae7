"""Sums that nobody takes, of which every rank has one row or one block."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import shardproof
from tests.frontends.fx.graphs import Writer, write

ROWS = 4


def summed(blocks: int) -> dict[str, Any]:
    """exp(x), added up over its blocks of rows."""
    w = Writer(0)
    y = w.call("y", "aten.exp.default", [w.given("x", (ROWS, 3))], (ROWS, 3))
    shape = (blocks, ROWS // blocks, 3)
    y = w.call("view", "aten.view.default", [y, list(shape)], shape)
    return w.output(w.call("sum", "aten.sum.dim_IntList", [y, [0]], shape[1:]))


def own(rank: int, ranks: int, factor: float) -> dict[str, Any]:
    """A rank's block of it."""
    w = Writer(rank)
    shape = (ROWS // ranks, 3)
    y = w.call("y", "aten.exp.default", [w.given("x", shape)], shape)
    return w.output(w.call("own", "aten.mul.Scalar", [y, factor], shape))


@pytest.mark.parametrize("ranks", [2, 4])
@pytest.mark.parametrize("factor", [1.0, 2.0])
def test_blocks_of_ranks_add_up_to_the_sum_over_blocks(
    ranks: int, factor: float, tmp_path: Path
) -> None:
    single = write(tmp_path / "single", [summed(ranks)])
    parallel = write(tmp_path / "ranks", [own(rank, ranks, factor) for rank in range(ranks)])
    relations, run = tmp_path / "relations.toml", tmp_path / "run"
    relations.write_text('[[outputs]]\nsingle = "sum"\nparallel = "own"\nsum = true\n')
    result = shardproof.verify(single, parallel, relations=relations, out=run, cache=False)
    assert result.verdict == ("refuted" if factor > 1 else "proved"), result.reason
    assert shardproof.check(run).ok
