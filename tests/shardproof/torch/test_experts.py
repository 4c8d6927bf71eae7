"""Mixtures of experts as people write them: what is chosen, dispatched and exchanged."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import torch.distributed as dist  # noqa: E402
import torch.nn.functional as F  # noqa: E402
from torch import nn  # noqa: E402

import shardproof.torch as sp  # noqa: E402

HERE: dict[str, Any] = {"executor": "local", "cache": False}
ROWS, WIDTH, EXPERTS, EACH = 8, 6, 2, 2


class Choosing(nn.Module):
    """Each expert takes the ``EACH`` rows that score best with it, by their places in a flat list
    of all experts' rows."""

    def __init__(self, largest: bool = True) -> None:
        super().__init__()
        self.gate = nn.Linear(WIDTH, EXPERTS, bias=False)
        self.experts = nn.Parameter(torch.randn(EXPERTS, WIDTH, WIDTH))
        self.largest = largest

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        rows = x.shape[0]
        scores = F.softmax(self.gate(x), dim=-1).t()
        values, ids = scores.topk(EACH, dim=1, largest=self.largest)
        places = torch.arange(EXPERTS)[:, None] * rows + ids
        many = x.repeat(EXPERTS, 1)
        chosen = many.index_select(0, places.view(-1)).view(EXPERTS, EACH, WIDTH)
        made = torch.bmm(chosen, self.experts)
        made = made * values[:, :, None]
        empty = torch.zeros_like(many)
        spread = empty.index_add(0, places.view(-1), made.view(-1, WIDTH))
        return spread.view(EXPERTS, rows, WIDTH).sum(dim=0)


def of_replica(model: nn.Module, job: sp.Job, rank: int) -> torch.Tensor:
    rows = slice(rank * ROWS // 2, (rank + 1) * ROWS // 2)
    return F.mse_loss(model(job.batch["x"][rows]), job.batch["y"][rows])


def single(job: sp.Job) -> None:
    model = Choosing()
    job.start(model)
    loss = (of_replica(model, job, 0) + of_replica(model, job, 1)) / 2
    loss.backward()
    job.end(loss=loss)


@pytest.mark.parametrize("largest", [True, False])
def test_rows_that_experts_choose(tmp_path: Path, largest: bool) -> None:
    def parallel(job: sp.Job) -> None:
        model = Choosing(largest)
        job.start(model)
        loss = of_replica(model, job, job.rank)
        loss.backward()
        for parameter in model.parameters():
            dist.all_reduce(parameter.grad)
            parameter.grad /= 2
        job.end(loss=loss)

    batch = {name: sp.tensor((ROWS, WIDTH)) for name in ("x", "y")}
    result = sp.verify(single, parallel, world_size=2, batch=batch, **HERE, out=tmp_path / "run")
    assert result.verdict == ("proved" if largest else "refuted"), sp.told(result)
