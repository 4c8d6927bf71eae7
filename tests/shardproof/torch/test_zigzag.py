"""A ring whose ranks have an early and a late block of positions each, so that all have as much to
do behind a causal mask."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import torch.distributed as dist  # noqa: E402
import torch.nn.functional as F  # noqa: E402
from torch import Tensor  # noqa: E402

import shardproof.torch as sp  # noqa: E402
from benchmarks.torch.ordinary.parts import Step, averaged  # noqa: E402
from shardproof.api import check  # noqa: E402
from tests.shardproof.torch.test_merged_rings import (  # noqa: E402
    POSITIONS,
    WIDTH,
    Attention,
    merged,
    single,
    turned,
    verdict_of,
)

EARLY, LATE = slice(0, POSITIONS), slice(POSITIONS, 2 * POSITIONS)


def scores(q: Tensor, k: Tensor, *, masked: bool) -> Tensor:
    own = q @ k.transpose(1, 2) / math.sqrt(WIDTH)
    hidden = torch.ones(own.shape[1:]).triu(1).bool()
    return own.masked_fill(hidden, -math.inf) if masked else own


def blocks(rank: int, of: int) -> tuple[slice, slice]:
    """Which queries see which keys of another rank."""
    both = slice(0, 2 * POSITIONS)
    return (both, EARLY) if of < rank else (LATE, both) if of > rank else (both, both)


class Zigzag(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, mistake: str) -> Tensor:
        ranks, rank = dist.get_world_size(), dist.get_rank()
        own, out, lse = (k, v), None, None
        for turn in range(ranks):
            of = (rank - turn) % ranks
            queries, keys = blocks(rank, of)
            part = scores(q[:, queries], k[:, keys], masked=of == rank)
            block = part.logsumexp(-1, keepdim=True)
            new = (part - block).exp() @ v[:, keys]
            if out is None or lse is None:
                out, lse = new, block
            else:
                joined = merged("by sigmoids", out[:, queries], lse[:, queries], new, block)
                out, lse = (
                    torch.cat([old[:, : queries.start], made, old[:, queries.stop :]], 1)
                    for old, made in zip((out, lse), joined, strict=True)
                )
            if turn + 1 < ranks:
                k, v = turned(k, 1), turned(v, 1)
        ctx.save_for_backward(q, *own, out, lse)
        ctx.mistake = mistake
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        ranks, rank = dist.get_world_size(), dist.get_rank()
        q, k, v, out, lse = ctx.saved_tensors
        delta = (grad * out).sum(-1, keepdim=True)
        dq, dk, dv = torch.zeros_like(q), torch.zeros_like(k), torch.zeros_like(v)
        for turn in range(ranks):
            of = (rank - turn) % ranks
            queries, keys = blocks(rank, of)
            g, part = grad[:, queries], scores(q[:, queries], k[:, keys], masked=of == rank)
            p = (part - lse[:, queries]).exp()
            ds = p * (g @ v[:, keys].transpose(1, 2) - delta[:, queries]) / math.sqrt(WIDTH)
            if ctx.mistake != "late queries left out" or queries != LATE:
                dq[:, queries] += ds @ k[:, keys]
            dk[:, keys] += ds.transpose(1, 2) @ q[:, queries]
            dv[:, keys] += p.transpose(1, 2) @ g
            k, v, dk, dv = (turned(x, 1) for x in (k, v, dk, dv))
        return dq, dk, dv, None


def zigzag(mistake: str) -> Step:
    def step(job: sp.Job) -> None:
        net = Attention()
        job.start(net)
        n, r = job.world_size, job.rank
        other = r + 1 if mistake == "blocks in order" else 2 * n - 1 - r
        x, y = (
            torch.cat([job.batch[name].chunk(2 * n, 1)[place] for place in (r, other)], 1)
            for name in ("x", "y")
        )
        loss = F.mse_loss(Zigzag.apply(net.q(x), net.k(x), net.v(x), mistake), y)
        loss.backward()
        averaged(net)
        job.end(loss=loss.detach())

    return step


@pytest.mark.parametrize(
    ("mistake", "verdict"),
    [("", "proved"), ("late queries left out", "refuted"), ("blocks in order", "refuted")],
)
def test_a_ring_of_an_early_and_a_late_block(tmp_path: Path, mistake: str, verdict: str) -> None:
    # Two blocks for each of two ranks are the positions of four ranks of one.
    result = verdict_of(4, single(causal=True), zigzag(mistake), tmp_path / "run", world_size=2)
    assert result.verdict == verdict, result
    if verdict == "proved":
        assert check(tmp_path / "run").ok
