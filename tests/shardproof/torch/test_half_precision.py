"""Numbers of half precision: casts change nothing, and short constants are what they are."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Replicate
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    loss_parallel,
    parallelize_module,
)

import shardproof.torch as sp

BATCH = {"ids": sp.tensor((4,), "int64", low=0, high=8)}
HEAD = {"x": sp.tensor((4, 6)), "ids": BATCH["ids"]}


def words(job: sp.Job) -> None:
    table = torch.nn.Embedding(8, 6)
    job.start(table)
    loss = table(job.batch["ids"]).pow(2).mean()
    loss.backward()
    job.end(loss=loss)


def divided_words(scale: float) -> Callable[[sp.Job], None]:
    """The words that a rank has not are set to a zero of bfloat16."""

    def step(job: sp.Job) -> None:
        mesh, table = init_device_mesh("cpu", (2,)), torch.nn.Embedding(8, 6)
        parallelize_module(table, mesh, RowwiseParallel(input_layouts=Replicate()))
        job.start(table)
        ids = DTensor.from_local(job.batch["ids"], mesh, [Replicate()])
        rows = F.embedding(ids, table.weight.bfloat16()).redistribute(mesh, [Replicate()])
        loss = scale * rows.to_local().float().pow(2).mean()
        loss.backward()
        job.end(loss=loss)

    return step


def head(job: sp.Job) -> None:
    model = torch.nn.Linear(6, 8, bias=False)
    job.start(model)
    loss = F.cross_entropy(model(job.batch["x"]), job.batch["ids"])
    loss.backward()
    job.end(loss=loss)


def divided_head(scale: float) -> Callable[[sp.Job], None]:
    """`loss_parallel` rounds its log-probabilities before it picks of them."""

    def step(job: sp.Job) -> None:
        mesh, model = init_device_mesh("cpu", (2,)), torch.nn.Linear(6, 8, bias=False)
        parallelize_module(model, mesh, ColwiseParallel())
        job.start(model)
        x = DTensor.from_local(job.batch["x"].bfloat16(), mesh, [Replicate()])
        with loss_parallel():
            logits = F.linear(x, model.weight.bfloat16())
            loss = scale * F.cross_entropy(logits, job.batch["ids"])
            loss.backward()
        job.end(loss=loss)

    return step


@pytest.mark.parametrize(("scale", "verdict"), [(1.0, "proved"), (0.5, "refuted")])
def test_words_of_other_ranks_are_a_zero_of_bfloat16(scale: float, verdict: str) -> None:
    result = sp.verify(words, divided_words(scale), world_size=2, batch=BATCH)
    assert result.verdict == verdict, sp.told(result)


@pytest.mark.parametrize(("scale", "verdict"), [(1.0, "proved"), (0.5, "refuted")])
def test_what_is_picked_of_rounded_log_probabilities_is_a_loss(scale: float, verdict: str) -> None:
    result = sp.verify(head, divided_head(scale), world_size=2, batch=HEAD)
    assert result.verdict == verdict, sp.told(result)
