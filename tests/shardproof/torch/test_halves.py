"""Shards of less than half a head: of a turned projection's gradient, halves are different
values.  There are as many ranks along the axis of the shards as a rank has heads of queries."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    parallelize_module,
)

import shardproof.torch as sp
from shardproof.api import check
from shardproof.engine.plan import unrolled

WIDTH, HEADS, KEYS, SIZE, TP, DP = 4, 8, 2, 8, 2, 4
BATCH = {"ids": sp.tensor((DP, 3), torch.int64, low=0, high=4)}


def turned(heads: torch.Tensor) -> torch.Tensor:
    first, second = heads.chunk(2, dim=-1)
    return heads * 3 + torch.cat((-second, first), dim=-1)


class Turned(nn.Module):
    """Rows of a table, projections to several heads of queries for each head of keys, features of
    all heads turned by halves, their products, and a projection back."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(4, WIDTH)
        self.queries = nn.Linear(WIDTH, HEADS * SIZE, bias=False)
        self.keys = nn.Linear(WIDTH, KEYS * SIZE, bias=False)
        self.down = nn.Linear(HEADS * SIZE, WIDTH, bias=False)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.table(ids)
        queries = turned(self.queries(x).unflatten(-1, (-1, SIZE)))
        keys = turned(self.keys(x).unflatten(-1, (-1, SIZE)))
        grouped = queries.unflatten(-2, (-1, HEADS // KEYS)) * keys.unsqueeze(-2)
        return self.down(grouped.flatten(-3))


def single(job: sp.Job) -> None:
    model = Turned()
    job.start(model)
    loss = model(job.batch["ids"]).pow(2).mean()
    loss.backward()
    job.end(loss=loss)


def parallel(factor: float) -> Callable[[sp.Job], None]:
    def step(job: sp.Job) -> None:
        mesh = init_device_mesh("cpu", (DP, TP), mesh_dim_names=("dp", "tp"))
        plan = {
            "queries": ColwiseParallel(),
            "keys": ColwiseParallel(),
            "down": RowwiseParallel(),
        }
        model = parallelize_module(Turned(), mesh["tp"], plan)
        fully_shard(model, mesh=mesh["dp"])
        job.start(model)
        loss = model(job.batch["ids"].chunk(DP)[mesh.get_local_rank("dp")]).pow(2).mean()
        (loss * factor).backward()
        job.end(loss=loss)

    return step


def told(folder: Path, factor: float) -> sp.Result:
    return sp.verify(
        single,
        parallel(factor),
        world_size=TP * DP,
        batch=BATCH,
        executor="local",
        cache=False,
        out=folder / "run",
    )


def test_ranks_that_hold_other_halves(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Parts of a sum of which no rank has all are read as parts of it: all ranks stay one program,
    in the check too."""
    monkeypatch.setattr(unrolled, "MOST_PROGRAMS", 1)
    result = told(tmp_path, 1)
    assert result.verdict == "proved", sp.told(result)
    assert check(tmp_path / "run").ok


def test_a_gradient_that_is_doubled_is_refuted(tmp_path: Path) -> None:
    assert told(tmp_path, 2).verdict == "refuted"
