"""A balancing loss that divides by how many tokens its counts have, beside ranks that know it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

import torch.distributed as dist  # noqa: E402
import torch.nn.functional as F  # noqa: E402
from torch import nn  # noqa: E402

import shardproof.torch as sp  # noqa: E402
from tests.shardproof.torch.locally import locally  # noqa: E402

BATCH = {"x": sp.tensor((8, 4))}


def step(ranks: int, wrong: str = "") -> Callable[[sp.Job], None]:
    def one(job: sp.Job) -> None:
        gate = nn.Linear(4, 3, bias=False)
        job.start(gate)
        shares = gate(job.batch["x"].chunk(ranks)[job.rank]).softmax(-1)
        counts = F.one_hot(shares.argmax(-1), 3).float().sum(0)
        if ranks > 1 and wrong != "counts":
            dist.all_reduce(counts)
        tokens = counts.sum() if ranks == 1 else 4 if wrong == "tokens" else 8
        loss = (counts / tokens * shares.mean(0)).sum() * 3
        loss.backward()
        if ranks > 1:
            dist.all_reduce(gate.weight.grad)
            gate.weight.grad /= ranks
            loss = loss.detach().clone()
            dist.all_reduce(loss)
            loss = loss / ranks
        job.end(loss=loss)

    return one


@pytest.mark.parametrize("wrong", ["", "counts", "tokens"])
def test_how_many_tokens_there_are(tmp_path: Path, wrong: str) -> None:
    result = locally(tmp_path, step(1), step(2, wrong), BATCH)
    assert result.verdict == ("refuted" if wrong else "proved"), sp.told(result)
