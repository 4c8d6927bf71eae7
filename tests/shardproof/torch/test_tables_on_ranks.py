"""Tables of a recommender that ranks have several of each: rows are pooled for the whole batch, exchanged
by an all-to-all, and joined with numbers that each rank has of its rows."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

import torch.distributed as dist  # noqa: E402
import torch.nn.functional as F  # noqa: E402
from torch import nn  # noqa: E402

import shardproof.torch as sp  # noqa: E402
from benchmarks.torch.ordinary.parts import rows  # noqa: E402

TABLES, WIDTH, ROWS, NUMBERS = 4, 6, 8, 5
BATCH = {
    "ids": sp.tensor((TABLES, ROWS, 3), torch.int64, low=0, high=10),
    "numbers": sp.tensor((ROWS, NUMBERS)),
    "wanted": sp.tensor((ROWS,)),
}


@pytest.fixture(autouse=True)
def runs_elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs are kept in the working directory, which is none of the project's."""
    monkeypatch.chdir(tmp_path)


class Exchanged(torch.autograd.Function):
    """Equal parts of the first dimension, one of each rank for each."""

    @staticmethod
    def forward(ctx: object, x: torch.Tensor) -> torch.Tensor:
        made = torch.empty_like(x)
        dist.all_to_all_single(made, x.contiguous())
        return made

    @staticmethod
    def backward(ctx: object, gradient: torch.Tensor) -> torch.Tensor:
        return Exchanged.forward(ctx, gradient)


class Model(nn.Module):
    def __init__(self, numbers: Sequence[int]) -> None:
        super().__init__()
        bags = {str(n): nn.EmbeddingBag(10, WIDTH, mode="mean") for n in numbers}
        self.tables, self.head = nn.ModuleDict(bags), nn.Linear(TABLES * WIDTH + NUMBERS, 1)

    def pooled(self, ids: torch.Tensor) -> torch.Tensor:
        return torch.cat([bag(ids[int(n)]) for n, bag in self.tables.items()], 1)

    def loss(self, joined: list[torch.Tensor], wanted: torch.Tensor) -> torch.Tensor:
        return F.mse_loss(self.head(torch.cat(joined, 1)).squeeze(1), wanted)


def single(job: sp.Job) -> None:
    model = Model(range(TABLES))
    job.start(model)
    joined = [job.batch["numbers"], model.pooled(job.batch["ids"])]
    loss = model.loss(joined, job.batch["wanted"])
    loss.backward()
    job.end(loss=loss)


def parallel(job: sp.Job, ordered: bool = True) -> None:
    first = job.rank * TABLES // 2
    model = Model(range(first, first + TABLES // 2))
    job.start(model, parameters={n: sp.same(n) for n, _ in model.named_parameters()})
    parts = Exchanged.apply(model.pooled(job.batch["ids"])).view(2, ROWS // 2, -1)
    parts = parts.transpose(0, 1) if ordered else parts
    numbers, wanted = rows(job, "numbers", "wanted")
    loss = model.loss([numbers, parts.reshape(ROWS // 2, -1)], wanted) / 2
    loss.backward()
    for parameter in model.head.parameters():
        dist.all_reduce(parameter.grad)
    job.end(loss=loss)


def test_tables_joined_with_numbers_are_proved() -> None:
    assert sp.verify(single, parallel, world_size=2, batch=BATCH).verdict == "proved"


def test_rows_in_the_order_of_ranks_are_refuted() -> None:
    def wrong(job: sp.Job) -> None:
        parallel(job, ordered=False)

    assert sp.verify(single, wrong, world_size=2, batch=BATCH).verdict == "refuted"
