"""A vocabulary that is divided over ranks, as Megatron looks it up and takes its cross entropy."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn

import shardproof.torch as sp
from tests.shardproof.torch.locally import locally

ROWS, LENGTH, WIDTH, CLASSES, RANKS = 2, 3, 4, 8, 2
OWN = CLASSES // RANKS
BATCH = {
    name: sp.tensor((ROWS, LENGTH), torch.int64, low=0, high=CLASSES) for name in ("ids", "labels")
}


class Reduced(torch.autograd.Function):
    """The sum over ranks; gradients are passed on."""

    @staticmethod
    def forward(_: Any, x: torch.Tensor) -> torch.Tensor:
        dist.all_reduce(x)
        return x

    @staticmethod
    def backward(_: Any, gradient: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
        return gradient


class Copied(torch.autograd.Function):
    """The same on every rank; gradients are added up."""

    @staticmethod
    def forward(_: Any, x: torch.Tensor) -> torch.Tensor:
        return x

    @staticmethod
    def backward(_: Any, gradient: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
        gradient = gradient.clone()
        dist.all_reduce(gradient)
        return gradient


class CrossEntropy(torch.autograd.Function):
    """Of logits of which every rank has the classes from ``start`` on, with labels smoothed by
    ``part``; the gradient is softmax less 1 - ``part`` at the label, where this rank has it, and
    less ``part`` of the mean."""

    @staticmethod
    def forward(
        ctx: Any, logits: torch.Tensor, labels: torch.Tensor, start: int, part: float
    ) -> torch.Tensor:
        most = logits.max(dim=-1)[0]
        dist.all_reduce(most, op=dist.ReduceOp.MAX)
        shifted = logits - most.unsqueeze(-1)
        outside = (labels < start) | (labels >= start + OWN)
        local = labels.clone() - start
        local[outside] = 0
        chosen = shifted[torch.arange(len(labels)), local]
        chosen[outside] = 0.0
        dist.all_reduce(chosen)
        weights = shifted.exp()
        total = weights.sum(dim=-1)
        dist.all_reduce(total)
        ctx.save_for_backward(weights.div_(total.unsqueeze(-1)), outside, local)
        ctx.part = part
        if not part:
            return total.log() - chosen
        mean = shifted.sum(dim=-1)
        dist.all_reduce(mean)
        return total.log() - (1.0 - part) * chosen - part / CLASSES * mean

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:  # type: ignore[override]
        softmax, outside, local = ctx.saved_tensors
        update = 1.0 - outside.float()
        if ctx.part:
            update = (1.0 - ctx.part) * update
        softmax[torch.arange(len(local)), local] -= update
        if ctx.part:
            softmax -= ctx.part / CLASSES
        return softmax.mul_(gradient.unsqueeze(-1)), None, None, None


class Model(nn.Module):
    def __init__(self, classes: int) -> None:
        super().__init__()
        self.table = nn.Embedding(classes, WIDTH)
        self.head = nn.Linear(WIDTH, classes, bias=False)


def single(job: sp.Job, part: float = 0.0) -> None:
    model = Model(CLASSES)
    job.start(model)
    logits = model.head(model.table(job.batch["ids"]).tanh())
    labels = job.batch["labels"].flatten()
    loss = nn.functional.cross_entropy(logits.flatten(0, 1), labels, label_smoothing=part)
    loss.backward()
    job.end(loss=loss)


def parallel(seen: Callable[[int], int], part: float = 0.0) -> Callable[[sp.Job], None]:
    """``seen``: where the classes begin that the loss takes a rank's for; ``part``: how far it
    smooths labels."""

    def step(job: sp.Job) -> None:
        model, first = Model(OWN), job.rank * OWN
        names = ("table.weight", "head.weight")
        job.start(model, parameters={n: sp.piece(n, dim=0, start=first, size=OWN) for n in names})
        ids = job.batch["ids"]
        outside = (ids < first) | (ids >= first + OWN)
        local = ids.clone() - first
        local[outside] = 0
        rows = model.table(local)
        rows[outside, :] = 0.0
        logits = model.head(Copied.apply(Reduced.apply(rows).tanh()))
        labels = job.batch["labels"].flatten()
        loss = CrossEntropy.apply(logits.flatten(0, 1), labels, seen(first), part).mean()
        loss.backward()
        job.end(loss=loss)

    return step


@pytest.mark.parametrize("right", [True, False])
def test_a_divided_vocabulary(tmp_path: Path, right: bool) -> None:
    """It is proved, and replayed; refuted where the loss takes the last rank's classes for those of
    the one before."""
    step = parallel((lambda first: first) if right else (lambda first: max(0, first - OWN)))
    result = sp.verify(
        single,
        step,
        world_size=RANKS,
        batch=BATCH,
        validate=right,
        executor="local",
        cache=False,
        out=tmp_path / "run",
    )
    assert result.verdict == ("proved" if right else "refuted"), sp.told(result)
    assert not right or any("was replayed" in a for a in result.assumptions)


@pytest.mark.parametrize("part", [0.1, 0.2])
def test_smoothed_labels(tmp_path: Path, part: float) -> None:
    """As much as on the single device they are proved, else refuted."""
    one, ranks = partial(single, part=0.1), parallel(lambda first: first, part)
    result = locally(tmp_path, one, ranks, BATCH)
    assert result.verdict == ("proved" if part == 0.1 else "refuted"), sp.told(result)
