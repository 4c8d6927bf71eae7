"""Masks of padding that are made entry by entry, by indices of rows and of positions, as
transformers makes them, with one row and with two on each rank."""

from __future__ import annotations

from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

import torch.nn.functional as F  # noqa: E402
from torch import nn  # noqa: E402
from torch.nn.parallel import DistributedDataParallel  # noqa: E402

import shardproof.torch as sp  # noqa: E402

RANKS, LENGTH, WIDTH = 2, 3, 4


class Attention(nn.Module):
    """Causal, without keys that are padding."""

    def __init__(self) -> None:
        super().__init__()
        self.into = nn.Linear(WIDTH, 3 * WIDTH, bias=False)

    def forward(self, x: torch.Tensor, padding: torch.Tensor) -> torch.Tensor:
        q, k, v = (y.unflatten(-1, (2, -1)).transpose(1, 2) for y in self.into(x).chunk(3, -1))
        rows, places = (torch.arange(n) for n in padding.shape)
        kept = padding.bool()[rows[:, None, None, None], places[None, None, None, :]]
        causal = places[None, None, None, :] <= places[None, None, :, None]
        return F.scaled_dot_product_attention(q, k, v, attn_mask=causal & kept)


@pytest.mark.parametrize("rows", [1, 2])
@pytest.mark.parametrize(("other", "expected"), [(0, "proved"), (1, "refuted")])
def test_rows_on_ranks(rows: int, other: int, expected: str, tmp_path: Path) -> None:
    """``other``: how far away the rank is whose padding is read."""

    def single(job: sp.Job) -> None:
        step(job, Attention(), job.batch["x"], job.batch["padding"])

    def parallel(job: sp.Job) -> None:
        x, padding = (job.batch[n].chunk(RANKS) for n in ("x", "padding"))
        model = DistributedDataParallel(Attention())
        step(job, model, x[job.rank], padding[(job.rank + other) % RANKS])

    def step(job: sp.Job, model: nn.Module, x: torch.Tensor, padding: torch.Tensor) -> None:
        job.start(model)
        loss = model(x, padding).square().mean()
        loss.backward()
        job.end(loss=loss)

    many = RANKS * rows
    result = sp.verify(
        single,
        parallel,
        world_size=RANKS,
        batch={
            "x": sp.tensor((many, LENGTH, WIDTH)),
            "padding": sp.tensor((many, LENGTH), torch.int64, low=0, high=2),
        },
        out=tmp_path / "run",
        executor="local",
        cache=False,
    )
    assert result.verdict == expected, sp.told(result)
