"""Buffers that are drawn before the start (random features, projections that are never trained): they
are inputs, as what weights begin with."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

import torch.distributed as dist  # noqa: E402
import torch.nn.functional as F  # noqa: E402
from torch import nn  # noqa: E402
from torch.nn.parallel import DistributedDataParallel  # noqa: E402

import shardproof.torch as sp  # noqa: E402
from shardproof.checker import check  # noqa: E402

RANKS, ROWS, WIDTH, FEATURES = 2, 4, 4, 3
BATCH = {"x": sp.tensor((ROWS, WIDTH)), "y": sp.tensor((ROWS, WIDTH))}

Step = Callable[[sp.Job], None]


class Features(nn.Module):
    """Beside a table of rates; ``copied``: the features are the weights as they were at first."""

    def __init__(self, copied: bool = False) -> None:
        super().__init__()
        self.linear = nn.Linear(2 * FEATURES, WIDTH)
        made = self.linear.weight.detach().clone()[:, :FEATURES] if copied else None
        drawn = torch.randn(WIDTH, FEATURES) * 0.5 if made is None else 0.5 * made
        self.register_buffer("features", drawn)
        rates = 10.0 ** (-torch.arange(0, 2 * WIDTH, 2, dtype=torch.float32) / WIDTH)
        self.register_buffer("rates", rates, persistent=False)

    def forward(self, x: torch.Tensor, factor: float = 1.0) -> torch.Tensor:
        angles = factor * (x * self.rates) @ self.features
        return self.linear(torch.cat([angles.cos(), angles.sin()], -1))


def single(copied: bool = False) -> Step:
    def step(job: sp.Job) -> None:
        model = Features(copied)
        job.start(model)
        loss = F.mse_loss(model(job.batch["x"]), job.batch["y"])
        loss.backward()
        job.end(loss=loss)

    return step


def replicas(ddp: bool = False, factor: float = 1.0, copied: bool = False) -> Step:
    """``factor``: the mistake, another number times the features."""

    def step(job: sp.Job) -> None:
        model = Features(copied)
        wrapped = DistributedDataParallel(model) if ddp else model
        job.start(model)
        x, y = (job.batch[name].chunk(RANKS)[job.rank] for name in ("x", "y"))
        loss = F.mse_loss(wrapped(x, factor), y)
        loss.backward()
        for parameter in model.parameters() if not ddp else ():
            dist.all_reduce(parameter.grad)
            parameter.grad /= RANKS
        job.end(loss=loss)

    return step


@pytest.mark.parametrize(
    ("parallel", "verdict"),
    [
        (replicas(), "proved"),
        (replicas(ddp=True), "proved"),
        (replicas(factor=2.0), "refuted"),
    ],
    ids=["by hand", "DDP", "another factor"],
)
def test_a_drawn_buffer_is_an_input(tmp_path: Path, parallel: Step, verdict: str) -> None:
    out = tmp_path / "run"
    options = {"batch": BATCH, "cache": False, "validate": True, "out": out}
    result = sp.verify(single(), parallel, world_size=RANKS, **options)
    assert result.verdict == verdict, sp.told(result)
    if verdict == "proved":
        assert check(out).ok
        assert any("features" in text for text in result.assumptions)
        assert any("tensors agree with PyTorch" in text for text in result.assumptions)


def test_what_is_made_of_a_weight_before_the_start_is_no_input() -> None:
    options = {"batch": BATCH, "cache": False}
    result = sp.verify(single(True), replicas(copied=True), world_size=RANKS, **options)
    assert result.verdict == "inconclusive", sp.told(result)
    strict = sp.verify(single(), replicas(), world_size=RANKS, strict=True, **options)
    assert strict.verdict == "inconclusive", sp.told(strict)
