"""Positions that are repeated for each row and choose rows of a parameter (Whisper's decoder), and
results that are laid out anew in place (adaptive pooling over transposed features, Swin)."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import nn

import shardproof.torch as sp
from shardproof.checker import check


class Placed(nn.Module):
    def __init__(self, pooled: bool) -> None:
        super().__init__()
        self.places, self.out = nn.Parameter(torch.randn(6, 4)), nn.Linear(4, 4)
        self.pooled = pooled

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        places = torch.arange(x.shape[1]).unsqueeze(0).repeat(x.shape[0], 1)
        y: torch.Tensor = self.out(x + self.places[places])
        return nn.AdaptiveAvgPool1d(1)(y.transpose(1, 2)).flatten(1) if self.pooled else y


def step(pooled: bool, ranks: int, wrong: bool = False) -> Callable[[sp.Job], None]:
    def run(job: sp.Job) -> None:
        model = Placed(pooled)
        job.start(model)
        loss = model(job.batch["x"].chunk(ranks)[job.rank]).pow(2).mean()
        loss.backward()
        for p in model.parameters() if ranks > 1 else ():
            assert p.grad is not None
            dist.all_reduce(p.grad)
            if not wrong:
                p.grad /= ranks
        job.end(loss=loss)

    return run


@pytest.mark.parametrize("wrong", [False, True])
@pytest.mark.parametrize("pooled", [False, True])
def test_rows_chosen_by_repeated_positions(tmp_path: Path, pooled: bool, wrong: bool) -> None:
    result = sp.verify(
        step(pooled, 1),
        step(pooled, 2, wrong),
        world_size=2,
        batch={"x": sp.tensor((4, 5, 4))},
        executor="local",
        cache=False,
        validate=True,
        out=tmp_path / "run",
    )
    assert result.verdict == ("refuted" if wrong else "proved"), sp.told(result)
    if not wrong:
        assert any("was replayed" in a for a in result.assumptions)
        assert check(tmp_path / "run").ok
