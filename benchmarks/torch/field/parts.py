"""What the programs share: a bug, a model of two products, gradients over ranks."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

import shardproof.torch as sp

Step = Callable[[sp.Job], None]
WIDTH, HIDDEN, ROWS = 4, 6, 8


class Bug(NamedTuple):
    """``name``: what is wrong; ``reported``: where it was; ``make``: the parallel step, with it
    or without."""

    name: str
    reported: str
    single: Step
    make: Callable[[bool], Step]
    batch: Mapping[str, sp.TensorSpec]
    world_size: int = 2


VECTORS = {"x": sp.tensor((ROWS, WIDTH)), "y": sp.tensor((ROWS, WIDTH))}


class Two(nn.Module):
    def __init__(self, hidden: int = HIDDEN) -> None:
        super().__init__()
        self.up = nn.Linear(WIDTH, hidden, bias=False)
        self.down = nn.Linear(hidden, WIDTH, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(torch.tanh(self.up(x)))  # type: ignore[no-any-return]


def plain(job: sp.Job) -> None:
    model = Two()
    job.start(model)
    loss = F.mse_loss(model(job.batch["x"]), job.batch["y"])
    loss.backward()
    job.end(loss=loss)


def own(job: sp.Job, *names: str) -> list[torch.Tensor]:
    """This rank's rows."""
    return [job.batch[name].chunk(job.world_size)[job.rank] for name in names]


def averaged(parameters: Iterable[nn.Parameter], size: float, group: Any = None) -> None:
    """Gradients become their sum over ranks, divided by ``size``."""
    for parameter in parameters:
        dist.all_reduce(parameter.grad, group=group)
        if size != 1:
            grad(parameter).div_(size)


def grad(parameter: nn.Parameter) -> torch.Tensor:
    assert parameter.grad is not None
    return parameter.grad


def cut(job: sp.Job, model: nn.Module, dims: Mapping[str, int], size: int, at: int) -> None:
    """Parameters become their parts of the full ones, along the dimensions that are named."""
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            full = job.full[name]
            if name in dims:
                full = full.chunk(size, dims[name])[at]
            parameter.copy_(full)
