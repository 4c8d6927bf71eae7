"""Scores beside one score that every row has (attention sinks), of which the largest is taken off
before the softmax, as gpt-oss does: rows of a rank are rows of the single device's, repeated ones
too."""

from __future__ import annotations

from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

import torch.nn.functional as F  # noqa: E402
from torch import nn  # noqa: E402

import shardproof.torch as sp  # noqa: E402
from benchmarks.torch.ordinary.parts import averaged, floats, rows  # noqa: E402


class Sinks(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.key = nn.Linear(3, 4, bias=False)
        self.sinks = nn.Parameter(torch.zeros(2))

    def forward(self, x: torch.Tensor, mistake: str = "") -> torch.Tensor:
        scores = self.key(x).unflatten(-1, (2, 2)).transpose(1, 2)
        sinks = self.sinks.reshape(1, -1, 1, 1).expand(*scores.shape[:3], 1)
        every = torch.cat([scores, sinks], dim=-1)
        most = every.max(dim=-1, keepdim=True).values
        every = every - (most.mean(0, keepdim=True) if mistake else most.detach() / 2 + most / 2)
        return F.silu(every)[..., :-1]


def single(job: sp.Job) -> None:
    model = Sinks()
    job.start(model)
    loss = F.mse_loss(model(job.batch["x"]), job.batch["y"])
    loss.backward()
    job.end(loss=loss)


@pytest.mark.parametrize("mistake", ["", "a mean over the rank's rows"])
def test_what_every_row_has_is_a_part_of_it_in_some_rows(tmp_path: Path, mistake: str) -> None:
    def parallel(job: sp.Job) -> None:
        model = Sinks()
        job.start(model)
        x, y = rows(job, "x", "y")
        loss = F.mse_loss(model(x, mistake), y)
        loss.backward()
        averaged(model)
        job.end(loss=loss)

    result = sp.verify(
        single,
        parallel,
        world_size=2,
        batch=floats(x=(4, 3, 3), y=(4, 2, 3, 2)),
        executor="local",
        cache=False,
        out=tmp_path / "run",
    )
    assert result.verdict == ("refuted" if mistake else "proved"), sp.told(result)
