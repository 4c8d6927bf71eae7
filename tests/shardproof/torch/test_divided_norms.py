"""Norms over features that ranks divide, by hand, beside PyTorch's own: one rounds its epsilon to
single precision, the gradient of the other is 0 where the norm is."""

from __future__ import annotations

from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

import torch.distributed as dist  # noqa: E402
from torch import nn  # noqa: E402
from torch.nn.functional import mse_loss, normalize, rms_norm  # noqa: E402

import shardproof.torch as sp  # noqa: E402
from benchmarks.torch.ordinary.parts import reduce_from  # noqa: E402

WIDTH, EPS = 8, 1e-5
BATCH = {"x": sp.tensor((4, 6)), "y": sp.tensor((4, 6))}


@pytest.fixture(autouse=True)
def runs_elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs are kept in the working directory, which is none of the project's."""
    monkeypatch.chdir(tmp_path)


class Model(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(6, width, bias=False), nn.Linear(width, 6, bias=False)
        self.scale = nn.Parameter(torch.ones(width))


class Sum(torch.autograd.Function):
    """Of all ranks, both ways: each rank reads the sum."""

    @staticmethod
    def forward(ctx: object, x: torch.Tensor) -> torch.Tensor:
        x = x.clone()
        dist.all_reduce(x)
        return x

    @staticmethod
    def backward(ctx: object, gradient: torch.Tensor) -> torch.Tensor:
        gradient = gradient.clone()
        dist.all_reduce(gradient)
        return gradient


def single(job: sp.Job, unit: bool = False) -> None:
    model = Model(WIDTH)
    job.start(model)
    h = model.up(job.batch["x"])
    h = normalize(h) * model.scale if unit else rms_norm(h, (WIDTH,), model.scale, EPS)
    loss = mse_loss(model.down(h), job.batch["y"])
    loss.backward()
    job.end(loss=loss)


def parallel(job: sp.Job, eps: float = EPS, unit: bool = False, both_ways: bool = True) -> None:
    own = WIDTH // job.world_size
    model, rows = Model(own), {"start": job.rank * own, "size": own}
    job.start(
        model,
        parameters={
            "up.weight": sp.piece("up.weight", dim=0, **rows),
            "down.weight": sp.piece("down.weight", dim=1, **rows),
            "scale": sp.piece("scale", dim=0, **rows),
        },
    )
    h = model.up(job.batch["x"])
    total = Sum.apply if both_ways else reduce_from
    squares = total(h.square().sum(-1, keepdim=True))
    if unit:
        h = h / squares.sqrt().clamp(min=1e-12) * model.scale
    else:
        h = h * torch.rsqrt(squares / WIDTH + eps) * model.scale
    loss = mse_loss(reduce_from(model.down(h)), job.batch["y"])
    loss.backward()
    job.end(loss=loss)


def test_a_divided_norm_is_proved_and_the_epsilon_printed() -> None:
    result = sp.verify(single, parallel, world_size=2, batch=BATCH)
    assert result.verdict == "proved"
    assert any("is read as 1e-05" in line for line in result.assumptions)


def test_another_epsilon_is_refuted() -> None:
    def wrong(job: sp.Job) -> None:
        parallel(job, eps=1e-4)

    assert sp.verify(single, wrong, world_size=2, batch=BATCH).verdict == "refuted"


def unit_single(job: sp.Job) -> None:
    single(job, unit=True)


def unit_parallel(job: sp.Job) -> None:
    parallel(job, unit=True)


def unit_one_way(job: sp.Job) -> None:
    parallel(job, unit=True, both_ways=False)


def test_features_of_length_1_are_proved_where_the_length_is_a_number() -> None:
    result = sp.verify(unit_single, unit_parallel, world_size=2, batch=BATCH)
    assert result.verdict == "proved"
    assert any("torch.where or masked_fill leave out" in line for line in result.assumptions)


def test_gradients_of_a_length_that_stay_on_their_rank_are_refuted() -> None:
    assert sp.verify(unit_single, unit_one_way, world_size=2, batch=BATCH).verdict == "refuted"
