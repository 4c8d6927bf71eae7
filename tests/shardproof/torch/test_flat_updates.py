"""A sharded optimizer by hand: all gradients in one flat tensor, of which each rank has a part that
begins within a row of some weight, and gives the new parameters of."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F

import shardproof.torch as sp

RATE = 0.1
BATCH = {"x": sp.tensor((4, 6)), "y": sp.tensor((4, 1))}


def model() -> nn.Module:
    return nn.Sequential(nn.LayerNorm(6), nn.Linear(6, 4), nn.GELU(), nn.Linear(4, 1))


def single(job: sp.Job) -> None:
    net = model()
    rule = torch.optim.SGD(net.parameters(), lr=RATE)
    job.start(net, rule)
    loss = F.mse_loss(net(job.batch["x"]), job.batch["y"])
    loss.backward()
    rule.step()
    job.end(loss=loss)


def sharded(mistake: str) -> Callable[[sp.Job], None]:
    def parallel(job: sp.Job) -> None:
        net = model()
        job.start(net, torch.optim.SGD(net.parameters(), lr=RATE))
        x, y = (job.batch[name].chunk(job.world_size)[job.rank] for name in ("x", "y"))
        loss = F.mse_loss(net(x), y)
        loss.backward()
        parameters = list(net.parameters())
        grads = torch.cat([p.grad.flatten() for p in parameters if p.grad is not None])
        spare = -len(grads) % job.world_size
        grads = F.pad(grads, (0, spare))
        own_grads = torch.empty(len(grads) // job.world_size)
        dist.reduce_scatter_tensor(own_grads, grads)
        if mistake != "sum":
            own_grads /= job.world_size
        values = F.pad(torch.cat([p.detach().flatten() for p in parameters]), (0, spare))
        own = values.chunk(job.world_size)[job.rank] - RATE * own_grads
        dist.all_gather_into_tensor(values, own)
        dist.all_gather_into_tensor(grads, own_grads)
        at = 1 if mistake == "one place on" else 0
        with torch.no_grad():
            for p in parameters:
                p.copy_(values[at : at + p.numel()].view_as(p))
                p.grad = grads[at : at + p.numel()].view_as(p)
                at += p.numel()
        job.end(loss=loss)

    return parallel


@pytest.mark.parametrize(
    ("mistake", "verdict"), [("", "proved"), ("sum", "refuted"), ("one place on", "refuted")]
)
def test_parts_that_begin_within_a_row(mistake: str, verdict: str) -> None:
    result = sp.verify(single, sharded(mistake), world_size=2, batch=BATCH, cache=False)
    assert result.verdict == verdict, sp.told(result)
