"""Memory that nothing has written, which a rank reads on the way to nothing that is compared."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.pipelining import PipelineStage, ScheduleGPipe
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    parallelize_module,
)
from torch.nn import functional as F

import shardproof.torch as sp

BATCH = {"x": sp.tensor((8, 8)), "y": sp.tensor((8, 8))}


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(8), nn.Linear(8, 16), nn.Linear(16, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(F.gelu(self.up(self.norm(x))))


class Blocks(nn.Module):
    """All blocks, or those of a stage, with the names that they have among all."""

    def __init__(self, own: dict[str, Block]) -> None:
        super().__init__()
        self.blocks = nn.ModuleDict(own)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks.values():
            x = block(x)
        return x


def whole() -> Blocks:
    return Blocks({"0": Block(), "1": Block()})


def single(job: sp.Job) -> None:
    model = whole()
    job.start(model)
    loss = F.mse_loss(model(job.batch["x"]), job.batch["y"])
    loss.backward()
    job.end(loss=loss)


def stages(scale: float) -> Callable[[sp.Job], None]:
    """Two stages of two ranks each; their shapes are found by running them on empty tensors."""

    def parallel(job: sp.Job) -> None:
        mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("pp", "tp"))
        number = mesh.get_local_rank("pp")
        block = Block()
        plan = {"up": ColwiseParallel(), "down": RowwiseParallel()}
        parallelize_module(block, mesh["tp"], plan)
        model = Blocks({str(number): block})
        job.start(model)
        group = mesh["pp"].get_group()
        stage = PipelineStage(model, number, 2, torch.device("cpu"), group=group)
        schedule = ScheduleGPipe(stage, 2, loss_fn=lambda x, y: scale * F.mse_loss(x, y))
        losses: list[Any] = []
        if number:
            schedule.step(target=job.batch["y"], losses=losses)
            job.end(loss=sum(losses) / 2 / scale)
        else:
            schedule.step(job.batch["x"])
            job.end()

    return parallel


@pytest.mark.parametrize(("scale", "verdict"), [(1.0, "proved"), (2.0, "refuted")])
def test_stages_of_tensor_parallel_ranks(scale: float, verdict: str) -> None:
    """Empty tensors go through the collectives of every stage, and to nothing else."""
    result = sp.verify(single, stages(scale), world_size=4, batch=BATCH, cache=False)
    assert result.verdict == verdict, sp.told(result)


def reads(use: Callable[[sp.Job, torch.Tensor], torch.Tensor]) -> Callable[[sp.Job], None]:
    """Both ranks do the whole step; ``use``: what becomes of memory that nothing has written."""

    def parallel(job: sp.Job) -> None:
        model = whole()
        job.start(model)
        loss = F.mse_loss(model(job.batch["x"]), job.batch["y"])
        rest = use(job, torch.empty(8).exp())
        loss.backward()
        job.end(loss=loss + 0 * rest.sum())

    return parallel


def left(job: sp.Job, x: torch.Tensor) -> torch.Tensor:
    dist.all_reduce(x)
    return job.batch["y"]


def added_up(job: sp.Job, x: torch.Tensor) -> torch.Tensor:
    dist.all_reduce(x)
    return x


def rank_0_has(job: sp.Job, x: torch.Tensor) -> torch.Tensor:
    there = x if job.rank else torch.ones(8)
    dist.all_reduce(there)
    return there


def whole_numbers_left(job: sp.Job, x: torch.Tensor) -> torch.Tensor:
    dist.all_reduce(
        torch.empty(8, dtype=torch.long) if job.rank else torch.ones(8, dtype=torch.long)
    )
    return job.batch["y"]


def sent(job: sp.Job, x: torch.Tensor) -> torch.Tensor:
    if not job.rank:
        dist.send(x, 1)
        return job.batch["y"]
    there = torch.zeros(8)
    dist.recv(there, 0)
    return there


def sent_and_left(job: sp.Job, x: torch.Tensor) -> torch.Tensor:
    sent(job, x)
    return job.batch["y"]


@pytest.mark.parametrize("use", [left, sent_and_left])
def test_what_nobody_uses_is_left(use: Callable[[sp.Job, torch.Tensor], torch.Tensor]) -> None:
    result = sp.verify(single, reads(use), world_size=2, batch=BATCH, cache=False)
    assert result.verdict == "proved", sp.told(result)


@pytest.mark.parametrize("use", [added_up, rank_0_has, sent, whole_numbers_left])
def test_what_a_rank_uses_is_not(use: Callable[[sp.Job, torch.Tensor], torch.Tensor]) -> None:
    """Times 0 it is not 0 where it is no number; whole numbers are not read so."""
    result = sp.verify(single, reads(use), world_size=2, batch=BATCH, cache=False)
    assert result.verdict == "inconclusive", sp.told(result)
    assert "memory that nothing has written" in result.reason
