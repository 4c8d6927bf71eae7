"""Bugs of models over ranks: heads, norms, vocabularies, experts, clipping."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed.device_mesh import init_device_mesh

import shardproof.torch as sp
from benchmarks.torch.field.parts import (
    VECTORS,
    WIDTH,
    Bug,
    Step,
    Two,
    averaged,
    cut,
    grad,
    own,
    plain,
)
from benchmarks.torch.ordinary.parts import copy_to, reduce_from

HALVES = {"up.weight": 0, "down.weight": 1}

# -- attention over heads ------------------------------------------------------------------------

HEADS, HEAD, LENGTH = 2, 4, 3
SEQUENCES = {"x": sp.tensor((2, LENGTH, WIDTH)), "y": sp.tensor((2, LENGTH, WIDTH))}


class MultiQuery(nn.Module):
    """Queries of several heads, keys and values of one, a norm of each query."""

    def __init__(self, heads: int = HEADS) -> None:
        super().__init__()
        self.heads = heads
        self.q = nn.Linear(WIDTH, heads * HEAD, bias=False)
        self.k, self.v = nn.Linear(WIDTH, HEAD, bias=False), nn.Linear(WIDTH, HEAD, bias=False)
        self.norm = nn.RMSNorm(HEAD, eps=1e-5)
        self.o = nn.Linear(heads * HEAD, WIDTH, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q = self.norm(self.q(x).unflatten(-1, (self.heads, HEAD))).transpose(1, 2)
        k, v = self.k(x).unsqueeze(1), self.v(x).unsqueeze(1)
        scores = torch.softmax(q @ k.transpose(-1, -2) / 2, dim=-1)
        return self.o((scores @ v).transpose(1, 2).flatten(2))  # type: ignore[no-any-return]


def attention(job: sp.Job) -> None:
    model = MultiQuery()
    job.start(model)
    loss = F.mse_loss(model(job.batch["x"]), job.batch["y"])
    loss.backward()
    job.end(loss=loss)


def heads(forgotten: tuple[str, ...]) -> Any:
    """Heads over ranks; keys, values and norms of queries are whole on each, so that their
    gradients are partial sums."""

    def make(wrong: bool) -> Step:
        def step(job: sp.Job) -> None:
            model = MultiQuery(HEADS // job.world_size)
            cut(job, model, {"q.weight": 0, "o.weight": 1}, job.world_size, job.rank)
            job.start(model)
            y = reduce_from(model(copy_to(job.batch["x"])))
            loss = F.mse_loss(y, job.batch["y"])
            loss.backward()
            for name in ("k", "v", "norm"):
                if not (wrong and name in forgotten):
                    dist.all_reduce(grad(model.get_parameter(f"{name}.weight")))
            job.end(loss=loss)

        return step

    return make


# -- a router under sequence parallelism ---------------------------------------------------------


class Gated(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.router = nn.Linear(WIDTH, WIDTH, bias=False)
        self.inner = Two()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.inner(x) * torch.sigmoid(self.router(x))  # type: ignore[no-any-return]


def gated(job: sp.Job) -> None:
    model = Gated()
    job.start(model)
    loss = F.mse_loss(model(job.batch["x"]), job.batch["y"])
    loss.backward()
    job.end(loss=loss)


def router(wrong: bool) -> Step:
    def step(job: sp.Job) -> None:
        model = Gated()
        job.start(model)
        x, y = own(job, "x", "y")
        loss = (model(x) - y).pow(2).sum() / job.batch["y"].numel()
        loss.backward()
        averaged(model.inner.parameters(), 1)
        if not wrong:
            averaged(model.router.parameters(), 1)
        job.end(loss=loss)

    return step


# -- a vocabulary over ranks ---------------------------------------------------------------------

CLASSES, SMOOTHING = 8, 0.2
LABELLED = {"x": sp.tensor((4, WIDTH)), "onehot": sp.tensor((4, CLASSES))}


class Head(nn.Module):
    def __init__(self, classes: int = CLASSES) -> None:
        super().__init__()
        self.inner = nn.Linear(WIDTH, WIDTH, bias=False)
        self.out = nn.Linear(WIDTH, classes, bias=False)


def smoothed(job: sp.Job) -> None:
    """Labels are rows of numbers: which of them are labels is all the same."""
    model = Head()
    job.start(model)
    logits = model.out(torch.tanh(model.inner(job.batch["x"])))
    label = (logits * job.batch["onehot"]).sum(-1)
    rest = logits.sum(-1) * (SMOOTHING / CLASSES)
    loss = (torch.exp(logits).sum(-1).log() - (1 - SMOOTHING) * label - rest).mean()
    loss.backward()
    job.end(loss=loss)


def local_vocabulary(wrong: bool) -> Step:
    def step(job: sp.Job) -> None:
        model = Head(CLASSES // job.world_size)
        cut(job, model, {"out.weight": 0}, job.world_size, job.rank)
        job.start(model)
        logits = model.out(copy_to(torch.tanh(model.inner(job.batch["x"]))))
        onehot = job.batch["onehot"].chunk(job.world_size, 1)[job.rank]
        label = reduce_from((logits * onehot).sum(-1))
        count = logits.shape[-1] if wrong else CLASSES
        rest = reduce_from(logits.sum(-1)) * (SMOOTHING / count)
        total = reduce_from(torch.exp(logits).sum(-1)).log()
        loss = (total - (1 - SMOOTHING) * label - rest).mean()
        loss.backward()
        job.end(loss=loss)

    return step


def chunks(wrong: bool) -> Step:
    """The loss in two chunks of rows; the gradient of one chunk is taken for replicated."""

    def step(job: sp.Job) -> None:
        model = Head(CLASSES // job.world_size)
        cut(job, model, {"out.weight": 0}, job.world_size, job.rank)
        job.start(model)
        inner = torch.tanh(model.inner(job.batch["x"]))
        onehot = job.batch["onehot"].chunk(job.world_size, 1)[job.rank]
        parts = []
        for n, hidden, labels in zip((0, 1), inner.chunk(2), onehot.chunk(2), strict=True):
            logits = model.out(hidden if wrong and n else copy_to(hidden))
            label = reduce_from((logits * labels).sum(-1))
            rest = reduce_from(logits.sum(-1)) * (SMOOTHING / CLASSES)
            total = reduce_from(torch.exp(logits).sum(-1)).log()
            parts.append((total - (1 - SMOOTHING) * label - rest).sum())
        loss = (parts[0] + parts[1]) / len(inner)
        loss.backward()
        job.end(loss=loss)

    return step


# -- values that are partial sums ----------------------------------------------------------------


def normed(job: sp.Job) -> None:
    model = Two()
    job.start(model)
    y = model(job.batch["x"])
    loss = F.mse_loss(y, job.batch["y"]) + y.norm()
    loss.backward()
    job.end(loss=loss)


def norm_of_partial(wrong: bool) -> Step:
    def step(job: sp.Job) -> None:
        model = Two(6 // job.world_size)
        cut(job, model, HALVES, job.world_size, job.rank)
        job.start(model)
        part = model(copy_to(job.batch["x"]))
        y = reduce_from(part)
        size = reduce_from(part.norm()) if wrong else y.norm()
        loss = F.mse_loss(y, job.batch["y"]) + size
        loss.backward()
        job.end(loss=loss)

    return step


def twice_scaled(job: sp.Job) -> None:
    model = Two()
    job.start(model)
    y = model(job.batch["x"])
    loss = F.mse_loss(2 * y, job.batch["y"]) + (3 * y).sum()
    loss.backward()
    job.end(loss=loss)


def first_scale(wrong: bool) -> Step:
    """What was reduced and scaled once is taken again, with the first scale.  An all-reduce writes
    its operand, so each takes a copy."""

    def step(job: sp.Job) -> None:
        model = Two(6 // job.world_size)
        cut(job, model, HALVES, job.world_size, job.rank)
        job.start(model)
        part = model(copy_to(job.batch["x"]))
        first = 2 * reduce_from(part.clone())
        second = first if wrong else 3 * reduce_from(part.clone())
        loss = F.mse_loss(first, job.batch["y"]) + second.sum()
        loss.backward()
        job.end(loss=loss)

    return step


# -- experts and groups --------------------------------------------------------------------------


class AllToAll(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        x = x.contiguous()
        out = torch.empty_like(x)
        dist.all_to_all_single(out, x)
        return out

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        gradient = gradient.contiguous()
        out = torch.empty_like(gradient)
        dist.all_to_all_single(out, gradient)
        return out


class Experts(nn.Module):
    def __init__(self, count: int = 2) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.zeros(count, WIDTH, WIDTH))


def routed(job: sp.Job) -> None:
    """Row i goes to expert i mod 2."""
    model = Experts()
    job.start(model)
    x = job.batch["x"].unflatten(0, (-1, 2)).transpose(0, 1)
    out = torch.tanh(x @ model.w).transpose(0, 1).flatten(0, 1)
    loss = F.mse_loss(out, job.batch["y"])
    loss.backward()
    job.end(loss=loss)


def experts(wrong: bool) -> Step:
    """One expert on each rank; the loss of a rank is the mean over its rows."""

    def step(job: sp.Job) -> None:
        model = Experts(1)
        cut(job, model, {"w": 0}, job.world_size, job.rank)
        job.start(model)
        x, y = own(job, "x", "y")
        sent = x.unflatten(0, (-1, 2)).transpose(0, 1)
        here = AllToAll.apply(sent.contiguous())
        back = AllToAll.apply(torch.tanh(here @ model.w[0]))
        loss = F.mse_loss(back.transpose(0, 1).flatten(0, 1), y)
        loss.backward()
        if not wrong:
            grad(model.w).div_(job.world_size)
        job.end(loss=loss)

    return step


def wrong_group(wrong: bool) -> Step:
    def step(job: sp.Job) -> None:
        mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
        row, column = mesh.get_local_rank("dp"), mesh.get_local_rank("tp")
        tp = mesh.get_group("tp")
        model = Two(3)
        cut(job, model, HALVES, 2, column)
        job.start(model)
        x, y = (job.batch[name].chunk(2)[row] for name in ("x", "y"))
        loss = F.mse_loss(reduce_from(model(copy_to(x, tp)), tp), y)
        loss.backward()
        averaged(model.parameters(), 2, mesh.get_group("tp" if wrong else "dp"))
        job.end(loss=loss)

    return step


# -- the norm of all gradients -------------------------------------------------------------------


class Sink(nn.Module):
    """A number for each hidden unit, which is divided as they are."""

    def __init__(self, hidden: int = 6) -> None:
        super().__init__()
        self.inner = Two(hidden)
        self.sink = nn.Parameter(torch.zeros(hidden))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.inner.down(torch.tanh(self.inner.up(x) + self.sink))  # type: ignore[no-any-return]


def clipped(job: sp.Job) -> None:
    model = Sink()
    job.start(model)
    loss = F.mse_loss(model(job.batch["x"]), job.batch["y"])
    loss.backward()
    total = sum(grad(p).pow(2).sum() for p in model.parameters())
    for parameter in model.parameters():
        grad(parameter).div_(torch.sqrt(total) + 1)  # type: ignore[arg-type]
    job.end(loss=loss)


def sink(wrong: bool) -> Step:
    def step(job: sp.Job) -> None:
        model = Sink(6 // job.world_size)
        dims = {"inner.up.weight": 0, "inner.down.weight": 1, "sink": 0}
        cut(job, model, dims, job.world_size, job.rank)
        job.start(model)
        loss = F.mse_loss(reduce_from(model(copy_to(job.batch["x"]))), job.batch["y"])
        loss.backward()
        total = sum(grad(p).pow(2).sum() for p in model.inner.parameters())
        if not wrong or job.rank == 0:
            total = total + grad(model.sink).pow(2).sum()
        dist.all_reduce(total)
        for parameter in model.parameters():
            grad(parameter).div_(torch.sqrt(total) + 1)  # type: ignore[arg-type]
        job.end(loss=loss)

    return step


BUGS = [
    Bug(
        "gradients of shared keys and values not reduced",
        "bigcode Megatron #35",
        attention,
        heads(("k", "v")),
        SEQUENCES,
    ),
    Bug(
        "a norm of queries whose gradient is partial",
        "Megatron-LM #7452 (11), NeMo-RL #3716",
        attention,
        heads(("norm",)),
        SEQUENCES,
    ),
    Bug(
        "gradient of the router not summed under sequence parallelism",
        "Megatron-LM PR 619",
        gated,
        router,
        VECTORS,
    ),
    Bug(
        "label smoothing over the local vocabulary",
        "Megatron-LM #7452 (1), #737",
        smoothed,
        local_vocabulary,
        LABELLED,
    ),
    Bug(
        "the gradient of a chunk of the loss taken for replicated",
        "torchtitan PR 3412",
        smoothed,
        chunks,
        LABELLED,
    ),
    Bug(
        "a norm computed before the reduction",
        "pytorch PR 165962",
        normed,
        norm_of_partial,
        VECTORS,
    ),
    Bug(
        "a reduction and its first scale used again",
        "pytorch #153603",
        twice_scaled,
        first_scale,
        VECTORS,
    ),
    Bug(
        "gradients of experts too large by their number",
        "pytorch #160285, Megatron-LM PR 5956",
        routed,
        experts,
        VECTORS,
    ),
    Bug(
        "gradients reduced over the wrong group",
        "Megatron-LM PR 5916",
        plain,
        wrong_group,
        VECTORS,
        4,
    ),
    Bug(
        "the norm of gradients counts one rank's part of a divided parameter",
        "Megatron-LM #7452 (8)",
        clipped,
        sink,
        VECTORS,
    ),
]
