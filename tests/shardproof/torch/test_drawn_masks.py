"""Masks that are drawn are 0 or 1, whichever operator draws them and whatever their type is."""

from __future__ import annotations

from collections.abc import Callable

import pytest

torch = pytest.importorskip("torch")

import torch.distributed as dist  # noqa: E402

import shardproof.torch as sp  # noqa: E402

BATCH = {"x": sp.tensor((4, 4))}
Dropped = Callable[[torch.Tensor], torch.Tensor]


def step(drop: Dropped) -> Callable[[sp.Job], None]:
    """A layer on a rank's rows, of which some are dropped."""

    def run(job: sp.Job) -> None:
        model = torch.nn.Linear(4, 4, bias=False)
        job.start(model)
        rows = 4 // job.world_size
        loss = drop(model(job.batch["x"][rows * job.rank :][:rows])).pow(2).mean()
        loss.backward()
        if job.world_size > 1:
            dist.all_reduce(model.weight.grad)
            model.weight.grad /= job.world_size
        job.end(loss=loss)

    return run


def dropout(y: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.dropout(y, 0.5)


def by_hand(y: torch.Tensor) -> torch.Tensor:
    return y * (torch.rand_like(y) < 0.5).to(y.dtype) * 2


def by_another_chance(y: torch.Tensor) -> torch.Tensor:
    return y * (torch.rand_like(y) < 0.25).to(y.dtype) * 2


def numbers(y: torch.Tensor) -> torch.Tensor:
    return y * torch.bernoulli(torch.full_like(y, 0.5))


def twice(y: torch.Tensor) -> torch.Tensor:
    kept = torch.bernoulli(torch.full_like(y, 0.5))
    return y * kept * kept


def doubled(y: torch.Tensor) -> torch.Tensor:
    kept = torch.bernoulli(torch.full_like(y, 0.5))
    return y * (kept + kept)


def verdict(one: Dropped, other: Dropped) -> str:
    return sp.verify(step(one), step(other), world_size=2, batch=BATCH).verdict


@pytest.mark.parametrize(("one", "other"), [(dropout, by_hand), (by_hand, dropout)])
def test_a_dropout_by_hand_is_a_dropout(one: Dropped, other: Dropped) -> None:
    assert verdict(one, other) == "proved"
    assert verdict(one, by_another_chance) == "refuted"


def test_what_is_so_for_masks_alone_is_not_refuted_by_other_numbers() -> None:
    """A mask times itself is the mask; a mask added to itself is not."""
    assert verdict(numbers, twice) != "refuted"
    assert verdict(numbers, doubled) == "refuted"
