"""Sequences and images over ranks: rings with their own backward, exchanges, scans, norms."""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.nn.functional as differentiable
import torch.nn.functional as F
from torch import nn

import shardproof.torch as sp
from benchmarks.torch.ordinary.attention import shifted
from benchmarks.torch.ordinary.parts import Case, Step, copy_to, floats, reduce_from

D, HEADS, HEAD = 8, 4, 2


def averaged(model: nn.Module) -> None:
    for p in model.parameters():
        dist.all_reduce(p.grad)
        p.grad /= dist.get_world_size()  # type: ignore[operator]


def cut(job: sp.Job, dim: int) -> list[torch.Tensor]:
    return [job.batch[k].chunk(job.world_size, dim=dim)[job.rank] for k in ("x", "y")]


# -- 1. A ring as ring-flash-attention has it: blocks merged by sigmoids, a backward of its own. ---


class Heads(nn.Module):
    def __init__(self, keys: int = HEADS) -> None:
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(D, h * HEAD) for h in (HEADS, keys, keys))
        self.o = nn.Linear(D, D)

    def cut(self, x: torch.Tensor) -> list[torch.Tensor]:
        """Queries, keys and values as [b, heads, t, size]."""
        return [w(x).unflatten(-1, (-1, HEAD)).transpose(1, 2) for w in (self.q, self.k, self.v)]

    def joined(self, out: torch.Tensor) -> torch.Tensor:
        return self.o(out.transpose(1, 2).flatten(2))


def ended(job: sp.Job, model: nn.Module, out: torch.Tensor, y: torch.Tensor) -> None:
    """Squares of what is left, and gradients as their mean over ranks."""
    loss = F.mse_loss(out, y)
    loss.backward()
    if job.world_size > 1:
        averaged(model)
    job.end(loss=loss)


def attention(causal: bool, keys: int = HEADS) -> Step:
    def step(job: sp.Job) -> None:
        model = Heads(keys)
        job.start(model)
        q, k, v = model.cut(job.batch["x"])
        out = F.scaled_dot_product_attention(q, k, v, is_causal=causal, enable_gqa=keys < HEADS)
        ended(job, model, model.joined(out), job.batch["y"])

    return step


def scored(q: torch.Tensor, k: torch.Tensor, masked: bool) -> torch.Tensor:
    scores = q @ k.transpose(-1, -2) / math.sqrt(HEAD)
    if masked:
        hidden = torch.ones(q.size(-2), k.size(-2), dtype=torch.bool).triu(1)
        scores = scores.masked_fill(hidden, float("-inf"))
    return scores


class RingFlash(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, causal: bool, mistake: str
    ) -> torch.Tensor:
        n, r = dist.get_world_size(), dist.get_rank()
        ctx.causal, ctx.mistake = causal, mistake
        own = k, v
        out = lse = None
        for turn in range(n):
            if not causal or turn <= r:
                scores = scored(q, k, causal and turn == 0)
                part_lse = scores.logsumexp(dim=-1, keepdim=True)
                part = (scores - part_lse).exp() @ v
                if out is None or lse is None:
                    out, lse = part, part_lse
                else:
                    out = out - torch.sigmoid(part_lse - lse) * (out - part)
                    lse = lse - F.logsigmoid(lse - part_lse)
            if turn + 1 < n:
                k, v = shifted(k, 1), shifted(v, 1)
        ctx.save_for_backward(q, *own, out, lse)
        return out  # type: ignore[return-value]

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> Any:
        q, k, v, out, lse = ctx.saved_tensors
        n, r = dist.get_world_size(), dist.get_rank()
        delta = (grad * out).sum(dim=-1, keepdim=True)
        dq, dk, dv = torch.zeros_like(q), torch.zeros_like(k), torch.zeros_like(v)
        for turn in range(n):
            if not ctx.causal or turn <= r:
                p = (scored(q, k, ctx.causal and turn == 0) - lse).exp()
                dv = dv + p.transpose(-1, -2) @ grad
                dp = grad @ v.transpose(-1, -2)
                ds = p * (dp if ctx.mistake == "delta left out" else dp - delta)
                ds = ds / math.sqrt(HEAD)
                dq = dq + ds @ k
                dk = dk + ds.transpose(-1, -2) @ q
            k, v = shifted(k, 1), shifted(v, 1)
            if ctx.mistake != "gradients of keys stay":
                dk, dv = shifted(dk, 1), shifted(dv, 1)
        return dq, dk, dv, None, None


def ring(causal: bool, mistake: str = "") -> Step:
    def step(job: sp.Job) -> None:
        model = Heads()
        job.start(model)
        x, y = cut(job, 1)
        out = RingFlash.apply(*model.cut(x), causal, mistake)
        ended(job, model, model.joined(out), y)

    return step


def rings(name: str, causal: bool, *mistakes: str) -> Case:
    return Case(
        name,
        attention(causal),
        ring(causal),
        {m: ring(causal, m) for m in mistakes},
        floats(x=(2, 4, D), y=(2, 4, D)),
    )


RING = rings("ring with its own backward, every key", False, "delta left out")
CAUSAL = rings("ring with its own backward, causal", True, "gradients of keys stay")

# -- 1b. Flash attention's backward: probabilities again from the logarithm of their sum. ----------


class Flash(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mistake: str
    ) -> torch.Tensor:
        scores = scored(q, k, masked=True)
        lse = scores.logsumexp(dim=-1, keepdim=True)
        out = (scores - lse).exp() @ v
        ctx.mistake = mistake
        ctx.save_for_backward(q, k, v, out, lse)
        return out

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> Any:
        q, k, v, out, lse = ctx.saved_tensors
        p = (scored(q, k, masked=ctx.mistake != "unmasked") - lse).exp()
        delta = (grad * out).sum(dim=-1, keepdim=True)
        dp = grad @ v.transpose(-1, -2)
        ds = p * (dp if ctx.mistake == "delta left out" else dp - delta) / math.sqrt(HEAD)
        return ds @ k, ds.transpose(-1, -2) @ q, p.transpose(-1, -2) @ grad, None


def flash(mistake: str = "") -> Step:
    def step(job: sp.Job) -> None:
        model = Heads()
        job.start(model)
        x, y = cut(job, 0)
        ended(job, model, model.joined(Flash.apply(*model.cut(x), mistake)), y)

    return step


FLASH = Case(
    "flash attention's own backward, causal, DP",
    attention(True),
    flash(),
    {m: flash(m) for m in ("delta left out", "unmasked")},
    floats(x=(4, 4, D), y=(4, 4, D)),
)

# -- 2. Ulysses with grouped queries: lists of heads, key heads repeated for the ranks. ------------


class Exchange(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, scatter: int, gather: int) -> torch.Tensor:
        ctx.dims = scatter, gather
        sent = [p.contiguous() for p in x.chunk(dist.get_world_size(), dim=scatter)]
        got = [torch.empty_like(p) for p in sent]
        dist.all_to_all(got, sent)
        return torch.cat(got, dim=gather).contiguous()

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> Any:
        scatter, gather = ctx.dims
        return Exchange.forward(ctx, grad, gather, scatter), None, None


def ulysses(mistake: str = "") -> Step:
    def step(job: sp.Job) -> None:
        model = Heads(2)
        job.start(model)
        x, y = cut(job, 1)
        q, k, v = model.cut(x)
        k, v = (
            t.repeat(1, 2, 1, 1)
            if mistake == "heads repeated in turn"
            else t.repeat_interleave(2, 1)
            for t in (k, v)
        )
        q, k, v = (Exchange.apply(t, 1, 2) for t in (q, k, v))
        out = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        ended(job, model, model.joined(Exchange.apply(out, 2, 1)), y)

    return step


ULYSSES = Case(
    "Ulysses by lists, two key heads repeated for four ranks",
    attention(True, 2),
    ulysses(),
    {"heads repeated in turn": ulysses("heads repeated in turn")},
    floats(x=(2, 4, D), y=(2, 4, D)),
    4,
)

# -- 3. Positions that do not divide: 3 and 2 of 5, gathered in lists. -----------------------------


class GatherUneven(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, total: int) -> torch.Tensor:
        ctx.sizes = [c.numel() for c in torch.arange(total).chunk(dist.get_world_size())]
        most = max(ctx.sizes)
        padded = F.pad(x, (0, 0, 0, most - x.size(1)))
        got = [torch.empty_like(padded) for _ in ctx.sizes]
        dist.all_gather(got, padded.contiguous())
        return torch.cat([g[:, :s] for g, s in zip(got, ctx.sizes, strict=True)], dim=1)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> Any:
        grad = grad.contiguous()
        dist.all_reduce(grad)
        return grad.split(ctx.sizes, dim=1)[dist.get_rank()], None


def uneven(mistake: str = "") -> Step:
    def step(job: sp.Job) -> None:
        model = Heads()
        job.start(model)
        x, y = cut(job, 1)
        q, _, _ = model.cut(x)
        _, k, v = model.cut(GatherUneven.apply(x, 5))
        first = 3 * job.rank
        seen = torch.arange(5)[None, :] <= torch.arange(first, first + x.size(1))[:, None]
        out = model.joined(F.scaled_dot_product_attention(q, k, v, attn_mask=seen))
        if mistake == "means of unlike parts averaged":
            loss = F.mse_loss(out, y) / job.world_size
        else:
            loss = (out - y).square().sum() / job.batch["y"].numel()
        loss.backward()
        for p in model.parameters():
            dist.all_reduce(p.grad)
        dist.all_reduce(total := loss.detach().clone())
        job.end(loss=total)

    return step


UNEVEN = Case(
    "five positions over two ranks, keys of gathered inputs",
    attention(True),
    uneven(),
    {"means of unlike parts averaged": uneven("means of unlike parts averaged")},
    floats(x=(2, 5, D), y=(2, 5, D)),
)

# -- 4. Mamba: channels over ranks, a causal convolution, a selective scan. ------------------------


class Mamba(nn.Module):
    STATE, RANK = 2, 2

    def __init__(self, n: int = 1, mistake: str = "") -> None:
        super().__init__()
        own = D // n
        self.n, self.mistake = n, mistake
        self.norm = nn.LayerNorm(D)
        self.x_in, self.z_in = nn.Linear(D, own, bias=False), nn.Linear(D, own, bias=False)
        self.conv = nn.Conv1d(own, own, 3, groups=own, padding=2)
        self.x_proj = nn.Linear(own, self.RANK + 2 * self.STATE, bias=False)
        self.dt = nn.Linear(self.RANK, own)
        self.a_log = nn.Parameter(torch.zeros(own, self.STATE))
        self.d = nn.Parameter(torch.ones(own))
        self.out = nn.Linear(own, D, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.norm(x)
        h = copy_to(h) if self.n > 1 else h
        u, z = self.x_in(h), self.z_in(h)
        u = F.silu(self.conv(u.transpose(1, 2))[..., : x.size(1)].transpose(1, 2))
        mixed = self.x_proj(u)
        if self.n > 1 and self.mistake != "choice of own channels":
            mixed = reduce_from(mixed)
            mixed = mixed if self.mistake == "choice not copied" else copy_to(mixed)
        step, b, c = mixed.split([self.RANK, self.STATE, self.STATE], dim=-1)
        step = F.softplus(self.dt(step))
        a = -torch.exp(self.a_log)
        state = torch.zeros(x.size(0), u.size(-1), self.STATE)
        ys = []
        for t in range(x.size(1)):
            keep = torch.exp(step[:, t, :, None] * a)
            state = keep * state + step[:, t, :, None] * b[:, t, None, :] * u[:, t, :, None]
            ys.append((state * c[:, t, None, :]).sum(-1))
        y = (torch.stack(ys, dim=1) + u * self.d) * F.silu(z)
        y = self.out(y)
        return x + (reduce_from(y) if self.n > 1 else y)


def mamba(n: int = 1, mistake: str = "") -> Step:
    def step(job: sp.Job) -> None:
        model = Mamba(n, mistake)
        dims = {"x_in.weight": 0, "z_in.weight": 0, "conv.weight": 0, "conv.bias": 0}
        dims |= {"x_proj.weight": 1, "dt.weight": 0, "dt.bias": 0, "a_log": 0, "d": 0}
        dims |= {"out.weight": 1}
        own = D // n
        parts = {k: sp.piece(k, dim=d, start=job.rank * own, size=own) for k, d in dims.items()}
        job.start(model, parameters=parts if n > 1 else None)
        loss = F.mse_loss(model(job.batch["x"]), job.batch["y"])
        loss.backward()
        job.end(loss=loss)

    return step


MAMBA = Case(
    "Mamba's selective scan, channels over ranks",
    mamba(),
    mamba(2),
    {m: mamba(2, m) for m in ("choice of own channels", "choice not copied")},
    floats(x=(2, 3, D), y=(2, 3, D)),
)

# -- 5. Linear attention over a divided sequence: states of earlier ranks. -------------------------


class States(torch.autograd.Function):
    """The sum of the states of earlier ranks; its gradients go to these."""

    @staticmethod
    def forward(ctx: Any, state: torch.Tensor, mistake: str) -> torch.Tensor:
        ctx.mistake = mistake
        n, r = dist.get_world_size(), dist.get_rank()
        got = [torch.empty_like(state) for _ in range(n)]
        dist.all_gather(got, state.contiguous())
        last = r + 1 if mistake == "own state as well" else r
        return sum(got[:last], torch.zeros_like(state))

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> Any:
        n, r = dist.get_world_size(), dist.get_rank()
        got = [torch.empty_like(grad) for _ in range(n)]
        dist.all_gather(got, grad.contiguous())
        return sum(got[r + 1 :], torch.zeros_like(grad)), None


def linear(parallel: bool, mistake: str = "") -> Step:
    def step(job: sp.Job) -> None:
        model = Heads()
        job.start(model)
        x, y = cut(job, 1) if parallel else (job.batch["x"], job.batch["y"])
        q, k, v = model.cut(x)
        q, k = F.elu(q) + 1, F.elu(k) + 1
        seen = torch.ones(x.size(1), x.size(1)).tril()
        out = (q @ k.transpose(-1, -2) * seen) @ v
        if parallel:
            out = out + q @ States.apply(k.transpose(-1, -2) @ v, mistake)
        ended(job, model, model.joined(out), y)

    return step


LINEAR = Case(
    "linear attention over blocks of positions, states gathered",
    linear(False),
    linear(True),
    {"own state as well": linear(True, "own state as well")},
    floats(x=(2, 4, D), y=(2, 4, D)),
)

# -- 6. Batch norm in two passes over ranks, against PyTorch's. ------------------------------------


class Synchronised(nn.Module):
    def __init__(self, over: bool, mistake: str = "") -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3, padding=1)
        self.weight, self.bias = nn.Parameter(torch.ones(4)), nn.Parameter(torch.zeros(4))
        self.fc = nn.Linear(4, 3)
        self.over, self.mistake = over, mistake

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.conv(x)
        if not self.over:
            h = F.batch_norm(h, None, None, self.weight, self.bias, training=True)
            return self.fc(F.relu(h).mean(dim=(2, 3)))
        n = dist.get_world_size()
        mean = differentiable.all_reduce(h.mean(dim=(0, 2, 3), keepdim=True)) / n
        var = (h - mean).square().mean(dim=(0, 2, 3), keepdim=True)
        if self.mistake != "variance of own rows":
            var = differentiable.all_reduce(var) / n
        h = (h - mean) / torch.sqrt(var + 1e-5)
        h = h * self.weight.view(1, -1, 1, 1) + self.bias.view(1, -1, 1, 1)
        return self.fc(F.relu(h).mean(dim=(2, 3)))


def synchronised(over: bool, mistake: str = "") -> Step:
    def step(job: sp.Job) -> None:
        model = Synchronised(over, mistake)
        job.start(model)
        x, y = cut(job, 0) if over else (job.batch["x"], job.batch["y"])
        ended(job, model, model(x), y)

    return step


NORMED = Case(
    "batch norm in two passes over ranks, against PyTorch's",
    synchronised(False),
    synchronised(True),
    {"variance of own rows": synchronised(True, "variance of own rows")},
    floats(x=(4, 3, 4, 4), y=(4, 3)),
)
CASES = [RING, CAUSAL, FLASH, ULYSSES, UNEVEN, MAMBA, LINEAR, NORMED]
