"""What is reported is the fault, not what does no harm before it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.functional import cross_entropy

import shardproof.torch as sp
from shardproof.run.result import Result

BATCH = {"x": sp.tensor((4, 8)), "y": sp.tensor((4,), torch.long, low=0, high=6)}


class Joined(torch.autograd.Function):
    """Columns of all ranks: gathered one below the other, then put side by side."""

    @staticmethod
    def forward(_ctx: Any, own: torch.Tensor, swapped: bool) -> torch.Tensor:
        parts = [torch.empty_like(own) for _ in range(dist.get_world_size())]
        dist.all_gather(parts, own.contiguous())
        return torch.cat(parts[::-1] if swapped else parts, -1)

    @staticmethod
    def backward(_ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
        return gradient.chunk(dist.get_world_size(), -1)[dist.get_rank()], None


def single(job: sp.Job) -> None:
    model = torch.nn.Linear(8, 6, bias=False)
    job.start(model)
    loss = cross_entropy(model(job.batch["x"]), job.batch["y"])
    loss.backward()
    job.end(loss=loss)


def divided(factor: float = 1.0, *, swapped: bool = False) -> Callable[[sp.Job], None]:
    def run(job: sp.Job) -> None:
        model = torch.nn.Linear(8, 3, bias=False)
        own = {"weight": sp.piece("weight", dim=0, start=3 * job.rank, size=3)}
        job.start(model, parameters=own)
        scores = Joined.apply(model(job.batch["x"]), swapped)
        loss = cross_entropy(scores, job.batch["y"])
        loss.backward()
        assert model.weight.grad is not None
        model.weight.grad.mul_(factor)
        job.end(loss=loss)

    return run


def verified(step: Callable[[sp.Job], None]) -> Result:
    return sp.verify(single, step, world_size=2, batch=BATCH)


def test_a_gather_that_is_put_in_order_is_no_cause() -> None:
    assert verified(divided()).verdict == "proved"
    result = verified(divided(0.5))
    assert result.verdict == "refuted"
    assert "all_gather" not in {f.operator for f in result.findings}
    assert "1/2 times" in result.findings[0].message


def test_a_gather_whose_parts_are_exchanged_is() -> None:
    result = verified(divided(swapped=True))
    assert result.verdict == "refuted"
    assert result.findings[0].operator in ("all_gather", "concat")


IDS = {"ids": sp.tensor((4,), torch.long, low=0, high=8)}


def looked_up(job: sp.Job) -> None:
    table = torch.nn.Embedding(8, 4)
    job.start(table)
    job.end(loss=table(job.batch["ids"]).square().mean())


def looked_up_in_parts(job: sp.Job) -> None:
    table = torch.nn.Embedding(4, 4)
    job.start(table, parameters={"weight": sp.piece("weight", dim=0, start=4 * job.rank, size=4)})
    first = 3 * job.rank  # 4
    own = (job.batch["ids"] >= first) & (job.batch["ids"] < first + 4)
    rows = table((job.batch["ids"] - first).clamp(0, 3)) * own[:, None]  # it is chosen here
    total = rows.clone()
    dist.all_reduce(total)
    job.end(loss=total.square().mean())


def test_rows_of_other_ids_are_told_where_they_are_chosen() -> None:
    result = sp.verify(looked_up, looked_up_in_parts, world_size=2, batch=IDS)
    assert result.verdict == "refuted"
    (finding,) = (f for f in result.findings if f.operator == "embedding")
    lines = Path(__file__).read_text(encoding="utf-8").splitlines()
    assert "it is chosen here" in lines[int(finding.source.split(":")[1].split(" ")[0]) - 1]
