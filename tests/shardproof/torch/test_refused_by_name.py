"""Operators that no step may have are refused by their line, with what to write instead."""

from __future__ import annotations

from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

import torch.distributed as dist  # noqa: E402
from torch import nn  # noqa: E402

import shardproof.torch as sp  # noqa: E402
from benchmarks.torch.ordinary.parts import ROWS, WIDTH, averaged, rows  # noqa: E402

BATCH = {
    "x": sp.tensor((ROWS, WIDTH)),
    "ids": sp.tensor((ROWS,), torch.int64, low=0, high=WIDTH),
}


@pytest.fixture(autouse=True)
def runs_elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs are kept in the working directory, which is none of the project's."""
    monkeypatch.chdir(tmp_path)


def embedded(job: sp.Job, x: torch.Tensor, ids: torch.Tensor, sparse: bool) -> torch.Tensor:
    model = nn.Embedding(WIDTH, WIDTH, sparse=sparse)
    job.start(model)
    loss = (model(ids) - x).square().mean()
    loss.backward()
    if job.world_size > 1:
        averaged(model)
    return loss.detach()


def single(job: sp.Job) -> None:
    job.end(loss=embedded(job, job.batch["x"], job.batch["ids"], False))


def handed_on(job: sp.Job, source: int | None, sparse: bool = False) -> None:
    """Rank 1 is told the loss of rank 0, and does nothing with it."""
    loss = embedded(job, *rows(job, "x", "ids"), sparse)
    if job.rank == 0:
        dist.send(loss, 1)
    else:
        dist.recv(torch.empty_like(loss), src=source)
    job.end(loss=loss)


def test_a_message_of_a_named_rank_is_proved() -> None:
    def step(job: sp.Job) -> None:
        handed_on(job, 0)

    assert sp.verify(single, step, world_size=2, batch=BATCH).verdict == "proved"


@pytest.mark.parametrize(
    ("source", "sparse", "why"),
    [(None, False, "name the rank, dist.recv"), (0, True, "use the dense one, nn.Embedding")],
)
def test_others_are_refused(source: int | None, sparse: bool, why: str) -> None:
    def step(job: sp.Job) -> None:
        handed_on(job, source, sparse)

    found = sp.verify(single, step, world_size=2, batch=BATCH)
    assert found.verdict == "invalid input"
    assert why in sp.told(found)
    assert Path(__file__).name in sp.told(found)
