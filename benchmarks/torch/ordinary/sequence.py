"""Sequence and context parallelism: functional collectives, gathered keys, Ulysses, a ring."""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as fc
import torch.nn.functional as F
from torch import nn

import shardproof.torch as sp
from benchmarks.torch.ordinary.parts import WIDTH, Case, Step, floats

# -- 1. Megatron's sequence parallelism with functional collectives. -------------------------------


class Block(nn.Module):
    def __init__(self, hidden: int = 16) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.up = nn.Linear(WIDTH, hidden)
        self.down = nn.Linear(hidden, WIDTH)


def block(job: sp.Job) -> None:
    model = Block()
    job.start(model)
    x = job.batch["x"]
    y = x + model.down(F.gelu(model.up(model.norm(x)), approximate="tanh"))
    loss = F.mse_loss(y, job.batch["y"])
    loss.backward()
    job.end(loss=loss)


def sequence(mistake: str = "") -> Step:
    def step(job: sp.Job) -> None:
        n, r = job.world_size, job.rank
        model = Block(16 // n)
        size = 16 // n
        job.start(
            model,
            parameters={
                "up.weight": sp.piece("up.weight", dim=0, start=r * size, size=size),
                "up.bias": sp.piece("up.bias", dim=0, start=r * size, size=size),
                "down.weight": sp.piece("down.weight", dim=1, start=r * size, size=size),
            },
        )
        group = list(range(n))
        x, y = (job.batch[k].chunk(n)[r] for k in ("x", "y"))
        h = fc.all_gather_tensor_autograd(model.norm(x), 0, group)
        h = F.gelu(model.up(h), approximate="tanh")
        part = F.linear(h, model.down.weight)
        if mistake == "bias before the reduce-scatter":
            out = x + fc.reduce_scatter_tensor_autograd(part + model.down.bias, "sum", 0, group)
        else:
            out = x + fc.reduce_scatter_tensor_autograd(part, "sum", 0, group) + model.down.bias
        loss = (out - y).pow(2).sum() / job.batch["y"].numel()
        loss.backward()
        shared = [model.norm.weight, model.norm.bias, model.down.bias]
        if mistake == "norm's gradient of own positions":
            shared = shared[2:]
        for p in shared:
            dist.all_reduce(p.grad)
        dist.all_reduce(total := loss.detach().clone())
        job.end(loss=total)

    return step


SEQUENCE = Case(
    "sequence parallelism with functional collectives",
    block,
    sequence(),
    {
        m: sequence(m)
        for m in ("bias before the reduce-scatter", "norm's gradient of own positions")
    },
    floats(x=(4, 2, WIDTH), y=(4, 2, WIDTH)),
)

# -- 2. Context parallelism: queries stay, keys and values are gathered; causal. -------------------


class Attend(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v, self.o = (nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(4))


def mixed(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, first: int) -> torch.Tensor:
    """Causal attention of queries whose positions begin at ``first``."""
    scores = torch.matmul(q, k.mT) / math.sqrt(q.size(-1))
    rows = torch.arange(first, first + q.size(-2)).unsqueeze(1)
    hidden = torch.arange(k.size(-2)).unsqueeze(0) > rows
    return scores.masked_fill(hidden, float("-inf")).softmax(dim=-1) @ v


def attend(job: sp.Job) -> None:
    model = Attend()
    job.start(model)
    x = job.batch["x"]
    loss = F.mse_loss(model.o(mixed(model.q(x), model.k(x), model.v(x), 0)), job.batch["y"])
    loss.backward()
    job.end(loss=loss)


class Gather(torch.autograd.Function):
    """All positions of dimension 1; gradients are summed and cut."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        parts = [torch.empty_like(x) for _ in range(dist.get_world_size())]
        dist.all_gather(parts, x.contiguous())
        return torch.cat(parts, dim=1)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
        grad = grad.contiguous()
        dist.all_reduce(grad)
        return grad.chunk(dist.get_world_size(), dim=1)[dist.get_rank()]


class GatherCut(torch.autograd.Function):
    """As `Gather`, but that its backward forgets the sum."""

    forward = Gather.forward

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
        return grad.chunk(dist.get_world_size(), dim=1)[dist.get_rank()]


def context(mistake: str = "") -> Step:
    def step(job: sp.Job) -> None:
        n, r = job.world_size, job.rank
        model = Attend()
        job.start(model)
        gather: Any = GatherCut if mistake == "gradients of keys not summed" else Gather
        x, y = (job.batch[name].chunk(n, dim=1)[r] for name in ("x", "y"))
        k, v = gather.apply(model.k(x)), gather.apply(model.v(x))
        first = 0 if mistake == "mask without offset" else r * x.size(1)
        loss = F.mse_loss(model.o(mixed(model.q(x), k, v, first)), y)
        loss.backward()
        for p in model.parameters():
            dist.all_reduce(p.grad)
            if mistake != "gradients not divided":
                p.grad.div_(n)
        job.end(loss=loss)

    return step


CONTEXT = Case(
    "context parallelism with gathered keys, causal",
    attend,
    context(),
    {
        m: context(m)
        for m in ("gradients of keys not summed", "mask without offset", "gradients not divided")
    },
    floats(x=(2, 4, WIDTH), y=(2, 4, WIDTH)),
)

# -- 3. Ulysses: positions to heads and back by all-to-all. ----------------------------------------

HEADS, SIZE = 4, 2


class All2All(torch.autograd.Function):
    """[b, t / n, heads, size] to [b, t, heads / n, size], or back."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, scatter: int, gather: int) -> torch.Tensor:
        ctx.dims = scatter, gather
        return exchanged(x, scatter, gather)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> Any:
        scatter, gather = ctx.dims
        return exchanged(grad, gather, scatter), None, None


def exchanged(x: torch.Tensor, scatter: int, gather: int) -> torch.Tensor:
    n = dist.get_world_size()
    sent = [part.contiguous() for part in x.chunk(n, dim=scatter)]
    received = [torch.empty_like(sent[0]) for _ in range(n)]
    dist.all_to_all(received, sent)
    return torch.cat(received, dim=gather).contiguous()


class Heads(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH)
        self.out = nn.Linear(WIDTH, WIDTH)

    def split(self, x: torch.Tensor) -> list[torch.Tensor]:
        return [t.view(*t.shape[:2], HEADS, SIZE) for t in self.qkv(x).chunk(3, dim=-1)]


def core(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    q, k, v = (t.transpose(1, 2) for t in (q, k, v))
    return F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2)


def heads(job: sp.Job) -> None:
    model = Heads()
    job.start(model)
    x = job.batch["x"]
    loss = F.mse_loss(model.out(core(*model.split(x)).flatten(2)), job.batch["y"])
    loss.backward()
    job.end(loss=loss)


def ulysses(mistake: str = "") -> Step:
    def step(job: sp.Job) -> None:
        n, r = job.world_size, job.rank
        model = Heads()
        job.start(model)
        x, y = (job.batch[name].chunk(n, dim=1)[r] for name in ("x", "y"))
        q, k, v = model.split(x)
        if mistake == "attention over own positions":
            mixed = core(q, k, v)
        else:
            q, k, v = (All2All.apply(t, 2, 1) for t in (q, k, v))
            mixed = All2All.apply(core(q, k, v), 1, 2)
        if mistake == "heads joined in the wrong order":
            mixed = mixed.transpose(2, 3)
        loss = F.mse_loss(model.out(mixed.flatten(2)), y)
        loss.backward()
        if mistake != "gradients not averaged":
            for p in model.parameters():
                dist.all_reduce(p.grad, op=dist.ReduceOp.AVG)
        job.end(loss=loss)

    return step


ULYSSES = Case(
    "Ulysses: heads and positions by all-to-all",
    heads,
    ulysses(),
    {
        m: ulysses(m)
        for m in (
            "attention over own positions",
            "heads joined in the wrong order",
            "gradients not averaged",
        )
    },
    floats(x=(2, 4, WIDTH), y=(2, 4, WIDTH)),
)

# -- 4. A ring with log-sum-exp correction, its backward written out, as in ring attention. --------


def turned(x: torch.Tensor) -> torch.Tensor:
    """The tensor of the rank before this one."""
    n, r = dist.get_world_size(), dist.get_rank()
    found = torch.empty_like(x)
    ops = [
        dist.P2POp(dist.isend, x.contiguous(), (r + 1) % n),
        dist.P2POp(dist.irecv, found, (r - 1) % n),
    ]
    for work in dist.batch_isend_irecv(ops):
        work.wait()
    return found


class Ring(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, fix: bool) -> Any:
        ctx.fix = fix
        own_k, own_v = k, v
        out = lse = None
        for turn in range(dist.get_world_size()):
            if turn:
                k, v = turned(k), turned(v)
            scores = q @ k.mT / math.sqrt(q.size(-1))
            block_lse = torch.logsumexp(scores, dim=-1, keepdim=True)
            block = torch.exp(scores - block_lse) @ v
            if out is None or lse is None:
                out, lse = block, block_lse
            else:
                new = torch.log(torch.exp(lse) + torch.exp(block_lse))
                out = torch.exp(lse - new) * out + torch.exp(block_lse - new) * block
                lse = new
        ctx.save_for_backward(q, own_k, own_v, out, lse)
        return out

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> Any:
        q, k, v, out, lse = ctx.saved_tensors
        scale = 1.0 / math.sqrt(q.size(-1))
        delta = (grad * out).sum(dim=-1, keepdim=True)
        dq, dk, dv = torch.zeros_like(q), torch.zeros_like(k), torch.zeros_like(v)
        for _ in range(dist.get_world_size()):
            scores = q @ k.mT * scale
            top = lse if ctx.fix else torch.logsumexp(scores, dim=-1, keepdim=True)
            p = torch.exp(scores - top)
            ds = p * (grad @ v.mT - delta) * scale
            dq = dq + ds @ k
            dk, dv = dk + ds.mT @ q, dv + p.mT @ grad
            k, v, dk, dv = turned(k), turned(v), turned(dk), turned(dv)
        return dq, dk, dv, None


def attend_all(job: sp.Job) -> None:
    model = Attend()
    job.start(model)
    x = job.batch["x"]
    p = torch.softmax(model.q(x) @ model.k(x).mT / math.sqrt(WIDTH), dim=-1)
    loss = F.mse_loss(model.o(p @ model.v(x)), job.batch["y"])
    loss.backward()
    job.end(loss=loss)


def ring(mistake: str = "") -> Step:
    def step(job: sp.Job) -> None:
        n, r = job.world_size, job.rank
        model = Attend()
        job.start(model)
        x, y = (job.batch[name].chunk(n, dim=1)[r] for name in ("x", "y"))
        fix = mistake != "backward without the global log-sum-exp"
        out = Ring.apply(model.q(x), model.k(x), model.v(x), fix)
        loss = F.mse_loss(model.o(out), y)
        loss.backward()
        for p in model.parameters():
            dist.all_reduce(p.grad, op=dist.ReduceOp.AVG)
        job.end(loss=loss)

    return step


RING = Case(
    "ring attention with log-sum-exp, own backward",
    attend_all,
    ring(),
    {"backward without the global log-sum-exp": ring("backward without the global log-sum-exp")},
    floats(x=(2, 4, WIDTH), y=(2, 4, WIDTH)),
)

CASES = [SEQUENCE, CONTEXT, ULYSSES, RING]
