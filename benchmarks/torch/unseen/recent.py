"""Blocks of recent models over ranks: sinks, learned positions, conditioned norms, channels."""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.nn.functional as differentiable
import torch.nn.functional as F
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    parallelize_module,
)

import shardproof.torch as sp
from benchmarks.torch.ordinary.parts import (
    CLASSES,
    Case,
    Step,
    averaged,
    copy_to,
    floats,
    ids,
    reduce_from,
)

D, HEADS, HEAD, H = 8, 4, 2, 16


def divided(job: sp.Job, **dims: int | None) -> dict[str, Any]:
    """What each parameter of this rank is: a part along a dimension, or the whole."""
    out: dict[str, Any] = {}
    for name, value in dims.items():
        dim, size = value if isinstance(value, tuple) else (None, 0)
        key = name.replace("__", ".")
        out[key] = (
            sp.same(key)
            if dim is None
            else sp.piece(key, dim=dim, start=job.rank * size, size=size)
        )
    return out


# -- 1. Attention with a sink for each head, causal, heads over ranks. -----------------------------


class Sinks(nn.Module):
    def __init__(self, heads: int = HEADS) -> None:
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(D, heads * HEAD) for _ in range(3))
        self.o = nn.Linear(heads * HEAD, D, bias=False)
        self.sink = nn.Parameter(torch.zeros(heads))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = (w(x).unflatten(-1, (-1, HEAD)).transpose(1, 2) for w in (self.q, self.k, self.v))
        scores = q @ k.transpose(-1, -2) / math.sqrt(HEAD)
        t = x.shape[1]
        hidden = torch.triu(torch.full((t, t), float("-inf")), diagonal=1)
        sink = self.sink.view(1, -1, 1, 1).expand(len(x), -1, t, 1)
        scores = torch.cat([scores + hidden, sink], -1)
        weights = scores.softmax(-1)[..., :-1]
        return self.o((weights @ v).transpose(1, 2).flatten(2))  # type: ignore[no-any-return]


def regression(make: Any) -> Step:
    def step(job: sp.Job) -> None:
        model = make()
        job.start(model)
        loss = F.mse_loss(model(job.batch["x"]), job.batch["y"])
        loss.backward()
        job.end(loss=loss)

    return step


def sinks(mistake: str = "") -> Step:
    def step(job: sp.Job) -> None:
        n = HEADS // job.world_size
        model = Sinks(n)
        w = n * HEAD
        rows = {f"{one}__{what}": (0, w) for one in "qkv" for what in ("weight", "bias")}
        parts = divided(job, **rows, o__weight=(1, w), sink=(0, n))
        if mistake == "sinks of the first heads":
            parts["sink"] = sp.piece("sink", dim=0, start=0, size=n)
        job.start(model, parameters=parts)
        x = job.batch["x"]
        out = model(x if mistake == "input's gradient" else copy_to(x))
        out = out if mistake == "not summed" else reduce_from(out)
        loss = F.mse_loss(out, job.batch["y"])
        loss.backward()
        job.end(loss=loss)

    return step


SINK = Case(
    "attention with a sink for each head, TP",
    regression(Sinks),
    sinks(),
    {m: sinks(m) for m in ("not summed",)},
    floats(x=(2, 4, D), y=(2, 4, D)),
)

# -- 2. GPT-2 with learned positions: replicas by two, positions by two, gathered keys. ------------


class Gpt(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.wte, self.wpe = nn.Embedding(CLASSES, D), nn.Embedding(8, D)
        self.norm = nn.LayerNorm(D)
        self.qkv, self.o = nn.Linear(D, 3 * D), nn.Linear(D, D)
        self.last = nn.LayerNorm(D)

    def forward(self, tokens: torch.Tensor, first: int = 0, group: Any = None) -> torch.Tensor:
        t = tokens.shape[1]
        x = self.wte(tokens) + self.wpe(torch.arange(first, first + t))
        q, k, v = (
            z.unflatten(-1, (HEADS, HEAD)).transpose(1, 2)
            for z in self.qkv(self.norm(x)).chunk(3, -1)
        )
        if group is not None:
            k, v = (torch.cat(differentiable.all_gather(z.contiguous(), group), 2) for z in (k, v))
        mask = torch.arange(first, first + t)[:, None] >= torch.arange(k.shape[2])[None]
        out = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        x = x + self.o(out.transpose(1, 2).flatten(2))
        return self.last(x) @ self.wte.weight.T


def language(job: sp.Job) -> None:
    model = Gpt()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    job.start(model, optimizer)
    logits = model(job.batch["tokens"])
    loss = F.cross_entropy(logits.flatten(0, 1), job.batch["labels"].flatten())
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    job.end(loss=loss)


def contexts(mistake: str = "") -> Step:
    def step(job: sp.Job) -> None:
        mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "cp"))
        a, b = mesh.get_local_rank("dp"), mesh.get_local_rank("cp")
        model = Gpt()
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
        job.start(model, optimizer)
        tokens, labels = (job.batch[k].chunk(2)[a].chunk(2, 1)[b] for k in ("tokens", "labels"))
        first = 0 if mistake == "positions from zero" else b * tokens.shape[1]
        logits = model(tokens, first, mesh.get_group("cp"))
        loss = F.cross_entropy(logits.flatten(0, 1), labels.flatten())
        loss.backward()
        averaged(model, mesh.get_group("dp") if mistake == "averaged over replicas" else None)
        if mistake != "not clipped":
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        job.end(loss=loss)

    return step


GPT = Case(
    "GPT-2 with learned positions, DP and gathered keys, AdamW",
    language,
    contexts(),
    {m: contexts(m) for m in ("positions from zero", "averaged over replicas", "not clipped")},
    ids("tokens", "labels", rows=4, length=8),
    4,
)

# -- 3. A block with conditioned norms (DiT), TP by a plan. ----------------------------------------


class Conditioned(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(D, elementwise_affine=False)
        self.mod = nn.Linear(D, 3 * D)
        self.up, self.down = nn.Linear(D, H), nn.Linear(H, D)

    def forward(self, x: torch.Tensor, c: torch.Tensor) -> torch.Tensor:
        shift, scale, gate = self.mod(F.silu(c)).chunk(3, -1)
        h = self.norm(x) * (1 + scale.unsqueeze(1)) + shift.unsqueeze(1)
        return x + gate.unsqueeze(1) * self.down(F.gelu(self.up(h), approximate="tanh"))  # type: ignore[no-any-return]


def flow(job: sp.Job) -> None:
    model = Conditioned()
    job.start(model)
    x, n, t = job.batch["x"], job.batch["noise"], torch.sigmoid(job.batch["t"])
    mixed = (1 - t[:, None]) * x + t[:, None] * n
    loss = F.mse_loss(model(mixed, t * torch.ones(D)), n - x)
    loss.backward()
    job.end(loss=loss)


def flows(mistake: str = "") -> Step:
    def step(job: sp.Job) -> None:
        mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
        model = Conditioned()
        plan: dict[str, Any] = {"up": ColwiseParallel(), "down": RowwiseParallel()}
        parallelize_module(model, mesh["tp"], plan)
        job.start(model)
        r = mesh.get_local_rank("dp")
        x, n, t = (job.batch[k].chunk(2)[r] for k in ("x", "noise", "t"))
        t = torch.sigmoid(t)
        mixed = (1 - t[:, None]) * x + t[:, None] * n
        if mistake == "noise and data exchanged":
            mixed = (1 - t[:, None]) * n + t[:, None] * x
        loss = F.mse_loss(model(mixed, t * torch.ones(D)), n - x)
        loss.backward()
        for name, p in model.named_parameters():
            grad: Any = p.grad
            grad = grad.to_local() if hasattr(grad, "to_local") else grad
            if not (mistake == "modulation not reduced" and name.startswith("mod")):
                dist.all_reduce(grad, op=dist.ReduceOp.AVG, group=mesh.get_group("dp"))
        job.end(loss=loss)

    return step


DIT = Case(
    "flow matching with conditioned norms, DP and TP by a plan",
    flow,
    flows(),
    {m: flows(m) for m in ("noise and data exchanged", "modulation not reduced")},
    floats(x=(4, 3, D), noise=(4, 3, D), t=(4, 1)),
    4,
)

# -- 4. Convolutions with channels over ranks, group norms of own groups. --------------------------


class Channels(nn.Module):
    def __init__(self, inner: int = H, groups: int = 4) -> None:
        super().__init__()
        self.a = nn.Conv2d(4, inner, 3, padding=1)
        self.norm = nn.GroupNorm(groups, inner)
        self.b = nn.Conv2d(inner, 4, 3, padding=1, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.b(F.silu(self.norm(self.a(x))))  # type: ignore[no-any-return]


def channels(mistake: str = "") -> Step:
    def step(job: sp.Job) -> None:
        n = H // job.world_size
        model = Channels(n, 4 // job.world_size if mistake != "groups of half the size" else 4)
        job.start(
            model,
            parameters=divided(job, a__weight=(0, n), a__bias=(0, n), norm__weight=(0, n),
                               norm__bias=(0, n), b__weight=(1, n)),
        )  # fmt: skip
        out = model(copy_to(job.batch["x"]))
        loss = F.mse_loss(out if mistake == "not summed" else reduce_from(out), job.batch["y"])
        loss.backward()
        job.end(loss=loss)

    return step


CHANNEL = Case(
    "convolutions and group norms with channels over ranks, TP",
    regression(Channels),
    channels(),
    {m: channels(m) for m in ("not summed", "groups of half the size")},
    floats(x=(2, 4, 4, 4), y=(2, 4, 4, 4)),
)

# -- 5. Heads by all-to-all within pairs, gathered keys between pairs. -----------------------------


class Both(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(D, D, bias=False) for _ in range(3))
        self.o = nn.Linear(D, D)

    def forward(self, x: torch.Tensor, exchange: Any = None, gather: Any = None) -> torch.Tensor:
        q, k, v = (w(x).unflatten(-1, (HEADS, HEAD)) for w in (self.q, self.k, self.v))
        if exchange is not None:
            q, k, v = (to_heads(z, exchange) for z in (q, k, v))
            k, v = (torch.cat(differentiable.all_gather(z, gather), 1) for z in (k, v))
        q, k, v = (z.transpose(1, 2) for z in (q, k, v))
        out = F.scaled_dot_product_attention(q, k, v).transpose(1, 2)
        if exchange is not None:
            out = to_positions(out, exchange)
        return self.o(out.flatten(2))  # type: ignore[no-any-return]


class _Exchange(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, group: Any) -> torch.Tensor:
        ctx.group = group
        x = x.contiguous()
        out = torch.empty_like(x)
        dist.all_to_all_single(out, x, group=group)
        return out

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> Any:
        out = torch.empty_like(grad, memory_format=torch.contiguous_format)
        dist.all_to_all_single(out, grad.contiguous(), group=ctx.group)
        return out, None


def to_heads(x: torch.Tensor, group: Any) -> torch.Tensor:
    """[b, t, h, d] to [b, 2 t, h / 2, d]."""
    parts = torch.stack(x.chunk(2, 2)).contiguous()
    return torch.cat(_Exchange.apply(parts, group).unbind(), 1).contiguous()


def to_positions(x: torch.Tensor, group: Any) -> torch.Tensor:
    parts = torch.stack(x.chunk(2, 1)).contiguous()
    return torch.cat(_Exchange.apply(parts, group).unbind(), 2)


def both(mistake: str = "") -> Step:
    def step(job: sp.Job) -> None:
        mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("ring", "heads"))
        model = Both()
        job.start(model)
        x, y = (job.batch[k].chunk(4, 1)[job.rank] for k in ("x", "y"))
        ring, heads = mesh.get_group("ring"), mesh.get_group("heads")
        if mistake == "groups exchanged":
            ring, heads = heads, ring
        loss = F.mse_loss(model(x, heads, ring), y)
        loss.backward()
        if mistake == "averaged within pairs":
            averaged(model, heads)
        else:
            averaged(model)
        job.end(loss=loss)

    return step


USP = Case(
    "heads by all-to-all within pairs, gathered keys between pairs",
    regression(Both),
    both(),
    {m: both(m) for m in ("averaged within pairs",)},
    floats(x=(2, 8, D), y=(2, 8, D)),
    4,
)

# -- 6. Clamped gates of four experts, two for each token, softmax after the choice; EP. -----------


class Experts(nn.Module):
    def __init__(self, first: int = 0, count: int = 4) -> None:
        super().__init__()
        self.first, self.count = first, count
        self.gate = nn.Linear(D, 4)
        self.up = nn.Parameter(torch.zeros(count, D, 2 * H))
        self.up_bias = nn.Parameter(torch.zeros(count, 2 * H))
        self.down = nn.Parameter(torch.zeros(count, H, D))

    def forward(self, x: torch.Tensor, ranks: bool = False, mistake: str = "") -> torch.Tensor:
        flat = x.flatten(0, 1)
        top, which = self.gate(flat).topk(2, -1)
        weights = torch.zeros(len(flat), 4).scatter(1, which, top.softmax(-1))
        if ranks and mistake != "gate's gradient partial":
            weights = copy_to(weights)
        own = weights[:, self.first : self.first + self.count]
        moved = copy_to(flat) if ranks else flat
        h = torch.einsum("td,edh->eth", moved, self.up) + self.up_bias[:, None]
        g, u = h.chunk(2, -1)
        g, u = g.clamp(max=7.0), u.clamp(-7.0, 7.0)
        h = (u + 1) * g * torch.sigmoid(1.702 * g)
        out = torch.einsum("eth,ehd,te->td", h, self.down, own)
        if ranks:
            out = reduce_from(out)
        return x + out.view_as(x)


def experts(mistake: str = "") -> Step:
    def step(job: sp.Job) -> None:
        n = 4 // job.world_size
        first = 0 if mistake == "weights of the first experts" else job.rank * n
        model = Experts(first, n)
        parts = divided(
            job, up=(0, n), up_bias=(0, n), down=(0, n), gate__weight=None, gate__bias=None
        )
        job.start(model, parameters=parts)
        loss = F.mse_loss(model(job.batch["x"], True, mistake), job.batch["y"])
        loss.backward()
        job.end(loss=loss)

    return step


EXPERT = Case(
    "clamped gates of experts, softmax over the two best, EP",
    regression(Experts),
    experts(),
    {m: experts(m) for m in ("weights of the first experts", "gate's gradient partial")},
    floats(x=(2, 3, D), y=(2, 3, D)),
)

CASES = [SINK, GPT, DIT, CHANNEL, USP, EXPERT]
