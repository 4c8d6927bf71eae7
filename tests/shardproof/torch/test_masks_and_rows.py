"""Masks that are joined with constant ones, and rows of the batch that nothing of the step reads."""

from __future__ import annotations

from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

import torch.distributed as dist  # noqa: E402
from torch import nn  # noqa: E402

import shardproof.torch as sp  # noqa: E402
from benchmarks.torch.ordinary.parts import Step, rows  # noqa: E402
from tests.shardproof.torch.reduced import REDUCED, assert_verdict  # noqa: E402

WIDTH, POSITIONS, ROWS = 8, 4, 4


@pytest.fixture(autouse=True)
def runs_elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs are kept in the working directory, which is none of the project's."""
    monkeypatch.chdir(tmp_path)


def step(ranks: int, op: dist.ReduceOp.RedOpType = dist.ReduceOp.AVG) -> Step:
    """A loss over positions whose next one is positive, of which the last has none; ranks cut
    their rows of all that there is."""

    def run(job: sp.Job) -> None:
        model = nn.Linear(WIDTH, 1)
        job.start(model)
        x, *_ = rows(job, "x", "unread") if ranks > 1 else (job.batch["x"],)
        after = x[:, 1:, 0] > 0
        shown = torch.cat([after, torch.zeros(len(x), 1, dtype=torch.bool)], 1)
        loss = (model(x).squeeze(-1).square() * shown).mean()
        loss.backward()
        for parameter in model.parameters() if ranks > 1 else ():
            dist.all_reduce(parameter.grad, op=op)
        job.end(loss=loss)

    return run


@REDUCED
def test_a_mask_beside_a_constant_one_is_a_mask(op: dist.ReduceOp.RedOpType, expected: str) -> None:
    assert_verdict(step, op, expected, x=(ROWS, POSITIONS, WIDTH), unread=(ROWS, WIDTH))
