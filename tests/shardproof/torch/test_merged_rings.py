"""Ring attention that merges what blocks of keys give, each divided by its own sum, by the
logarithms of these sums, with a backward of its own."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any, NamedTuple

import pytest

torch = pytest.importorskip("torch")

import torch.distributed as dist  # noqa: E402
import torch.nn.functional as F  # noqa: E402
from torch import Tensor, nn  # noqa: E402

import shardproof.torch as sp  # noqa: E402
from benchmarks.torch.ordinary.parts import Step, averaged  # noqa: E402
from shardproof.api import check  # noqa: E402

ROWS, POSITIONS, WIDTH = 2, 2, 4


class Attention(nn.Module):
    """One head."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(3))


def single(causal: bool) -> Step:
    def step(job: sp.Job) -> None:
        net = Attention()
        job.start(net)
        # With a dimension of heads, as SDPA has it.
        q, k, v = (m(job.batch["x"]).unsqueeze(1) for m in (net.q, net.k, net.v))
        out = F.scaled_dot_product_attention(q, k, v, is_causal=causal).squeeze(1)
        loss = F.mse_loss(out, job.batch["y"])
        loss.backward()
        job.end(loss=loss)

    return step


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


#: The first diagonal that is hidden.
DIAGONALS = {"mask is late": 2, "strict": 0}


class Way(NamedTuple):
    """How a ring goes; ``mistake``: what is wrong in it."""

    causal: bool
    mistake: str

    def scores(self, q: Tensor, k: Tensor, rank: int, of: int) -> Tensor | None:
        """The scores of a rank's queries beside the keys of one; None: they come after them."""
        own = q @ k.transpose(1, 2) / math.sqrt(WIDTH)
        if not self.causal or of < rank:
            return own
        hidden = torch.ones(own.shape[1:]).triu(DIAGONALS.get(self.mistake, 1)).bool()
        return own.masked_fill(hidden, -math.inf) if of == rank else None


class Ring(torch.autograd.Function):
    """Attention of this rank's positions to those of all ranks, or of those before."""

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, way: Way) -> Tensor:
        ranks, rank = dist.get_world_size(), dist.get_rank()
        own, out, lse = (k, v), None, None
        for turn in range(ranks):
            scores = way.scores(q, k, rank, (rank - turn) % ranks)
            if scores is not None:
                block = scores.logsumexp(-1, keepdim=True)
                part = (scores - block).exp() @ v
                out, lse = merged(way.mistake, out, lse, part, block)
            if turn + 1 < ranks:
                k, v = turned(k, 1), turned(v, 1)
        ctx.save_for_backward(q, *own, out, lse)
        ctx.way = way
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        ranks, rank = dist.get_world_size(), dist.get_rank()
        q, k, v, out, lse = ctx.saved_tensors
        delta = (grad * out).sum(-1, keepdim=True)
        dq, dk, dv = torch.zeros_like(q), torch.zeros_like(k), torch.zeros_like(v)
        for turn in range(ranks):
            scores = ctx.way.scores(q, k, rank, (rank - turn) % ranks)
            if scores is not None:
                p = (scores - lse).exp()
                dv = dv + p.transpose(1, 2) @ grad
                ds = p * (grad @ v.transpose(1, 2) - delta) / math.sqrt(WIDTH)
                dq, dk = dq + ds @ k, dk + ds.transpose(1, 2) @ q
            k, v = turned(k, 1), turned(v, 1)
            if ctx.way.mistake != "gradients of keys stay":
                dk, dv = turned(dk, 1), turned(dv, 1)
        return dq, dk, dv, None


def merged(
    mistake: str, out: Tensor | None, lse: Tensor | None, part: Tensor, block: Tensor
) -> tuple[Tensor, Tensor]:
    if out is None or lse is None:
        return part, block
    if mistake in SIGMOIDS:
        gap = lse - block if mistake == "shares exchanged" else block - lse
        return out - torch.sigmoid(gap) * (out - part), lse - F.logsigmoid(lse - block)
    both = torch.logaddexp(lse, block)
    fade = 0.5 if mistake == "mean of blocks" else (lse - both).exp()
    return out * fade + part * (block - both).exp(), both


def around(ranks: int, way: Way) -> Step:
    def step(job: sp.Job) -> None:
        net = Attention()
        job.start(net)
        x, y = (job.batch[name].chunk(ranks, 1)[job.rank] for name in ("x", "y"))
        loss = F.mse_loss(Ring.apply(net.q(x), net.k(x), net.v(x), way), y)
        loss.backward()
        averaged(net)
        job.end(loss=loss.detach())

    return step


def verdict_of(
    blocks: int, single: Step, parallel: Step, out: Path, world_size: int = 0
) -> sp.Result:
    """Of so many blocks of positions, one for each rank if no number of ranks is given."""
    batch = {name: sp.tensor((ROWS, blocks * POSITIONS, WIDTH)) for name in ("x", "y")}
    options = {"out": out, "executor": "local", "cache": False}
    return sp.verify(single, parallel, world_size=world_size or blocks, batch=batch, **options)


@pytest.mark.parametrize(
    ("ranks", "causal", "mistake", "verdict"),
    [
        (2, False, "", "proved"),
        (2, False, "by sigmoids", "proved"),
        (2, False, "shares exchanged", "refuted"),
        (2, False, "mean of blocks", "refuted"),
        (2, False, "gradients of keys stay", "refuted"),
        (2, True, "", "proved"),
        (2, True, "mask is late", "refuted"),
        (3, False, "", "proved"),
        (3, False, "mean of blocks", "refuted"),
        (3, True, "by sigmoids", "proved"),
        (3, True, "shares exchanged", "refuted"),
        (4, False, "by sigmoids", "proved"),
        (4, True, "", "proved"),
        (4, True, "gradients of keys stay", "refuted"),
    ],
)
def test_a_ring_that_merges_by_logarithms(
    tmp_path: Path, ranks: int, causal: bool, mistake: str, verdict: str
) -> None:
    parallel = around(ranks, Way(causal, mistake))
    result = verdict_of(ranks, single(causal), parallel, tmp_path / "run")
    assert result.verdict == verdict, result
    if verdict == "proved":
        assert check(tmp_path / "run").ok


def test_rows_of_a_block_that_have_no_key_in_it_are_no_numbers(tmp_path: Path) -> None:
    """Queries see the keys before their own, the first none: on rank 1 the first one has keys, but
    none in its own block, whose logarithm is minus infinity."""

    def strict(job: sp.Job) -> None:
        net = Attention()
        job.start(net)
        x = job.batch["x"]
        scores = net.q(x) @ net.k(x).transpose(1, 2) / math.sqrt(WIDTH)
        hidden = torch.ones(scores.shape[1:]).triu(DIAGONALS["strict"]).bool()
        out = scores.masked_fill(hidden, -math.inf).softmax(-1) @ net.v(x)
        loss = F.mse_loss(out, job.batch["y"])
        loss.backward()
        job.end(loss=loss)

    result = verdict_of(2, strict, around(2, Way(causal=True, mistake="strict")), tmp_path / "run")
    assert result.verdict == "inconclusive"
    assert {"definedness"} <= {finding.kind for finding in result.findings}
