"""Scores of which a mask hides some beside others that are all shown, over a temperature
(SimCLR, NT-Xent): the pair's score first, and then those with all others."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn

import shardproof.torch as sp

WIDTH, ROWS = 4, 4
BATCH = {"a": sp.tensor((ROWS, WIDTH)), "b": sp.tensor((ROWS, WIDTH))}

Cooled = Callable[[Tensor, Tensor], Tensor]
#: Scores over a temperature.
COOLED: dict[str, Cooled] = {
    "divided": lambda scores, scale: scores / 0.5,
    "multiplied": lambda scores, scale: 2 * scores,
    "learned": lambda scores, scale: scores * scale.detach().exp(),
}


class Gather(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        parts = [torch.empty_like(x) for _ in range(dist.get_world_size())]
        dist.all_gather(parts, x.contiguous())
        return torch.cat(parts)

    @staticmethod
    def backward(ctx, gradient):
        gradient = gradient.clone()
        dist.all_reduce(gradient)
        return gradient.chunk(dist.get_world_size())[dist.get_rank()]


class Encoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.project, self.scale = nn.Linear(WIDTH, WIDTH), nn.Parameter(torch.ones(()))

    def loss(self, a: Tensor, b: Tensor, ranks: int, first: int, cooled: Cooled) -> Tensor:
        a, b = (F.normalize(self.project(x), dim=-1) for x in (a, b))
        every = Gather.apply(a) if ranks > 1 else a
        own = F.one_hot(torch.arange(len(a)) + first, ROWS).bool()
        others = (a @ every.t()).masked_fill(own, -torch.inf)
        scores = cooled(torch.cat([(a * b).sum(-1, keepdim=True), others], 1), self.scale)
        labels = torch.zeros(len(a), dtype=torch.long)
        return F.cross_entropy(scores, labels) + 0 * self.scale


def step(ranks: int, cooled: Cooled, mistake: bool = False):
    def one(job: sp.Job) -> None:
        model = Encoder()
        job.start(model)
        a, b = (job.batch[n].chunk(ranks)[job.rank % ranks] for n in "ab")
        first = 0 if mistake or ranks == 1 else job.rank * len(a)
        loss = model.loss(a, b, ranks, first, cooled)
        loss.backward()
        for p in model.parameters() if ranks > 1 else ():
            dist.all_reduce(p.grad)
            p.grad /= ranks
        job.end(loss=loss)

    return one


@pytest.mark.parametrize("cooled", COOLED.values(), ids=COOLED)
def test_a_pair_before_all_others(cooled: Cooled) -> None:
    result = sp.verify(step(1, cooled), step(2, cooled), world_size=2, batch=BATCH)
    assert result.verdict == "proved", sp.told(result)


def test_rows_that_hide_another_one_than_themselves_are_refuted() -> None:
    cooled = COOLED["divided"]
    result = sp.verify(step(1, cooled), step(2, cooled, mistake=True), world_size=2, batch=BATCH)
    assert result.verdict == "refuted", sp.told(result)


@pytest.mark.parametrize("factor", [-1.0, 0.0])
def test_minus_infinity_times_what_is_not_positive_is_not_read(factor: float) -> None:
    def cooled(scores: Tensor, scale: Tensor) -> Tensor:
        return scores * factor

    result = sp.verify(step(1, cooled), step(2, cooled), world_size=2, batch=BATCH)
    assert result.verdict == "inconclusive", sp.told(result)
