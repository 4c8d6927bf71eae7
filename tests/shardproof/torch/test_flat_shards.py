"""Shards that a program cuts from flattened full parameters: ZeRO by hand."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

import shardproof.torch as sp

D = 3
BATCH = {"x": sp.tensor((4, D)), "y": sp.tensor((4, 2))}
SP: dict[str, Any] = {"executor": "local", "cache": False, "batch": BATCH}


def single(job: sp.Job) -> None:
    model = nn.Linear(D, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    job.start(model, optimizer)
    loss = F.mse_loss(model(job.batch["x"]), job.batch["y"])
    loss.backward()
    optimizer.step()
    job.end(loss=loss)


class Gathered(torch.autograd.Function):
    """A flat buffer of its shards; gradients are averaged and scattered."""

    @staticmethod
    def forward(_: object, shard: torch.Tensor) -> torch.Tensor:
        whole = shard.new_empty(shard.numel() * dist.get_world_size())
        dist.all_gather_into_tensor(whole, shard)
        return whole

    @staticmethod
    def backward(_: object, grad: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
        own = grad.new_empty(grad.numel() // dist.get_world_size())
        dist.reduce_scatter_tensor(own, grad.contiguous(), op=dist.ReduceOp.AVG)
        return own


def sharded(mistake: str = "") -> Any:
    def step(job: sp.Job) -> None:
        n, r = job.world_size, job.rank
        weight, bias = job.full["weight"], job.full["bias"]
        order = [bias, weight.t()] if mistake == "transposed" else [weight, bias]
        flat = torch.cat([p.reshape(-1) for p in order])
        count = flat.numel()
        size = -(-count // n)
        flat = F.pad(flat, (0, n * size - count))  # 8 entries, 3 shards: 9
        at = (r + 1) % n if mistake == "shard of the next rank" else r
        model = nn.Module()
        model.shard = nn.Parameter(flat[at * size : (at + 1) * size].clone())
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        job.start(model, optimizer)
        whole = Gathered.apply(model.shard)[:count]
        w, b = whole[: 2 * D].view(2, D), whole[2 * D :]
        x, y = job.batch["x"], job.batch["y"]
        loss = F.mse_loss(F.linear(x, w, b), y)
        loss.backward()
        optimizer.step()
        job.end(loss=loss)

    return step


@pytest.mark.parametrize("ranks", [2, 3])
def test_flat_shards_that_end_inside_of_rows(ranks: int) -> None:
    result = sp.verify(single, sharded(), world_size=ranks, validate=True, **SP)
    assert result.verdict == "proved", sp.told(result)


def test_a_shard_of_another_rank_is_refuted() -> None:
    result = sp.verify(single, sharded("shard of the next rank"), world_size=2, **SP)
    assert result.verdict == "refuted", sp.told(result)


def test_entries_in_another_order_are_refused() -> None:
    result = sp.verify(single, sharded("transposed"), world_size=2, **SP)
    assert result.verdict == "invalid input"
    assert "is not a box of one" in result.reason
