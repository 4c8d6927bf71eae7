"""Losses that are divided by what is counted over all ranks, averaged over them, as detectors and
language models have it: 1 / (n / 2) is 2 / n, and (a + b) / n is a / n + b / n."""

from __future__ import annotations

from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

import torch.distributed as dist  # noqa: E402
import torch.nn.functional as F  # noqa: E402
from torch import nn  # noqa: E402

import shardproof.torch as sp  # noqa: E402
from benchmarks.torch.ordinary.parts import averaged, floats, rows  # noqa: E402


def sums(model: nn.Module, x: torch.Tensor, counted: torch.Tensor) -> torch.Tensor:
    y = model(x)
    return F.relu(y).sum() + 2 * (y.square().mean(-1) * counted).sum()


def single(job: sp.Job) -> None:
    model = nn.Linear(3, 2)
    job.start(model)
    x, counted = job.batch["x"], job.batch["counted"]
    loss = sums(model, x, counted) / (counted.sum() / 2).clamp(min=1) / 2
    loss.backward()
    job.end(loss=loss)


def over_ranks(job: sp.Job, mistake: str = "") -> None:
    model = nn.Linear(3, 2)
    job.start(model)
    x, counted = rows(job, "x", "counted")
    number = counted.sum()
    dist.all_reduce(number)
    if mistake != "counts of all ranks":
        number = number / job.world_size
    loss = sums(model, x, counted) / number.clamp(min=1)
    loss.backward()
    averaged(model)
    job.end(loss=loss)


@pytest.mark.parametrize("mistake", ["", "counts of all ranks"])
def test_sums_are_divided_by_the_mean_count_of_ranks(tmp_path: Path, mistake: str) -> None:
    result = sp.verify(
        single,
        lambda job: over_ranks(job, mistake),
        world_size=2,
        batch=floats(x=(6, 3), counted=(6,)),
        executor="local",
        cache=False,
        out=tmp_path / "run",
    )
    assert result.verdict == ("refuted" if mistake else "proved"), sp.told(result)


def test_a_constant_is_not_part_of_what_is_divided_by(tmp_path: Path) -> None:
    """The mean of ranks that divide by the mean of their counts, without a bound."""

    def whole(job: sp.Job) -> None:
        model = nn.Linear(3, 2)
        job.start(model)
        loss = model(job.batch["x"]).square().sum() / job.batch["counted"].sum()
        loss.backward()
        job.end(loss=loss)

    def parallel(job: sp.Job) -> None:
        model = nn.Linear(3, 2)
        job.start(model)
        x, counted = rows(job, "x", "counted")
        number = counted.sum()
        dist.all_reduce(number, op=dist.ReduceOp.AVG)
        loss = model(x).square().sum() / number
        loss.backward()
        averaged(model)
        job.end(loss=loss)

    result = sp.verify(
        whole,
        parallel,
        world_size=2,
        batch=floats(x=(6, 3), counted=(6,)),
        executor="local",
        cache=False,
        out=tmp_path / "run",
    )
    assert result.verdict == "proved", sp.told(result)
