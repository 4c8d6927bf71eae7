"""A bias before a batch norm over all ranks, whose gradient is zero on both sides: what is seen to
be zero is seen wherever a sum of the same form was read before."""

from __future__ import annotations

from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

import torch.nn.functional as F  # noqa: E402
from torch import nn  # noqa: E402

import shardproof.torch as sp  # noqa: E402
from benchmarks.torch.ordinary.parts import averaged, floats, rows  # noqa: E402


def head() -> nn.Module:
    return nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3), nn.ReLU(), nn.Linear(3, 2))


def single(job: sp.Job) -> None:
    model = head()
    job.start(model)
    loss = F.mse_loss(model(job.batch["x"]), job.batch["y"])
    loss.backward()
    job.end(loss=loss)


def over_ranks(job: sp.Job, mistake: str = "") -> None:
    model = nn.SyncBatchNorm.convert_sync_batchnorm(head())
    job.start(model)
    x, y = rows(job, "x", "y")
    loss = F.mse_loss(model(x), y)
    loss.backward()
    averaged(model)
    if mistake == "a mean left in":
        model[0].bias.grad += model[0].weight.grad.mean(1)
    job.end(loss=loss)


@pytest.mark.parametrize("mistake", ["", "a mean left in"])
def test_the_gradient_of_a_bias_before_a_batch_norm_is_zero(tmp_path: Path, mistake: str) -> None:
    result = sp.verify(
        single,
        lambda job: over_ranks(job, mistake),
        world_size=2,
        batch=floats(x=(6, 2), y=(6, 2)),
        executor="local",
        cache=False,
        out=tmp_path / "run",
    )
    assert result.verdict == ("refuted" if mistake else "proved"), sp.told(result)
    if not mistake:
        assert any(c.name == "0.bias" for c in result.conclusions)
