"""Steps on a mesh of data and tensor parallel ranks, right ones and wrong ones."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh

import shardproof.torch as sp
from tests.shardproof.torch.steps import MLP, WIDTH, loss_of

HIDDEN = 24


def spec(dp: int) -> dict[str, sp.TensorSpec]:
    return {name: sp.tensor((2 * dp, WIDTH)) for name in ("x", "y")}


class CopyTo(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, group: Any) -> torch.Tensor:
        ctx.group = group
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
        total = gradient.clone()
        dist.all_reduce(total, group=ctx.group)
        return total, None


class ReduceFrom(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, group: Any) -> torch.Tensor:
        total = x.clone()
        dist.all_reduce(total, group=group)
        return total

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
        return gradient, None


class Parallel(MLP):
    group: Any = None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        inner = self.up(CopyTo.apply(self.norm(x), self.group))
        return (
            x
            + ReduceFrom.apply(self.down(torch.nn.functional.gelu(inner)), self.group)
            + (self.bias)
        )


def single(job: sp.Job) -> None:
    model = MLP(HIDDEN)
    job.start(model)
    loss = loss_of(model, job.batch["x"], job.batch["y"])
    loss.backward()
    job.end(loss=loss)


def on_mesh(dp: int, tp: int, fault: str = "", at: int = -1) -> Callable[[sp.Job], None]:
    """A step of ``dp`` x ``tp`` ranks, with a fault on rank (or in row) ``at``."""

    def step(job: sp.Job) -> None:
        mesh = init_device_mesh("cpu", (dp, tp), mesh_dim_names=("dp", "tp"))
        row, column = mesh.get_local_rank("dp"), mesh.get_local_rank("tp")
        size = HIDDEN // tp
        model = Parallel(size)
        model.group = mesh.get_group("tp")
        mean_over = mesh.get_group("dp")
        start = column * size
        if fault == "shard" and job.rank == at:
            start = (column + 1) % tp * size
        if fault == "hidden shard" and int(os.environ["RANK"]) == at:
            start = (column + 1) % tp * size
        if fault == "every shard":
            start = -column % tp * size
        if fault == "group" and row == at:
            model.group = mean_over
        part = {"start": start, "size": size}
        job.start(
            model,
            parameters={
                "up.weight": sp.piece("up.weight", dim=0, **part),
                "up.bias": sp.piece("up.bias", dim=0, **part),
                "down.weight": sp.piece("down.weight", dim=1, **part),
            },
        )
        x, y = (job.batch[name][row * 2 : row * 2 + 2] for name in ("x", "y"))
        loss = loss_of(model, x, y)
        loss.backward()
        for parameter in model.parameters():
            if fault == "not reduced" and job.rank == at:
                continue
            gradient = parameter.grad
            assert gradient is not None
            dist.all_reduce(gradient, group=mean_over)
            if not (fault == "not divided" and job.rank == at):
                gradient.div_(dp)
        job.end(loss=loss)

    return step
