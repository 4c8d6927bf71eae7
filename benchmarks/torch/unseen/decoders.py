"""Blocks of decoders over tensor-parallel ranks, by hand: Llama, Qwen3, OLMo 2, NeoX, MLA."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

import shardproof.torch as sp
from benchmarks.torch.ordinary.parts import (
    CLASSES,
    Case,
    Step,
    copy_to,
    floats,
    ids,
    reduce_from,
)

D, HEADS, KEYS, HEAD, INNER, T = 8, 4, 2, 2, 12, 4
Module = Callable[[torch.Tensor], torch.Tensor]


class RMSNorm(nn.Module):
    """In float32, as Llama has it."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = x.float()
        h = h * torch.rsqrt(h.pow(2).mean(-1, keepdim=True) + 1e-5)
        return self.weight * h.to(x.dtype)


def angles(length: int, size: int) -> tuple[torch.Tensor, torch.Tensor]:
    steps = 1.0 / (10000.0 ** (torch.arange(0, size, 2).float() / size))
    table = torch.outer(torch.arange(length).float(), steps)
    return table.cos(), table.sin()


def by_halves(x: torch.Tensor) -> torch.Tensor:
    """Rotary positions of [b, heads, t, size] as transformers has them."""
    cos, sin = (torch.cat([t, t], dim=-1) for t in angles(x.size(-2), x.size(-1)))
    half = x.size(-1) // 2
    turned = torch.cat([-x[..., half:], x[..., :half]], dim=-1)
    return x * cos + turned * sin


def by_pairs(x: torch.Tensor) -> torch.Tensor:
    """The same with even and odd entries, as GPT-J has it."""
    cos, sin = angles(x.size(-2), x.size(-1))
    even, odd = x[..., 0::2], x[..., 1::2]
    return torch.stack([even * cos - odd * sin, even * sin + odd * cos], dim=-1).flatten(-2)


# -- 1. Llama with Megatron's sequence parallelism: positions first, fused projections. ------------


class GatherSequence(torch.autograd.Function):
    """All positions; backward a reduce-scatter."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        n = dist.get_world_size()
        out = torch.empty(n * x.size(0), *x.shape[1:], dtype=x.dtype)
        dist.all_gather_into_tensor(out, x.contiguous())
        return out

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
        n = dist.get_world_size()
        out = torch.empty(grad.size(0) // n, *grad.shape[1:], dtype=grad.dtype)
        dist.reduce_scatter_tensor(out, grad.contiguous())
        return out


class ScatterSequence(torch.autograd.Function):
    """A reduce-scatter over positions; backward all of them are gathered."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return GatherSequence.backward(ctx, x)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
        return GatherSequence.forward(ctx, grad)


class Llama(nn.Module):
    def __init__(self, n: int = 1) -> None:
        super().__init__()
        self.n = n
        self.embed = nn.Embedding(CLASSES // n, D)
        self.norm1, self.norm2, self.norm = RMSNorm(D), RMSNorm(D), RMSNorm(D)
        self.qkv = nn.Linear(D, (HEADS + 2 * KEYS) * HEAD // n, bias=False)
        self.proj = nn.Linear(HEADS * HEAD // n, D, bias=False)
        self.gate_up = nn.Linear(D, 2 * INNER // n, bias=False)
        self.down = nn.Linear(INNER // n, D, bias=False)
        self.head = nn.Linear(D, CLASSES // n, bias=False)

    def attend(self, x: torch.Tensor) -> torch.Tensor:
        t, b, _ = x.shape
        keys, per = KEYS // self.n, HEADS // KEYS
        mixed = self.qkv(x).view(t, b, keys, (per + 2) * HEAD)
        q, k, v = mixed.split([per * HEAD, HEAD, HEAD], dim=-1)
        q = q.reshape(t, b, keys * per, HEAD).permute(1, 2, 0, 3)
        k, v = (h.permute(1, 2, 0, 3).repeat_interleave(per, dim=1) for h in (k, v))
        out = F.scaled_dot_product_attention(by_halves(q), by_halves(k), v, is_causal=True)
        return self.proj(out.permute(2, 0, 1, 3).reshape(t, b, -1))

    def feed(self, x: torch.Tensor) -> torch.Tensor:
        gate, up = self.gate_up(x).chunk(2, dim=-1)
        return self.down(F.silu(gate) * up)

    def run(self, x: torch.Tensor, gather: Module, scatter: Module) -> torch.Tensor:
        x = x + scatter(self.attend(gather(self.norm1(x))))
        x = x + scatter(self.feed(gather(self.norm2(x))))
        return self.head(gather(self.norm(x)))


def same(x: torch.Tensor) -> torch.Tensor:
    return x


def llama(job: sp.Job) -> None:
    model = Llama()
    job.start(model)
    x = model.embed(job.batch["ids"].t())
    logits = model.run(x, same, same).float()
    loss = F.cross_entropy(logits.reshape(-1, CLASSES), job.batch["labels"].t().reshape(-1))
    loss.backward()
    job.end(loss=loss)


def llama_parts(n: int, r: int, mistake: str = "") -> dict[str, Any]:
    def rows(name: str, size: int) -> Any:
        return sp.piece(name, dim=0, start=r * size, size=size)

    own = INNER // n
    fused = [sp.piece("gate_up.weight", dim=0, start=i * INNER + r * own, size=own) for i in (0, 1)]
    return {
        "embed.weight": rows("embed.weight", CLASSES // n),
        "head.weight": rows("head.weight", CLASSES // n),
        "qkv.weight": rows("qkv.weight", (HEADS + 2 * KEYS) * HEAD // n),
        "proj.weight": sp.piece("proj.weight", dim=1, start=r * D // n, size=D // n),
        "gate_up.weight": rows("gate_up.weight", 2 * own) if "one run" in mistake else fused,
        "down.weight": sp.piece("down.weight", dim=1, start=r * own, size=own),
    }


class VocabularyEntropy(torch.autograd.Function):
    """Cross-entropy of each position, classes over ranks."""

    @staticmethod
    def forward(ctx: Any, logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        size = logits.size(-1)
        first = dist.get_rank() * size
        most = logits.max(dim=-1)[0]
        dist.all_reduce(most, op=dist.ReduceOp.MAX)
        logits = logits - most.unsqueeze(-1)
        mask = (labels < first) | (labels >= first + size)
        local = labels.clone() - first
        local[mask] = 0
        flat = logits.view(-1, size)
        rows = torch.arange(flat.size(0))
        chosen = flat[rows, local.view(-1)].clone().view_as(labels)
        chosen[mask] = 0.0
        dist.all_reduce(chosen)
        weights = logits.exp()
        total = weights.sum(dim=-1)
        dist.all_reduce(total)
        ctx.save_for_backward(weights / total.unsqueeze(-1), mask, local)
        return total.log() - chosen

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> Any:
        soft, mask, local = ctx.saved_tensors
        flat = soft.clone().view(-1, soft.size(-1))
        flat[torch.arange(flat.size(0)), local.view(-1)] -= 1.0 - mask.view(-1).float()
        return flat.view_as(soft) * grad.unsqueeze(-1), None


def llama_parallel(mistake: str = "") -> Step:
    def step(job: sp.Job) -> None:
        n, r = job.world_size, job.rank
        model = Llama(n)
        job.start(model, parameters=llama_parts(n, r, mistake))
        tokens = job.batch["ids"].t()
        first = r * (CLASSES // n)
        mask = (tokens < first) | (tokens >= first + CLASSES // n)
        local = tokens.clone() - first
        local[mask] = 0
        x = model.embed(local)
        x = x.masked_fill(mask.unsqueeze(-1), 0.0)
        gather: Module = GatherSequence.apply
        logits = model.run(ScatterSequence.apply(x), gather, ScatterSequence.apply).float()
        loss = VocabularyEntropy.apply(logits, job.batch["labels"].t().contiguous()).mean()
        loss.backward()
        for name, p in model.named_parameters():
            if "norm" in name and not (mistake == "last norm not reduced" and name[:5] == "norm."):
                dist.all_reduce(p.grad)
        job.end(loss=loss)

    return step


LLAMA = Case(
    "Llama with Megatron's sequence parallelism, fused projections, vocabulary over ranks",
    llama,
    llama_parallel(),
    {m: llama_parallel(m) for m in ("last norm not reduced", "gate and up cut as one run")},
    ids("ids", "labels", rows=2, length=T),
)

# -- 2 to 5. Attention blocks whose heads are divided: [b, t, D] to [b, t, D]. ---------------------


def regression(block: Callable[[], nn.Module]) -> Step:
    def step(job: sp.Job) -> None:
        model = block()
        job.start(model)
        loss = F.mse_loss(model(job.batch["x"]), job.batch["y"])
        loss.backward()
        job.end(loss=loss)

    return step


class Divided(nn.Module):
    """A block that is told over how many ranks it is, and its mistake."""

    dims: ClassVar[Mapping[str, int]] = {}
    shared: tuple[str, ...] = ()

    def __init__(self, n: int = 1, mistake: str = "") -> None:
        super().__init__()
        self.n, self.mistake = n, mistake

    def into(self, x: torch.Tensor) -> torch.Tensor:
        return copy_to(x) if self.n > 1 else x

    def out(self, x: torch.Tensor) -> torch.Tensor:
        return reduce_from(x) if self.n > 1 else x

    def heads(self, x: torch.Tensor) -> torch.Tensor:
        return x.unflatten(-1, (-1, HEAD)).transpose(1, 2)


def divided(block: Callable[[int, str], Divided], mistake: str = "") -> Step:
    def step(job: sp.Job) -> None:
        n, r = job.world_size, job.rank
        model = block(n, mistake)
        parts = {}
        for name, p in model.named_parameters():
            if name in model.dims:
                size = p.size(model.dims[name])
                parts[name] = sp.piece(name, dim=model.dims[name], start=r * size, size=size)
            else:
                parts[name] = sp.same(name)
        job.start(model, parameters=parts)
        loss = F.mse_loss(model(job.batch["x"]), job.batch["y"])
        loss.backward()
        for name, p in model.named_parameters():
            if name in model.shared and mistake != "copies not summed":
                dist.all_reduce(p.grad)
        job.end(loss=loss)

    return step


def blocks(name: str, block: Any, *mistakes: str, ranks: int = 2) -> Case:
    return Case(
        name,
        regression(block),
        divided(block),
        {m: divided(block, m) for m in mistakes},
        floats(x=(2, T, D), y=(2, T, D)),
        ranks,
    )


class Qwen3(Divided):
    """Norms of each head's queries and keys, whose weights all ranks have."""

    dims: ClassVar = {"q.weight": 0, "k.weight": 0, "v.weight": 0, "o.weight": 1}
    shared = ("qn.weight", "kn.weight")

    def __init__(self, n: int = 1, mistake: str = "") -> None:
        super().__init__(n, mistake)
        self.norm, self.qn, self.kn = RMSNorm(D), RMSNorm(HEAD), RMSNorm(HEAD)
        self.q = nn.Linear(D, HEADS * HEAD // n, bias=False)
        self.k, self.v = (nn.Linear(D, KEYS * HEAD // n, bias=False) for _ in range(2))
        self.o = nn.Linear(HEADS * HEAD // n, D, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.norm(x)
        h = h if self.mistake == "norm's gradient of own heads" else self.into(h)
        q = by_halves(self.qn(self.heads(self.q(h))))
        k = by_halves(self.kn(self.heads(self.k(h))))
        v = self.heads(self.v(h))
        out = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        return x + self.out(self.o(out.transpose(1, 2).flatten(2)))


class Olmo2(Divided):
    """Queries and keys are normalised over all heads, and outputs after the block."""

    dims: ClassVar = {**Qwen3.dims, "qn": 0, "kn": 0}

    def __init__(self, n: int = 1, mistake: str = "") -> None:
        super().__init__(n, mistake)
        own = D // n
        self.q, self.k, self.v = (nn.Linear(D, own, bias=False) for _ in range(3))
        self.o, self.after = nn.Linear(own, D, bias=False), RMSNorm(D)
        self.qn, self.kn = (nn.Parameter(torch.ones(own)) for _ in range(2))

    def normed(self, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        squares = x.pow(2).sum(-1, keepdim=True)
        if self.mistake != "norm of own heads":
            squares = self.out(squares)
            squares = squares if self.mistake == "norm's sum not copied" else self.into(squares)
        width = D // self.n if self.mistake == "norm of own heads" else D
        return x * torch.rsqrt(squares / width + 1e-6) * weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.into(x)
        q, k = self.normed(self.q(h), self.qn), self.normed(self.k(h), self.kn)
        q, k, v = (self.heads(t) for t in (q, k, self.v(h)))
        out = F.scaled_dot_product_attention(by_halves(q), by_halves(k), v, is_causal=True)
        return x + self.after(self.out(self.o(out.transpose(1, 2).flatten(2))))


class Neox(Divided):
    """Parallel residuals, a LayerNorm of each branch, rotary positions of a half of each head."""

    dims: ClassVar = {
        "qkv.weight": 0,
        "qkv.bias": 0,
        "dense.weight": 1,
        "up.weight": 0,
        "up.bias": 0,
        "down.weight": 1,
    }

    def __init__(self, n: int = 1, mistake: str = "") -> None:
        super().__init__(n, mistake)
        self.ln1, self.ln2 = nn.LayerNorm(D), nn.LayerNorm(D)
        self.qkv, self.dense = nn.Linear(D, 6 * D // n), nn.Linear(2 * D // n, D)
        self.up, self.down = nn.Linear(D, INNER // n), nn.Linear(INNER // n, D)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        b, t, _ = x.shape
        h = self.into(self.ln1(x))
        qkv = self.qkv(h).view(b, t, -1, 3 * 4).transpose(1, 2)
        q, k, v = qkv.chunk(3, dim=-1)
        q, k = (torch.cat([by_pairs(s[..., :2]), s[..., 2:]], dim=-1) for s in (q, k))
        scores = torch.matmul(q, k.transpose(-1, -2)) / math.sqrt(4)
        hidden = torch.triu(torch.ones(t, t, dtype=torch.bool), diagonal=1)
        weights = scores.masked_fill(hidden, torch.finfo(scores.dtype).min).softmax(-1)
        mixed = (weights @ v).transpose(1, 2).reshape(b, t, -1)
        h = self.into(self.ln2(x))
        fed = F.linear(F.gelu(self.up(h), approximate="tanh"), self.down.weight)
        part = F.linear(mixed, self.dense.weight) + fed
        bias = self.dense.bias + self.down.bias
        if self.mistake == "biases on every rank":
            return x + self.out(part + bias)
        if self.mistake == "one branch summed":
            return x + self.out(part - fed) + fed + bias
        return x + self.out(part) + bias


class Latent(Divided):
    """DeepSeek's: queries and keys through a few values that all have, a shared rotary key."""

    dims: ClassVar = {"qb.weight": 0, "kvb.weight": 0, "o.weight": 1}

    def __init__(self, n: int = 1, mistake: str = "") -> None:
        super().__init__(n, mistake)
        self.norm, self.qan, self.kvan = RMSNorm(D), RMSNorm(4), RMSNorm(4)
        self.qa, self.kva = nn.Linear(D, 4, bias=False), nn.Linear(D, 4 + HEAD, bias=False)
        self.qb = nn.Linear(4, HEADS * 2 * HEAD // n, bias=False)
        self.kvb = nn.Linear(4, HEADS * 2 * HEAD // n, bias=False)
        self.o = nn.Linear(HEADS * HEAD // n, D, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        b, t, _ = x.shape
        h, own = self.norm(x), HEADS // self.n
        q = self.qb(self.into(self.qan(self.qa(h)))).view(b, t, own, 2 * HEAD).transpose(1, 2)
        q_plain, q_turned = q.split([HEAD, HEAD], dim=-1)
        low, turned = self.kva(h).split([4, HEAD], dim=-1)
        kv = self.kvb(self.into(self.kvan(low))).view(b, t, own, 2 * HEAD).transpose(1, 2)
        k_plain, v = kv.split([HEAD, HEAD], dim=-1)
        if self.mistake != "shared key not copied":
            turned = self.into(turned)
        turned = by_pairs(turned.unsqueeze(1)).expand(-1, own, -1, -1)
        q = torch.cat([q_plain, by_pairs(q_turned)], dim=-1)
        k = torch.cat([k_plain, turned], dim=-1)
        size = 1 if self.mistake == "scale of the value's size" else 2
        out = F.scaled_dot_product_attention(q, k, v, is_causal=True, scale=(size * HEAD) ** -0.5)
        return x + self.out(self.o(out.transpose(1, 2).flatten(2)))


QWEN3 = blocks(
    "Qwen3's norms of heads, grouped queries",
    Qwen3,
    "copies not summed",
    "norm's gradient of own heads",
)
OLMO2 = blocks("OLMo 2's norms over all heads", Olmo2, "norm of own heads", "norm's sum not copied")
NEOX = blocks(
    "GPT-NeoX: parallel residuals, half of a head turned",
    Neox,
    "biases on every rank",
    "one branch summed",
)
LATENT = blocks("latent attention over ranks", Latent, "shared key not copied")
CASES = [LLAMA, QWEN3, OLMO2, NEOX, LATENT]
