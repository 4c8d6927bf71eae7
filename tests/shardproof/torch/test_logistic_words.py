"""Logistic functions in other words on one side: one value, and one derivative."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn

import shardproof.torch as sp
from tests.shardproof.torch.steps import CopyTo, ReduceFrom

WIDTH = 4
BATCH = {"x": sp.tensor((4, WIDTH)), "y": sp.tensor((4, WIDTH))}

Function = Callable[[Tensor, Tensor], Tensor]


def with_logits(z: Tensor, y: Tensor) -> Tensor:
    return F.binary_cross_entropy_with_logits(z, y, reduction="none")


#: What the single device computes, what ranks write, and what is none of the two.
WORDS: dict[str, tuple[Function, Function, Function]] = {
    "reciprocal": (
        lambda z, y: torch.sigmoid(z),
        lambda z, y: 1 / (1 + torch.exp(-z)),
        lambda z, y: 1 / (1 + torch.exp(z)),
    ),
    "quotient": (
        lambda z, y: torch.exp(z) / (1 + torch.exp(z)),
        lambda z, y: torch.sigmoid(z),
        lambda z, y: torch.sigmoid(-z),
    ),
    "the other sign": (
        lambda z, y: torch.sigmoid(z) * z + (1 - torch.sigmoid(z)) * y,
        lambda z, y: torch.sigmoid(z) * z + torch.sigmoid(-z) * y,
        lambda z, y: torch.sigmoid(z) * y + torch.sigmoid(-z) * z,
    ),
    "a difference turned": (
        lambda z, y: torch.sigmoid(z - y) * z,
        lambda z, y: (1 - torch.sigmoid(y - z)) * z,
        lambda z, y: (1 - torch.sigmoid(z - y)) * z,
    ),
    "gate": (
        lambda z, y: F.silu(z) * y,
        lambda z, y: z / (1 + torch.exp(-z)) * y,
        lambda z, y: z / (2 + torch.exp(-z)) * y,
    ),
    "hyperbolic": (
        lambda z, y: torch.tanh(z),
        lambda z, y: (torch.exp(2 * z) - 1) / (torch.exp(2 * z) + 1),
        lambda z, y: (torch.exp(z) - 1) / (torch.exp(z) + 1),
    ),
    "gelu": (
        lambda z, y: F.gelu(z, approximate="tanh"),
        lambda z, y: z * torch.sigmoid(2 * math.sqrt(2 / math.pi) * (z + 0.044715 * z**3)),
        lambda z, y: z * torch.sigmoid(math.sqrt(2 / math.pi) * (z + 0.044715 * z**3)),
    ),
    "logarithm": (
        lambda z, y: F.logsigmoid(z),
        lambda z, y: z - F.softplus(z),
        lambda z, y: -F.softplus(z),
    ),
    "preference": (
        lambda z, y: -F.logsigmoid(0.1 * (z - y)),
        lambda z, y: torch.log(1 + torch.exp(-0.1 * (z - y))),
        lambda z, y: torch.log(1 + torch.exp(0.1 * (z - y))),
    ),
    "softplus": (
        lambda z, y: F.softplus(z),
        lambda z, y: torch.log1p(torch.exp(z)),
        lambda z, y: torch.log1p(torch.exp(2 * z)),
    ),
    "cross-entropy": (
        with_logits,
        lambda z, y: F.softplus(z) - z * y,
        lambda z, y: F.softplus(z) + z * y,
    ),
    "two logarithms": (
        with_logits,
        lambda z, y: -(y * F.logsigmoid(z) + (1 - y) * F.logsigmoid(-z)),
        lambda z, y: -(y * F.logsigmoid(-z) + (1 - y) * F.logsigmoid(z)),
    ),
    "of probabilities": (
        with_logits,
        lambda z, y: -(y * torch.log(torch.sigmoid(z)) + (1 - y) * torch.log(1 - torch.sigmoid(z))),
        lambda z, y: -(y * torch.log(torch.sigmoid(z)) + torch.log(1 - torch.sigmoid(z))),
    ),
    "focal": (
        lambda z, y: (1 - torch.exp(-with_logits(z, y))) ** 2 * with_logits(z, y),
        lambda z, y: (1 - torch.exp(z * y - F.softplus(z))) ** 2 * (F.softplus(z) - z * y),
        lambda z, y: (1 - torch.exp(z * y - F.softplus(z))) * (F.softplus(z) - z * y),
    ),
}

Way = Callable[[Function, int], Callable[[sp.Job], None]]


def by_rows(function: Function, ranks: int) -> Callable[[sp.Job], None]:
    def step(job: sp.Job) -> None:
        first, last = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, 1)
        job.start([first, last])
        x, y = (job.batch[n].chunk(ranks)[job.rank % ranks] for n in "xy")
        loss = last(function(first(x), y)).square().mean()
        loss.backward()
        for p in (*first.parameters(), *last.parameters()) if ranks > 1 else ():
            dist.all_reduce(p.grad)
            p.grad /= ranks
        job.end(loss=loss)

    return step


def by_columns(function: Function, ranks: int) -> Callable[[sp.Job], None]:
    def step(job: sp.Job) -> None:
        own = WIDTH // ranks
        first, last = nn.Linear(WIDTH, own, bias=False), nn.Linear(own, WIDTH, bias=False)
        model, y = nn.Sequential(first, last), job.batch["y"]
        if ranks > 1:
            first.weight = nn.Parameter(job.full["0.weight"].chunk(ranks)[job.rank])
            last.weight = nn.Parameter(job.full["1.weight"].chunk(ranks, 1)[job.rank])
            y = y.chunk(ranks, 1)[job.rank]
        job.start(model)
        x = job.batch["x"]
        out = last(function(first(CopyTo.apply(x) if ranks > 1 else x), y))
        loss = (ReduceFrom.apply(out) if ranks > 1 else out).square().mean()
        loss.backward()
        job.end(loss=loss)

    return step


def verdict(one: Function, other: Function, by: Way = by_rows) -> str:
    return sp.verify(by(one, 1), by(other, 2), world_size=2, batch=BATCH).verdict


@pytest.mark.parametrize("name", WORDS)
def test_other_words_on_the_ranks_are_proved(name: str) -> None:
    single, ranks, _ = WORDS[name]
    assert verdict(single, ranks) == "proved"


@pytest.mark.parametrize("name", WORDS)
def test_what_is_another_function_is_refuted(name: str) -> None:
    single, _, other = WORDS[name]
    assert verdict(single, other) == "refuted"


@pytest.mark.parametrize("name", ["gate", "hyperbolic", "two logarithms"])
def test_other_words_where_features_are_divided(name: str) -> None:
    single, ranks, other = WORDS[name]
    assert verdict(single, ranks, by_columns) == "proved"
    assert verdict(single, other, by_columns) == "refuted"
