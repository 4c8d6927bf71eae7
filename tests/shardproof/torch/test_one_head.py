"""One head on each rank, ids that are turned, scales written in several ways."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

import shardproof.torch as sp
from benchmarks.torch.ordinary.parts import copy_to, reduce_from

WIDTH, HEADS, SIZE, CLASSES, LENGTH = 8, 2, 2, 6, 3
Step = Callable[[sp.Job], None]


def verdict(single: Step, parallel: Step, batch: dict[str, sp.TensorSpec], out: Path) -> str:
    """The verdict on two ranks."""
    result = sp.verify(single, parallel, world_size=2, batch=batch, out=out / "run", cache=False)
    return result.verdict


class Turned(nn.Module):
    """Heads that are turned by halves, whose squares are added up."""

    def __init__(self, heads: int) -> None:
        super().__init__()
        self.before, self.k = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, heads * SIZE, bias=False)

    def heads(self, x: torch.Tensor) -> torch.Tensor:
        k = self.k(x).unflatten(-1, (-1, SIZE)).transpose(1, 2)
        angle = torch.arange(LENGTH)[:, None] * torch.ones(SIZE)
        half = torch.cat([-k[..., 1:], k[..., :1]], dim=-1)
        return (k * angle.cos() + half * angle.sin()).pow(2).sum((1, 3))


def turned(job: sp.Job) -> None:
    model = Turned(HEADS)
    job.start(model)
    out = model.heads(model.before(job.batch["x"]))
    loss = (out - job.batch["y"]).pow(2).mean()
    loss.backward()
    job.end(loss=loss)


def turned_on_ranks(mistake: str = "") -> Step:
    def step(job: sp.Job) -> None:
        model = Turned(1)
        own = sp.piece("k.weight", dim=0, start=SIZE * job.rank, size=SIZE)
        job.start(model, parameters={"k.weight": own})
        x = model.before(job.batch["x"])
        out = reduce_from(model.heads(x if mistake == "not copied" else copy_to(x)))
        out = out / 2 if mistake == "mean of heads" else out
        loss = (out - job.batch["y"]).pow(2).mean()
        loss.backward()
        job.end(loss=loss)

    return step


@pytest.mark.parametrize(
    ("mistake", "expected"),
    [("", "proved"), ("not copied", "refuted"), ("mean of heads", "refuted")],
)
def test_sums_over_one_head_add_up(mistake: str, expected: str, tmp_path: Path) -> None:
    batch = {"x": sp.tensor((2, LENGTH, WIDTH)), "y": sp.tensor((2, LENGTH))}
    assert verdict(turned, turned_on_ranks(mistake), batch, tmp_path) == expected


class Table(nn.Module):
    def __init__(self, rows: int) -> None:
        super().__init__()
        self.table, self.out = nn.Embedding(rows, WIDTH), nn.Linear(WIDTH, 1)


def looked_up(job: sp.Job) -> None:
    model = Table(CLASSES)
    job.start(model)
    loss = model.out(model.table(job.batch["ids"].t()).tanh()).pow(2).mean()
    loss.backward()
    job.end(loss=loss)


def looked_up_on_ranks(mistake: bool) -> Step:
    """Positions first, as Megatron has them, and the mask unsqueezed in two ways."""

    def step(job: sp.Job) -> None:
        rows = CLASSES // job.world_size
        first = job.rank * rows
        model = Table(rows)
        own = sp.piece("table.weight", dim=0, start=first, size=rows)
        job.start(model, parameters={"table.weight": own})
        ids = job.batch["ids"].t()
        other = (ids < first) | (ids >= first + rows)
        local = ids.clone() - first
        local[other] = 0
        x = model.table(local)
        x = x if mistake else x.masked_fill(other.unsqueeze(-1), 0.0)
        loss = model.out(reduce_from(x).tanh()).pow(2).mean()
        loss.backward()
        job.end(loss=loss)

    return step


@pytest.mark.parametrize(("mistake", "expected"), [(False, "proved"), (True, "refuted")])
def test_rows_by_ids_that_are_turned(mistake: bool, expected: str, tmp_path: Path) -> None:
    batch = {"ids": sp.tensor((2, LENGTH), torch.int64, low=0, high=CLASSES)}
    assert verdict(looked_up, looked_up_on_ranks(mistake), batch, tmp_path) == expected


def fused(job: sp.Job) -> None:
    queries = nn.Linear(WIDTH, WIDTH)
    job.start(queries)
    x = job.batch["x"][:, None]
    loss = F.scaled_dot_product_attention(queries(x), x, x).pow(2).mean()
    loss.backward()
    job.end(loss=loss)


def by_hand(divisor: float) -> Step:
    """Rows over ranks; the root of 8 in another way than the fused operator has it."""

    def step(job: sp.Job) -> None:
        queries = nn.Linear(WIDTH, WIDTH)
        job.start(queries)
        x = job.batch["x"].chunk(job.world_size)[job.rank]
        scores = queries(x) @ x.transpose(-1, -2) / divisor
        loss = (scores.softmax(-1) @ x).pow(2).mean()
        loss.backward()
        for parameter in queries.parameters():
            dist.all_reduce(parameter.grad, op=dist.ReduceOp.AVG)
        job.end(loss=loss)

    return step


@pytest.mark.parametrize(
    ("divisor", "expected"), [(math.sqrt(WIDTH), "proved"), (math.sqrt(WIDTH + 1), "refuted")]
)
def test_a_root_is_one_number(divisor: float, expected: str, tmp_path: Path) -> None:
    batch = {"x": sp.tensor((4, LENGTH, WIDTH))}
    assert verdict(fused, by_hand(divisor), batch, tmp_path) == expected
