"""Losses of a softmax whose logarithm a program takes itself, beside ``F.cross_entropy``."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn

import shardproof.torch as sp

WIDTH, CLASSES, ROWS = 4, 6, 8
BATCH = {
    "x": sp.tensor((ROWS, WIDTH)),
    "y": sp.tensor((ROWS,), torch.long, low=0, high=CLASSES),
}

Loss = Callable[[Tensor, Tensor], Tensor]
ALIKE: dict[str, Loss] = {
    "all logarithms": lambda z, y: F.nll_loss(z.softmax(-1).log(), y),
    "logarithms, then one": lambda z, y: -z.softmax(-1).log().gather(1, y[:, None]).mean(),
    "by rows and classes": lambda z, y: -z.softmax(-1)[torch.arange(len(y)), y].log().mean(),
    "one, then its logarithm": lambda z, y: -z.softmax(-1).gather(1, y[:, None]).log().mean(),
}
UNLIKE: dict[str, Loss] = {
    "over rows": lambda z, y: F.nll_loss(z.softmax(0).log(), y),
    "added up": lambda z, y: -z.softmax(-1).log().gather(1, y[:, None]).sum(),
    "another class": lambda z, y: -z.softmax(-1).flip(1).gather(1, y[:, None]).log().mean(),
}


def verify(single: Loss, ranks: Loss) -> sp.Result:
    def step(loss_of: Loss, size: int) -> Callable[[sp.Job], None]:
        def one(job: sp.Job) -> None:
            model = nn.Linear(WIDTH, CLASSES)
            job.start(model)
            x, y = (job.batch[n].chunk(size)[job.rank % size] for n in "xy")
            loss = loss_of(model(x), y)
            loss.backward()
            for p in model.parameters() if size > 1 else ():
                dist.all_reduce(p.grad)
                p.grad /= size
            job.end(loss=loss)

        return one

    return sp.verify(step(single, 1), step(ranks, 2), world_size=2, batch=BATCH, validate=True)


@pytest.mark.parametrize("name", ALIKE)
def test_on_either_side_they_are_the_cross_entropy(name: str) -> None:
    assert verify(F.cross_entropy, ALIKE[name]).verdict == "proved"
    assert verify(ALIKE[name], F.cross_entropy).verdict == "proved"


@pytest.mark.parametrize("name", UNLIKE)
def test_others_are_refuted(name: str) -> None:
    assert verify(F.cross_entropy, UNLIKE[name]).verdict == "refuted"
