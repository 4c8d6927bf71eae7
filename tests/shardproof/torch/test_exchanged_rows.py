"""Rows that ranks exchange and gather: in which order they lie counts, not only which they are."""

from __future__ import annotations

from collections.abc import Callable

import pytest

torch = pytest.importorskip("torch")

import torch.distributed as dist  # noqa: E402

import shardproof.torch as sp  # noqa: E402


def single(job: sp.Job) -> None:
    job.start(torch.nn.Linear(1, 1))
    job.end(outputs={"y": job.batch["x"] + 0})


def exchanged(times: int) -> Callable[[sp.Job], None]:
    """Twice, rows are where they were before; once, those of all ranks take turns."""

    def step(job: sp.Job) -> None:
        job.start(torch.nn.Linear(1, 1))
        x = job.batch["x"]
        count = len(x) // job.world_size
        rows = x[job.rank * count : (job.rank + 1) * count].clone()
        for _ in range(times):
            into = torch.empty_like(rows)
            dist.all_to_all_single(into, rows)
            rows = into
        whole = torch.empty_like(x)
        dist.all_gather_into_tensor(whole, rows)
        job.end(outputs={"y": whole})

    return step


@pytest.mark.parametrize(("times", "verdict"), [(1, "refuted"), (2, "proved")])
@pytest.mark.parametrize("rows", [4, 8])
def test_rows_that_take_turns_are_not_in_order(rows: int, times: int, verdict: str) -> None:
    batch = {"x": sp.tensor((rows, 3))}
    result = sp.verify(single, exchanged(times), world_size=2, batch=batch)
    assert result.verdict == verdict, sp.told(result)
