"""Clipping by the norm of all gradients, as Megatron adds it up: one rank counts what all have."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import torch.distributed as dist  # noqa: E402
from torch import nn  # noqa: E402

import shardproof.torch as sp  # noqa: E402

HERE: dict[str, Any] = {"executor": "local", "cache": False}
MANY = 10


class Model(nn.Module):
    """A table over a vocabulary, and many scales."""

    def __init__(self, table: torch.Tensor, scales: list[torch.Tensor]) -> None:
        super().__init__()
        self.table = nn.Parameter(table)
        self.scales = nn.ParameterList(scales)


def scaled(model: Model, x: torch.Tensor) -> torch.Tensor:
    return sum(((x * p) ** 2).sum() for p in model.scales)


def clip(model: Model, counted: list[nn.Parameter], reduce: bool) -> None:
    total = torch.zeros(1)
    for parameter in counted:
        total = total + (parameter.grad * parameter.grad).sum()
    if reduce:
        dist.all_reduce(total)
    scale = (1.0 / (total**0.5 + 1e-6)).clamp(max=1.0)
    for parameter in model.parameters():
        parameter.grad.mul_(scale)


def single(job: sp.Job) -> None:
    model = Model(torch.randn(8, 4), [torch.randn(4) for _ in range(MANY)])
    job.start(model)
    loss = (
        nn.functional.embedding(job.batch["ids"], model.table) * job.batch["by"]
    ).sum() + scaled(model, job.batch["x"])
    loss.backward()
    clip(model, list(model.parameters()), reduce=False)
    job.end(loss=loss)


def parallel(everywhere: bool = False, reduce: bool = True) -> Callable[[sp.Job], None]:
    """Rows of the table are cut over ranks; ``everywhere``: every rank counts what all have."""

    def step(job: sp.Job) -> None:
        table = job.full["table"].chunk(2)[job.rank].clone()
        model = Model(table, [job.full[f"scales.{n}"].clone() for n in range(MANY)])
        job.start(model)
        own = job.batch["ids"] - 4 * job.rank
        outside = (own < 0) | (own >= 4)
        rows = nn.functional.embedding(own.masked_fill(outside, 0), model.table).masked_fill(
            outside.unsqueeze(-1), 0.0
        )
        part, whole = (rows * job.batch["by"]).sum(), scaled(model, job.batch["x"])
        (part + whole).backward()
        counts = [model.table] + (list(model.scales) if everywhere or job.rank == 0 else [])
        clip(model, counts, reduce)
        loss = part.detach().clone()
        dist.all_reduce(loss)
        job.end(loss=loss + whole.detach())

    return step


@pytest.mark.parametrize(
    ("more", "verdict"),
    [({}, "proved"), ({"everywhere": True}, "refuted"), ({"reduce": False}, "refuted")],
    ids=["one rank counts", "every rank counts", "not reduced"],
)
def test_clipping_by_the_norm_of_all_gradients(tmp_path: Path, more: Any, verdict: str) -> None:
    batch = {
        "ids": sp.tensor((5,), torch.long, low=0, high=8),
        "x": sp.tensor((2, 4)),
        "by": sp.tensor((5, 4)),
    }
    result = sp.verify(
        single, parallel(**more), world_size=2, batch=batch, **HERE, out=tmp_path / "run"
    )
    assert result.verdict == verdict, result
