"""Steps that check what they compute, and raise: it is taken to hold, and printed."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch.nn.functional import gaussian_nll_loss

import shardproof.torch as sp

BATCH = {name: sp.tensor((2, 4)) for name in ("x", "y", "v")}


def step(factor: float) -> Callable[[sp.Job], None]:
    def run(job: sp.Job) -> None:
        model = torch.nn.Linear(4, 4)
        job.start(model)
        z = model(job.batch["x"])
        if (z < -100).any():
            raise ValueError("small")
        if not z.sum() < 1e6:
            raise ValueError("large")
        # PyTorch checks the variance.
        loss = gaussian_nll_loss(z, job.batch["y"], job.batch["v"].square() + 1) * factor
        if loss.item() > 1e6:
            raise ValueError(f"{loss.item():.3f}")
        loss.backward()
        job.end(loss=loss)

    return run


@pytest.mark.parametrize(("factor", "verdict"), [(1.0, "proved"), (2.0, "refuted")])
def test_what_is_checked_holds(factor: float, verdict: str) -> None:
    result = sp.verify(step(1.0), step(factor), world_size=1, batch=BATCH)
    assert result.verdict == verdict
    checked = [text for text in result.assumptions if "what is checked at" in text]
    assert len(checked) == 4


def test_what_goes_on_otherwise_is_refused() -> None:
    def run(job: sp.Job) -> None:
        model = torch.nn.Linear(4, 4)
        job.start(model)
        z = model(job.batch["x"])
        if z.sum() < 1e6:
            z = z * 2
        job.end(loss=z.mean())

    result = sp.verify(run, run, world_size=1, batch=BATCH)
    assert result.verdict == "invalid input"
    assert "Python reads the value" in result.reason
