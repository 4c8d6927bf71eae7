"""Sums and maxima over blocks of rows, of which every rank has one: a plain all-reduce."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.distributed as dist

import shardproof.torch as sp

Step = Callable[[sp.Job], None]
Values = Callable[[torch.Tensor], torch.Tensor]
BATCH = {"x": sp.tensor((4, 3)), "y": sp.tensor((4, 3))}
LARGEST = dist.ReduceOp.MAX


def _single(values: Values) -> Step:
    def step(job: sp.Job) -> None:
        model = torch.nn.Linear(3, 3)
        job.start(model)
        with torch.no_grad():
            job.end(outputs={"y": values(model(job.batch["x"]))})

    return step


def _ranks(rows: int, op: dist.ReduceOp.RedOpType, sign: int = 1) -> Step:
    """Every rank's rows, as one position or as a block, joined by an all-reduce."""

    def step(job: sp.Job) -> None:
        model = torch.nn.Linear(3, 3)
        job.start(model)
        with torch.no_grad():
            own = model(job.batch["x"][job.rank * rows : (job.rank + 1) * rows]) * sign
            dist.all_reduce(own, op)
            job.end(outputs={"y": own * sign if rows > 1 else own[0] * sign})

    return step


CASES: dict[str, tuple[Values, Values, int, dist.ReduceOp.RedOpType, int]] = {
    "a sum of halves": (
        lambda x: x.view(2, 2, 3).sum(0),
        lambda x: x.view(2, 2, 3).sum(1),
        *(2, dist.ReduceOp.SUM, 1),
    ),
    "the largest of halves": (
        lambda x: x.view(2, 2, 3).amax(0),
        lambda x: x.view(2, 2, 3).amax(1),
        *(2, LARGEST, 1),
    ),
    "the largest of rows": (lambda x: x.amax(0), lambda x: x[:3].amax(0), 1, LARGEST, 1),
    "the least of rows": (lambda x: x.amin(0), lambda x: x.amax(0), 1, LARGEST, -1),
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_what_an_all_reduce_makes_of_blocks_is_known(
    case: tuple[Values, Values, int, dist.ReduceOp.RedOpType, int],
) -> None:
    right, wrong, rows, op, sign = case
    ranks = _ranks(rows, op, sign)
    result = sp.verify(_single(right), ranks, world_size=4 // rows, batch=BATCH)
    assert result.verdict == "proved", result.reason
    assert sp.verify(_single(wrong), ranks, world_size=4 // rows, batch=BATCH).verdict == "refuted"


def _sum_of_two(of: Values) -> Step:
    """The largest entries of columns of two tensors, added: on each rank, and then joined."""

    def step(job: sp.Job) -> None:
        model = torch.nn.Linear(3, 3)
        job.start(model)
        own, size = job.rank, 4 // job.world_size
        with torch.no_grad():
            parts = [model(job.batch[name][own * size :][:size]) for name in ("x", "y")]
            if job.world_size > 1:
                job.end(outputs={"y": of(torch.stack([x.amax(0) for x in parts]))})
            else:
                job.end(outputs={"y": sum(x.amax(0) for x in parts)})

    return step


def _joined(x: torch.Tensor) -> torch.Tensor:
    dist.all_reduce(x, LARGEST)
    return x


def test_the_largest_sum_is_not_the_sum_of_what_is_largest() -> None:
    single = _sum_of_two(lambda x: x)
    right = _sum_of_two(lambda x: _joined(x).sum(0))
    assert sp.verify(single, right, world_size=2, batch=BATCH).verdict == "proved"
    wrong = _sum_of_two(lambda x: _joined(x.sum(0)))
    assert sp.verify(single, wrong, world_size=2, batch=BATCH).verdict == "refuted"
