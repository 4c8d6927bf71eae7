"""Rows that agree where both sides were run, of a step that stays inconclusive: `check` takes it."""

from __future__ import annotations

from pathlib import Path

import torch
import torch.distributed as dist

import shardproof.torch as sp
from shardproof.checker import check
from shardproof.engine.findings import UNDECIDED
from tests.shardproof.torch import steps

PLACES = [0, 0, 1, 3]


class Weight(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.w = torch.nn.Parameter(torch.randn(steps.WIDTH, len(PLACES)))


def single(job: sp.Job) -> None:
    model = Weight()
    job.start(model)
    columns = (job.batch["x"] @ model.w).sum(0)
    put = torch.zeros(5).index_put((torch.tensor(PLACES),), columns, accumulate=True)
    loss = (put * torch.arange(5.0)).sum()
    loss.backward()
    job.end(loss=loss)


def parallel(job: sp.Job) -> None:
    """The same by a table of the places, which is any numbers."""
    model = Weight()
    job.start(model)
    rows = job.batch["x"].chunk(job.world_size)[job.rank]
    loss = ((rows @ model.w).sum(0) * torch.tensor([float(n) for n in PLACES])).sum()
    loss.backward()
    dist.all_reduce(model.w.grad)
    job.end(loss=loss)


def test_rows_that_agree_are_no_other_conclusions(tmp_path: Path) -> None:
    run = tmp_path / "run"
    result = sp.verify(single, parallel, world_size=2, batch=steps.SPEC, out=run, cache=False)
    assert result.verdict == "inconclusive"
    assert any(c.message.endswith(UNDECIDED) for c in result.conclusions)
    found = check(run)
    assert found.ok, found.problems
    path = run / "result.json"
    path.write_text(path.read_text().replace(UNDECIDED, " (it agrees)"))
    assert not check(run).ok
