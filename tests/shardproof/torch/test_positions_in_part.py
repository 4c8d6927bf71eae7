"""Learned positions of which a sequence reads some: a rank's shard of their table has one row that
is read, beside rows that are not."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.distributed.fsdp import fully_shard

import shardproof.torch as sp
from tests.shardproof.torch.words_on_two_ranks import verified

WORDS, LENGTH, PLACES, WIDTH = 16, 5, 8, 4
IDS = sp.tensor((4, LENGTH), torch.int64, low=0, high=WORDS)
Optimizer = Callable[[nn.Module], torch.optim.Optimizer]


class Model(nn.Module):
    """Rows of a table and of one of positions, by their numbers or as a slice, and a projection."""

    def __init__(self, *, slices: bool) -> None:
        super().__init__()
        self.slices = slices
        self.words = nn.Embedding(WORDS, WIDTH)
        self.places = nn.Embedding(PLACES, WIDTH)
        self.head = nn.Linear(WIDTH, WORDS, bias=False)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        own = self.places.weight[:LENGTH] if self.slices else self.places(torch.arange(LENGTH))
        return self.head(self.words(ids) + own)


def step(job: sp.Job, model: nn.Module, rows: slice, optimizer: torch.optim.Optimizer) -> None:
    job.start(model, optimizer)
    logits = model(job.batch["ids"][rows])
    loss = F.cross_entropy(logits.flatten(0, 1), job.batch["labels"][rows].flatten())
    loss.backward()
    optimizer.step()
    job.end(loss=loss)


def trained(folder: Path, slices: bool, own: Optimizer, ranks: Optimizer, expected: str) -> None:
    def single(job: sp.Job) -> None:
        model = Model(slices=slices)
        step(job, model, slice(None), own(model))

    def parallel(job: sp.Job) -> None:
        model = fully_shard(Model(slices=slices))
        step(job, model, slice(2 * job.rank, 2 * job.rank + 2), ranks(model))

    verified(folder, single, parallel, IDS, expected)


def descent(rate: float) -> Optimizer:
    return lambda model: torch.optim.SGD(model.parameters(), lr=rate)


def adam(rate: float) -> Optimizer:
    return lambda model: torch.optim.AdamW(model.parameters(), lr=rate)


CASES = [(descent, True), (descent, False), (adam, True)]


@pytest.mark.parametrize(("optimizer", "slices"), CASES, ids=["slice", "rows", "AdamW"])
def test_one_row_of_a_shard_is_read(
    optimizer: Callable[[float], Optimizer], slices: bool, tmp_path: Path
) -> None:
    trained(tmp_path / "right", slices, optimizer(0.1), optimizer(0.1), "proved")
    trained(tmp_path / "wrong", slices, optimizer(0.1), optimizer(0.2), "refuted")
