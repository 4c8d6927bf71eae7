"""DeepSeek's gate with one group of experts: the largest of one score for each token."""

from __future__ import annotations

from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

import torch.distributed as dist  # noqa: E402
import torch.nn.functional as F  # noqa: E402
from torch import nn  # noqa: E402

import shardproof.torch as sp  # noqa: E402
from benchmarks.torch.ordinary.parts import Step, rows  # noqa: E402
from tests.shardproof.torch.reduced import REDUCED, assert_verdict  # noqa: E402

TOKENS, WIDTH, EXPERTS = 6, 8, 4


@pytest.fixture(autouse=True)
def runs_elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs are kept in the working directory, which is none of the project's."""
    monkeypatch.chdir(tmp_path)


def gate(scores: torch.Tensor) -> torch.Tensor:
    """The weight of each expert, of those of the groups with the largest scores."""
    groups = scores.view(len(scores), 1, EXPERTS).topk(2, dim=-1).values.sum(-1)
    best = groups.topk(1, dim=-1, sorted=False).indices
    mask = torch.zeros_like(groups).scatter_(1, best, 1)
    shown = mask.unsqueeze(-1).expand(-1, 1, EXPERTS).reshape(len(scores), EXPERTS)
    ids = scores.masked_fill(~shown.bool(), 0.0).topk(2, dim=-1).indices
    weights = scores.gather(1, ids)
    weights = weights / weights.sum(-1, keepdim=True)
    return torch.zeros_like(scores).scatter(1, ids, weights)


def step(ranks: int, op: dist.ReduceOp.RedOpType = dist.ReduceOp.AVG) -> Step:
    def run(job: sp.Job) -> None:
        model = nn.Linear(WIDTH, EXPERTS)
        job.start(model)
        x, y = rows(job, "x", "y") if ranks > 1 else (job.batch["x"], job.batch["y"])
        loss = F.mse_loss(gate(model(x).sigmoid()), y)
        loss.backward()
        for parameter in model.parameters() if ranks > 1 else ():
            dist.all_reduce(parameter.grad, op=op)
        job.end(loss=loss)

    return run


@REDUCED
def test_the_largest_of_one_is_that_one(op: dist.ReduceOp.RedOpType, expected: str) -> None:
    assert_verdict(step, op, expected, x=(TOKENS, WIDTH), y=(TOKENS, EXPERTS))
