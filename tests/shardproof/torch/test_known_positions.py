"""Learned positions over ranks, and masks of positions that multiply: what is known, entry by entry."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import torch.distributed as dist  # noqa: E402
import torch.nn.functional as F  # noqa: E402
from torch import nn  # noqa: E402
from torch.distributed._functional_collectives import all_reduce  # noqa: E402
from torch.distributed.device_mesh import init_device_mesh  # noqa: E402
from torch.distributed.tensor import Replicate  # noqa: E402
from torch.distributed.tensor.parallel import (  # noqa: E402
    RowwiseParallel,
    parallelize_module,
)

import shardproof.torch as sp  # noqa: E402

HERE: dict[str, Any] = {"executor": "local", "cache": False, "validate": True}


class Positions(nn.Module):
    def __init__(self, rows: int = 4) -> None:
        super().__init__()
        self.place = nn.Embedding(rows, 4)
        self.out = nn.Linear(4, 4, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.out(x + self.place(torch.arange(x.size(1))))


def single(job: sp.Job) -> None:
    model = Positions()
    job.start(model)
    loss = F.mse_loss(model(job.batch["x"]), job.batch["y"])
    loss.backward()
    job.end(loss=loss)


def planned(job: sp.Job) -> None:
    """By PyTorch's plan: each rank looks up the positions that it has, zeros for others."""
    mesh = init_device_mesh("cpu", (2,), mesh_dim_names=("tp",))
    model = Positions()
    style = RowwiseParallel(input_layouts=Replicate(), output_layouts=Replicate())
    parallelize_module(model, mesh, {"place": style})
    job.start(model)
    loss = F.mse_loss(model(job.batch["x"]), job.batch["y"])
    loss.backward()
    job.end(loss=loss)


class Copied(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return all_reduce(x, "sum", dist.group.WORLD)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
        return grad


def by_hand(shift: int) -> Callable[[sp.Job], None]:
    """Rows of positions by rank, looked up as a vocabulary in parts is."""

    def step(job: sp.Job) -> None:
        model = Positions(2)
        first = 2 * job.rank
        job.start(
            model, parameters={"place.weight": sp.piece("place.weight", dim=0, start=first, size=2)}
        )
        x = job.batch["x"]
        own = torch.arange(4) - first
        outside = (own < 0) | (own >= 2)
        rows = model.place(own.clamp(0, 1 - shift)).masked_fill(outside[:, None], 0.0)
        loss = F.mse_loss(model.out(x + Copied.apply(rows)), job.batch["y"])
        loss.backward()
        job.end(loss=loss)

    return step


@pytest.mark.parametrize(
    ("step", "verdict"),
    [(planned, "proved"), (by_hand(0), "proved"), (by_hand(1), "refuted")],
    ids=["planned", "by hand", "one row for both"],
)
def test_positions_over_ranks(step: Callable[[sp.Job], None], verdict: str) -> None:
    batch = {"x": sp.tensor((2, 4, 4), torch.float32), "y": sp.tensor((2, 4, 4), torch.float32)}
    result = sp.verify(single, step, world_size=2, batch=batch, **HERE)
    assert result.verdict == verdict, result.reason


def weighted(job: sp.Job) -> None:
    """The first three positions are a prompt, whose loss does not count."""
    model = Positions()
    job.start(model)
    counts = (torch.arange(4) >= 3).float()
    gap = (model(job.batch["x"]) - job.batch["y"]).square().mean(-1)
    loss = (gap * counts).sum() / counts.sum()
    loss.backward()
    job.end(loss=loss)


def in_parts(prompt: int) -> Callable[[sp.Job], None]:
    def step(job: sp.Job) -> None:
        model = Positions()
        job.start(model)
        own = slice(2 * job.rank, 2 * job.rank + 2)
        counts = (torch.arange(4) >= prompt).float()
        x = job.batch["x"][:, own] + model.place(torch.arange(4)[own])
        gap = (model.out(x) - job.batch["y"][:, own]).square().mean(-1)
        loss = (gap * counts[own]).sum() / counts.sum()
        loss.backward()
        for parameter in model.parameters():
            dist.all_reduce(parameter.grad)
        total = loss.detach().clone()
        dist.all_reduce(total)
        job.end(loss=total)

    return step


@pytest.mark.parametrize(("prompt", "verdict"), [(3, "proved"), (2, "refuted")])
def test_positions_that_do_not_count(prompt: int, verdict: str) -> None:
    batch = {"x": sp.tensor((2, 4, 4), torch.float32), "y": sp.tensor((2, 4, 4), torch.float32)}
    result = sp.verify(weighted, in_parts(prompt), world_size=2, batch=batch, **HERE)
    assert result.verdict == verdict, result.reason
