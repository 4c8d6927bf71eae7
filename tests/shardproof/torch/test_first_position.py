"""Attention of which a step reads the first position alone (the token of the class), one projection
of the single device for queries, keys and values beside three of each rank."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import torch.nn.functional as F  # noqa: E402
from torch import nn  # noqa: E402

import shardproof.torch as sp  # noqa: E402
from tests.shardproof.torch.steps import CopyTo, ReduceFrom  # noqa: E402

WIDTH, HEADS, HEAD, PATCH, CLASSES, LAYERS = 8, 4, 2, 5, 3, 2


class Attention(nn.Module):
    """``mistake``: what comes back through keys stays on each rank."""

    def __init__(self, ranks: int, mistake: bool) -> None:
        super().__init__()
        self.ranks, self.mistake, own = ranks, mistake, WIDTH // ranks
        if ranks == 1:
            self.qkv = nn.Linear(WIDTH, 3 * WIDTH, bias=False)
        else:
            self.q, self.k, self.v = (nn.Linear(WIDTH, own, bias=False) for _ in range(3))
        self.o = nn.Linear(own, WIDTH, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.ranks == 1:
            q, k, v = self.qkv(x).chunk(3, -1)
        else:
            copy = CopyTo.apply(x)
            q, k, v = self.q(copy), self.k(x if self.mistake else copy), self.v(copy)
        q, k, v = (t.unflatten(-1, (-1, HEAD)).transpose(1, 2) for t in (q, k, v))
        weights = (q @ k.transpose(-1, -2) / 2).softmax(-1)
        y = self.o((weights @ v).transpose(1, 2).flatten(2))
        return y if self.ranks == 1 else ReduceFrom.apply(y)


def pieces(rank: int, ranks: int) -> dict[str, Any]:
    """Where a rank's projections are in the single device's."""
    own, made = WIDTH // ranks, {}
    for layer in range(LAYERS):
        whole, name = f"layers.{layer}.qkv.weight", f"layers.{layer}"
        for number, what in enumerate("qkv"):
            start = number * WIDTH + rank * own
            made[f"{name}.{what}.weight"] = sp.piece(whole, dim=0, start=start, size=own)
        made[f"{name}.o.weight"] = sp.piece(f"{name}.o.weight", dim=1, start=rank * own, size=own)
    return made


def step(ranks: int, mistake: bool = False) -> Callable[[sp.Job], None]:
    """Two layers of attention, and a head that reads the first position."""

    def run(job: sp.Job) -> None:
        patches, head = nn.Linear(PATCH, WIDTH, bias=False), nn.Linear(WIDTH, CLASSES, bias=False)
        layers = nn.ModuleList(Attention(ranks, mistake) for _ in range(LAYERS))
        model = nn.ModuleDict({"patches": patches, "layers": layers, "head": head})
        job.start(model, parameters=pieces(job.rank, ranks) if ranks > 1 else None)
        x = patches(job.batch["x"])
        for layer in layers:
            x = x + layer(x)
        loss = F.cross_entropy(head(x[:, 0]), job.batch["y"])
        loss.backward()
        job.end(loss=loss)

    return run


@pytest.mark.parametrize("mistake", [False, True])
def test_the_first_position_of_a_fused_projection(mistake: bool, tmp_path: Path) -> None:
    result = sp.verify(
        step(1),
        step(2, mistake),
        world_size=2,
        batch={"x": sp.tensor((2, 6, PATCH)), "y": sp.tensor((2,), torch.long, low=0, high=3)},
        executor="local",
        cache=False,
        out=tmp_path / "run",
    )
    assert result.verdict == ("refuted" if mistake else "proved"), sp.told(result)
