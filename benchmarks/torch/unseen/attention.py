"""Attention as language models have it: relative positions, slopes, shared keys, windows."""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

import shardproof.torch as sp
from benchmarks.torch.ordinary.parts import (
    CLASSES,
    Case,
    Step,
    copy_to,
    floats,
    ids,
    reduce_from,
    rows,
)

D, HEADS, HEAD, LENGTH = 8, 4, 2, 4

# -- 1. T5's encoder block: a table of relative positions, heads over ranks. -----------------------

BUCKETS, FARTHEST = 6, 8


def buckets(length: int) -> torch.Tensor:
    """Which bucket the distance of two positions is in: exact ones near by, logarithmic beyond."""
    where = torch.arange(length)
    relative = where[None, :] - where[:, None]
    half = BUCKETS // 2
    sign = (relative > 0).long() * half
    far = relative.abs()
    exact = half // 2
    scaled = torch.log(far.float().clamp(min=1) / exact) / math.log(FARTHEST / exact)
    large = (exact + scaled * (half - exact)).long().clamp(max=half - 1)
    return sign + torch.where(far < exact, far, large)


class T5Norm(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(D))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.weight * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6))


class T5(nn.Module):
    def __init__(self, heads: int = HEADS) -> None:
        super().__init__()
        own = heads * HEAD
        self.norm = T5Norm()
        self.q, self.k, self.v = (nn.Linear(D, own, bias=False) for _ in range(3))
        self.o = nn.Linear(own, D, bias=False)
        self.relative = nn.Embedding(BUCKETS, heads)
        self.heads = heads

    def attend(self, x: torch.Tensor) -> torch.Tensor:
        b, n, _ = x.shape
        q, k, v = (
            m(x).view(b, n, self.heads, HEAD).transpose(1, 2) for m in (self.q, self.k, self.v)
        )
        bias = self.relative(buckets(n)).permute(2, 0, 1).unsqueeze(0)
        weights = F.softmax(q @ k.transpose(3, 2) + bias, dim=-1)
        return self.o((weights @ v).transpose(1, 2).reshape(b, n, -1))


def t5(job: sp.Job) -> None:
    model = T5()
    job.start(model)
    x = job.batch["x"]
    loss = F.mse_loss(x + model.attend(model.norm(x)), job.batch["y"])
    loss.backward()
    job.end(loss=loss)


def t5_parallel(mistake: str = "") -> Step:
    def step(job: sp.Job) -> None:
        n, r = job.world_size, job.rank
        heads = HEADS // n
        model = T5(heads)
        out = {"start": r * heads * HEAD, "size": heads * HEAD}
        table = 0 if mistake == "table of the first heads" else r
        job.start(
            model,
            parameters={
                **{f"{w}.weight": sp.piece(f"{w}.weight", dim=0, **out) for w in "qkv"},
                "o.weight": sp.piece("o.weight", dim=1, **out),
                "relative.weight": sp.piece(
                    "relative.weight", dim=1, start=table * heads, size=heads
                ),
            },
        )
        x = job.batch["x"]
        h = model.norm(x)
        h = h if mistake == "norm's gradient of own heads" else copy_to(h)
        loss = F.mse_loss(x + reduce_from(model.attend(h)), job.batch["y"])
        loss.backward()
        job.end(loss=loss)

    return step


VECTORS = floats(x=(2, LENGTH, D), y=(2, LENGTH, D))
RELATIVE = Case(
    "T5's relative positions, heads over ranks",
    t5,
    t5_parallel(),
    {m: t5_parallel(m) for m in ("table of the first heads", "norm's gradient of own heads")},
    VECTORS,
)

# -- 2. ALiBi, causal: the slopes of all heads, and of a rank's. -----------------------------------


def slopes(heads: int) -> torch.Tensor:
    return torch.tensor([2.0 ** (-8.0 * (i + 1) / heads) for i in range(heads)])


class Bloom(nn.Module):
    def __init__(self, heads: int = HEADS) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(D)
        self.query_key_value = nn.Linear(D, 3 * heads * HEAD)
        self.dense = nn.Linear(heads * HEAD, D)
        self.heads = heads

    def attend(self, x: torch.Tensor, slope: torch.Tensor) -> torch.Tensor:
        b, n, _ = x.shape
        fused = self.query_key_value(x).view(b, n, self.heads, 3, HEAD)
        q, k, v = (fused[..., i, :].transpose(1, 2) for i in range(3))
        alibi = slope[:, None, None] * torch.arange(n, dtype=torch.float32)[None, None, :]
        scores = alibi + torch.matmul(q, k.transpose(-1, -2)) / math.sqrt(HEAD)
        mask = torch.ones(n, n, dtype=torch.bool).triu(1)
        weights = F.softmax(scores.masked_fill(mask, float("-inf")), dim=-1)
        return F.linear((weights @ v).transpose(1, 2).reshape(b, n, -1), self.dense.weight)


def bloom(job: sp.Job) -> None:
    model = Bloom()
    job.start(model)
    x = job.batch["x"]
    y = x + model.attend(model.norm(x), slopes(HEADS)) + model.dense.bias
    loss = (y - job.batch["y"]).abs().mean()
    loss.backward()
    job.end(loss=loss)


def bloom_parallel(mistake: str = "") -> Step:
    def step(job: sp.Job) -> None:
        n, r = job.world_size, job.rank
        heads = HEADS // n
        model = Bloom(heads)
        own = heads * HEAD
        fused = {"start": 3 * own * r, "size": 3 * own}
        job.start(
            model,
            parameters={
                "query_key_value.weight": sp.piece("query_key_value.weight", dim=0, **fused),
                "query_key_value.bias": sp.piece("query_key_value.bias", dim=0, **fused),
                "dense.weight": sp.piece("dense.weight", dim=1, start=own * r, size=own),
            },
        )
        x = job.batch["x"]
        if mistake == "slopes of as many heads as a rank has":
            slope = slopes(heads)
        else:
            slope = slopes(HEADS)[r * heads : (r + 1) * heads]
        part = model.attend(copy_to(model.norm(x)), slope)
        if mistake == "residual on every rank":
            y = reduce_from(part + x) + model.dense.bias
        else:
            y = x + reduce_from(part) + model.dense.bias
        loss = (y - job.batch["y"]).abs().mean()
        loss.backward()
        job.end(loss=loss)

    return step


ALIBI = Case(
    "ALiBi and a fused projection by heads, causal",
    bloom,
    bloom_parallel(),
    {
        m: bloom_parallel(m)
        for m in ("slopes of as many heads as a rank has", "residual on every rank")
    },
    VECTORS,
)

# -- 3. Fewer key heads than ranks: pairs of ranks hold the same. ----------------------------------

KEYS = 2


class Grouped(nn.Module):
    def __init__(self, heads: int = HEADS, keys: int = KEYS) -> None:
        super().__init__()
        self.wq = nn.Linear(D, heads * HEAD, bias=False)
        self.wk, self.wv = (nn.Linear(D, keys * HEAD, bias=False) for _ in range(2))
        self.wo = nn.Linear(heads * HEAD, D, bias=False)
        self.heads, self.keys = heads, keys

    def attend(self, x: torch.Tensor) -> torch.Tensor:
        b, n, _ = x.shape
        q = self.wq(x).view(b, n, self.heads, HEAD).transpose(1, 2)
        k, v = (
            m(x).view(b, n, self.keys, HEAD).repeat_interleave(self.heads // self.keys, dim=2)
            for m in (self.wk, self.wv)
        )
        out = F.scaled_dot_product_attention(
            q, k.transpose(1, 2), v.transpose(1, 2), is_causal=True
        )
        return self.wo(out.transpose(1, 2).flatten(2))


def grouped(job: sp.Job) -> None:
    model = Grouped()
    job.start(model)
    x = job.batch["x"]
    loss = F.mse_loss(x + model.attend(x), job.batch["y"])
    loss.backward()
    job.end(loss=loss)


def grouped_parallel(mistake: str = "") -> Step:
    def step(job: sp.Job) -> None:
        n, r = job.world_size, job.rank
        model = Grouped(HEADS // n, 1)
        copies = n // KEYS
        groups = [dist.new_group(list(range(i, i + copies))) for i in range(0, n, copies)]
        key = r % KEYS if mistake == "keys dealt round" else r // copies
        own = HEADS // n * HEAD
        job.start(
            model,
            parameters={
                "wq.weight": sp.piece("wq.weight", dim=0, start=r * own, size=own),
                "wo.weight": sp.piece("wo.weight", dim=1, start=r * own, size=own),
                "wk.weight": sp.piece("wk.weight", dim=0, start=key * HEAD, size=HEAD),
                "wv.weight": sp.piece("wv.weight", dim=0, start=key * HEAD, size=HEAD),
            },
        )
        x = job.batch["x"]
        loss = F.mse_loss(x + reduce_from(model.attend(copy_to(x))), job.batch["y"])
        loss.backward()
        if mistake != "copies of keys not summed":
            for w in (model.wk.weight, model.wv.weight):
                dist.all_reduce(w.grad, group=groups[r // copies])
        job.end(loss=loss)

    return step


KEYS_SHARED = Case(
    "grouped queries with fewer key heads than ranks",
    grouped,
    grouped_parallel(),
    {m: grouped_parallel(m) for m in ("keys dealt round", "copies of keys not summed")},
    VECTORS,
    4,
)

# -- 4. Gemma's way: capped scores, a window, an embedding that is scaled and tied; FSDP2. ---------


class GemmaNorm(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        scale = torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6)
        return x * scale * (1.0 + self.weight)


def capped(x: torch.Tensor, most: float) -> torch.Tensor:
    return torch.tanh(x / most) * most


class Windowed(nn.Module):
    def __init__(self, window: int) -> None:
        super().__init__()
        self.before, self.after = GemmaNorm(D), GemmaNorm(D)
        self.qn, self.kn = GemmaNorm(HEAD), GemmaNorm(HEAD)
        self.qkv, self.o = nn.Linear(D, 3 * D, bias=False), nn.Linear(D, D, bias=False)
        self.window = window

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        b, n, _ = x.shape
        q, k, v = self.qkv(self.before(x)).view(b, n, 3, HEADS, HEAD).unbind(2)
        scores = torch.einsum("bihd,bjhd->bhij", self.qn(q), self.kn(k)) * HEAD**-0.5
        i, j = torch.arange(n)[:, None], torch.arange(n)[None, :]
        seen = (j <= i) & (i - j < self.window)
        scores = torch.where(seen, capped(scores, 50.0), torch.finfo(scores.dtype).min)
        out = torch.einsum("bhij,bjhd->bihd", scores.softmax(-1), v).reshape(b, n, D)
        return x + self.after(self.o(out))


class Gemma(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(CLASSES, D)
        self.layers = nn.ModuleList([Windowed(2), Windowed(LENGTH)])
        self.norm = GemmaNorm(D)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.embed(tokens) * D**0.5
        for layer in self.layers:
            x = layer(x)
        return capped(self.norm(x) @ self.embed.weight.t(), 30.0)


def gemma(job: sp.Job) -> None:
    model = Gemma()
    job.start(model)
    loss = F.cross_entropy(model(job.batch["ids"]).view(-1, CLASSES), job.batch["labels"].view(-1))
    loss.backward()
    job.end(loss=loss)


def gemma_parallel(mistake: str = "") -> Step:
    def step(job: sp.Job) -> None:
        mesh = init_device_mesh("cpu", (job.world_size,))
        model = Gemma()
        for layer in model.layers:
            fully_shard(layer, mesh=mesh)
        fully_shard(model, mesh=mesh)
        job.start(model)
        tokens, labels = rows(job, "ids", "labels")
        if mistake == "every rank the first rows":
            tokens, labels = rows(job, "ids", "labels", at=0)
        loss = F.cross_entropy(model(tokens).view(-1, CLASSES), labels.view(-1))
        scale = job.world_size if mistake == "loss times ranks" else 1
        (loss * scale).backward()
        job.end(loss=loss)

    return step


CAPPED = Case(
    "capped scores, windows and a scaled tied embedding, FSDP2",
    gemma,
    gemma_parallel(),
    {m: gemma_parallel(m) for m in ("every rank the first rows", "loss times ranks")},
    ids("ids", "labels", rows=4, length=LENGTH),
)

# -- 5. Gathered keys, positions dealt in a zigzag so that causal work is equal. -------------------


class Zigzag(torch.autograd.Function):
    """All positions of dimension 1 in their order, of ranks that have chunks r and 2n - 1 - r."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        n = dist.get_world_size()
        parts = [torch.empty_like(x) for _ in range(n)]
        dist.all_gather(parts, x.contiguous())
        first = [p.chunk(2, dim=1)[0] for p in parts]
        second = [p.chunk(2, dim=1)[1] for p in reversed(parts)]
        return torch.cat(first + second, dim=1)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
        n, r = dist.get_world_size(), dist.get_rank()
        grad = grad.contiguous()
        dist.all_reduce(grad)
        chunks = grad.chunk(2 * n, dim=1)
        return torch.cat([chunks[r], chunks[2 * n - 1 - r]], dim=1)


class Causal(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v, self.o = (nn.Linear(D, D, bias=False) for _ in range(4))

    def mixed(
        self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, where: torch.Tensor
    ) -> torch.Tensor:
        scores = q @ k.mT / math.sqrt(D)
        hidden = torch.arange(k.shape[1])[None, :] > where[:, None]
        return self.o(scores.masked_fill(hidden, float("-inf")).softmax(dim=-1) @ v)


def causal(job: sp.Job) -> None:
    model = Causal()
    job.start(model)
    x = job.batch["x"]
    found = model.mixed(model.q(x), model.k(x), model.v(x), torch.arange(x.shape[1]))
    loss = F.mse_loss(found, job.batch["y"])
    loss.backward()
    job.end(loss=loss)


def causal_parallel(mistake: str = "") -> Step:
    def step(job: sp.Job) -> None:
        n, r = job.world_size, job.rank
        model = Causal()
        job.start(model)

        def dealt(x: torch.Tensor, dim: int) -> torch.Tensor:
            chunks = x.chunk(2 * n, dim=dim)
            return torch.cat([chunks[r], chunks[2 * n - 1 - r]], dim=dim)

        x, y = dealt(job.batch["x"], 1), dealt(job.batch["y"], 1)
        every = torch.arange(job.batch["x"].shape[1])
        where = every.chunk(n)[r] if mistake == "mask of positions in a row" else dealt(every, 0)
        k, v = Zigzag.apply(model.k(x)), Zigzag.apply(model.v(x))
        loss = F.mse_loss(model.mixed(model.q(x), k, v, where), y)
        loss.backward()
        for p in model.parameters():
            dist.all_reduce(p.grad)
            if mistake != "gradients not divided":
                p.grad.div_(n)
        job.end(loss=loss)

    return step


ZIGZAG = Case(
    "context parallelism in a zigzag, gathered keys",
    causal,
    causal_parallel(),
    {m: causal_parallel(m) for m in ("mask of positions in a row", "gradients not divided")},
    floats(x=(2, 8, D), y=(2, 8, D)),
)

CASES = [RELATIVE, ALIBI, KEYS_SHARED, CAPPED, ZIGZAG]
