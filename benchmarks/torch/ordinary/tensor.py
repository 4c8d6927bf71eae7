"""Tensor parallelism by hand: columns and rows, vocabularies, heads, adapters, global norms."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.nn.functional as dnn
import torch.nn.functional as F
from torch import nn

import shardproof.torch as sp
from benchmarks.torch.ordinary.parts import (
    CLASSES,
    LENGTH,
    WIDTH,
    Case,
    Step,
    copy_to,
    floats,
    ids,
    reduce_from,
)

# -- 1. A vocabulary cut over ranks: embedding, logits and cross-entropy as Megatron has them. ----


class LM(nn.Module):
    def __init__(self, vocabulary: int = CLASSES) -> None:
        super().__init__()
        self.embed = nn.Embedding(vocabulary, WIDTH)
        self.norm = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, vocabulary, bias=False)


def lm(job: sp.Job) -> None:
    model = LM()
    job.start(model)
    logits = model.head(model.norm(model.embed(job.batch["ids"])))
    loss = F.cross_entropy(logits.view(-1, CLASSES), job.batch["labels"].view(-1))
    loss.backward()
    job.end(loss=loss)


class VocabularyLoss(torch.autograd.Function):
    """Cross-entropy of logits [N, V / ranks]; every rank has all of the loss."""

    @staticmethod
    def forward(
        ctx: Any, logits: torch.Tensor, labels: torch.Tensor, first: int, mistake: str
    ) -> torch.Tensor:
        most = logits.max(dim=-1).values
        if mistake != "local maximum":
            dist.all_reduce(most, op=dist.ReduceOp.MAX)
        logits = logits - most.unsqueeze(-1)
        size = logits.size(-1)
        outside = (labels < first) | (labels >= first + size)
        local = (labels - first).masked_fill(outside, 0)
        chosen = logits.gather(-1, local.unsqueeze(-1)).squeeze(-1)
        chosen = chosen.masked_fill(outside, 0.0)
        dist.all_reduce(chosen)
        e = logits.exp()
        total = e.sum(dim=-1)
        if mistake != "denominator of one rank":
            dist.all_reduce(total)
        ctx.save_for_backward(e / total.unsqueeze(-1), outside, local)
        return total.log() - chosen

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> Any:
        softmax, outside, local = ctx.saved_tensors
        found = softmax.clone()
        kept = 1.0 - outside.to(found.dtype)
        found[torch.arange(found.size(0)), local] -= kept
        return found * grad.unsqueeze(-1), None, None, None


def vocabulary(mistake: str = "") -> Step:
    def step(job: sp.Job) -> None:
        size = CLASSES // job.world_size
        model = LM(size)
        first = job.rank * size
        own = {
            f"{n}.weight": sp.piece(f"{n}.weight", dim=0, start=first, size=size)
            for n in ("embed", "head")
        }
        job.start(model, parameters=own)
        if mistake == "offset of the next rank":
            first = (job.rank + 1) % job.world_size * size
        tokens = job.batch["ids"]
        outside = (tokens < first) | (tokens >= first + size)
        x = model.embed((tokens - first).masked_fill(outside, 0))
        x = reduce_from(x.masked_fill(outside.unsqueeze(-1), 0.0))
        h = model.norm(x)
        h = h if mistake == "gradient of the head not summed" else copy_to(h)
        logits = model.head(h).view(-1, size)
        labels = job.batch["labels"].view(-1)
        loss = VocabularyLoss.apply(logits, labels, job.rank * size, mistake).mean()
        loss.backward()
        job.end(loss=loss)

    return step


VOCABULARY = Case(
    "vocabulary-parallel embedding and cross-entropy",
    lm,
    vocabulary(),
    {
        m: vocabulary(m)
        for m in (
            "local maximum",
            "denominator of one rank",
            "offset of the next rank",
            "gradient of the head not summed",
        )
    },
    ids("ids", "labels"),
)

# -- 2. RMSNorm by hand and a SwiGLU with gate and up in one weight. ------------------------------


class RMS(nn.Module):
    def __init__(self, eps: float = 1e-6) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(WIDTH))
        self.eps = eps

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps) * self.scale


class SwiGLU(nn.Module):
    """``joined``: which way gate and up are cut, "halves" of the fused rows or one run of them."""

    def __init__(self, hidden: int = 16) -> None:
        super().__init__()
        self.norm = RMS()
        self.gate_up = nn.Parameter(torch.empty(2 * hidden, WIDTH))
        self.down = nn.Parameter(torch.empty(WIDTH, hidden))

    def hidden(self, x: torch.Tensor) -> torch.Tensor:
        gate, up = F.linear(x, self.gate_up).chunk(2, dim=-1)
        return F.silu(gate) * up


def swiglu(job: sp.Job) -> None:
    model = SwiGLU()
    job.start(model)
    x = job.batch["x"]
    y = x + F.linear(model.hidden(model.norm(x)), model.down)
    loss = (y - job.batch["y"]).square().mean()
    loss.backward()
    job.end(loss=loss)


def swiglu_parallel(mistake: str = "") -> Step:
    def step(job: sp.Job) -> None:
        model = SwiGLU(16 // job.world_size)
        full = job.full["gate_up"]
        if mistake == "fused weight cut as one run":
            cut = full.chunk(job.world_size)[job.rank]
        else:
            cut = torch.cat([half.chunk(job.world_size)[job.rank] for half in full.chunk(2)])
        model.gate_up = nn.Parameter(cut.clone())
        model.down = nn.Parameter(job.full["down"].chunk(job.world_size, dim=1)[job.rank].clone())
        job.start(model)
        x = job.batch["x"]
        h = model.norm(x)
        h = h if mistake == "no sum of the norm's gradient" else copy_to(h)
        part = F.linear(model.hidden(h), model.down)
        if mistake == "residual before the all-reduce":
            y = reduce_from(x + part)
        else:
            y = x + reduce_from(part)
        loss = (y - job.batch["y"]).square().mean()
        loss.backward()
        job.end(loss=loss)

    return step


SWIGLU = Case(
    "RMSNorm and fused SwiGLU, TP",
    swiglu,
    swiglu_parallel(),
    {
        m: swiglu_parallel(m)
        for m in (
            "fused weight cut as one run",
            "no sum of the norm's gradient",
            "residual before the all-reduce",
        )
    },
    floats(x=(2, 3, WIDTH), y=(2, 3, WIDTH)),
    4,
)

# -- 3. Grouped-query attention with rotary embeddings, heads over ranks. -------------------------

HEADS, KV, SIZE = 4, 2, 4


class GQA(nn.Module):
    def __init__(self, heads: int = HEADS, kv: int = KV) -> None:
        super().__init__()
        self.heads, self.kv = heads, kv
        self.wq = nn.Linear(WIDTH, heads * SIZE, bias=False)
        self.wk = nn.Linear(WIDTH, kv * SIZE, bias=False)
        self.wv = nn.Linear(WIDTH, kv * SIZE, bias=False)
        self.wo = nn.Linear(heads * SIZE, WIDTH, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        b, t, _ = x.shape
        q = self.wq(x).view(b, t, self.heads, SIZE).transpose(1, 2)
        k = self.wk(x).view(b, t, self.kv, SIZE).transpose(1, 2)
        v = self.wv(x).view(b, t, self.kv, SIZE).transpose(1, 2)
        q, k = rotated(q), rotated(k)
        groups = self.heads // self.kv
        k, v = k.repeat_interleave(groups, dim=1), v.repeat_interleave(groups, dim=1)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.wo(y.transpose(1, 2).reshape(b, t, self.heads * SIZE))


def rotated(x: torch.Tensor) -> torch.Tensor:
    """Rotary embedding with rotated halves."""
    frequencies = 1.0 / (10000 ** (torch.arange(0, SIZE, 2).float() / SIZE))
    angles = torch.outer(torch.arange(x.size(2)).float(), frequencies)
    angles = torch.cat((angles, angles), dim=-1)
    one, two = x.chunk(2, dim=-1)
    return x * angles.cos() + torch.cat((-two, one), dim=-1) * angles.sin()


def gqa(job: sp.Job) -> None:
    model = GQA()
    job.start(model)
    loss = F.mse_loss(model(job.batch["x"]), job.batch["y"])
    loss.backward()
    job.end(loss=loss)


def gqa_parallel(mistake: str = "") -> Step:
    def step(job: sp.Job) -> None:
        n, r = job.world_size, job.rank
        model = GQA(HEADS // n, KV // n)
        own = {}
        for name, count in (("wq", HEADS), ("wk", KV), ("wv", KV)):
            size = count * SIZE // n
            own[f"{name}.weight"] = sp.piece(f"{name}.weight", dim=0, start=r * size, size=size)
        if mistake == "keys of the other rank":
            size = KV * SIZE // n
            own["wk.weight"] = sp.piece("wk.weight", dim=0, start=(n - 1 - r) * size, size=size)
        size = HEADS * SIZE // n
        own["wo.weight"] = sp.piece("wo.weight", dim=1, start=r * size, size=size)
        job.start(model, parameters=own)
        y = model(copy_to(job.batch["x"]))
        y = y if mistake == "no all-reduce" else reduce_from(y)
        loss = F.mse_loss(y, job.batch["y"])
        loss.backward()
        job.end(loss=loss)

    return step


ATTENTION = Case(
    "grouped-query attention with rotary embeddings, TP",
    gqa,
    gqa_parallel(),
    {m: gqa_parallel(m) for m in ("keys of the other rank", "no all-reduce")},
    floats(x=(2, LENGTH, WIDTH), y=(2, LENGTH, WIDTH)),
)

# -- 4. torch.distributed.nn: a column-parallel layer that is gathered, a row-parallel one. --------


class Two(nn.Module):
    def __init__(self, hidden: int = 16) -> None:
        super().__init__()
        self.a = nn.Linear(WIDTH, hidden)
        self.b = nn.Linear(hidden, WIDTH)


def two(job: sp.Job) -> None:
    model = Two()
    job.start(model)
    loss = F.mse_loss(model.b(torch.tanh(model.a(job.batch["x"]))), job.batch["y"])
    loss.backward()
    job.end(loss=loss)


def two_parallel(mistake: str = "") -> Step:
    """`torch.distributed.nn.all_reduce` sums in backward too, so the loss is divided by ranks."""

    def step(job: sp.Job) -> None:
        size = 16 // job.world_size
        model = Two(size)
        start = job.rank * size
        job.start(
            model,
            parameters={
                "a.weight": sp.piece("a.weight", dim=0, start=start, size=size),
                "a.bias": sp.piece("a.bias", dim=0, start=start, size=size),
                "b.weight": sp.piece("b.weight", dim=1, start=start, size=size),
            },
        )
        h = torch.tanh(model.a(job.batch["x"]))
        if mistake == "bias on every rank":
            y = dnn.all_reduce(model.b(h))
        else:
            y = dnn.all_reduce(F.linear(h, model.b.weight)) + model.b.bias
        loss = F.mse_loss(y, job.batch["y"])
        (loss if mistake == "gradients counted by each rank" else loss / job.world_size).backward()
        if mistake != "bias's gradient left divided":
            dist.all_reduce(model.b.bias.grad)
        job.end(loss=loss)

    return step


NN = Case(
    "torch.distributed.nn.all_reduce, TP",
    two,
    two_parallel(),
    {
        m: two_parallel(m)
        for m in (
            "bias on every rank",
            "gradients counted by each rank",
            "bias's gradient left divided",
        )
    },
    floats(x=(4, WIDTH), y=(4, WIDTH)),
)

# -- 5. LoRA on a frozen column-parallel layer and a frozen row-parallel one. ----------------------


class LoRA(nn.Module):
    def __init__(self, inputs: int, outputs: int, rank: int = 2, alpha: float = 4.0) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(outputs, inputs), requires_grad=False)
        self.A = nn.Parameter(torch.empty(rank, inputs))
        self.B = nn.Parameter(torch.empty(outputs, rank))
        self.scale = alpha / rank


class Adapted(nn.Module):
    def __init__(self, hidden: int = 16) -> None:
        super().__init__()
        self.up, self.down = LoRA(WIDTH, hidden), LoRA(hidden, WIDTH)


def lora(job: sp.Job) -> None:
    model = Adapted()
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-3)
    job.start(model, optimizer)
    x = job.batch["x"]
    for layer in (model.up, model.down):
        x = F.linear(x, layer.weight) + (x @ layer.A.T @ layer.B.T) * layer.scale
        x = F.gelu(x)
    loss = F.l1_loss(x, job.batch["y"])
    loss.backward()
    optimizer.step()
    job.end(loss=loss)


def lora_parallel(mistake: str = "") -> Step:
    def step(job: sp.Job) -> None:
        size = 16 // job.world_size
        cut = {"start": job.rank * size, "size": size}
        model = Adapted(size)
        optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-3)
        job.start(
            model,
            optimizer,
            {
                "up.weight": sp.piece("up.weight", dim=0, **cut),
                "up.B": sp.piece("up.B", dim=0, **cut),
                "down.weight": sp.piece("down.weight", dim=1, **cut),
                "down.A": sp.piece("down.A", dim=1, **cut),
            },
        )
        up, down, x = model.up, model.down, job.batch["x"]
        low = x @ up.A.T
        low = low if mistake == "gradient of A not summed" else copy_to(low)
        h = F.gelu(F.linear(x, up.weight) + low @ up.B.T * up.scale)
        base = reduce_from(F.linear(h, down.weight))
        inner = h @ down.A.T
        inner = inner if mistake == "rank space not summed" else reduce_from(inner)
        y = F.gelu(base + inner @ down.B.T * down.scale)
        loss = F.l1_loss(y, job.batch["y"])
        loss.backward()
        optimizer.step()
        job.end(loss=loss)

    return step


ADAPTERS = Case(
    "LoRA under TP, AdamW",
    lora,
    lora_parallel(),
    {m: lora_parallel(m) for m in ("gradient of A not summed", "rank space not summed")},
    floats(x=(4, WIDTH), y=(4, WIDTH)),
)

# -- 6. Clipping by the global norm of sharded and replicated gradients, SGD. ----------------------


def clipped(job: sp.Job) -> None:
    model = Two()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, nesterov=True)
    job.start(model, optimizer)
    loss = F.mse_loss(model.b(torch.relu(model.a(job.batch["x"]))), job.batch["y"])
    loss.backward()
    norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    job.end(loss=loss, outputs={"norm": norm})


def clipped_parallel(mistake: str = "") -> Step:
    def step(job: sp.Job) -> None:
        size = 16 // job.world_size
        cut = {"start": job.rank * size, "size": size}
        model = Two(size)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, nesterov=True)
        job.start(
            model,
            optimizer,
            {
                "a.weight": sp.piece("a.weight", dim=0, **cut),
                "a.bias": sp.piece("a.bias", dim=0, **cut),
                "b.weight": sp.piece("b.weight", dim=1, **cut),
            },
        )
        h = torch.relu(model.a(job.batch["x"]))
        y = reduce_from(F.linear(h, model.b.weight)) + model.b.bias
        loss = F.mse_loss(y, job.batch["y"])
        loss.backward()
        total = torch.zeros(())
        for name, p in model.named_parameters():
            if name != "b.bias" or mistake == "replicated gradient counted twice":
                total = total + p.grad.pow(2).sum()
        if mistake != "norm of one rank":
            dist.all_reduce(total)
        if mistake != "replicated gradient counted twice":
            total = total + model.b.bias.grad.pow(2).sum()
        norm = total.sqrt()
        factor = torch.clamp(1.0 / (norm + 1e-6), max=1.0)
        for p in model.parameters():
            p.grad.mul_(factor)
        optimizer.step()
        job.end(loss=loss, outputs={"norm": norm})

    return step


CLIPPED = Case(
    "clipping by the global norm under TP, SGD with momentum",
    clipped,
    clipped_parallel(),
    {m: clipped_parallel(m) for m in ("norm of one rank", "replicated gradient counted twice")},
    floats(x=(4, WIDTH), y=(4, WIDTH)),
)

CASES = [VOCABULARY, SWIGLU, ATTENTION, NN, ADAPTERS, CLIPPED]
