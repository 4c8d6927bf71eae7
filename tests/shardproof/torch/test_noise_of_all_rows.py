"""Noise that every rank draws for the whole batch, of which it cuts its rows."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn.functional import dropout

import shardproof.torch as sp
from tests.shardproof.torch.locally import Step, locally

BATCH = {"x": sp.tensor((4, 4))}
FIRST, SEEDS = "the first rows on every rank", "a seed for each rank"


def step(mistake: str = "", dropped: bool = False) -> Step:
    """The single device's and the ranks'; ``dropped``: a dropout of a rank's own rows comes first,
    so that generators have drawn unlike many numbers before the noise."""

    def run(job: sp.Job) -> None:
        model, x, count = nn.Linear(4, 4), job.batch["x"], job.world_size
        job.start(model)
        torch.manual_seed(job.rank if mistake == SEEDS else 0)
        own = x.chunk(count)[job.rank]
        own = dropout(own, 0.5) if dropped else own
        noise = torch.randn(x.shape).chunk(count)[0 if mistake == FIRST else job.rank]
        loss = (model(own) * noise).square().mean()
        loss.backward()
        for p in model.parameters() if count > 1 else ():
            torch.distributed.all_reduce(p.grad, op=torch.distributed.ReduceOp.AVG)
        job.end(loss=loss)

    return run


@pytest.mark.parametrize(
    ("mistake", "dropped", "expected"),
    [
        ("", False, "proved"),
        (FIRST, False, "refuted"),
        (SEEDS, False, "inconclusive"),
        ("", True, "inconclusive"),
    ],
)
def test_noise_of_all_rows(tmp_path: Path, mistake: str, dropped: bool, expected: str) -> None:
    """It is the single device's where all draw alike up to it."""
    result = locally(tmp_path, step(dropped=dropped), step(mistake, dropped), BATCH)
    assert result.verdict == expected, sp.told(result)
