"""Rows of a table by ids that are computed of data: the nearest entry of a codebook."""

from __future__ import annotations

from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

import torch.nn.functional as F  # noqa: E402
from torch import nn  # noqa: E402

import shardproof.torch as sp  # noqa: E402
from benchmarks.torch.ordinary.parts import averaged  # noqa: E402

ROWS, RANKS, WIDTH, CODES = 4, 2, 3, 5
BATCH = {"x": sp.tensor((ROWS, WIDTH), torch.float32)}


class Quantised(nn.Module):
    """The nearest entry of a codebook, straight through, with its commitment loss."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Linear(WIDTH, WIDTH)
        self.codes = nn.Parameter(torch.randn(CODES, WIDTH))

    def forward(self, x: torch.Tensor, commitment: float = 0.25) -> torch.Tensor:
        z = self.encoder(x)
        nearest = (z[:, None] - self.codes).square().sum(-1).argmin(-1)
        code = self.codes[nearest]
        through = z + (code - z).detach()
        own = F.mse_loss(code, z.detach()) + commitment * F.mse_loss(z, code.detach())
        return F.mse_loss(through, x) + own


def single(job: sp.Job) -> None:
    net = Quantised()
    job.start(net)
    loss = net(job.batch["x"])
    loss.backward()
    job.end(loss=loss)


@pytest.mark.parametrize(("commitment", "verdict"), [(0.25, "proved"), (0.5, "refuted")])
def test_the_nearest_entry_of_a_codebook(tmp_path: Path, commitment: float, verdict: str) -> None:
    """The gradient of the codebook adds up rows at entries that data choose (``index_put``)."""

    def parallel(job: sp.Job) -> None:
        net = Quantised()
        job.start(net)
        loss = net(job.batch["x"].chunk(RANKS)[job.rank], commitment)
        loss.backward()
        averaged(net)
        job.end(loss=loss.detach())

    options = {"out": tmp_path / "run", "executor": "local", "cache": False}
    result = sp.verify(single, parallel, world_size=RANKS, batch=BATCH, **options)
    assert result.verdict == verdict, result
