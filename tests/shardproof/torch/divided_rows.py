"""A training step of which each rank has its rows, and gradients are means over ranks."""

from __future__ import annotations

from collections.abc import Callable

import torch.distributed as dist
from torch import nn

import shardproof.torch as sp


def trained(make: Callable[[sp.Job], nn.Module]) -> Callable[[sp.Job], None]:
    """The step of what ``make`` makes, on batch ``x``; of one rank the single-device step."""

    def step(job: sp.Job) -> None:
        model = make(job)
        job.start(model)
        own = len(job.batch["x"]) // job.world_size
        loss = model(job.batch["x"][job.rank * own :][:own]).pow(2).mean()
        loss.backward()
        for parameter in model.parameters() if job.world_size > 1 else ():
            dist.all_reduce(parameter.grad, op=dist.ReduceOp.AVG)
        job.end(loss=loss)

    return step
