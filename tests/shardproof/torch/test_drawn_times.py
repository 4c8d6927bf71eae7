"""Numbers that are drawn for each row (times and scales of diffusion, flow matching) and meet rows
as tensors of another shape, or beside what depends on other draws."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

import torch.nn.functional as F  # noqa: E402
from torch import nn  # noqa: E402
from torch.nn.parallel import DistributedDataParallel  # noqa: E402

import shardproof.torch as sp  # noqa: E402
from shardproof.frontends.torch.draws import dimensions_in  # noqa: E402

ROWS, WIDTH, STEPS = 2, 3, 10
Forward = Callable[[nn.Module, torch.Tensor], torch.Tensor]


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.times, self.out = nn.Linear(1, WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
        return self.out(F.silu(x + self.times(t.view(-1, 1).float())))


def denoised(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
    """Noise as much as the time that is drawn says: noise meets what depends on that first."""
    t, noise = torch.randint(0, STEPS, (len(x),)), torch.randn_like(x)
    kept = torch.cumprod(1 - torch.linspace(1e-4, 0.02, STEPS), 0)[t][:, None]
    return F.mse_loss(model(kept.sqrt() * x + (1 - kept).sqrt() * noise, t), noise)


def straight(model: nn.Module, x: torch.Tensor, sign: float = 1.0) -> torch.Tensor:
    t, noise = torch.rand(len(x)), torch.randn_like(x)
    there = t.view(-1, *[1] * (x.dim() - 1))
    return F.mse_loss(model((1 - there) * x + there * noise, t), noise - sign * x)


def single(forward: Forward) -> Callable[[sp.Job], None]:
    def step(job: sp.Job) -> None:
        model = Net()
        job.start(model)
        loss = forward(model, job.batch["x"])
        loss.backward()
        job.end(loss=loss)

    return step


def replicas(forward: Forward) -> Callable[[sp.Job], None]:
    def step(job: sp.Job) -> None:
        model = DistributedDataParallel(Net())
        job.start(model)
        loss = forward(model, job.batch["x"].chunk(2)[job.rank])
        loss.backward()
        job.end(loss=loss)

    return step


def verdict(tmp_path: Path, one: Forward, other: Forward, rows: int = ROWS) -> str:
    batch = {"x": sp.tensor((rows, WIDTH))}
    given = {"executor": "local", "cache": False, "out": tmp_path / "run"}
    return sp.verify(single(one), replicas(other), world_size=2, batch=batch, **given).verdict


@pytest.mark.parametrize("forward", [denoised, straight])
def test_what_is_drawn_for_each_row_is_a_part(tmp_path: Path, forward: Forward) -> None:
    """One row on each replica."""
    assert verdict(tmp_path, forward, forward) == "proved"


def test_several_rows_of_times_and_another_target(tmp_path: Path) -> None:
    assert verdict(tmp_path / "right", straight, straight, 4) == "proved"
    wrong = verdict(tmp_path / "wrong", straight, lambda m, x: straight(m, x, -1.0), 4)
    assert wrong == "refuted"


@pytest.mark.parametrize(
    ("own", "shape", "dims"),
    [
        ((4,), (4, 1, 1), (0,)),
        ((4, 1), (4, 16), (0, 1)),
        ((4,), (4, 16), (0,)),
        ((16,), (4, 16), (1,)),
        ((1,), (1, 1), (0,)),
        ((4, 3), (4, 1, 3), (0, 2)),
        ((4,), (3, 5), None),
        ((4, 3), (4, 5), None),
    ],
)
def test_dimensions_of_a_draw_in_what_is_made_of_it(
    own: tuple[int, ...], shape: tuple[int, ...], dims: tuple[int, ...] | None
) -> None:
    assert dimensions_in(own, shape) == dims
