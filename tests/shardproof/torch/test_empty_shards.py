"""Dimensions that are too short for all ranks: some hold nothing of a parameter."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

import shardproof.torch as sp
from tests.shardproof.torch.locally import locally

BATCH = {"x": sp.tensor((4, 4)), "y": sp.tensor((4, 1))}


def step(ranks: int, scale: float = 1) -> Callable[[sp.Job], None]:
    """A head of one number, under FSDP2 (and AdamW) if there are several ranks."""

    def run(job: sp.Job) -> None:
        model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 1))
        x, y = (job.batch[name].chunk(ranks)[job.rank] for name in ("x", "y"))
        if ranks > 1:
            fully_shard(model, mesh=init_device_mesh("cpu", (ranks,)))
        optimizer = torch.optim.AdamW(model.parameters())
        job.start(model, optimizer)
        loss = (model(x) - y).pow(2).mean()
        (loss * scale).backward()
        optimizer.step()
        job.end(loss=loss)

    return run


@pytest.mark.parametrize(("scale", "verdict"), [(1.0, "proved"), (2.0, "refuted")])
def test_a_head_of_one_number(tmp_path: Path, scale: float, verdict: str) -> None:
    result = locally(tmp_path, step(1), step(2, scale), BATCH)
    assert result.verdict == verdict, sp.told(result)


def clipped(ranks: int, how: str) -> Callable[[sp.Job], None]:
    """A head of one number whose gradients are clipped: by PyTorch, or by hand, where the ranks'
    squares are "added" up or each takes its "own"."""

    def run(job: sp.Job) -> None:
        model = nn.Sequential(nn.Linear(4, 3), nn.Linear(3, 1))
        x, y = (job.batch[name].chunk(ranks)[job.rank] for name in ("x", "y"))
        if ranks > 1:
            fully_shard(model, mesh=init_device_mesh("cpu", (ranks,)))
        job.start(model)
        loss = (model(x) - y).pow(2).mean()
        loss.backward()
        if how == "torch" or ranks == 1:
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        else:
            own = [p.grad.to_local() for p in model.parameters()]
            total = sum(gradient.norm() ** 2 for gradient in own)
            if how == "added":
                dist.all_reduce(total)
            for gradient in own:
                gradient.mul_(torch.clamp(1.0 / (total.sqrt() + 1e-6), max=1.0))
        job.end(loss=loss)

    return run


@pytest.mark.parametrize(
    ("how", "verdict"), [("torch", "proved"), ("added", "proved"), ("own", "refuted")]
)
def test_clipping_where_a_rank_has_nothing(tmp_path: Path, how: str, verdict: str) -> None:
    result = locally(tmp_path, clipped(1, how), clipped(2, how), BATCH)
    assert result.verdict == verdict, sp.told(result)


class Rows(nn.Module):
    """A table of five rows beside what divides evenly, in one message of FSDP2."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.inner = nn.Embedding(5, 4), nn.Linear(4, 4)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        made: torch.Tensor = self.inner(torch.tanh(self.inner(self.table(ids))))
        return made


def looked_up(ranks: int, scale: float = 1) -> Callable[[sp.Job], None]:
    def run(job: sp.Job) -> None:
        model = Rows()
        ids, y = (job.batch[name].chunk(ranks)[job.rank] for name in ("ids", "y"))
        if ranks > 1:
            fully_shard(model, mesh=init_device_mesh("cpu", (ranks,)))
        optimizer = torch.optim.AdamW(model.parameters())
        job.start(model, optimizer)
        loss = nn.functional.mse_loss(model(ids), y)
        (loss * scale).backward()
        optimizer.step()
        job.end(loss=loss)

    return run


@pytest.mark.parametrize(
    ("ranks", "scale", "verdict"), [(2, 1.0, "proved"), (4, 1.0, "proved"), (2, 2.0, "refuted")]
)
def test_rows_that_are_padded_in_a_message_of_several(
    tmp_path: Path, ranks: int, scale: float, verdict: str
) -> None:
    """On four ranks one has the last row alone, and one has none."""
    batch = {"ids": sp.tensor((4,), torch.int64, low=0, high=5), "y": sp.tensor((4, 4))}
    result = locally(tmp_path, looked_up(1), looked_up(ranks, scale), batch, ranks)
    assert result.verdict == verdict, sp.told(result)
