"""Ids that a model shifts itself, behind a word that begins every sequence, with one row for each
rank: at the first position nothing but the label depends on the row."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import shardproof.torch as sp
from tests.shardproof.torch.words_on_two_ranks import verified

WORDS, WIDTH = 8, 4
IDS = sp.tensor((2, 3), torch.int64, low=0, high=WORDS)


class Model(nn.Module):
    """Rows of a table for ids one position later, and a projection."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS, WIDTH)
        self.head = nn.Linear(WIDTH, WORDS, bias=False)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        shifted = torch.cat([torch.zeros_like(ids[:, :1]), ids[:, :-1]], dim=1)
        return self.head(self.words(shifted))


def step(job: sp.Job, model: nn.Module, ids: torch.Tensor, labels: torch.Tensor) -> None:
    job.start(model)
    loss = F.cross_entropy(model(ids).flatten(0, 1), labels.flatten())
    loss.backward()
    job.end(loss=loss)


@pytest.mark.parametrize("labels", ["ids", "labels"])
@pytest.mark.parametrize("other", [0, 1])
def test_one_row_for_each_rank(labels: str, other: int, tmp_path: Path) -> None:
    """``other``: how far away the rank is whose labels are read."""

    def single(job: sp.Job) -> None:
        step(job, Model(), job.batch["ids"], job.batch[labels])

    def parallel(job: sp.Job) -> None:
        own = job.batch[labels][[(job.rank + other) % 2]]
        model = DistributedDataParallel(Model())
        step(job, model, job.batch["ids"][job.rank : job.rank + 1], own)

    expected = "refuted" if other else "proved"
    verified(tmp_path, single, parallel, IDS, expected)
