"""A layer on a rank's rows, whose gradient becomes the mean over ranks in one way or another."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

import shardproof.torch as sp

ROWS = WIDTH = 4


def step(mean: Callable[[Any, int], Any] | None) -> Callable[[sp.Job], None]:
    """A layer on a rank's rows, whose gradient becomes what ``mean`` makes of it (None: all rows)."""

    def run(job: sp.Job) -> None:
        model = torch.nn.Linear(WIDTH, WIDTH, bias=False)
        job.start(model)
        x, count = job.batch["x"], ROWS // job.world_size
        own = x if mean is None else x[job.rank * count : (job.rank + 1) * count]
        loss = model(own).tanh().pow(2).mean()
        loss.backward()
        if mean is not None:
            model.weight.grad = mean(model.weight.grad, job.rank)
        job.end(loss=loss)

    return run


def verified(mean: Callable[[Any, int], Any]) -> sp.Result:
    batch = {"x": sp.tensor((ROWS, WIDTH))}
    return sp.verify(step(None), step(mean), world_size=2, batch=batch, validate=True)
