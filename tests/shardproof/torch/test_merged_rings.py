"""Ring attention that merges what blocks of keys give, each divided by its own sum, by the
logarithms of these sums, with a backward of its own."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import torch.distributed as dist  # noqa: E402
import torch.nn.functional as F  # noqa: E402
from torch import Tensor, nn  # noqa: E402

import shardproof.torch as sp  # noqa: E402
from benchmarks.torch.ordinary.parts import averaged  # noqa: E402

ROWS, POSITIONS, WIDTH, RANKS = 2, 4, 4, 2
BATCH = {name: sp.tensor((ROWS, POSITIONS, WIDTH)) for name in ("x", "y")}


class Attention(nn.Module):
    """One head."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(3))


def single(job: sp.Job) -> None:
    net = Attention()
    job.start(net)
    x = job.batch["x"]
    scores = net.q(x) @ net.k(x).transpose(1, 2) / math.sqrt(WIDTH)
    loss = F.mse_loss(scores.softmax(-1) @ net.v(x), job.batch["y"])
    loss.backward()
    job.end(loss=loss)


def turned(x: Tensor, step: int) -> Tensor:
    """What the rank before has (``step`` 1), or the one behind (-1)."""
    n, r = dist.get_world_size(), dist.get_rank()
    received = torch.empty_like(x)
    sent = dist.P2POp(dist.isend, x.contiguous(), (r + step) % n)
    awaited = dist.P2POp(dist.irecv, received, (r - step) % n)
    for work in dist.batch_isend_irecv([sent, awaited]):
        work.wait()
    return received


#: How flash attention writes the merge, and a mistake in it.
SIGMOIDS = ("by sigmoids", "shares exchanged")


class Ring(torch.autograd.Function):
    """Attention of this rank's positions to those of all ranks."""

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, mistake: str) -> Tensor:
        own, out, lse = (k, v), None, None
        for turn in range(RANKS):
            scores = q @ k.transpose(1, 2) / math.sqrt(WIDTH)
            block = scores.logsumexp(-1, keepdim=True)
            part = (scores - block).exp() @ v
            if out is None or lse is None:
                out, lse = part, block
            elif mistake in SIGMOIDS:
                gap = lse - block if mistake == "shares exchanged" else block - lse
                out, lse = (
                    out - torch.sigmoid(gap) * (out - part),
                    lse - F.logsigmoid(lse - block),
                )
            else:
                both = torch.logaddexp(lse, block)
                fade = 0.5 if mistake == "mean of blocks" else (lse - both).exp()
                out, lse = out * fade + part * (block - both).exp(), both
            if turn + 1 < RANKS:
                k, v = turned(k, 1), turned(v, 1)
        ctx.save_for_backward(q, *own, out, lse)
        ctx.mistake = mistake
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        q, k, v, out, lse = ctx.saved_tensors
        delta = (grad * out).sum(-1, keepdim=True)
        dq, dk, dv = torch.zeros_like(q), torch.zeros_like(k), torch.zeros_like(v)
        for _ in range(RANKS):
            p = (q @ k.transpose(1, 2) / math.sqrt(WIDTH) - lse).exp()
            dv = dv + p.transpose(1, 2) @ grad
            ds = p * (grad @ v.transpose(1, 2) - delta) / math.sqrt(WIDTH)
            dq, dk = dq + ds @ k, dk + ds.transpose(1, 2) @ q
            k, v = turned(k, 1), turned(v, 1)
            if ctx.mistake != "gradients of keys stay":
                dk, dv = turned(dk, 1), turned(dv, 1)
        return dq, dk, dv, None


@pytest.mark.parametrize(
    ("mistake", "verdict"),
    [
        ("", "proved"),
        ("by sigmoids", "proved"),
        ("shares exchanged", "refuted"),
        ("mean of blocks", "refuted"),
        ("gradients of keys stay", "refuted"),
    ],
)
def test_a_ring_that_merges_by_logarithms(tmp_path: Path, mistake: str, verdict: str) -> None:
    def parallel(job: sp.Job) -> None:
        net = Attention()
        job.start(net)
        x, y = (job.batch[name].chunk(RANKS, 1)[job.rank] for name in ("x", "y"))
        loss = F.mse_loss(Ring.apply(net.q(x), net.k(x), net.v(x), mistake), y)
        loss.backward()
        averaged(net)
        job.end(loss=loss.detach())

    options = {"out": tmp_path / "run", "executor": "local", "cache": False}
    result = sp.verify(single, parallel, world_size=RANKS, batch=BATCH, **options)
    assert result.verdict == verdict, result
