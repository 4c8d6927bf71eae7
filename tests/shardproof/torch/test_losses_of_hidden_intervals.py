"""A cross-entropy of scores of which a mask of positions shows an interval of each row, alone or
beside others in one tensor."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import shardproof.torch as sp

BATCH = {"x": sp.tensor((2, 4))}
HIDDEN = torch.tensor([[0, 0, 0, 0, 1], [1, 0, 0, 0, 0]]).bool()


def alone(scores: Tensor) -> Tensor:
    return scores.masked_fill(HIDDEN, -torch.inf)


def beside_others(scores: Tensor) -> Tensor:
    return torch.cat([scores[:, :1], alone(scores)], 1)


def step(hidden: Callable[[Tensor], Tensor], label: int) -> Callable[[sp.Job], None]:
    def one(job: sp.Job) -> None:
        model = nn.Linear(4, 5)
        job.start(model)
        loss = F.cross_entropy(hidden(model(job.batch["x"])), torch.full((2,), label))
        loss.backward()
        job.end(loss=loss)

    return one


@pytest.mark.parametrize(("hidden", "shown", "other"), [(alone, 3, 2), (beside_others, 4, 3)])
def test_the_loss_of_a_label_that_is_shown_is_what_pytorch_computes(
    hidden: Callable[[Tensor], Tensor], shown: int, other: int
) -> None:
    single = step(hidden, shown)
    right = sp.verify(single, step(hidden, shown), world_size=1, batch=BATCH, validate=True)
    assert right.verdict == "proved", sp.told(right)
    wrong = sp.verify(single, step(hidden, other), world_size=1, batch=BATCH)
    assert wrong.verdict == "refuted", sp.told(wrong)
