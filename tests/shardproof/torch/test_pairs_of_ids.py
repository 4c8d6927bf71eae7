"""Entries of a table that two tensors of ids choose together, ``table[ids, others]``."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.distributed as dist
from torch import nn

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
