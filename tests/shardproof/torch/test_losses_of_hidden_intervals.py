"""A cross-entropy of scores of which a mask of positions shows an interval of each row."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

import shardproof.torch as sp

BATCH = {"x": sp.tensor((2, 4))}


def step(label: int):
    def one(job: sp.Job) -> None:
        model = nn.Linear(4, 5)
        job.start(model)
        hidden = torch.tensor([[0, 0, 0, 0, 1], [1, 0, 0, 0, 0]]).bool()
        scores = model(job.batch["x"]).masked_fill(hidden, -torch.inf)
        loss = F.cross_entropy(scores, torch.full((2,), label))
        loss.backward()
        job.end(loss=loss)

    return one


def test_the_loss_of_a_label_that_is_shown_is_what_pytorch_computes() -> None:
    result = sp.verify(step(3), step(3), world_size=1, batch=BATCH, validate=True)
    assert result.verdict == "proved", sp.told(result)


def test_another_label_is_not_proved() -> None:
    result = sp.verify(step(3), step(2), world_size=1, batch=BATCH)
    assert result.verdict != "proved", sp.told(result)


def beside_others(label: int):
    def one(job: sp.Job) -> None:
        model = nn.Linear(4, 5)
        job.start(model)
        hidden = torch.tensor([[0, 0, 0, 0, 1], [1, 0, 0, 0, 0]]).bool()
        scores = model(job.batch["x"])
        every = torch.cat([scores[:, :1], scores.masked_fill(hidden, -torch.inf)], 1)
        loss = F.cross_entropy(every, torch.full((2,), label))
        loss.backward()
        job.end(loss=loss)

    return one


def test_the_loss_of_hidden_scores_beside_others_is_what_pytorch_computes() -> None:
    result = sp.verify(beside_others(4), beside_others(4), world_size=1, batch=BATCH, validate=True)
    assert result.verdict == "proved", sp.told(result)
    assert sp.verify(beside_others(4), beside_others(3), world_size=1, batch=BATCH).verdict == (
        "refuted"
    )
