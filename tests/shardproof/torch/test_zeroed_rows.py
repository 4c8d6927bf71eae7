"""Rows that ids zero, by a mask, a choice or a product; masks of columns; the largest of masked
scores."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import shardproof.torch as sp

N = 8
BATCH = {"t": sp.tensor((N,), torch.int64, low=0, high=12), "y": sp.tensor((N, N))}
SP: dict[str, Any] = {"world_size": 2, "executor": "local", "cache": False}

#: x [8, 8], and a mask [8] of ids, which is broadcast along rows unless it gets a dimension.
WAYS: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "rows filled": lambda x, mask: x.masked_fill(mask.unsqueeze(-1), 0.0),
    "rows multiplied": lambda x, mask: x * (~mask).unsqueeze(-1),
    "rows times numbers": lambda x, mask: x * (~mask).float()[:, None],
    "columns filled": lambda x, mask: x.masked_fill(mask, 0.0),
    "columns chosen": lambda x, mask: torch.where(~mask, x, 0.0),
    "columns multiplied": lambda x, mask: x * ~mask,
}


def embedded(way: str) -> Callable[[sp.Job], None]:
    def run(job: sp.Job) -> None:
        model = nn.Embedding(12, N)
        job.start(model)
        x = WAYS[way](model(job.batch["t"]), job.batch["t"] == 0)
        loss = F.mse_loss(x, job.batch["y"])
        loss.backward()
        job.end(loss=loss)

    return run


@pytest.mark.parametrize(
    ("single", "parallel", "verdict"),
    [
        ("rows filled", "rows multiplied", "proved"),
        ("rows times numbers", "rows filled", "proved"),
        ("columns filled", "columns multiplied", "proved"),
        ("columns chosen", "rows filled", "refuted"),
        ("rows filled", "columns filled", "refuted"),
        ("columns multiplied", "rows multiplied", "refuted"),
    ],
)
def test_a_mask_is_one_of_rows_or_of_columns(single: str, parallel: str, verdict: str) -> None:
    """As many rows as columns, so that both have a meaning."""
    result = sp.verify(embedded(single), embedded(parallel), batch=BATCH, **SP)
    assert result.verdict == verdict, sp.told(result)


SCORES = {"x": sp.tensor((4, N)), "y": sp.tensor((4, N))}


def second(way: str) -> Callable[[sp.Job], None]:
    """The weight of the second choice, by the largest of what the first leaves, or by `topk`."""

    def run(job: sp.Job) -> None:
        model = nn.Linear(N, 4)
        job.start(model)
        x, y = job.batch["x"], job.batch["y"]
        if job.world_size > 1:
            x, y = (t.chunk(job.world_size)[job.rank] for t in (x, y))
        p = model(x).softmax(dim=-1)
        first = F.one_hot(p.argmax(dim=-1), 4)
        left = p.masked_fill(first.bool(), float("-inf"))
        if way == "nothing left out":
            left = p
        if way == "topk":
            which = left.topk(1, dim=-1).indices
        else:
            which = left.argmax(dim=-1, keepdim=True)
        weight = p.gather(1, which)
        loss = (weight * y).mean()
        loss.backward()
        for q in model.parameters():
            if job.world_size > 1:
                torch.distributed.all_reduce(q.grad, op=torch.distributed.ReduceOp.AVG)
        job.end(loss=loss)

    return run


@pytest.mark.parametrize(
    ("way", "verdict"), [("argmax", "proved"), ("topk", "proved"), ("nothing left out", "refuted")]
)
def test_the_largest_of_masked_scores(way: str, verdict: str) -> None:
    result = sp.verify(second("argmax"), second(way), batch=SCORES, **SP)
    assert result.verdict == verdict, sp.told(result)


def hidden_diagonal(way: str) -> Callable[[sp.Job], None]:
    """The largest score of another row: each row hides its own entry."""

    def run(job: sp.Job) -> None:
        x = job.batch["x"]
        model = nn.Linear(N, N)
        job.start(model)
        own, mask = x, torch.eye(len(x), dtype=torch.bool)
        if job.world_size > 1:
            at = 0 if way == "mask of the first rank" else job.rank
            own, mask = x.chunk(job.world_size)[job.rank], mask.chunk(job.world_size)[at]
        best = (model(own) @ x.T).masked_fill(mask, float("-inf")).max(dim=1).values
        job.end(loss=F.relu(best + 0.2).mean())

    return run


@pytest.mark.parametrize(
    ("way", "verdict"), [("right", "proved"), ("mask of the first rank", "refuted")]
)
def test_a_row_with_its_own_entry_hidden(way: str, verdict: str) -> None:
    result = sp.verify(
        hidden_diagonal("right"), hidden_diagonal(way), batch=SCORES, combine="mean", **SP
    )
    assert result.verdict == verdict, sp.told(result)
