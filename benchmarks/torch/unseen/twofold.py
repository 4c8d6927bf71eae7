"""Gradients of gradients, of each sample, in two passes; losses over pairs of all ranks."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.nn.functional as differentiable
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

import shardproof.torch as sp
from benchmarks.torch.ordinary.parts import (
    Case,
    Step,
    averaged,
    copy_to,
    floats,
    ids,
    reduce_from,
    rows,
)

D, H = 8, 16


class Net(nn.Module):
    def __init__(self, last: int = D) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(D, H), nn.Linear(H, last)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(torch.tanh(self.up(x)))  # type: ignore[no-any-return]


# -- 1. A penalty on the gradient of a critic: a gradient of a gradient, under DDP by hand. --------


def penalty(job: sp.Job, x: torch.Tensor, model: nn.Module, outer: bool = True) -> torch.Tensor:
    x = x.detach().requires_grad_()
    (slope,) = torch.autograd.grad(model(x).sum(), x, create_graph=outer)
    norms = (slope.square().sum(-1) + 1e-6).sqrt()
    return (norms - 1).square().mean()


def critic(job: sp.Job) -> None:
    model = Net(1)
    job.start(model)
    x, y = job.batch["x"], job.batch["y"]
    loss = model(x).mean() - model(y).mean() + 10 * penalty(job, x, model)
    loss.backward()
    job.end(loss=loss)


def critics(mistake: str = "") -> Step:
    def step(job: sp.Job) -> None:
        model = Net(1)
        job.start(model)
        x, y = rows(job, "x", "y")
        extra = penalty(job, x, model, mistake != "penalty without its gradient")
        loss = model(x).mean() - model(y).mean() + (1 if mistake == "weight one" else 10) * extra
        loss.backward()
        averaged(model)
        job.end(loss=loss)

    return step


CRITIC = Case(
    "a penalty on gradients of a critic, DP",
    critic,
    critics(),
    {m: critics(m) for m in ("penalty without its gradient", "weight one")},
    floats(x=(4, D), y=(4, D)),
)

# -- 2. Gradients clipped for each sample and summed, as in private training. ----------------------


def private(job: sp.Job, x: torch.Tensor, y: torch.Tensor, model: nn.Module, bound: bool) -> None:
    total = [torch.zeros_like(p) for p in model.parameters()]
    for a, b in zip(x, y, strict=True):
        grads = torch.autograd.grad(F.mse_loss(model(a), b), tuple(model.parameters()))
        norm = torch.sqrt(sum(g.square().sum() for g in grads))  # type: ignore[arg-type]
        scale = (1.0 / (norm + 1e-6)).clamp(max=1.0) if bound else 1.0
        for t, g in zip(total, grads, strict=True):
            t.add_(g * scale)
    for p, t in zip(model.parameters(), total, strict=True):
        p.grad = t / len(x)


def samples(job: sp.Job) -> None:
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    job.start(model, optimizer)
    private(job, job.batch["x"], job.batch["y"], model, True)
    optimizer.step()
    job.end()


def divided_samples(mistake: str = "") -> Step:
    def step(job: sp.Job) -> None:
        model = Net()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        job.start(model, optimizer)
        x, y = rows(job, "x", "y")
        private(job, x, y, model, mistake != "not clipped")
        averaged(model)
        if mistake == "averaged over own rows twice":
            for p in model.parameters():
                p.grad /= len(x)  # type: ignore[operator]
        optimizer.step()
        job.end()

    return step


SAMPLES = Case(
    "gradients clipped for each sample, DP, SGD with momentum",
    samples,
    divided_samples(),
    {m: divided_samples(m) for m in ("not clipped", "averaged over own rows twice")},
    floats(x=(4, D), y=(4, D)),
)

# -- 3. Sharpness-aware minimisation: a second pass at weights along the reduced gradient. ---------


def ascent(model: nn.Module, rho: float = 0.05) -> list[torch.Tensor]:
    grads = [p.grad for p in model.parameters()]
    norm = torch.sqrt(sum(g.square().sum() for g in grads))  # type: ignore[union-attr, arg-type, misc]
    steps = [g * (rho / (norm + 1e-12)) for g in grads]  # type: ignore[operator]
    with torch.no_grad():
        for p, s in zip(model.parameters(), steps, strict=True):
            p.add_(s)
            p.grad = None
    return steps


def descend(model: nn.Module, steps: list[torch.Tensor]) -> None:
    with torch.no_grad():
        for p, s in zip(model.parameters(), steps, strict=True):
            p.sub_(s)


def sharp(job: sp.Job) -> None:
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    job.start(model, optimizer)
    x, y = job.batch["x"], job.batch["y"]
    F.mse_loss(model(x), y).backward()
    steps = ascent(model)
    loss = F.mse_loss(model(x), y)
    loss.backward()
    descend(model, steps)
    optimizer.step()
    job.end(loss=loss)


def sharps(mistake: str = "") -> Step:
    def step(job: sp.Job) -> None:
        model = Net()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        job.start(model, optimizer)
        x, y = rows(job, "x", "y")
        F.mse_loss(model(x), y).backward()
        if mistake != "first step by own gradient":
            averaged(model)
        steps = ascent(model)
        loss = F.mse_loss(model(x), y)
        loss.backward()
        averaged(model)
        if mistake != "stays at the raised weights":
            descend(model, steps)
        optimizer.step()
        job.end(loss=loss)

    return step


SHARP = Case(
    "sharpness-aware minimisation, DP",
    sharp,
    sharps(),
    {m: sharps(m) for m in ("first step by own gradient", "stays at the raised weights")},
    floats(x=(4, D), y=(4, D)),
)

# -- 4. Variance and covariance of embeddings over the whole batch (VICReg). -----------------------


def spread(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    loss = 25 * F.mse_loss(a, b)
    for z in (a, b):
        z = z - z.mean(0)
        std = (z.var(0) + 1e-4).sqrt()
        cov = z.T @ z / (len(z) - 1)
        off = cov.square().sum() - cov.diagonal().square().sum()
        loss = loss + 25 * F.relu(1 - std).mean() + off / z.shape[1]
    return loss


def views(job: sp.Job) -> None:
    model = Net()
    job.start(model)
    loss = spread(model(job.batch["x"]), model(job.batch["y"]))
    loss.backward()
    job.end(loss=loss)


def views_of_ranks(mistake: str = "") -> Step:
    def step(job: sp.Job) -> None:
        model = Net()
        job.start(model)
        x, y = rows(job, "x", "y")
        a, b = model(x), model(y)
        if mistake != "statistics of own rows":
            a = torch.cat(differentiable.all_gather(a))
            b = torch.cat(differentiable.all_gather(b))
        loss = spread(a, b)
        loss.backward()
        if mistake == "gradients summed":
            for p in model.parameters():
                dist.all_reduce(p.grad)
        else:
            averaged(model)
        job.end(loss=loss)

    return step


VIEWS = Case(
    "variances and covariances of gathered embeddings, DP",
    views,
    views_of_ranks(),
    {m: views_of_ranks(m) for m in ("statistics of own rows", "gradients summed")},
    floats(x=(4, D), y=(4, D)),
)

# -- 5. Supervised contrast: pairs of one class among all ranks. -----------------------------------


def contrast(own: torch.Tensor, mine: torch.Tensor, every: torch.Tensor, all_labels: torch.Tensor,
             first: int) -> torch.Tensor:  # fmt: skip
    scores = own @ every.T / 0.1
    itself = F.pad(torch.eye(len(own), dtype=torch.bool), (first, len(every) - first - len(own)))
    alike = (mine[:, None] == all_labels[None]) & ~itself
    logs = torch.log_softmax(scores.masked_fill(itself, float("-inf")), -1)
    logs = logs.masked_fill(itself, 0.0)
    return (-(logs * alike).sum(-1) / alike.sum(-1).clamp(min=1)).mean()


def classes(job: sp.Job) -> None:
    model = Net()
    job.start(model)
    z = F.normalize(model(job.batch["x"]), dim=-1)
    labels = job.batch["labels"][:, 0]
    loss = contrast(z, labels, z, labels, 0)
    loss.backward()
    job.end(loss=loss)


def classes_of_ranks(mistake: str = "") -> Step:
    def step(job: sp.Job) -> None:
        model = Net()
        job.start(model)
        x, labels = rows(job, "x", "labels")
        z, labels = F.normalize(model(x), dim=-1), labels[:, 0].contiguous()
        every = torch.cat(differentiable.all_gather(z))
        out = [torch.empty_like(labels) for _ in range(job.world_size)]
        dist.all_gather(out, labels)
        first = 0 if mistake == "itself at the first rank's places" else job.rank * len(z)
        if mistake == "gathered without gradient":
            every = every.detach()
        loss = contrast(z, labels, every, torch.cat(out), first)
        loss.backward()
        averaged(model)
        job.end(loss=loss)

    return step


SUPERVISED = Case(
    "supervised contrast over gathered rows, DP",
    classes,
    classes_of_ranks(),
    {
        m: classes_of_ranks(m)
        for m in ("itself at the first rank's places", "gathered without gradient")
    },
    {**floats(x=(4, D)), **ids("labels", rows=4, length=1)},
)

# -- 6. A segmentation loss whose quotient is over the whole batch (Dice). -------------------------


def dice(job: sp.Job) -> None:
    model = Net(1)
    job.start(model)
    p, t = torch.sigmoid(model(job.batch["x"]))[..., 0], torch.sigmoid(job.batch["t"])
    loss = 1 - (2 * (p * t).sum() + 1) / (p.sum() + t.sum() + 1)
    loss.backward()
    job.end(loss=loss)


def dices(mistake: str = "") -> Step:
    def step(job: sp.Job) -> None:
        model = Net(1)
        job.start(model)
        x, t = rows(job, "x", "t")
        p, t = torch.sigmoid(model(x))[..., 0], torch.sigmoid(t)
        sums = torch.stack([(p * t).sum(), p.sum() + t.sum()])
        if mistake != "quotients of own rows":
            sums = reduce_from(sums)
        loss = 1 - (2 * sums[0] + 1) / (sums[1] + 1)
        loss.backward()
        for q in model.parameters():
            dist.all_reduce(q.grad)
            if mistake == "gradients averaged":
                q.grad /= 2  # type: ignore[operator]
        job.end(loss=loss)

    return step


DICE = Case(
    "a quotient of sums over all rows (Dice), DP",
    dice,
    dices(),
    {m: dices(m) for m in ("quotients of own rows", "gradients averaged")},
    floats(x=(4, 3, D), t=(4, 3)),
)

# -- 7. DDP with a compressing hook, parameters that a step does not use, buckets as views. --------


class Branches(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.head = Net(), Net(), nn.Linear(D, 1)

    def forward(self, x: torch.Tensor, which: int) -> torch.Tensor:
        return self.head((self.a if which == 0 else self.b)(x))  # type: ignore[no-any-return]


def branch(job: sp.Job) -> None:
    model = Branches()
    job.start(model)
    loss = F.smooth_l1_loss(model(job.batch["x"], 0), job.batch["t"])
    loss.backward()
    job.end(loss=loss)


def branches(mistake: str = "") -> Step:
    def step(job: sp.Job) -> None:
        from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import bf16_compress_hook

        model = Branches()
        whole: Any = DDP(model, find_unused_parameters=True, gradient_as_bucket_view=True)
        whole.register_comm_hook(None, bf16_compress_hook)
        job.start(model)
        x, t = rows(job, "x", "t")
        loss = F.smooth_l1_loss(whole(x, 1 if mistake == "the other branch" else 0), t)
        if mistake == "divided by ranks":
            loss = loss / job.world_size
        loss.backward()
        job.end(loss=loss)

    return step


HOOKED = Case(
    "a compressing hook and unused parameters, DDP",
    branch,
    branches(),
    {m: branches(m) for m in ("the other branch", "divided by ranks")},
    floats(x=(4, D), t=(4, 1)),
)

# -- 8. Two halves of the batch whose reductions overlap, tensor parallel (Domino). ----------------


def halves(job: sp.Job) -> None:
    model = nn.ModuleList([Net(), Net()])
    job.start(model)
    x = job.batch["x"]
    for layer in model:
        x = x + layer(x)
    loss = F.mse_loss(x, job.batch["y"])
    loss.backward()
    job.end(loss=loss)


def overlapped(mistake: str = "") -> Step:
    def step(job: sp.Job) -> None:
        r, part = job.rank, H // job.world_size
        model = nn.ModuleList([Net(), Net()])
        for layer in model:
            layer.up = nn.Linear(D, part)  # type: ignore[assignment]
            layer.down = nn.Linear(part, D)  # type: ignore[assignment]
        where = slice(r * part, (r + 1) * part)
        job.start(
            model,
            parameters={
                f"{i}.{name}": sp.same(f"{i}.{name}")
                if dim is None
                else sp.piece(f"{i}.{name}", dim=dim, start=where.start, size=part)
                for i in range(2)
                for name, dim in (
                    ("up.weight", 0), ("up.bias", 0), ("down.weight", 1), ("down.bias", None))
            },
        )  # fmt: skip
        streams = list(job.batch["x"].chunk(2))
        for layer in model:
            outs = []
            for x in streams:
                up, down = layer.up, layer.down  # type: ignore[union-attr]
                hidden = torch.tanh(up(copy_to(x)))  # type: ignore[operator]
                partial = F.linear(hidden, down.weight)  # type: ignore[union-attr, arg-type]
                outs.append(reduce_from(partial))
            bias = layer.down.bias  # type: ignore[union-attr]
            streams = [x + o + bias for x, o in zip(streams, outs, strict=True)]  # type: ignore[operator]
            if mistake == "halves exchanged":
                streams = streams[::-1]
        x = torch.cat(streams)
        loss = F.mse_loss(x, job.batch["y"])
        loss.backward()
        if mistake == "bias reduced":
            for layer in model:
                dist.all_reduce(layer.down.bias.grad)  # type: ignore[union-attr]
        job.end(loss=loss)

    return step


DOMINO = Case(
    "two halves of the batch in turn, TP",
    halves,
    overlapped(),
    {m: overlapped(m) for m in ("bias reduced",)},
    floats(x=(4, D), y=(4, D)),
)

CASES = [CRITIC, SAMPLES, SHARP, VIEWS, SUPERVISED, DICE, HOOKED, DOMINO]
