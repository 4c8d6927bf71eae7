"""Attention in a window of keys: keys of neighbouring ranks beside a rank's own, or all of them
gathered, where ranks divide the positions; at sizes of models where they divide others."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed._functional_collectives import all_gather_tensor_autograd
from torch.nn import functional as f

import shardproof.torch as sp
from tests.shardproof.torch.halos import beside
from tests.shardproof.torch.locally import locally

HEADS, WIDTH = 2, 4
#: Keys (or values) of a rank's positions, with those that its queries see besides, and the first.
Keys = Callable[[torch.Tensor], tuple[torch.Tensor, int]]


class Attention(nn.Module):
    """Of ``keys`` positions; a query i sees the keys j of which ``seen(i, j)``."""

    def __init__(self, seen: Callable[[torch.Tensor, torch.Tensor], torch.Tensor], fused: bool):
        super().__init__()
        self.seen, self.fused = seen, fused
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH, bias=False)
        self.out = nn.Linear(WIDTH, WIDTH, bias=False)

    def forward(self, x: torch.Tensor, start: int, keys: Keys) -> torch.Tensor:
        q, k, v = self.qkv(x).chunk(3, -1)
        (k, first), (v, _) = keys(k), keys(v)
        i = torch.arange(start, start + q.shape[1])[:, None]
        j = torch.arange(first, first + k.shape[1])[None]
        q, k, v = (t.unflatten(-1, (HEADS, -1)).transpose(1, 2) for t in (q, k, v))
        keep = self.seen(i, j)
        if self.fused:
            y = f.scaled_dot_product_attention(q, k, v, attn_mask=keep)
        else:
            scores = q @ k.transpose(-1, -2) / math.sqrt(WIDTH // HEADS)
            y = scores.masked_fill(~keep, -math.inf).softmax(-1) @ v
        return self.out(y.transpose(1, 2).flatten(2))


def verified(
    folder: Path,
    positions: int,
    window: int,
    *,
    ranks: int = 2,
    fused: bool = True,
    keys: str = "beside",
    how: str = "right",
    both_sides: bool = False,
) -> sp.Result:
    """``keys``: of neighbours "beside" a rank's own, "gathered", or a rank's own "rows" of the
    batch; ``how``: "right", an edge's gradient that is "kept", or a window that is "short"."""

    def seen(width: int) -> Callable[[torch.Tensor, torch.Tensor], torch.Tensor]:
        def of(i: torch.Tensor, j: torch.Tensor) -> torch.Tensor:
            behind = (j - i < width) if both_sides else (j <= i)
            return behind & (i - j < width) & (j >= 0) & (j < positions)

        return of

    def step(job: sp.Job, model: Attention, rows: slice, start: int, of: Keys) -> None:
        job.start(model)
        cut = (rows, slice(start, start + positions // (1 if keys == "rows" else job.world_size)))
        x, y = (job.batch[name][cut] for name in "xy")
        loss = (model(x, start, of) - y).pow(2).mean()
        loss.backward()
        for p in model.parameters() if job.world_size > 1 else ():
            dist.all_reduce(p.grad)
            p.grad /= job.world_size
        job.end(loss=loss)

    def single(job: sp.Job) -> None:
        step(job, Attention(seen(window), fused), slice(None), 0, lambda k: (k, 0))

    def parallel(job: sp.Job) -> None:
        start = job.rank * positions // job.world_size
        edge = window - 1

        def of(k: torch.Tensor) -> tuple[torch.Tensor, int]:
            if keys == "gathered":
                return all_gather_tensor_autograd(k, 1, dist.group.WORLD), 0
            if keys == "rows":
                return k, 0
            return beside(k, 1, edge, edge * both_sides, how), start - edge

        model = Attention(seen(window - (how == "short")), fused)
        rows = slice(job.rank, job.rank + 1) if keys == "rows" else slice(None)
        step(job, model, rows, 0 if keys == "rows" else start, of)

    batch = {name: sp.tensor((2, positions, WIDTH)) for name in "xy"}
    return locally(folder, single, parallel, batch, ranks, validate=positions < 100)


@pytest.mark.parametrize("fused", [True, False])
@pytest.mark.parametrize(
    ("positions", "window", "ranks", "how"),
    [(12, 3, 2, "right"), (12, 3, 2, "kept"), (12, 3, 2, "short"), (18, 4, 3, "right")],
)
def test_keys_of_the_rank_before(
    positions: int, window: int, ranks: int, how: str, fused: bool, tmp_path: Path
) -> None:
    """The first rank has nothing before its own keys: zeros, which a mask hides from all."""
    result = verified(tmp_path, positions, window, ranks=ranks, fused=fused, how=how)
    assert result.verdict == ("proved" if how == "right" else "refuted"), sp.told(result)


@pytest.mark.parametrize("how", ["right", "kept"])
def test_keys_of_both_neighbours(how: str, tmp_path: Path) -> None:
    result = verified(tmp_path, 12, 3, how=how, both_sides=True)
    assert result.verdict == ("proved" if how == "right" else "refuted"), sp.told(result)


@pytest.mark.parametrize(("positions", "window"), [(12, 3), (64, 9), (4096, 1024)])
@pytest.mark.parametrize("keys", ["gathered", "rows"])
@pytest.mark.parametrize("fused", [True, False])
def test_windows_of_any_size(
    positions: int, window: int, keys: str, fused: bool, tmp_path: Path
) -> None:
    """Up to 4,096 scores positions are compared; a larger window is a table."""
    result = verified(tmp_path, positions, window, keys=keys, fused=fused)
    assert result.verdict == "proved", sp.told(result)


@pytest.mark.parametrize("keys", ["gathered", "rows"])
def test_a_larger_window_that_is_short_is_refuted(keys: str, tmp_path: Path) -> None:
    result = verified(tmp_path, 64, 9, keys=keys, how="short")
    assert result.verdict == "refuted", sp.told(result)
