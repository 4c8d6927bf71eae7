"""Adam by hand, whose second moment is corrected before its root is taken, beside PyTorch's, which
divides the root; also where a flat shard of what was clipped by its norm is updated (ZeRO-1)."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

import torch.distributed as dist  # noqa: E402
from torch import nn  # noqa: E402
from torch.nn.functional import mse_loss, silu  # noqa: E402

import shardproof.torch as sp  # noqa: E402

BATCH = {"x": sp.tensor((4, 3)), "y": sp.tensor((4, 2))}
LR, FIRST, SECOND, EPS, CLIP = 0.01, 0.9, 0.95, 1e-8, 0.5


@pytest.fixture(autouse=True)
def runs_elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs are kept in the working directory, which is none of the project's."""
    monkeypatch.chdir(tmp_path)


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(3, 4), nn.Linear(4, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(silu(self.up(x)))


def ended(job: sp.Job, model: nn.Module, loss: torch.Tensor) -> None:
    """Gradients are not compared: of ZeRO-1 a rank has those of its shard alone."""
    for p in model.parameters():
        p.grad = None
    job.end(loss=loss, outputs={n: p.detach().clone() for n, p in model.named_parameters()})


def single(job: sp.Job) -> None:
    model = Model()
    job.start(model)
    loss = mse_loss(model(job.batch["x"]), job.batch["y"])
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), CLIP)
    torch.optim.Adam(model.parameters(), LR, (FIRST, SECOND), EPS).step()
    ended(job, model, loss)


def updated(
    weight: torch.Tensor, gradient: torch.Tensor, correction: float = 1 - SECOND
) -> torch.Tensor:
    first = torch.zeros_like(weight).mul_(FIRST).add_(gradient, alpha=1 - FIRST)
    second = torch.zeros_like(weight).mul_(SECOND).addcmul_(gradient, gradient, value=1 - SECOND)
    root = (second / correction).sqrt()
    return weight - LR * (first / (1 - FIRST)) / (root + EPS)


def own_loss(job: sp.Job, model: nn.Module) -> torch.Tensor:
    x, y = (job.batch[name].chunk(job.world_size)[job.rank] for name in "xy")
    loss = mse_loss(model(x), y)
    loss.backward()
    return loss


def replicas(job: sp.Job, correction: float = 1 - SECOND) -> None:
    model = Model()
    job.start(model)
    loss = own_loss(job, model)
    for p in model.parameters():
        dist.all_reduce(p.grad)
        p.grad /= job.world_size
    nn.utils.clip_grad_norm_(model.parameters(), CLIP)
    with torch.no_grad():
        for p in model.parameters():
            p.copy_(updated(p, p.grad, correction))
    ended(job, model, loss)


def shards(job: sp.Job, of_all: bool = True) -> None:
    """A flat shard for each rank, which ends within a bias."""
    model = Model()
    job.start(model)
    parameters = list(model.parameters())
    loss = own_loss(job, model)
    flat = torch.cat([p.grad.flatten() for p in parameters])
    own = torch.empty(len(flat) // job.world_size)
    dist.reduce_scatter_tensor(own, flat)
    own /= job.world_size
    with torch.no_grad():
        total = own.square().sum()
        if of_all:
            dist.all_reduce(total)
        own = own * (CLIP / (total.sqrt() + 1e-6)).clamp(max=1.0)
        weights = torch.cat([p.flatten() for p in parameters]).chunk(job.world_size)[job.rank]
        every = torch.empty(len(flat))
        dist.all_gather_into_tensor(every, updated(weights, own))
        for p, new in zip(parameters, every.split([p.numel() for p in parameters]), strict=True):
            p.copy_(new.view_as(p))
    ended(job, model, loss)


def not_corrected(job: sp.Job) -> None:
    replicas(job, 1 - FIRST)


def norms_of_shards(job: sp.Job) -> None:
    shards(job, of_all=False)


@pytest.mark.parametrize("parallel", [replicas, shards])
def test_a_correction_before_the_root_is_proved(parallel: Callable[[sp.Job], None]) -> None:
    assert sp.verify(single, parallel, world_size=2, batch=BATCH).verdict == "proved"


@pytest.mark.parametrize("parallel", [not_corrected, norms_of_shards])
def test_other_corrections_and_norms_are_refuted(parallel: Callable[[sp.Job], None]) -> None:
    assert sp.verify(single, parallel, world_size=2, batch=BATCH).verdict == "refuted"
