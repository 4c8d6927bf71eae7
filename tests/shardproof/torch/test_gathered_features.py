"""Pairs of pictures and texts of all ranks (CLIP): each rank has the loss of its own rows, the scale is
multiplied with the features, and features are gathered with their gradients."""

from __future__ import annotations

from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

import torch.nn.functional as F  # noqa: E402
from torch import nn  # noqa: E402
from torch.distributed.nn.functional import all_gather  # noqa: E402

import shardproof.torch as sp  # noqa: E402
from benchmarks.torch.ordinary.parts import ROWS, WIDTH, averaged, rows  # noqa: E402


@pytest.fixture(autouse=True)
def runs_elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs are kept in the working directory, which is none of the project's."""
    monkeypatch.chdir(tmp_path)


def tower(width: int) -> nn.Module:
    return nn.Sequential(nn.Linear(width, WIDTH), nn.GELU(), nn.Linear(WIDTH, WIDTH))


class Towers(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.picture, self.text = tower(6), tower(5)
        self.scale = nn.Parameter(torch.ones(()))

    def forward(self, picture: torch.Tensor, text: torch.Tensor) -> list[torch.Tensor]:
        made = self.picture(picture), self.text(text)
        return [*(F.normalize(x, dim=-1) for x in made), self.scale.exp()]


def loss_of(both: list[torch.Tensor], every: list[torch.Tensor], first: int) -> torch.Tensor:
    (x, y, scale), labels = both, torch.arange(len(both[0])) + first
    to_texts, to_pictures = scale * x @ every[1].T, scale * y @ every[0].T
    return (F.cross_entropy(to_texts, labels) + F.cross_entropy(to_pictures, labels)) / 2


def single(job: sp.Job) -> None:
    model = Towers()
    job.start(model)
    x, y, scale = model(job.batch["picture"], job.batch["text"])
    scores, labels = scale * x @ y.T, torch.arange(ROWS)
    loss = (F.cross_entropy(scores, labels) + F.cross_entropy(scores.T, labels)) / 2
    loss.backward()
    job.end(loss=loss)


def parallel(job: sp.Job, first: int = ROWS // 2) -> None:
    model = Towers()
    job.start(model)
    both = model(*rows(job, "picture", "text"))
    loss = loss_of(both, [torch.cat(all_gather(x)) for x in both[:2]], job.rank * first)
    loss.backward()
    averaged(model)
    job.end(loss=loss)


BATCH = {"picture": sp.tensor((ROWS, 6)), "text": sp.tensor((ROWS, 5))}


def test_losses_of_own_rows_are_proved() -> None:
    assert sp.verify(single, parallel, world_size=2, batch=BATCH).verdict == "proved"


def test_labels_of_the_first_rank_everywhere_are_refuted() -> None:
    def wrong(job: sp.Job) -> None:
        parallel(job, first=0)

    assert sp.verify(single, wrong, world_size=2, batch=BATCH).verdict == "refuted"
