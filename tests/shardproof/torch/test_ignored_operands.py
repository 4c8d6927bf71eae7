"""What lies in a buffer is not read by a product that is added to it times 0."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn

import shardproof.torch as sp

WIDTH = 2
BATCH = {"x": sp.tensor((3, 9, WIDTH)), "y": sp.tensor((2, 5, 6))}


def step(beta: float | None) -> Callable[[sp.Job], None]:
    """``beta`` None: a plain product.  The buffer was used for other things, of dimensions that are
    no parts of those of the scores (Megatron's attention)."""

    def run(job: sp.Job) -> None:
        model = nn.Linear(WIDTH, 7)
        job.start(model)
        q, k = model(job.batch["x"]).split([4, 5], dim=1)
        buffer = job.batch["y"] + 1.0
        if beta is None:
            scores = torch.bmm(q, k.transpose(1, 2))
        else:
            scores = torch.baddbmm(buffer.view(3, 4, 5), q, k.transpose(1, 2), beta=beta)
        loss = scores.softmax(-1).pow(2).mean() + buffer.mean()
        loss.backward()
        job.end(loss=loss)

    return run


@pytest.mark.parametrize(("beta", "verdict"), [(0.0, "proved"), (1.0, "not proved")])
def test_a_product_that_is_added_to_nothing(tmp_path: Path, beta: float, verdict: str) -> None:
    result = sp.verify(
        step(None),
        step(beta),
        world_size=1,
        batch=BATCH,
        executor="local",
        cache=False,
        validate=beta == 0,
        out=tmp_path / "run",
    )
    assert (result.verdict == "proved") == (verdict == "proved"), sp.told(result)
