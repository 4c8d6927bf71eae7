"""Causal attention over rings of ranks: each has a block of positions, keys and values go round."""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F

import shardproof.torch as sp
from benchmarks.torch.ordinary.attention import Attend, shifted
from benchmarks.torch.ordinary.parts import WIDTH, Case, Step, floats


class Around(torch.autograd.Function):
    """This rank's block, then those of the ranks before it; gradients go the way back.  All turns
    are made on every rank, also where a block is not read."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> Any:
        blocks = [x.view_as(x)]
        for _ in range(dist.get_world_size() - 1):
            blocks.append(shifted(blocks[-1], 1))
        return tuple(blocks)

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> torch.Tensor:
        total = grads[-1]
        for grad in reversed(grads[:-1]):
            total = shifted(total, -1) + grad
        return total


def causal(how: str) -> Step:
    def step(job: sp.Job) -> None:
        model = Attend()
        job.start(model)
        x = job.batch["x"]
        q, k, v = model.q(x), model.k(x), model.v(x)
        if how == "fused":
            out = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        else:
            hidden = torch.ones(x.size(1), x.size(1)).triu(1).bool()
            scores = q @ k.transpose(-1, -2) / math.sqrt(WIDTH)
            out = scores.masked_fill(hidden, -math.inf).softmax(-1) @ v
        loss = F.mse_loss(out, job.batch["y"])
        loss.backward()
        job.end(loss=loss)

    return step


def ring(how: str, mistake: str = "") -> Step:
    """``how``: "sums" adds exponentials, "lse" and "sigmoid" merge finished blocks."""

    def step(job: sp.Job) -> None:
        n, r = job.world_size, job.rank
        model = Attend()
        job.start(model)
        x, y = (job.batch[name].chunk(n, dim=1)[r] for name in ("x", "y"))
        q, k, v = model.q(x), model.k(x), model.v(x)
        out: torch.Tensor | None = None
        total: torch.Tensor | None = None
        hidden = torch.ones(x.size(1), x.size(1)).triu(1).bool()
        blocks = zip(Around.apply(k), Around.apply(v), strict=True)  # type: ignore[no-untyped-call]
        for turn, (k_block, v_block) in enumerate(blocks):
            source = (r + turn if mistake == "wrong order" else r - turn) % n
            if source == r or (source < r and mistake != "own block alone"):
                scores = q @ k_block.transpose(-1, -2) / math.sqrt(WIDTH)
                own = (source == r) != (mistake == "mask of the other block")
                own = own and mistake != "no mask at all"
                if own or mistake == "mask of every block":
                    scores = scores.masked_fill(hidden, -math.inf)
                out, total = merged(how, mistake, out, total, scores, v_block)
        assert out is not None
        assert total is not None
        loss = F.mse_loss(out / total if how == "sums" else out, y)
        loss.backward()
        for p in model.parameters():
            dist.all_reduce(p.grad, op=dist.ReduceOp.AVG)
        job.end(loss=loss)

    return step


def merged(
    how: str,
    mistake: str,
    out: torch.Tensor | None,
    total: torch.Tensor | None,
    scores: torch.Tensor,
    v: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor]:
    if how == "sums":
        weights = scores.exp()
        new, norm = weights @ v, weights.sum(-1, keepdim=True)
        if out is None or total is None:
            return new, norm
        return out + new, total if mistake == "sum of the first" else total + norm
    norm = torch.logsumexp(scores, -1, keepdim=True)
    new = (scores - norm).exp() @ v
    if out is None or total is None:
        return new, norm
    if how == "sigmoid":
        joined = out - torch.sigmoid(norm - total) * (out - new)
        return joined, total - F.logsigmoid(total - norm)
    lse = torch.logaddexp(total, norm)
    kept = out if mistake == "no rescale" else out * torch.exp(total - lse)
    return kept + new * torch.exp(norm - lse), lse


def rings(single: str, how: str, ranks: int, *mistakes: str) -> Case:
    return Case(
        f"causal ring, {how}, {ranks} ranks, against {single}",
        causal(single),
        ring(how),
        {m: ring(how, m) for m in mistakes},
        floats(x=(2, 2 * ranks, WIDTH), y=(2, 2 * ranks, WIDTH)),
        ranks,
    )


CASES = [
    rings(
        "by hand",
        "sums",
        2,
        "sum of the first",
        "mask of the other block",
        "mask of every block",
        "own block alone",
        "no mask at all",
    ),
    rings("by hand", "sums", 4, "wrong order", "mask of every block"),
    rings("fused", "sums", 2, "sum of the first", "mask of every block"),
    rings("by hand", "lse", 2, "no rescale", "mask of every block"),
    rings("by hand", "sigmoid", 2, "mask of the other block", "mask of every block"),
    rings("by hand", "lse", 4, "no rescale", "wrong order"),
]
