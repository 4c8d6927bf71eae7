"""Outputs of which a rank has a part, as `job.end` is told: rows, columns, rows from both ends."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import shardproof.torch as sp

ROWS, WIDTH = 8, 6
BATCH = {"x": sp.tensor((ROWS, WIDTH))}


@pytest.fixture(autouse=True)
def runs_elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs are kept in the working directory, which is none of the project's."""
    monkeypatch.chdir(tmp_path)


def single(job: sp.Job) -> None:
    model = nn.Linear(WIDTH, WIDTH)
    job.start(model)
    job.end(outputs={"y": F.gelu(model(job.batch["x"]))})


def rows(first: int, start: int) -> sp.Step:
    """Every rank's rows; ``first``: how many places they are taken from too late, ``start``: how
    many they are stated too late."""

    def step(job: sp.Job) -> None:
        model = nn.Linear(WIDTH, WIDTH)
        job.start(model)
        own = ROWS // job.world_size
        at = own * job.rank
        x = job.batch["x"].roll(-first, 0)[at : at + own]
        piece = sp.piece("y", dim=0, start=at + start, size=own)
        job.end(outputs={"y": F.gelu(model(x))}, pieces={"y": piece})

    return step


def zigzag(order: Callable[[int], Sequence[int]], said: Callable[[int], Sequence[int]]) -> sp.Step:
    """Two of four blocks of rows; ``order``: which a rank computes, ``said``: which it says."""

    def step(job: sp.Job) -> None:
        model = nn.Linear(WIDTH, WIDTH)
        job.start(model)
        blocks = job.batch["x"].chunk(4)
        y = F.gelu(model(torch.cat([blocks[n] for n in order(job.rank)])))
        pieces = [sp.piece("y", dim=0, start=2 * n, size=2) for n in said(job.rank)]
        job.end(outputs={"y": y}, pieces={"y": pieces})

    return step


def both_ends(rank: int) -> Sequence[int]:
    return (rank, 3 - rank)


def one_after_another(rank: int) -> Sequence[int]:
    return (2 * rank, 2 * rank + 1)


@pytest.mark.parametrize(
    ("step", "verdict"),
    [
        pytest.param(rows(0, 0), "proved", id="rows"),
        pytest.param(rows(1, 0), "refuted", id="rows a place late"),
        pytest.param(zigzag(both_ends, both_ends), "proved", id="both ends"),
        pytest.param(zigzag(one_after_another, both_ends), "refuted", id="another order"),
    ],
)
def test_parts_of_an_output(step: sp.Step, verdict: str) -> None:
    found = sp.verify(single, step, world_size=2, batch=BATCH)
    assert found.verdict == verdict, found


def test_parts_that_leave_something_out_are_not_proved() -> None:
    def first_rows(job: sp.Job) -> None:
        model = nn.Linear(WIDTH, WIDTH)
        job.start(model)
        y = F.gelu(model(job.batch["x"][:2]))
        job.end(outputs={"y": y}, pieces={"y": sp.piece("y", dim=0, start=0, size=2)})

    found = sp.verify(single, first_rows, world_size=2, batch=BATCH)
    assert found.verdict == "inconclusive"
    assert "do not cover its [8, 6] elements" in found.reason


@pytest.mark.parametrize(
    ("pieces", "message"),
    [
        ({"y": sp.piece("z", dim=0, start=0, size=8)}, "as pieces"),
        ({"y": sp.piece("y", dim=0, start=0, size=4)}, "as pieces"),
        ({"y": sp.piece("y", dim=3, start=0, size=WIDTH)}, "as pieces"),
        ({"z": sp.piece("z", dim=0, start=0, size=8)}, "which are no outputs"),
        ({"y": sp.piece("y", dim=0, start=4, size=8)}, "output y"),
    ],
)
def test_pieces_that_do_not_fit_are_invalid_input(pieces: Any, message: str) -> None:
    def step(job: sp.Job) -> None:
        model = nn.Linear(WIDTH, WIDTH)
        job.start(model)
        job.end(outputs={"y": F.gelu(model(job.batch["x"]))}, pieces=pieces)

    found = sp.verify(single, step, world_size=2, batch=BATCH)
    assert found.verdict == "invalid input"
    assert message in found.reason


@pytest.mark.parametrize("alone", [True, False])
def test_an_output_that_is_no_tensor_is_invalid_input(alone: bool) -> None:
    """An error in `job.end` is one of the step, not of what follows it."""

    def step(job: sp.Job) -> None:
        job.start(nn.Linear(WIDTH, WIDTH))
        job.end(outputs={"x": job.batch["x"], "y": 2.0})  # type: ignore[dict-item]

    def right(job: sp.Job) -> None:
        job.start(nn.Linear(WIDTH, WIDTH))
        job.end(outputs={"x": job.batch["x"]})

    found = sp.verify(step, right if alone else step, world_size=2, batch=BATCH)
    assert found.verdict == "invalid input"
    assert "y is float, expected a tensor" in found.reason
