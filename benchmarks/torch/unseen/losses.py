"""Losses written by hand: of logarithms of sums, entropies, divergences, smoothed labels."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

import shardproof.torch as sp
from benchmarks.torch.ordinary.parts import CLASSES, WIDTH, Case, Step, floats, rows

Loss = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


def one_device(loss_of: Loss) -> Step:
    def step(job: sp.Job) -> None:
        model = nn.Linear(WIDTH, CLASSES)
        job.start(model)
        loss = loss_of(model(job.batch["x"]), job.batch["t"])
        loss.backward()
        job.end(loss=loss)

    return step


def replicas(loss_of: Loss) -> Step:
    def step(job: sp.Job) -> None:
        model = nn.Linear(WIDTH, CLASSES)
        job.start(model)
        x, t = rows(job, "x", "t")
        loss = loss_of(model(x), t)
        loss.backward()
        for p in model.parameters():
            dist.all_reduce(p.grad, op=dist.ReduceOp.AVG)
        job.end(loss=loss)

    return step


def z_loss(how: str) -> Loss:
    def loss(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        weights = logits.exp()
        if how == "torch":
            lse = logits.logsumexp(-1)
        elif how == "log of the mean":
            lse = weights.mean(-1).log()
        elif how == "sum of logs":
            lse = weights.log().sum(-1)
        elif how == "log of the reciprocal":
            lse = -(1 / weights.sum(-1)).log()
        else:
            lse = weights.sum(-1).log()
        power = lse if how == "not squared" else lse.square()
        return F.cross_entropy(logits, labels) + 0.01 * power.mean()

    return loss


def entropy(how: str) -> Loss:
    def loss(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        if how.startswith("log of"):
            p = logits.softmax(-1)
            bonus = -(p * (2 * p if how == "log of twice p" else p).log()).sum(-1)
        else:
            logp = logits.log_softmax(-1)
            bonus = -(logp.exp() * logp).sum(-1)
        if how == "entropy added":
            bonus = -bonus
        return F.cross_entropy(logits, labels) - 0.1 * bonus.mean()

    return loss


def divergence(how: str) -> Loss:
    def loss(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        target = F.one_hot(labels, CLASSES).float() * 0.9 + 0.1 / CLASSES
        logp = logits.log_softmax(-1)
        if how == "torch":
            return F.kl_div(logp, target, reduction="batchmean")
        if how == "of the mean":
            return F.kl_div(logp, target, reduction="sum") / logp.numel()
        return (target * (target.log() - logp)).sum(-1).mean()

    return loss


def smoothed(how: str) -> Loss:
    def loss(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        if how == "torch":
            return F.cross_entropy(logits, labels, label_smoothing=0.1)
        logp = logits.log_softmax(-1)
        if how == "one hot":
            share = 0.9 * F.one_hot(labels, CLASSES) + 0.1 / CLASSES
            return -(share * logp).sum(-1).mean()
        own = -logp.gather(-1, labels[:, None])[:, 0]
        rest = -logp.sum(-1) if how == "sum of the rest" else -logp.mean(-1)
        return (0.9 * own + 0.1 * rest).mean()

    return loss


def focal(how: str) -> Loss:
    def loss(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        logp = logits.log_softmax(-1).gather(-1, labels[:, None])[:, 0]
        chance = logits.softmax(-1).gather(-1, labels[:, None])[:, 0] if how == "p" else logp.exp()
        weight = 1 - chance
        return -((weight if how == "power 1" else weight.square()) * logp).mean()

    return loss


def losses(name: str, make: Callable[[str], Loss], single: str, right: str, *wrong: str) -> Case:
    return Case(
        f"{name}: {single} and {right}",
        one_device(make(single)),
        replicas(make(right)),
        {how: replicas(make(how)) for how in wrong},
        {**floats(x=(4, WIDTH)), "t": sp.tensor((4,), torch.int64, low=0, high=CLASSES)},
    )


CASES = [
    losses("z-loss", z_loss, "torch", "torch", "not squared"),
    losses("z-loss", z_loss, "torch", "by hand", "not squared", "log of the mean", "sum of logs"),
    losses("z-loss", z_loss, "torch", "log of the reciprocal", "log of the mean"),
    losses("entropy", entropy, "log softmax", "log softmax", "entropy added"),
    losses("entropy", entropy, "log softmax", "log of p", "entropy added", "log of twice p"),
    losses("entropy", entropy, "log of p", "log softmax", "log of twice p"),
    losses("divergence", divergence, "torch", "torch", "of the mean"),
    losses("divergence", divergence, "torch", "by hand", "of the mean"),
    losses("smoothed labels", smoothed, "torch", "gather", "sum of the rest"),
    losses("smoothed labels", smoothed, "one hot", "gather", "sum of the rest"),
    losses("focal", focal, "log p", "log p", "power 1"),
    losses("focal", focal, "log p", "p", "power 1"),
]
