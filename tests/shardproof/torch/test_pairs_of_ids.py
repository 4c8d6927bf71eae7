"""Entries that two tensors choose together: ``table[ids, others]``, and ``h[rows, places]``."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import cross_entropy

import shardproof.torch as sp

ROWS, LENGTH, WORDS, TAGS = 4, 3, 7, 3
BATCH = {
    "x": sp.tensor((ROWS, LENGTH), torch.int64, low=0, high=WORDS),
    "y": sp.tensor((ROWS, LENGTH), torch.int64, low=0, high=TAGS),
}


class Field(nn.Module):
    """A conditional random field over tags; ``mistake``: what is wrong on ranks."""

    def __init__(self, mistake: str) -> None:
        super().__init__()
        self.words, self.mistake = nn.Embedding(WORDS, TAGS), mistake
        self.steps = nn.Parameter(torch.randn(TAGS, TAGS))

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        scores = self.words(x)
        all_paths = scores[:, 0]
        for t in range(1, LENGTH):
            following = all_paths[:, :, None] + self.steps
            all_paths = torch.logsumexp(following, 1) + scores[:, t]
        before, after = y[:, :-1], y[:, 1:]
        if self.mistake == "turned":
            before, after = after, before
        path = self.steps[before, after].sum(1)
        path = path + scores.gather(2, y[:, :, None]).squeeze(2).sum(1)
        return torch.logsumexp(all_paths, 1) - path


def trained(mistake: str = "") -> Callable[[sp.Job], None]:
    """The step of a field, each rank with its rows."""

    def step(job: sp.Job) -> None:
        model = Field(mistake)
        job.start(model)
        x, y = (job.batch[name].chunk(job.world_size)[job.rank] for name in ("x", "y"))
        loss = model(x, y).mean()
        loss.backward()
        for parameter in model.parameters() if job.world_size > 1 else ():
            dist.all_reduce(parameter.grad, op=dist.ReduceOp.AVG)
        job.end(loss=loss)

    return step


@pytest.mark.parametrize("mistake", ["", "turned"])
def test_steps_between_tags_are_read_by_both_tags(mistake: str) -> None:
    result = sp.verify(trained(), trained(mistake), world_size=2, batch=BATCH)
    assert result.verdict == ("refuted" if mistake else "proved"), sp.told(result)


class Hidden(nn.Module):
    """Words that are hidden at ``places`` of each row are told from the others around them."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.mix, self.head = (
            nn.Embedding(WORDS, 4),
            nn.Linear(4, 4),
            nn.Linear(4, WORDS),
        )

    def forward(self, x: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
        h = self.words(x)
        h = torch.tanh(h + self.mix(h.mean(1, keepdim=True)))
        return self.head(h[torch.arange(len(x))[:, None], places])


PLACES = {
    "x": sp.tensor((ROWS, LENGTH), torch.int64, low=0, high=WORDS),
    "places": sp.tensor((ROWS, 2), torch.int64, low=0, high=LENGTH),
    "y": sp.tensor((ROWS, 2), torch.int64, low=0, high=WORDS),
}


def guessed(ranks: int, mistake: str = "") -> Callable[[sp.Job], None]:
    """A step of `Hidden`; ``mistake``: the places are those of each row in another order."""

    def step(job: sp.Job) -> None:
        model = Hidden()
        job.start(model)
        x, places, y = (job.batch[name].chunk(ranks)[job.rank] for name in PLACES)
        scores = model(x, places.flip(1) if mistake else places)
        loss = cross_entropy(scores.flatten(0, 1), y.flatten())
        loss.backward()
        for parameter in model.parameters() if ranks > 1 else ():
            dist.all_reduce(parameter.grad, op=dist.ReduceOp.AVG)
        job.end(loss=loss)

    return step


@pytest.mark.parametrize(
    ("ranks", "mistake", "verdict"),
    [(2, "", "proved"), (2, "flipped", "refuted"), (4, "", "proved")],
)
def test_places_of_each_row_are_read_by_ids_of_its_own(
    ranks: int, mistake: str, verdict: str
) -> None:
    """With four ranks each has one row, whose number is 0."""
    result = sp.verify(guessed(1), guessed(ranks, mistake), world_size=ranks, batch=PLACES)
    assert result.verdict == verdict, sp.told(result)
