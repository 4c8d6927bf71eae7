"""Gradients that stay a part on each rank behind residuals and norms, as under tensor parallelism
without sequence parallelism in torchtitan: what is made of them is added up over ranks."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import torch.distributed as dist  # noqa: E402
import torch.nn.functional as F  # noqa: E402
from torch import nn  # noqa: E402

import shardproof.torch as sp  # noqa: E402
from shardproof.checker import check  # noqa: E402
from tests.shardproof.torch.steps import CopyTo, ReduceFrom  # noqa: E402

RANKS, ROWS, LENGTH, WIDTH, HIDDEN, CLASSES = 2, 3, 5, 4, 8, 10
BATCH = {"x": sp.tensor((ROWS, LENGTH, WIDTH)), "y": sp.tensor((ROWS, LENGTH, CLASSES))}
MISTAKES = ("a block's gradient stays a part", "a norm's gradient stays a part")

Whole = Callable[[torch.Tensor], torch.Tensor]


class Gathered(torch.autograd.Function):
    """The last dimension of all ranks, side by side; backward a rank's own part of the sum."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        parts = [torch.empty_like(x) for _ in range(RANKS)]
        dist.all_gather(parts, x.contiguous())
        return torch.cat(parts, -1)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        parts = [part.contiguous() for part in gradient.chunk(RANKS, -1)]
        own = torch.empty_like(parts[0])
        dist.reduce_scatter(own, parts)
        return own


class OwnAlone(Gathered):
    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        return gradient.chunk(RANKS, -1)[dist.get_rank()].contiguous()


class Block(nn.Module):
    def __init__(self, ranks: int) -> None:
        super().__init__()
        own = HIDDEN // ranks
        self.norm = nn.RMSNorm(WIDTH)
        self.gate, self.up = nn.Linear(WIDTH, own, bias=False), nn.Linear(WIDTH, own, bias=False)
        self.down = nn.Linear(own, WIDTH, bias=False)

    def forward(self, x: torch.Tensor, whole: Whole) -> torch.Tensor:
        h = self.norm(x)
        h = F.silu(self.gate(h)) * self.up(h)
        return x + F.linear(whole(h), whole(self.down.weight))


class Net(nn.Module):
    def __init__(self, ranks: int = 1, blocks: int = 2) -> None:
        super().__init__()
        self.first = nn.Linear(WIDTH, WIDTH)
        self.blocks = nn.ModuleList(Block(ranks) for _ in range(blocks))
        self.norm = nn.RMSNorm(WIDTH)
        self.head = nn.Linear(WIDTH, CLASSES // ranks, bias=False)


def single(job: sp.Job) -> None:
    net = Net()
    job.start(net)
    x = net.first(job.batch["x"])
    for block in net.blocks:
        x = block(x, lambda y: y)
    loss = (net.head(net.norm(x)) - job.batch["y"]).square().sum()
    loss.backward()
    job.end(loss=loss)


def divided(mistake: str) -> Callable[[sp.Job], None]:
    def step(job: sp.Job) -> None:
        net = Net(RANKS)
        pieces = {}
        for name, parameter in net.named_parameters():
            dim = {"gate": 0, "up": 0, "down": 1, "head": 0}.get(name.split(".")[-2])
            size = parameter.shape[dim or 0]
            cut = {"dim": dim, "start": job.rank * size, "size": size}
            pieces[name] = sp.same(name) if dim is None else sp.piece(name, **cut)
        job.start(net, parameters=pieces)
        x = CopyTo.apply(net.first(job.batch["x"]))
        for number, block in enumerate(net.blocks):
            wrong = number == 1 and mistake == MISTAKES[0]
            x = block(x, OwnAlone.apply if wrong else Gathered.apply)
        own = job.batch["y"].chunk(RANKS, -1)[job.rank]
        loss = ReduceFrom.apply((net.head(net.norm(x)) - own).square().sum())
        loss.backward()
        for number, norm in enumerate([*(block.norm for block in net.blocks), net.norm]):
            if number != 0 or mistake != MISTAKES[1]:
                dist.all_reduce(norm.weight.grad)
        job.end(loss=loss)

    return step


def test_parts_of_gradients_are_added_up(tmp_path: Path) -> None:
    out = tmp_path / "run"
    result = sp.verify(single, divided(""), world_size=RANKS, batch=BATCH, cache=False, out=out)
    assert result.verdict == "proved", sp.told(result)
    assert check(out).ok


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_part_in_place_of_all_is_refuted(mistake: str) -> None:
    result = sp.verify(single, divided(mistake), world_size=RANKS, batch=BATCH, cache=False)
    assert result.verdict == "refuted", sp.told(result)
