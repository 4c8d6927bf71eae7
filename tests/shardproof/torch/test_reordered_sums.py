"""Masks of which data decide the order, not how many entries they have (masked autoencoders): each
rank has as many as the others, and the mean over its own is its part of the mean over all."""

from __future__ import annotations

from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

import torch.distributed as dist  # noqa: E402
from torch import nn  # noqa: E402

import shardproof.torch as sp  # noqa: E402

RANKS, PATCHES, WIDTH, KEPT = 2, 6, 4, 2


def step(job: sp.Job, ranks: int, unlike: bool = False) -> None:
    """``unlike``: the second rank rebuilds one patch less of each row than the first."""
    model = nn.ParameterDict({"mask": nn.Parameter(torch.zeros(1, 1, WIDTH))})
    model["weight"] = nn.Parameter(torch.zeros(WIDTH, WIDTH))
    job.start(model)
    x, noise = (job.batch[name].chunk(ranks)[job.rank] for name in ("x", "noise"))
    order = noise.argsort(1)
    back = order.argsort(1)[..., None].expand(-1, -1, WIDTH)
    kept = x.gather(1, order[:, :KEPT, None].expand(-1, -1, WIDTH))
    rest = model["mask"].expand(len(x), PATCHES - KEPT, -1)
    made = torch.cat([kept, rest], 1).gather(1, back) @ model["weight"]
    mask = torch.ones(len(x), PATCHES)
    mask[:, : KEPT + (job.rank if unlike else 0)] = 0
    mask = mask.gather(1, order.argsort(1))
    loss = ((made - x).pow(2).mean(-1) * mask).sum() / mask.sum()
    loss.backward()
    for parameter in model.parameters() if ranks > 1 else ():
        dist.all_reduce(parameter.grad, op=dist.ReduceOp.AVG)
    job.end(loss=loss)


@pytest.mark.parametrize("unlike", [False, True])
def test_as_many_masked_entries_on_each_rank(tmp_path: Path, unlike: bool) -> None:
    batch = {"x": sp.tensor((4, PATCHES, WIDTH)), "noise": sp.tensor((4, PATCHES))}
    result = sp.verify(
        lambda job: step(job, 1),
        lambda job: step(job, RANKS, unlike),
        world_size=RANKS,
        batch=batch,
        executor="local",
        out=tmp_path / "run",
    )
    assert result.verdict == ("refuted" if unlike else "proved"), sp.told(result)
