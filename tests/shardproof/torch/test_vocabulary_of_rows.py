"""A divided vocabulary under sequence parallelism where each replica has one row of the batch: of
logits a rank has one half of the classes at one of the rows, both positions of many."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn

import shardproof.torch as sp

ROWS, LENGTH, WIDTH, CLASSES, TP = 2, 4, 3, 10, 2
OWN = CLASSES // TP
BATCH = {
    "x": sp.tensor((ROWS, LENGTH, WIDTH)),
    "labels": sp.tensor((ROWS, LENGTH), torch.int64, low=0, high=CLASSES),
}


class Gathered(torch.autograd.Function):
    """All positions of the sequence, which comes first; gradients are added up and divided."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, group: Any) -> torch.Tensor:
        ctx.group = group
        parts = [torch.empty_like(x) for _ in range(TP)]
        dist.all_gather(parts, x.contiguous(), group=group)
        return torch.cat(parts)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:  # type: ignore[override]
        gradient = gradient.clone()
        dist.all_reduce(gradient, group=ctx.group)
        return gradient.chunk(TP)[dist.get_rank(ctx.group)], None


class CrossEntropy(torch.autograd.Function):
    """Of logits of which every rank has the classes from ``start`` on, as Megatron takes it."""

    @staticmethod
    def forward(
        ctx: Any, logits: torch.Tensor, labels: torch.Tensor, start: int, group: Any
    ) -> torch.Tensor:
        most = logits.max(dim=-1)[0]
        dist.all_reduce(most, op=dist.ReduceOp.MAX, group=group)
        shifted = logits - most.unsqueeze(-1)
        outside = (labels < start) | (labels >= start + OWN)
        local = labels.clone() - start
        local[outside] = 0
        own = local.view(-1)
        chosen = shifted.view(-1, OWN)[torch.arange(len(own)), own].clone().view_as(labels)
        chosen[outside] = 0.0
        dist.all_reduce(chosen, group=group)
        weights = shifted.exp()
        total = weights.sum(dim=-1)
        dist.all_reduce(total, group=group)
        ctx.save_for_backward(weights.div_(total.unsqueeze(-1)), outside, own)
        return total.log() - chosen

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:  # type: ignore[override]
        softmax, outside, own = ctx.saved_tensors
        flat = softmax.view(-1, OWN)
        flat[torch.arange(len(own)), own] -= 1.0 - outside.view(-1).float()
        return softmax.mul_(gradient.unsqueeze(-1)), None, None, None


class Model(nn.Module):
    def __init__(self, classes: int) -> None:
        super().__init__()
        self.first = nn.Linear(WIDTH, 4, bias=False)
        self.head = nn.Linear(4, classes, bias=False)


def single(job: sp.Job) -> None:
    model = Model(CLASSES)
    job.start(model)
    logits = model.head(model.first(job.batch["x"].transpose(0, 1)).tanh())
    labels = job.batch["labels"].t().flatten()
    loss = nn.functional.cross_entropy(logits.flatten(0, 1), labels)
    loss.backward()
    job.end(loss=loss)


def parallel(seen: Callable[[int], int]) -> Callable[[sp.Job], None]:
    """``seen``: where the classes begin that the loss takes a rank's for."""

    def step(job: sp.Job) -> None:
        part, row = job.rank % TP, job.rank // TP
        rows = [dist.new_group([0, 1]), dist.new_group([2, 3])]
        parts = [dist.new_group([0, 2]), dist.new_group([1, 3])]
        model = Model(OWN)
        head = sp.piece("head.weight", dim=0, start=part * OWN, size=OWN)
        job.start(model, parameters={"head.weight": head})
        x = job.batch["x"][row : row + 1].transpose(0, 1).chunk(TP)[part]
        labels = job.batch["labels"][row : row + 1].t()
        logits = model.head(Gathered.apply(model.first(x).tanh(), rows[row]))
        loss = CrossEntropy.apply(logits, labels, seen(part * OWN), rows[row]).mean()
        loss.backward()
        for weight, group in ((model.first.weight, None), (model.head.weight, parts[part])):
            dist.all_reduce(weight.grad, group=group)
            weight.grad /= ROWS
        job.end(loss=loss)

    return step


@pytest.mark.parametrize("right", [True, False])
def test_one_row_for_each_replica(tmp_path: Path, right: bool) -> None:
    result = sp.verify(
        single,
        parallel((lambda first: first) if right else (lambda _: 0)),
        world_size=ROWS * TP,
        batch=BATCH,
        executor="local",
        cache=False,
        out=tmp_path / "run",
    )
    assert result.verdict == ("proved" if right else "refuted"), sp.told(result)
