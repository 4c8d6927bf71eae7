"""A router that takes experts of its best group alone: the others' scores are hidden by a mask of
ones in which the group's place is a zero, as DeepSeek writes it."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn

import shardproof.torch as sp

WIDTH, GROUPS, EXPERTS = 4, 2, 4
BATCH = {"x": sp.tensor((4, WIDTH)), "y": sp.tensor((4, WIDTH))}

Hidden = Callable[[Tensor, Tensor], Tensor]


def zeros_among_ones(best: Tensor, like: Tensor) -> Tensor:
    return torch.ones_like(like, dtype=torch.bool).scatter(1, best, False)


def whole_numbers(best: Tensor, like: Tensor) -> Tensor:
    return torch.ones_like(like, dtype=torch.long).scatter(1, best, 0) == 1


def ones_among_zeros(best: Tensor, like: Tensor) -> Tensor:
    return ~torch.zeros_like(like).scatter(1, best, 1.0).bool()


class Router(nn.Module):
    def __init__(self, hidden: Hidden) -> None:
        super().__init__()
        self.hidden, self.gate = hidden, nn.Linear(WIDTH, EXPERTS, bias=False)
        self.experts = nn.Parameter(torch.zeros(EXPERTS, WIDTH, WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        scores = self.gate(x).sigmoid()
        grouped = scores.unflatten(1, (GROUPS, -1))
        best = grouped.amax(-1).topk(1, -1).indices
        mask = self.hidden(best, grouped[..., 0])
        shown = grouped.masked_fill(mask[..., None], -torch.inf).flatten(1)
        chosen = shown.topk(1, -1).indices
        weights = torch.zeros_like(scores).scatter(1, chosen, scores.gather(1, chosen))
        return torch.einsum("te,td,edh->th", weights, x, self.experts)


def step(ranks: int, hidden: Hidden):
    def one(job: sp.Job) -> None:
        model = Router(hidden)
        job.start(model)
        x, y = (job.batch[n].chunk(ranks)[job.rank % ranks] for n in "xy")
        loss = F.mse_loss(model(x), y)
        loss.backward()
        for p in model.parameters() if ranks > 1 else ():
            dist.all_reduce(p.grad)
            p.grad /= ranks
        job.end(loss=loss)

    return one


@pytest.mark.parametrize(
    ("single", "parallel"),
    [(zeros_among_ones, ones_among_zeros), (whole_numbers, whole_numbers)],
    ids=["another mask", "whole numbers"],
)
def test_zeros_that_are_written_among_ones(single: Hidden, parallel: Hidden) -> None:
    result = sp.verify(step(1, single), step(2, parallel), world_size=2, batch=BATCH)
    assert result.verdict == "proved", sp.told(result)


def test_the_best_group_hidden_in_place_of_others_is_refuted() -> None:
    wrong = step(2, lambda best, like: ~zeros_among_ones(best, like))
    result = sp.verify(step(1, zeros_among_ones), wrong, world_size=2, batch=BATCH)
    assert result.verdict == "refuted", sp.told(result)
