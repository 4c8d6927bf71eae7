"""Rows one by one, on ranks and in microbatches: what sums over rows adds up to the sum of all."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import nn

import shardproof.torch as sp

ROWS, LENGTH, WIDTH = 4, 3, 4
BATCH = {"x": sp.tensor((ROWS, LENGTH, WIDTH))}


class Placed(nn.Module):
    """A value for every position, of which all rows have the same."""

    def __init__(self) -> None:
        super().__init__()
        self.places = nn.Embedding(LENGTH, WIDTH)
        self.down = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down((x + self.places(torch.arange(LENGTH))).tanh())


def single(job: sp.Job) -> None:
    model = Placed()
    job.start(model)
    loss = model(job.batch["x"]).pow(2).mean()
    loss.backward()
    job.end(loss=loss)


def parallel(divisor: int) -> Callable[[sp.Job], None]:
    """A row is a microbatch; the losses of a rank's are divided by ``divisor``."""

    def step(job: sp.Job) -> None:
        model = Placed()
        job.start(model)
        own, losses = ROWS // job.world_size, []
        for i in range(own):
            row = job.batch["x"][job.rank * own + i :][:1]
            losses.append(model(row).pow(2).mean() / divisor)
            losses[-1].backward()
        for parameter in model.parameters():
            dist.all_reduce(parameter.grad, op=dist.ReduceOp.AVG)
        job.end(loss=losses)

    return step


@pytest.mark.parametrize(
    ("ranks", "divisor", "verdict"),
    [(4, 1, "proved"), (1, 4, "proved"), (2, 2, "proved"), (2, 1, "refuted")],
)
def test_rows_one_by_one(tmp_path: Path, ranks: int, divisor: int, verdict: str) -> None:
    result = sp.verify(
        single,
        parallel(divisor),
        world_size=ranks,
        batch=BATCH,
        executor="local",
        cache=False,
        out=tmp_path / "run",
    )
    assert result.verdict == verdict, sp.told(result)
