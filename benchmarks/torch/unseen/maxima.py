"""Softmax written by hand, with a maximum through which autograd sends a gradient."""

from __future__ import annotations

import math

import torch
import torch.distributed as dist
import torch.nn.functional as F

import shardproof.torch as sp
from benchmarks.torch.ordinary.attention import Attend, GatherFirst
from benchmarks.torch.ordinary.parts import WIDTH, Case, Step, floats

# -- 1. Probabilities by hand, their maximum not detached. -----------------------------------------


def probabilities(scores: torch.Tensor, how: str) -> torch.Tensor:
    if how == "torch":
        return scores.softmax(-1)
    if how == "max":
        most = scores.max(-1, keepdim=True).values
    else:
        most = scores.amax(-1, keepdim=True)
    if how == "detached":
        most = most.detach()
    e = torch.exp(scores - most)
    total = e.sum(-1, keepdim=True)
    return e / (total.detach() if how == "sum detached" else total)


def attended(how: str) -> Step:
    def step(job: sp.Job) -> None:
        model = Attend()
        job.start(model)
        x = job.batch["x"]
        scores = model.q(x) @ model.k(x).transpose(-1, -2) / math.sqrt(WIDTH)
        loss = F.mse_loss(probabilities(scores, how) @ model.v(x), job.batch["y"])
        loss.backward()
        job.end(loss=loss)

    return step


def divided(how: str) -> Step:
    """Queries of a block of positions, over keys that are gathered."""

    def step(job: sp.Job) -> None:
        n, r = job.world_size, job.rank
        model = Attend()
        job.start(model)
        x, y = (job.batch[name].chunk(n, dim=1)[r] for name in ("x", "y"))
        k, v = (
            GatherFirst.apply(t.transpose(0, 1)).transpose(0, 1) for t in (model.k(x), model.v(x))
        )
        scores = model.q(x) @ k.transpose(-1, -2) / math.sqrt(WIDTH)
        loss = F.mse_loss(probabilities(scores, how) @ v, y)
        loss.backward()
        for p in model.parameters():
            dist.all_reduce(p.grad, op=dist.ReduceOp.AVG)
        job.end(loss=loss)

    return step


def softmax(single: str, parallel: str) -> Case:
    return Case(
        f"softmax by hand: {single} and {parallel}",
        attended(single),
        divided(parallel),
        {"sum detached": divided("sum detached")},
        floats(x=(2, 4, WIDTH), y=(2, 4, WIDTH)),
    )


BY_HAND = softmax("amax", "torch")
CASES = [
    BY_HAND,
    softmax("torch", "amax"),
    softmax("amax", "max"),
    softmax("detached", "amax"),
]
