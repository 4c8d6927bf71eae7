"""Causal attention of positions that are dealt in a zigzag, over keys that all ranks gather: gradients
of late keys are sums over queries of which a rank has some that do not see them.  Keys are put in
order, or stay in that of the ranks: then a query sees several intervals of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import torch.distributed as dist  # noqa: E402
from torch import nn  # noqa: E402

import shardproof.torch as sp  # noqa: E402
from shardproof.checker import check  # noqa: E402

CHUNK, WIDTH = 2, 4


class Gathered(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        parts = [torch.empty_like(x) for _ in range(dist.get_world_size())]
        dist.all_gather(parts, x.contiguous())
        return torch.stack(parts)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        own = torch.empty_like(gradient[0])
        dist.reduce_scatter(own, [part.contiguous() for part in gradient])
        return own


def in_order(parts: torch.Tensor) -> torch.Tensor:
    """The positions of all ranks: the first chunks of each, then the last ones from behind."""
    return torch.cat([part[:CHUNK] for part in parts] + [part[CHUNK:] for part in parts.flip(0)])


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(3))

    def forward(self, x: torch.Tensor, own: torch.Tensor, ranks: int, sort: bool) -> torch.Tensor:
        k, v = self.k(x), self.v(x)
        if ranks > 1:
            k, v = (Gathered.apply(t) for t in (k, v))
            k, v = (in_order(t) if sort else t.flatten(0, 1) for t in (k, v))
        positions = torch.arange(len(k))
        if not sort:
            blocks = positions.chunk(2 * ranks)
            dealt = [torch.cat([blocks[i], blocks[-1 - i]]) for i in range(ranks)]
            positions = torch.cat(dealt)
        hidden = own[:, None] < positions
        scores = (self.q(x) @ k.T).masked_fill(hidden, -torch.inf)
        return torch.softmax(scores, -1) @ v


def verdict(out: Path, world: int, mistake: bool = False, sort: bool = True) -> sp.Result:
    """``mistake``: queries see keys as if their positions were in order; ``sort``: keys are."""
    length = 2 * world * CHUNK

    def step(job: sp.Job, ranks: int) -> None:
        model = Attention()
        job.start(model)
        x, own = job.batch["x"], torch.arange(length)
        if ranks > 1:
            first, last = job.rank, 2 * ranks - 1 - job.rank
            x, at = (torch.cat([t.chunk(2 * ranks)[i] for i in (first, last)]) for t in (x, own))
            own = own.chunk(ranks)[job.rank] if mistake else at
        loss = model(x, own, ranks, sort or ranks == 1).pow(2).mean()
        loss.backward()
        for parameter in model.parameters() if ranks > 1 else ():
            dist.all_reduce(parameter.grad, op=dist.ReduceOp.AVG)
        job.end(loss=loss)

    return sp.verify(
        lambda job: step(job, 1),
        lambda job: step(job, world),
        world_size=world,
        batch={"x": sp.tensor((length, WIDTH))},
        executor="local",
        out=out,
    )


@pytest.mark.parametrize("world", [2, 3])
def test_keys_that_few_queries_see(tmp_path: Path, world: int) -> None:
    """Of three ranks the one in the middle has every sixth position and the next."""
    result = verdict(tmp_path / "right", world)
    assert result.verdict == "proved", sp.told(result)
    assert check(result.run_dir).ok
    assert verdict(tmp_path / "wrong", world, mistake=True).verdict == "refuted"


def test_keys_in_the_order_of_their_ranks(tmp_path: Path) -> None:
    result = verdict(tmp_path / "right", 2, sort=False)
    assert result.verdict == "proved", sp.told(result)
    assert check(result.run_dir).ok
    assert verdict(tmp_path / "wrong", 2, mistake=True, sort=False).verdict == "refuted"
