"""Gathers over all ranks beside scatters in pairs: a pair's ranks run programs of their own, and
then all do, since a gather is along axes or over programs, and not both."""

from __future__ import annotations

from collections.abc import Callable

import pytest

torch = pytest.importorskip("torch")

import torch.distributed as dist  # noqa: E402

import shardproof.torch as sp  # noqa: E402

RANKS, ROWS, WIDTH, OUTS = 4, 4, 6, 8
BATCH = {"x": sp.tensor((ROWS, WIDTH))}
OWN = OUTS // RANKS


def single(job: sp.Job) -> None:
    linear = torch.nn.Linear(WIDTH, OUTS, bias=False)
    job.start(linear)
    loss = linear(job.batch["x"]).square().mean()
    loss.backward()
    job.end(loss=loss)


def parallel(mistake: bool) -> Callable[[sp.Job], None]:
    def step(job: sp.Job) -> None:
        pairs = [dist.new_group([0, 1]), dist.new_group([2, 3])]
        pair, place = job.rank // 2, job.rank % 2
        linear = torch.nn.Linear(WIDTH, OWN, bias=False)
        piece = sp.piece("weight", dim=0, start=OWN * job.rank, size=OWN)
        job.start(linear, parameters={"weight": piece})
        parts = [torch.empty(OWN, WIDTH) for _ in range(RANKS)]
        dist.all_gather(parts, linear.weight.detach())
        whole = torch.cat(parts).requires_grad_()
        rows = torch.empty(ROWS // 2, WIDTH)
        given = [part.contiguous() for part in job.batch["x"].chunk(2)] if place == 0 else None
        dist.scatter(rows, given, src=2 * pair, group=pairs[pair])
        loss = (rows @ whole.t()).square().mean()
        loss.backward()
        total = whole.grad.clone()
        dist.all_reduce(total)
        linear.weight.grad = total.chunk(RANKS)[job.rank] / (1 if mistake else RANKS)
        job.end(loss=loss)

    return step


@pytest.mark.parametrize("mistake", [False, True])
def test_a_gather_over_pairs_that_scatter(mistake: bool) -> None:
    result = sp.verify(single, parallel(mistake), world_size=RANKS, batch=BATCH, cache=False)
    assert result.verdict == ("refuted" if mistake else "proved"), sp.told(result)
