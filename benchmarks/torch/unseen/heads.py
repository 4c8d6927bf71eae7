"""What stands at the end of a language model: smoothed and squared losses, further tokens, ties."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed._functional_collectives import all_reduce
from torch.nn.parallel import DistributedDataParallel

import shardproof.torch as sp
from benchmarks.torch.ordinary.parts import CLASSES, Case, Step, copy_to, ids, reduce_from, rows

D = 8


class Largest(torch.autograd.Function):
    """The maximum over ranks; no gradient goes through it."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        x = x.clone()
        dist.all_reduce(x, op=dist.ReduceOp.MAX)
        return x

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> Any:
        return None


def looked_up(weight: torch.Tensor, tokens: torch.Tensor, first: int) -> torch.Tensor:
    """Rows of a table of which this rank has those from ``first`` on."""
    local = tokens - first
    absent = (local < 0) | (local >= weight.shape[0])
    out = F.embedding(local.masked_fill(absent, 0), weight)
    return out.masked_fill(absent.unsqueeze(-1), 0.0)


def label_logit(logits: torch.Tensor, labels: torch.Tensor, first: int) -> torch.Tensor:
    """The logit of the label where this rank has it, else zero."""
    local = labels - first
    absent = (local < 0) | (local >= logits.shape[-1])
    out = logits.gather(-1, local.masked_fill(absent, 0).unsqueeze(-1)).squeeze(-1)
    return out.masked_fill(absent, 0.0)


# -- 1. Label smoothing over a vocabulary in parts. ------------------------------------------------


class Model(nn.Module):
    def __init__(self, vocabulary: int = CLASSES) -> None:
        super().__init__()
        self.embed = nn.Embedding(CLASSES, D)
        self.norm = nn.RMSNorm(D, eps=1e-6)
        self.head = nn.Linear(D, vocabulary, bias=False)


def smooth(job: sp.Job) -> None:
    model = Model()
    job.start(model)
    logits = model.head(model.norm(model.embed(job.batch["ids"]))).flatten(0, 1)
    loss = F.cross_entropy(logits, job.batch["labels"].flatten(), label_smoothing=0.1)
    loss.backward()
    job.end(loss=loss)


def smooth_parallel(mistake: str = "") -> Step:
    def step(job: sp.Job) -> None:
        n, r = job.world_size, job.rank
        own = CLASSES // n
        model = Model(own)
        job.start(
            model,
            parameters={"head.weight": sp.piece("head.weight", dim=0, start=r * own, size=own)},
        )
        hidden = copy_to(model.norm(model.embed(job.batch["ids"])))
        logits = model.head(hidden).flatten(0, 1)
        labels = job.batch["labels"].flatten()
        logits = logits - Largest.apply(logits.amax(dim=-1, keepdim=True))
        log_total = reduce_from(logits.exp().sum(dim=-1)).log()
        picked = reduce_from(label_logit(logits, labels, r * own))
        if mistake == "smoothed over own classes":
            mean = logits.mean(dim=-1)
        elif mistake == "mean over own count":
            mean = reduce_from(logits.sum(dim=-1)) / own
        else:
            mean = reduce_from(logits.sum(dim=-1)) / CLASSES
        loss = (log_total - 0.9 * picked - 0.1 * mean).mean()
        loss.backward()
        job.end(loss=loss)

    return step


SMOOTH = Case(
    "label smoothing over a vocabulary in parts",
    smooth,
    smooth_parallel(),
    {m: smooth_parallel(m) for m in ("smoothed over own classes", "mean over own count")},
    ids("ids", "labels"),
)

# -- 2. The square of the log of the sum, beside the entropy. --------------------------------------


def squared(job: sp.Job) -> None:
    model = Model()
    job.start(model)
    logits = model.head(model.norm(model.embed(job.batch["ids"])))
    z = torch.logsumexp(logits, dim=-1)
    picked = logits.gather(-1, job.batch["labels"].unsqueeze(-1)).squeeze(-1)
    loss = (z - picked).mean() + 1e-2 * z.square().mean()
    loss.backward()
    job.end(loss=loss)


def squared_parallel(mistake: str = "") -> Step:
    def step(job: sp.Job) -> None:
        model = Model()
        wrapped = DistributedDataParallel(model.head)
        job.start(model)
        tokens, labels = rows(job, "ids", "labels")
        logits = wrapped(model.norm(model.embed(tokens)))
        z = torch.logsumexp(logits, dim=-1)
        picked = logits.gather(-1, labels.unsqueeze(-1)).squeeze(-1)
        extra = 1e-2 * z.square()
        loss = (z - picked).mean()
        loss = loss + (extra.mean().square() if mistake == "square of the mean" else extra.mean())
        loss.backward()
        for p in (model.embed.weight, model.norm.weight):
            if mistake != "embedding and norm not averaged":
                dist.all_reduce(p.grad, op=dist.ReduceOp.AVG)
        job.end(loss=loss)

    return step


SQUARED = Case(
    "square of the log of the sum beside the entropy, DDP of the head",
    squared,
    squared_parallel(),
    {m: squared_parallel(m) for m in ("square of the mean", "embedding and norm not averaged")},
    ids("ids", "labels"),
)

# -- 3. A second head predicts the token after the next. -------------------------------------------


class Further(nn.Module):
    """DeepSeek's module for one more token: shared table and head, two norms, one product."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(CLASSES, D)
        self.trunk = nn.Linear(D, D)
        self.hnorm, self.enorm = nn.RMSNorm(D, eps=1e-6), nn.RMSNorm(D, eps=1e-6)
        self.join = nn.Linear(2 * D, D, bias=False)
        self.head = nn.Linear(D, CLASSES, bias=False)

    def forward(self, tokens: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Losses of the next token and of the one after it."""
        e = self.embed(tokens)
        h = e + F.silu(self.trunk(e))
        first = self.entropy(h[:, :-1], tokens[:, 1:])
        joined = self.join(torch.cat([self.hnorm(h[:, :-2]), self.enorm(e[:, 1:-1])], dim=-1))
        return first, self.entropy(joined, tokens[:, 2:])

    def entropy(self, h: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(self.head(h).flatten(0, 1), labels.flatten())


def further(job: sp.Job) -> None:
    model = Further()
    job.start(model)
    first, second = model(job.batch["ids"])
    loss = first + 0.3 * second
    loss.backward()
    job.end(loss=loss)


def further_parallel(mistake: str = "") -> Step:
    def step(job: sp.Job) -> None:
        model = Further()
        wrapped = DistributedDataParallel(model)
        job.start(model)
        first, second = wrapped(rows(job, "ids")[0])
        weight = 0.3 / job.world_size if mistake == "weight divided by ranks" else 0.3
        if mistake == "second loss is detached":
            second = second.detach()
        loss = first + weight * second
        loss.backward()
        job.end(loss=loss)

    return step


FURTHER = Case(
    "a head for one more token, shared table, DDP",
    further,
    further_parallel(),
    {m: further_parallel(m) for m in ("weight divided by ranks", "second loss is detached")},
    ids("ids"),
)

# -- 4. A tied table in parts: looked up, and multiplied with. -------------------------------------


class Tied(nn.Module):
    def __init__(self, vocabulary: int = CLASSES) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.randn(vocabulary, D))
        self.mix = nn.Linear(D, D)


def tied(job: sp.Job) -> None:
    model = Tied()
    job.start(model)
    h = torch.tanh(model.mix(F.embedding(job.batch["ids"], model.table)))
    loss = F.cross_entropy((h @ model.table.T).flatten(0, 1), job.batch["labels"].flatten())
    loss.backward()
    job.end(loss=loss)


def tied_parallel(mistake: str = "") -> Step:
    def step(job: sp.Job) -> None:
        n, r = job.world_size, job.rank
        own = CLASSES // n
        model = Tied(own)
        job.start(model, parameters={"table": sp.piece("table", dim=0, start=r * own, size=own)})
        x = looked_up(model.table, job.batch["ids"], r * own)
        x = x if mistake == "rows of others missing" else reduce_from(x)
        h = torch.tanh(model.mix(x))
        h = h if mistake == "gradient of the head partial" else copy_to(h)
        logits = (h @ model.table.T).flatten(0, 1)
        logits = logits - Largest.apply(logits.amax(dim=-1, keepdim=True))
        total = reduce_from(logits.exp().sum(dim=-1))
        picked = reduce_from(label_logit(logits, job.batch["labels"].flatten(), r * own))
        loss = (total.log() - picked).mean()
        loss.backward()
        job.end(loss=loss)

    return step


TIED = Case(
    "tied table over ranks, looked up and multiplied with",
    tied,
    tied_parallel(),
    {m: tied_parallel(m) for m in ("rows of others missing", "gradient of the head partial")},
    ids("ids", "labels"),
)

# -- 5. A teacher whose outputs are centred by a mean over all ranks. ------------------------------


class Projector(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(D, D), nn.GELU())
        self.last = nn.utils.parametrizations.weight_norm(nn.Linear(D, 6, bias=False))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(F.normalize(self.body(x), dim=-1))


def views(job: sp.Job) -> list[torch.Tensor]:
    return [job.batch["one"], job.batch["two"]]


def agreement(student: torch.Tensor, teacher: torch.Tensor) -> torch.Tensor:
    return -(teacher * F.log_softmax(student / 0.1, dim=-1)).sum(dim=-1).mean()


def dino(job: sp.Job) -> None:
    student, teacher = Projector(), Projector().requires_grad_(False)
    job.start(nn.ModuleDict({"student": student, "teacher": teacher}))
    one, two = views(job)
    seen = teacher(one)
    center = 0.9 * job.batch["center"] + 0.1 * seen.mean(dim=0)
    loss = agreement(student(two), F.softmax((seen - center) / 0.07, dim=-1))
    loss.backward()
    job.end(loss=loss, outputs={"center": center})


def dino_parallel(mistake: str = "") -> Step:
    def step(job: sp.Job) -> None:
        student, teacher = Projector(), Projector().requires_grad_(False)
        wrapped = DistributedDataParallel(student)
        job.start(nn.ModuleDict({"student": student, "teacher": teacher}))
        one, two = (v.chunk(job.world_size)[job.rank] for v in views(job))
        seen = teacher(one)
        mean = seen.mean(dim=0)
        if mistake != "center of own rows":
            mean = all_reduce(mean, "avg", dist.group.WORLD)
        center = 0.9 * job.batch["center"] + 0.1 * mean
        sharp = F.softmax((seen - center) / 0.07, dim=-1)
        if mistake == "views exchanged":
            loss = agreement(wrapped(one), sharp)
        else:
            loss = agreement(wrapped(two), sharp)
        loss.backward()
        job.end(loss=loss, outputs={"center": center})

    return step


DINO = Case(
    "a teacher centred by the mean over ranks, weight norm, DDP",
    dino,
    dino_parallel(),
    {m: dino_parallel(m) for m in ("center of own rows", "views exchanged")},
    {"one": sp.tensor((4, D)), "two": sp.tensor((4, D)), "center": sp.tensor((6,))},
)

CASES = [SMOOTH, SQUARED, FURTHER, TIED, DINO]
