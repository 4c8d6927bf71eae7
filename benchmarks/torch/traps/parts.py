"""What the traps share: a step of one weight, on one rank."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple, TypeAlias

import torch
from torch import nn

import shardproof.torch as sp
from benchmarks.torch.ordinary.parts import Case, Step

#: The loss, of the weight [4] and the batch.
Loss: TypeAlias = Callable[[torch.Tensor, Mapping[str, torch.Tensor]], torch.Tensor]

#: ``x`` and ``y`` are anything, ``ids`` whole numbers of both signs, ``chosen`` rows of ``y``.
BATCH = {
    "x": sp.tensor((4,)),
    "y": sp.tensor((4, 4)),
    "ids": sp.tensor((4,), torch.int64, low=-50, high=50),
    "chosen": sp.tensor((4,), torch.int64, low=0, high=4),
}


class Weight(nn.Module):
    """One weight, w [4]."""

    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.empty(4))


def step(loss: Loss) -> Step:
    """Loss and gradient of one weight."""

    def run(job: sp.Job) -> None:
        model = Weight()
        job.start(model)
        value = loss(model.w, job.batch)
        value.backward()
        job.end(loss=value)

    return run


class Trap(NamedTuple):
    """``right`` is another way to write ``single``; ``wrong`` differs from both."""

    name: str
    single: Loss
    right: Loss
    wrong: Loss

    @property
    def case(self) -> Case:
        """The same as steps of one rank."""
        right, wrong = step(self.right), step(self.wrong)
        return Case(self.name, step(self.single), right, {"twin": wrong}, BATCH, 1)
