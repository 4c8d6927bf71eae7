"""Functional collectives name their reduction: one that is none of a sum is never read as one."""

from __future__ import annotations

from collections.abc import Callable

import pytest

torch = pytest.importorskip("torch")

from torch.distributed import _functional_collectives as functional  # noqa: E402

import shardproof.torch as sp  # noqa: E402

BATCH = {"counts": sp.tensor((2, 4), "int64", low=0, high=8)}


def single(job: sp.Job) -> None:
    job.start(torch.nn.Linear(2, 2))
    job.end(outputs={"n": job.batch["counts"].sum(0)})


def reduced(name: str) -> Callable[[sp.Job], None]:
    def parallel(job: sp.Job) -> None:
        job.start(torch.nn.Linear(2, 2))
        own = job.batch["counts"][job.rank]
        ranks = list(range(job.world_size))
        job.end(outputs={"n": functional.all_reduce(own, name, ranks) + 0})

    return parallel


@pytest.mark.parametrize(
    ("name", "verdict"), [("sum", "proved"), ("band", "inconclusive"), ("bxor", "inconclusive")]
)
def test_a_reduction_is_what_its_name_says(name: str, verdict: str) -> None:
    result = sp.verify(single, reduced(name), world_size=2, batch=BATCH)
    assert result.verdict == verdict, sp.told(result)
