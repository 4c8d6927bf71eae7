"""Losses over tokens, and other fields: ignored labels, chunks, margins, noise, translation."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.nn.functional as differentiable
import torch.nn.functional as F
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

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

D, H = 8, 16
IGNORED = {
    **ids("tokens"),
    "labels": sp.tensor((4, 4), torch.int64, low=-100, high=CLASSES),
}


class Trunk(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed, self.mix = nn.Embedding(CLASSES, D), nn.Linear(D, D)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return torch.tanh(self.mix(self.embed(tokens)))


def averaged(model: nn.Module) -> None:
    for p in model.parameters():
        if p.grad is not None:
            dist.all_reduce(p.grad, op=dist.ReduceOp.AVG)


# -- 1. The sum over labels that are not ignored, by the count of all ranks; a head in chunks. -----


class Chunked(Trunk):
    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(D, CLASSES, bias=False)

    def part(self, x: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(self.head(x).float(), labels, ignore_index=-100, reduction="sum")


def chunked(job: sp.Job) -> None:
    model = Chunked()
    job.start(model)
    labels = job.batch["labels"]
    logits = model.head(model(job.batch["tokens"]))
    loss = F.cross_entropy(logits.flatten(0, 1), labels.flatten(), ignore_index=-100)
    loss.backward()
    job.end(loss=loss)


def chunked_parallel(mistake: str = "") -> Step:
    def step(job: sp.Job) -> None:
        n = job.world_size
        model = Chunked()
        job.start(model)
        tokens, labels = rows(job, "tokens", "labels")
        x, labels = model(tokens).flatten(0, 1), labels.flatten()
        total: Any = 0.0
        for a, b in zip(x.split(4), labels.split(4), strict=True):
            total = total + checkpoint(model.part, a, b, use_reentrant=False)
        count = (labels != -100).sum()
        if mistake != "count of own labels":
            dist.all_reduce(count)
        loss = total / count
        (loss if mistake == "not times ranks" else loss * n).backward()
        averaged(model)
        job.end(loss=loss)

    return step


CHUNKED = Case(
    "cross entropy in chunks by the count of all ranks, checkpointed, DP",
    chunked,
    chunked_parallel(),
    {m: chunked_parallel(m) for m in ("count of own labels", "not times ranks")},
    IGNORED,
)

# -- 2. A vocabulary in shards with ignored labels. ------------------------------------------------


def vocabulary_parallel(mistake: str = "") -> Step:
    def step(job: sp.Job) -> None:
        n, r = job.world_size, job.rank
        own = CLASSES // n
        model = Chunked()
        model.head = nn.Linear(D, own, bias=False)
        where = {"head.weight": sp.piece("head.weight", dim=0, start=r * own, size=own)}
        job.start(model, parameters=where)
        labels = job.batch["labels"].flatten()
        logits = model.head(copy_to(model(job.batch["tokens"]).flatten(0, 1)))
        top = logits.detach().max(dim=-1).values
        dist.all_reduce(top, op=dist.ReduceOp.MAX)
        logits = logits - top.unsqueeze(-1)
        total = logits.exp().sum(dim=-1)
        if mistake != "own denominator":
            total = reduce_from(total)
        valid = labels != -100
        local = labels - r * own
        mine = valid & (local >= 0) & (local < own)
        picked = logits.gather(1, local.masked_fill(~mine, 0).unsqueeze(1)).squeeze(1) * mine
        terms = total.log() - reduce_from(picked)
        if mistake == "ignored ones count":
            loss = terms.mean()
        else:
            loss = (terms * valid).sum() / valid.sum()
        loss.backward()
        job.end(loss=loss)

    return step


VOCABULARY = Case(
    "a vocabulary in shards with ignored labels",
    chunked,
    vocabulary_parallel(),
    {m: vocabulary_parallel(m) for m in ("own denominator", "ignored ones count")},
    IGNORED,
)

# -- 3. DeepSeek's prediction of two further tokens, FSDP2. ----------------------------------------


class Further(Trunk):
    def __init__(self) -> None:
        super().__init__()
        self.norms = nn.ModuleList(nn.RMSNorm(D) for _ in range(2))
        self.join, self.second = nn.Linear(2 * D, D, bias=False), nn.Linear(D, D)
        self.head = nn.Linear(D, CLASSES, bias=False)

    def both(self, tokens: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        x = super().forward(tokens)
        later = self.norms[1](self.embed(tokens[:, 1:]))
        y = self.join(torch.cat((self.norms[0](x[:, :-1]), later), dim=-1))
        return self.head(x), self.head(torch.tanh(self.second(y)))

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        one, two = self.both(tokens)
        loss = F.cross_entropy(one[:, :-1].flatten(0, 1), tokens[:, 1:].flatten())
        return loss + 0.3 * F.cross_entropy(two[:, :-1].flatten(0, 1), tokens[:, 2:].flatten())


def further(job: sp.Job) -> None:
    model = Further()
    job.start(model)
    loss = model(job.batch["tokens"])
    loss.backward()
    job.end(loss=loss)


def further_parallel(mistake: str = "") -> Step:
    def step(job: sp.Job) -> None:
        model: Any = Further()
        fully_shard(model, mesh=init_device_mesh("cpu", (job.world_size,)))
        if mistake == "factor one":
            model.set_gradient_divide_factor(1.0)
        job.start(model)
        (tokens,) = rows(job, "tokens", at=0 if mistake == "rows of the first rank" else None)
        loss = model(tokens)
        loss.backward()
        job.end(loss=loss)

    return step


FURTHER = Case(
    "predictions of two further tokens, FSDP2",
    further,
    further_parallel(),
    {m: further_parallel(m) for m in ("factor one", "rows of the first rank")},
    ids("tokens"),
)

# -- 4. Triplets by cosine, the hardest negative among all rows; focal loss beside. ----------------


def hardest(a: torch.Tensor, p: torch.Tensor, every: torch.Tensor, own: torch.Tensor) -> Any:
    scores = (a @ every.T).masked_fill(own, float("-inf"))
    return F.relu(scores.max(dim=1).values - (a * p).sum(dim=1) + 0.2).mean()


def triplets(job: sp.Job) -> None:
    model = nn.Linear(D, H)
    job.start(model)
    a, p = (F.normalize(model(job.batch[k]), dim=-1) for k in ("x", "y"))
    loss = hardest(a, p, p, torch.eye(len(a), dtype=torch.bool))
    loss.backward()
    job.end(loss=loss)


def triplets_parallel(mistake: str = "") -> Step:
    def step(job: sp.Job) -> None:
        n, r = job.world_size, job.rank
        model = nn.Linear(D, H)
        job.start(model)
        a, p = (F.normalize(model(t), dim=-1) for t in rows(job, "x", "y"))
        every = torch.cat(differentiable.all_gather(p))
        mask = torch.eye(len(every), dtype=torch.bool)
        mask = mask.chunk(n)[0 if mistake == "mask of the first rank" else r]
        loss = hardest(a, p, every, mask)
        loss.backward()
        if mistake != "bias not averaged":
            averaged(model)
        else:
            dist.all_reduce(model.weight.grad, op=dist.ReduceOp.AVG)
        job.end(loss=loss)

    return step


TRIPLETS = Case(
    "triplets with the hardest of all rows, DP",
    triplets,
    triplets_parallel(),
    {m: triplets_parallel(m) for m in ("mask of the first rank", "bias not averaged")},
    floats(x=(4, D), y=(4, D)),
)

# -- 5. Diffusion: given noise, cumulative products by time, weights by signal, EMA. ---------------

NOISED = {
    **floats(x=(4, D), noise=(4, D)),
    "time": sp.tensor((4,), torch.int64, low=0, high=10),
}


class Denoiser(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.time = nn.Sequential(nn.Linear(4, H), nn.SiLU(), nn.Linear(H, H))
        self.up, self.down = nn.Linear(D, H), nn.Linear(H, D)

    def forward(self, x: torch.Tensor, time: torch.Tensor) -> torch.Tensor:
        angles = time.float().unsqueeze(1) * torch.tensor([1.0, 0.01])
        signal = self.time(torch.cat((angles.sin(), angles.cos()), dim=1))
        return self.down(F.silu(self.up(x) + signal))  # type: ignore[no-any-return]


def denoised(model: Any, x: torch.Tensor, noise: torch.Tensor, time: torch.Tensor) -> Any:
    alphas = torch.cumprod(1 - torch.linspace(0.0001, 0.02, 10), dim=0)
    a = alphas[time].unsqueeze(1)
    found = model(a.sqrt() * x + (1 - a).sqrt() * noise, time)
    ratio = (a / (1 - a)).squeeze(1)
    weight = ratio.clamp(max=5.0) / ratio
    return (weight * (found - noise).square().mean(dim=1)).mean()


def diffusion(job: sp.Job) -> None:
    model = Denoiser()
    job.start(model)
    loss = denoised(model, *(job.batch[k] for k in ("x", "noise", "time")))
    loss.backward()
    job.end(loss=loss)


def diffusion_parallel(mistake: str = "") -> Step:
    def step(job: sp.Job) -> None:
        model = Denoiser()
        wrapped = model if mistake == "not wrapped" else DistributedDataParallel(model)
        job.start(model)
        x, noise, time = rows(job, "x", "noise", "time")
        if mistake == "noise of the first rank":
            (noise,) = rows(job, "noise", at=0)
        loss = denoised(wrapped, x, noise, time)
        loss.backward()
        job.end(loss=loss)

    return step


DIFFUSION = Case(
    "denoising with weights by signal, DDP",
    diffusion,
    diffusion_parallel(),
    {m: diffusion_parallel(m) for m in ("not wrapped", "noise of the first rank")},
    NOISED,
)

# -- 6. Translation: keys and values from an encoder, heads over ranks. ----------------------------

HEADS = 4


class Cross(nn.Module):
    def __init__(self, n: int = 1) -> None:
        super().__init__()
        self.heads, width = HEADS // n, D // n
        self.source, self.target = nn.Embedding(CLASSES, D), nn.Embedding(CLASSES, D)
        self.encode = nn.Linear(D, D)
        self.q, self.k, self.v = (nn.Linear(D, width, bias=False) for _ in range(3))
        self.o = nn.Linear(width, D, bias=False)
        self.norm, self.head = nn.LayerNorm(D), nn.Linear(D, CLASSES)

    def split(self, x: torch.Tensor) -> torch.Tensor:
        return x.unflatten(-1, (self.heads, -1)).transpose(1, 2)

    def forward(self, source: torch.Tensor, target: torch.Tensor, own: Any) -> torch.Tensor:
        memory = F.relu(self.encode(self.source(source)))
        x = self.target(target)
        inside, outside = own
        y, z = inside(self.norm(x)), inside(memory)
        found = F.scaled_dot_product_attention(
            *(self.split(t) for t in (self.q(y), self.k(z), self.v(z)))
        )
        return self.head(x + outside(self.o(found.transpose(1, 2).flatten(2))))


def same(x: torch.Tensor) -> torch.Tensor:
    return x


def translation(job: sp.Job) -> None:
    model = Cross()
    job.start(model)
    target = job.batch["target"]
    logits = model(job.batch["source"], target, (same, same))
    loss = F.cross_entropy(logits[:, :-1].flatten(0, 1), target[:, 1:].flatten())
    loss.backward()
    job.end(loss=loss)


def translation_parallel(mistake: str = "") -> Step:
    def step(job: sp.Job) -> None:
        n, r = job.world_size, job.rank
        model = Cross(n)
        own = {"start": r * (D // n), "size": D // n}
        where = {f"{k}.weight": sp.piece(f"{k}.weight", dim=0, **own) for k in "qkv"}
        where["o.weight"] = sp.piece("o.weight", dim=1, **own)
        job.start(model, parameters=where)
        target = job.batch["target"]
        inside = same if mistake == "gradients of memory partial" else copy_to
        logits = model(job.batch["source"], target, (inside, reduce_from))
        shifted = target[:, :-1] if mistake == "labels not shifted" else target[:, 1:]
        loss = F.cross_entropy(logits[:, :-1].flatten(0, 1), shifted.flatten())
        loss.backward()
        job.end(loss=loss)

    return step


TRANSLATION = Case(
    "translation with keys from an encoder, TP",
    translation,
    translation_parallel(),
    {m: translation_parallel(m) for m in ("gradients of memory partial", "labels not shifted")},
    ids("source", "target"),
)

CASES = [CHUNKED, VOCABULARY, FURTHER, TRIPLETS, DIFFUSION, TRANSLATION]
