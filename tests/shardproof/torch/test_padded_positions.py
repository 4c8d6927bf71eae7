"""Positions counted by a mask of padding, as RoBERTa and OPT count them, on replicas.

Where ids may be padding the positions are sums of what the mask is; where they may not, positions
are known, and rows of the table are classes below the first.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

import shardproof.torch as sp  # noqa: E402
from shardproof.checker import check  # noqa: E402

PADDING = 1


def counted_from_padding(ids: torch.Tensor) -> torch.Tensor:
    mask = ids.ne(PADDING).int()
    return (torch.cumsum(mask, 1).type_as(mask) * mask).long() + PADDING


def counted_from_two(ids: torch.Tensor) -> torch.Tensor:
    mask = ids.ne(PADDING).long()
    return torch.cumsum(mask, 1) * mask - 1 + 2


Counted = Callable[[torch.Tensor], torch.Tensor]


class Positions(nn.Module):
    def __init__(self, counted: Counted) -> None:
        super().__init__()
        self.counted = counted
        self.words = nn.Embedding(12, 4)
        self.places = nn.Embedding(8, 4)
        self.out = nn.Linear(4, 4)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.out(self.words(ids) + self.places(self.counted(ids))).pow(2).sum()


def step(counted: Counted, late: int = 0) -> Callable[[sp.Job], None]:
    """A replica's step; ``late``: by how many positions its ids are looked up at the wrong row."""

    def run(job: sp.Job) -> None:
        model: nn.Module = Positions(lambda ids: counted(ids) + late)
        job.start(model)
        if job.world_size > 1:
            model = nn.parallel.DistributedDataParallel(model)
        loss = model(job.batch["ids"].chunk(job.world_size)[job.rank]) * job.world_size
        loss.backward()
        job.end(loss=loss / job.world_size)

    return run


@pytest.mark.parametrize("low", [0, 2], ids=["with padding", "without padding"])
@pytest.mark.parametrize("counted", [counted_from_padding, counted_from_two])
def test_positions_counted_by_a_mask_are_proved_and_one_late_are_not(
    counted: Counted, low: int, tmp_path: Path
) -> None:
    batch = {"ids": sp.tensor((2, 5), torch.long, low=low, high=12)}
    here = {"world_size": 2, "batch": batch, "cache": False, "validate": True}
    right = sp.verify(step(counted), step(counted), out=tmp_path / "right", **here)
    assert right.verdict == "proved", right
    assert check(tmp_path / "right").problems == ()
    wrong = sp.verify(step(counted), step(counted, late=1), **here)
    assert wrong.verdict == "refuted", wrong
