"""Weights of 4 bits, two codes in a whole number of 8: shifted, masked, looked up among levels."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn.functional import linear

import shardproof.torch as sp
from tests.shardproof.torch.locally import Step, locally
from tests.shardproof.torch.steps import CopyTo, ReduceFrom

WIDTH = 4
BATCH = {
    "x": sp.tensor((3, WIDTH)),
    "codes": sp.tensor((WIDTH, WIDTH // 2), torch.uint8, low=0, high=256),
}


class Adapted(nn.Module):
    """A linear layer of codes, with an adapter; the levels of codes are learnt."""

    def __init__(self, rows: int) -> None:
        super().__init__()
        self.levels = nn.Parameter(torch.randn(16))
        self.a, self.b = nn.Linear(WIDTH, 1, bias=False), nn.Linear(1, rows, bias=False)

    def forward(self, x: torch.Tensor, codes: torch.Tensor, own: torch.Tensor) -> torch.Tensor:
        both = torch.stack([codes >> 4, codes & 15], -1).flatten(1)
        return linear(x, self.levels[both.long()]) + self.b(linear(x, own))


def single(job: sp.Job) -> None:
    model = Adapted(WIDTH)
    job.start(model)
    loss = model(job.batch["x"], job.batch["codes"], model.a.weight).square().sum()
    loss.backward()
    job.end(loss=loss)


def rows_over_ranks(mistake: bool) -> Step:
    """``mistake``: the gradient of the adapter's first half stays a part on each rank."""

    def step(job: sp.Job) -> None:
        model = Adapted(WIDTH // 2)
        model.b.weight = nn.Parameter(job.full["b.weight"].chunk(2)[job.rank])
        job.start(model)
        own = model.a.weight if mistake else CopyTo.apply(model.a.weight)
        codes = job.batch["codes"].chunk(2)[job.rank]
        loss = ReduceFrom.apply(model(job.batch["x"], codes, own).square().sum())
        loss.backward()
        torch.distributed.all_reduce(model.levels.grad)
        job.end(loss=loss)

    return step


@pytest.mark.parametrize("mistake", [False, True])
def test_codes_of_four_bits(tmp_path: Path, mistake: bool) -> None:
    result = locally(tmp_path, single, rows_over_ranks(mistake), BATCH, validate=not mistake)
    assert result.verdict == ("refuted" if mistake else "proved"), sp.told(result)
    assert mistake or any("was replayed" in a for a in result.assumptions)
