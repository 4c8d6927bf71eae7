"""Rows of a table that is cut over ranks, by an index: ``table[ids - first]``, ids outside masked."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import torch.distributed as dist  # noqa: E402
from torch import nn  # noqa: E402

import shardproof.torch as sp  # noqa: E402

HERE: dict[str, Any] = {"executor": "local", "cache": False, "validate": True}
WAYS: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "clamped": lambda own, outside: own.clamp(0, 3),
    "filled": lambda own, outside: own.masked_fill(outside, 0),
    # An index that is negative counts from the end: what is chosen so is zeroed as well.
    "negative": lambda own, outside: own.masked_fill(outside, -1),
}


class Table(nn.Module):
    def __init__(self, rows: torch.Tensor) -> None:
        super().__init__()
        self.rows = nn.Parameter(rows)


def single(job: sp.Job) -> None:
    model = Table(torch.randn(8, 4))
    job.start(model)
    loss = (model.rows[job.batch["ids"]] * job.batch["by"]).sum()
    loss.backward()
    job.end(loss=loss)


def parallel(way: str, masked: bool = True) -> Callable[[sp.Job], None]:
    def step(job: sp.Job) -> None:
        model = Table(job.full["rows"].chunk(2)[job.rank].clone())
        job.start(model)
        own = job.batch["ids"] - 4 * job.rank
        outside = (own < 0) | (own >= 4)
        rows = model.rows[WAYS[way](own, outside)]
        if masked:
            rows = rows.masked_fill(outside.unsqueeze(-1), 0.0)
        loss = (rows * job.batch["by"]).sum()
        loss.backward()
        total = loss.detach().clone()
        dist.all_reduce(total)
        job.end(loss=total)

    return step


@pytest.mark.parametrize(
    ("way", "masked", "shape", "verdict"),
    [
        ("clamped", True, (5,), "proved"),
        ("filled", True, (3, 2), "proved"),
        ("negative", True, (5,), "proved"),
        ("filled", False, (5,), "refuted"),
    ],
)
def test_rows_by_an_index(
    tmp_path: Path, way: str, masked: bool, shape: tuple[int, ...], verdict: str
) -> None:
    ids = sp.tensor(shape, torch.long, low=0, high=8)
    result = sp.verify(
        single,
        parallel(way, masked),
        world_size=2,
        batch={"ids": ids, "by": sp.tensor((*shape, 4))},
        **HERE,
        out=tmp_path / "run",
    )
    assert result.verdict == verdict, result
