"""Products of products in which laws join powers: the preconditioning of a diffusion (EDM)."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.distributed as dist

import shardproof.torch as sp
from shardproof.checker import check

BATCH = {"x": sp.tensor((4, 2)), "level": sp.tensor((4,))}


def denoise(model: torch.nn.Module, x: torch.Tensor, level: torch.Tensor) -> torch.Tensor:
    sigma = level.exp()[:, None]
    both = sigma**2 + 0.25
    clean = x / both + sigma / both.sqrt() * model(x)
    loss: torch.Tensor = (both / sigma**2 * (clean - x) ** 2).mean()
    return loss


def single(job: sp.Job) -> None:
    model = torch.nn.Linear(2, 2)
    job.start(model)
    loss = denoise(model, job.batch["x"], job.batch["level"])
    loss.backward()
    job.end(loss=loss)


def replicas(scale: float) -> Callable[[sp.Job], None]:
    def step(job: sp.Job) -> None:
        model = torch.nn.Linear(2, 2)
        job.start(model)
        x, level = (job.batch[k].chunk(job.world_size)[job.rank] for k in ("x", "level"))
        loss = denoise(model, x, level)
        loss.backward()
        for p in model.parameters():
            dist.all_reduce(p.grad)
            p.grad.mul_(scale)  # type: ignore[union-attr]
        job.end(loss=loss)

    return step


@pytest.mark.parametrize(("scale", "verdict"), [(0.5, "proved"), (1.0, "refuted")])
def test_powers_in_two_products_are_joined(scale: float, verdict: str) -> None:
    result = sp.verify(single, replicas(scale), world_size=2, batch=BATCH)
    assert result.verdict == verdict, sp.told(result)


def test_the_proof_is_accepted() -> None:
    result = sp.verify(single, replicas(0.5), world_size=2, batch=BATCH)
    assert result.run_dir is not None
    checked = check(result.run_dir)
    assert checked.ok, checked.messages
