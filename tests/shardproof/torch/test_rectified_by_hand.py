"""A rectifier as a product with, or a choice by, where its operand is positive."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn

import shardproof.torch as sp

WIDTH = 4
BATCH = {"x": sp.tensor((4, WIDTH)), "y": sp.tensor((4, WIDTH))}

Function = Callable[[Tensor], Tensor]
#: What the single device computes, and what ranks write.
ALIKE: dict[str, tuple[Function, Function]] = {
    "product": (F.relu, lambda x: x * (x > 0)),
    "choice": (F.relu, lambda x: torch.where(x > 0, x, torch.zeros_like(x))),
    "leaky": (lambda x: F.leaky_relu(x, 0.1), lambda x: torch.where(x > 0, x, 0.1 * x)),
}
#: Others: at 0 the derivative of ``clamp`` is 1; another number, another slope.
UNLIKE: dict[str, tuple[Function, Function]] = {
    "clamp": (F.relu, lambda x: x.clamp(min=0)),
    "another number": (F.relu, lambda x: x * (x > 0.5)),
    "other slope": (lambda x: F.leaky_relu(x, 0.1), lambda x: torch.where(x > 0, x, 0.2 * x)),
}


def verdict(functions: tuple[Function, Function]) -> str:
    def step(ranks: int):
        def one(job: sp.Job) -> None:
            first, last = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
            job.start([first, last])
            x, y = (job.batch[n].chunk(ranks)[job.rank % ranks] for n in "xy")
            loss = F.mse_loss(last(functions[ranks - 1](first(x))), y)
            loss.backward()
            for p in (*first.parameters(), *last.parameters()) if ranks > 1 else ():
                dist.all_reduce(p.grad)
                p.grad /= ranks
            job.end(loss=loss)

        return one

    return sp.verify(step(1), step(2), world_size=2, batch=BATCH).verdict


@pytest.mark.parametrize("functions", ALIKE.values(), ids=ALIKE)
def test_the_same_function_with_the_same_derivative(functions: tuple[Function, Function]) -> None:
    assert verdict(functions) == "proved"


@pytest.mark.parametrize("name", UNLIKE)
def test_another_function_or_derivative_is_not(name: str) -> None:
    assert verdict(UNLIKE[name]) == ("inconclusive" if name == "clamp" else "refuted")
