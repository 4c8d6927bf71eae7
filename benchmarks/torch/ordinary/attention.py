"""Attention over long sequences once more: layouts, running maxima, exchanges of whole stacks."""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

import shardproof.torch as sp
from benchmarks.torch.ordinary.parts import WIDTH, Case, Step, floats

HEADS, GROUPS, SIZE = 4, 2, 2


class Grouped(nn.Module):
    """Grouped queries over positions first: [t, b, width]."""

    def __init__(self) -> None:
        super().__init__()
        self.wq = nn.Linear(WIDTH, HEADS * SIZE, bias=False)
        self.wkv = nn.Linear(WIDTH, 2 * GROUPS * SIZE, bias=False)
        self.wo = nn.Linear(HEADS * SIZE, WIDTH, bias=False)

    def queries(self, x: torch.Tensor) -> torch.Tensor:
        return self.wq(x).unflatten(-1, (HEADS, SIZE))

    def pairs(self, x: torch.Tensor) -> torch.Tensor:
        """Keys and values side by side: [t, b, groups, 2, size]."""
        return self.wkv(x).unflatten(-1, (GROUPS, 2, SIZE))

    def joined(self, q: torch.Tensor, kv: torch.Tensor, first: int) -> torch.Tensor:
        k, v = kv.unbind(3)
        k, v = (t.repeat_interleave(HEADS // GROUPS, dim=2) for t in (k, v))
        q, k, v = (t.permute(1, 2, 0, 3) for t in (q, k, v))
        at = torch.arange(first, first + q.size(2))
        seen = torch.arange(k.size(2))[None, :] <= at[:, None]
        out = F.scaled_dot_product_attention(q, k, v, attn_mask=seen)
        return self.wo(out.permute(2, 0, 1, 3).flatten(2))


def grouped(job: sp.Job) -> None:
    model = Grouped()
    job.start(model)
    x = job.batch["x"]
    out = model.joined(model.queries(x), model.pairs(x), 0)
    loss = (out - job.batch["y"]).square().mean()
    loss.backward()
    job.end(loss=loss)


# -- 1. Keys and values are gathered over positions, their gradients reduce-scattered. -------------


class GatherFirst(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        n = dist.get_world_size()
        out = x.new_empty(n * x.size(0), *x.shape[1:])
        dist.all_gather_into_tensor(out, x.contiguous())
        return out

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
        n = dist.get_world_size()
        out = grad.new_empty(grad.size(0) // n, *grad.shape[1:])
        dist.reduce_scatter_tensor(out, grad.contiguous())
        return out


def gathered(mistake: str = "") -> Step:
    def step(job: sp.Job) -> None:
        n, r = job.world_size, job.rank
        model = Grouped()
        job.start(model)
        x, y = (job.batch[name].chunk(n)[r] for name in ("x", "y"))
        first = (r + 1 if mistake else r) * x.size(0)
        out = model.joined(model.queries(x), GatherFirst.apply(model.pairs(x)), first)
        loss = (out - y).square().mean()
        loss.backward()
        for p in model.parameters():
            dist.all_reduce(p.grad)
            p.grad /= n
        dist.all_reduce(total := loss.detach() / n)
        job.end(loss=total)

    return step


GATHERED = Case(
    "grouped queries over gathered keys, reduce-scatter backward",
    grouped,
    gathered(),
    {"mask of the next rank": gathered("mask of the next rank")},
    floats(x=(4, 2, WIDTH), y=(4, 2, WIDTH)),
)

# -- 2. A ring with running maximum and sum; autograd runs it backward. ----------------------------


class Attend(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(3))


def attended(job: sp.Job) -> None:
    model = Attend()
    job.start(model)
    x = job.batch["x"]
    scores = model.q(x) @ model.k(x).transpose(-1, -2) / math.sqrt(WIDTH)
    loss = F.mse_loss(scores.softmax(-1) @ model.v(x), job.batch["y"])
    loss.backward()
    job.end(loss=loss)


class Turn(torch.autograd.Function):
    """The tensor of the rank before; its gradient goes back there."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return shifted(x, 1)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
        return shifted(grad, -1)


def shifted(x: torch.Tensor, by: int) -> torch.Tensor:
    n, r = dist.get_world_size(), dist.get_rank()
    got = torch.empty_like(x, memory_format=torch.contiguous_format)
    ops = [
        dist.P2POp(dist.isend, x.contiguous(), (r + by) % n),
        dist.P2POp(dist.irecv, got, (r - by) % n),
    ]
    for work in dist.batch_isend_irecv(ops):
        work.wait()
    return got


def running(mistake: str = "") -> Step:
    def step(job: sp.Job) -> None:
        n, r = job.world_size, job.rank
        model = Attend()
        job.start(model)
        x, y = (job.batch[name].chunk(n, dim=1)[r] for name in ("x", "y"))
        q, k, v = model.q(x), model.k(x), model.v(x)
        scores = q @ k.transpose(-1, -2) / math.sqrt(WIDTH)
        top = scores.amax(-1, keepdim=True)
        weights = torch.exp(scores - top)
        total, out = weights.sum(-1, keepdim=True), weights @ v
        for _ in range(n - 1):
            k, v = Turn.apply(k), Turn.apply(v)
            scores = q @ k.transpose(-1, -2) / math.sqrt(WIDTH)
            new = torch.maximum(top, scores.amax(-1, keepdim=True))
            weights = torch.exp(scores - new)
            fade = torch.exp(top - new)
            total = total * fade + weights.sum(-1, keepdim=True)
            out = (out if mistake else out * fade) + weights @ v
            top = new
        loss = F.mse_loss(out / total, y)
        loss.backward()
        for p in model.parameters():
            dist.all_reduce(p.grad, op=dist.ReduceOp.AVG)
        job.end(loss=loss)

    return step


RUNNING = Case(
    "ring attention with a running maximum, autograd backward",
    attended,
    running(),
    {"output not rescaled": running("output not rescaled")},
    floats(x=(2, 4, WIDTH), y=(2, 4, WIDTH)),
)

# -- 3. Ulysses as DeepSpeed writes it: one all_to_all_single between two permutations. ------------


def spread(x: torch.Tensor, to_heads: bool) -> torch.Tensor:
    """[b, t, heads, size]: all positions of some heads, or some positions of all heads."""
    n = dist.get_world_size()
    b, t, h, d = x.shape
    if to_heads:
        sent = x.reshape(b, t, n, h // n, d).permute(2, 1, 0, 3, 4).contiguous()
        got = torch.empty_like(sent)
        dist.all_to_all_single(got, sent)
        return got.reshape(n * t, b, h // n, d).transpose(0, 1).contiguous()
    sent = x.reshape(b, n, t // n, h, d).permute(1, 3, 0, 2, 4).contiguous()
    got = torch.empty_like(sent)
    dist.all_to_all_single(got, sent)
    return got.permute(2, 3, 0, 1, 4).reshape(b, t // n, n * h, d).contiguous()


class SeqAllToAll(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, to_heads: bool) -> torch.Tensor:
        ctx.to_heads = to_heads
        return spread(x, to_heads)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> Any:
        return spread(grad, not ctx.to_heads), None


class Split(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v, self.o = (nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(4))

    def cut(self, x: torch.Tensor) -> list[torch.Tensor]:
        return [w(x).view(*x.shape[:2], HEADS, SIZE) for w in (self.q, self.k, self.v)]


def sharp(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    q, k, v = (t.transpose(1, 2) for t in (q, k, v))
    scores = torch.einsum("bhqd,bhkd->bhqk", q, k) / SIZE**0.5
    hidden = torch.full(scores.shape[-2:], float("-inf")).triu(1)
    return (torch.softmax(scores + hidden, dim=-1) @ v).transpose(1, 2)


def split(job: sp.Job) -> None:
    model = Split()
    job.start(model)
    x = job.batch["x"]
    loss = F.mse_loss(model.o(sharp(*model.cut(x)).reshape(x.shape)), job.batch["y"])
    loss.backward()
    job.end(loss=loss)


def deepspeed(mistake: str = "") -> Step:
    def step(job: sp.Job) -> None:
        n, r = job.world_size, job.rank
        model = Split()
        job.start(model)
        x, y = (job.batch[name].chunk(n, dim=1)[r] for name in ("x", "y"))
        q, k, v = (SeqAllToAll.apply(t, True) for t in model.cut(x))
        if mistake:
            q, k = k, q
        out = SeqAllToAll.apply(sharp(q, k, v), False)
        loss = F.mse_loss(model.o(out.reshape(x.shape)), y)
        loss.backward()
        for p in model.parameters():
            dist.all_reduce(p.grad, op=dist.ReduceOp.AVG)
        job.end(loss=loss)

    return step


DEEPSPEED = Case(
    "Ulysses with one all_to_all_single, as DeepSpeed has it",
    split,
    deepspeed(),
    {"queries and keys exchanged": deepspeed("queries and keys exchanged")},
    floats(x=(2, 4, WIDTH), y=(2, 4, WIDTH)),
)

CASES = [GATHERED, RUNNING, DEEPSPEED]
