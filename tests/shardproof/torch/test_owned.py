"""Replicas that divide gradients and the optimizer's states, by hand: parameters lie in one flat
buffer, of which each rank reduces, updates and gathers a shard (ZeRO-1)."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn

import shardproof.torch as sp
from shardproof.checker import check

BATCH = {"x": sp.tensor((4, 4)), "y": sp.tensor((4, 3))}


def model() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3))


def loss_of(net: nn.Module, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return (net(x) - y).pow(2).mean()


def single(job: sp.Job) -> None:
    net = model()
    optimizer = torch.optim.AdamW(net.parameters(), lr=0.01)
    job.start(net, optimizer)
    loss = loss_of(net, job.batch["x"], job.batch["y"])
    loss.backward()
    optimizer.step()
    job.end(loss=loss)


class ByParameter:
    """States of an optimizer of shards, by the parameters that they are shards of."""

    def __init__(self, optimizer: torch.optim.Optimizer, shards: dict[Any, Any]) -> None:
        self._optimizer, self._shards = optimizer, shards

    @property
    def state(self) -> dict[Any, Any]:
        kept = self._optimizer.state
        return {p: kept[shard] for p, shard in self._shards.items() if shard in kept}


def zero(mistake: str = "", count: int = 2) -> Callable[[sp.Job], None]:
    """43 numbers, in shards that end inside of rows."""

    def step(job: sp.Job) -> None:
        net = model()
        parameters = list(net.parameters())
        size = 7 * -(-sum(p.numel() for p in parameters) // (7 * count))
        weights, gradients = torch.zeros(size * count), torch.zeros(size * count)
        first = job.rank * size
        owned, shards, at = {}, {}, 0
        for name, p in net.named_parameters():
            stop = at + p.numel()
            p.data = weights[at:stop].view(p.shape).copy_(p.data)
            low, high = max(at, first), min(stop, first + size)
            owned[name] = range(low - at, high - at) if low < high else range(0)
            if mistake == "nobody owns an entry" and job.rank == 1 and low < high:
                owned[name] = range(low - at + 1, high - at)
            if low < high:
                shards[p] = weights[low:high]
                shards[p].grad = gradients[low:high]
            at = stop
        inner = torch.optim.AdamW(list(shards.values()), lr=0.01)
        job.start(net, ByParameter(inner, shards), owned=owned)
        rows = 4 // count
        own = slice(job.rank * rows, job.rank * rows + rows)
        loss = loss_of(net, job.batch["x"][own], job.batch["y"][own])
        loss.backward()
        at = 0
        for p in parameters:
            gradients[at : at + p.numel()].view(p.shape).copy_(p.grad)
            p.grad = gradients[at : at + p.numel()].view(p.shape)
            at += p.numel()
        if mistake != "gradients are added up":
            gradients /= count
        shard = gradients[first : first + size]
        dist.reduce_scatter_tensor(shard, gradients)
        inner.step()
        if mistake != "nothing is gathered":
            dist.all_gather_into_tensor(weights, weights[first : first + size])
        job.end(loss=loss)

    return step


def verdict(out: Path, mistake: str, count: int = 2) -> sp.Result:
    step = zero(mistake, count)
    return sp.verify(
        single, step, world_size=count, batch=BATCH, executor="local", cache=False, out=out
    )


@pytest.mark.parametrize("count", [2, 4])
def test_shards_of_a_flat_buffer_are_proved(tmp_path: Path, count: int) -> None:
    result = verdict(tmp_path / "run", "", count)
    assert result.verdict == "proved", sp.told(result)
    assert {"gradient", "updated parameter", "state"} <= {c.kind for c in result.conclusions}
    assert any("each rank owns" in a for a in result.assumptions)
    assert check(tmp_path / "run").ok


@pytest.mark.parametrize("mistake", ["gradients are added up", "nothing is gathered"])
def test_mistakes_are_refuted(tmp_path: Path, mistake: str) -> None:
    result = verdict(tmp_path / "run", mistake)
    assert result.verdict == "refuted", sp.told(result)


def test_entries_that_nobody_owns_are_missing(tmp_path: Path) -> None:
    result = verdict(tmp_path / "run", "nobody owns an entry")
    assert result.verdict in ("refuted", "inconclusive"), sp.told(result)
    missing = [c for c in result.conclusions if c.kind == "coverage" and not c.holds]
    assert missing, sp.told(result)


def of_fused(job: sp.Job) -> dict[str, Any]:
    up, gate = job.full["0.weight"], job.full["1.weight"]
    assert up.shape == gate.shape == (4, 3)
    names = ("0.weight", "1.weight")
    return {"weight": [sp.piece(name, dim=0, start=0, size=4) for name in names]}


def fused(wrong: bool) -> Callable[[sp.Job], None]:
    """Two projections in one parameter, of which each rank owns some rows and half a row."""

    def step(job: sp.Job) -> None:
        net = nn.Linear(3, 8, bias=False)
        owned = range(16) if job.rank == 0 else range(16, 24)
        job.start(net, parameters=of_fused(job), owned={"weight": owned})
        x = job.batch["x"].chunk(2)[job.rank]
        up, gate = net(x).chunk(2, dim=-1)
        loss = (up * gate.sigmoid()).sum()
        loss.backward()
        assert net.weight.grad is not None
        if not (wrong and job.rank == 1):
            dist.all_reduce(net.weight.grad)
        else:
            dist.all_reduce(net.weight.grad.clone())
        job.end(loss=loss)

    return step


def two(job: sp.Job) -> None:
    net = nn.ModuleList([nn.Linear(3, 4, bias=False), nn.Linear(3, 4, bias=False)])
    job.start(net)
    loss = (net[0](job.batch["x"]) * net[1](job.batch["x"]).sigmoid()).sum()
    loss.backward()
    job.end(loss=loss)


@pytest.mark.parametrize("wrong", [False, True])
def test_pieces_of_a_fused_parameter_are_owned_in_part(tmp_path: Path, wrong: bool) -> None:
    result = sp.verify(
        two,
        fused(wrong),
        world_size=2,
        batch={"x": sp.tensor((2, 3))},
        executor="local",
        cache=False,
        out=tmp_path / "run",
    )
    assert result.verdict == ("refuted" if wrong else "proved"), sp.told(result)


@pytest.mark.parametrize("owned", [range(99), range(0, 8, 2), range(-1, 3)])
def test_entries_that_a_parameter_does_not_have_are_refused(tmp_path: Path, owned: range) -> None:
    def step(job: sp.Job) -> None:
        job.start(net := nn.Linear(3, 4), owned={"weight": owned})
        job.end(loss=net(job.batch["x"]).sum())

    batch = {"x": sp.tensor((2, 3))}
    result = sp.verify(step, step, world_size=2, batch=batch, executor="local", cache=False)
    assert result.verdict == "invalid input", result.verdict
    assert "are owned" in str(result.reason)
