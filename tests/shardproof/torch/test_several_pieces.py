"""A parameter that is several pieces of a full one: gate and up projections in one, by columns."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import shardproof.torch as sp
from shardproof.engine.errors import InvalidInput
from shardproof.frontends.torch.stated import Piece
from tests.shardproof.torch.steps import ReduceFrom

WIDTH, INNER, TP = 4, 8, 2
OWN = INNER // TP
BATCH = {"x": sp.tensor((3, WIDTH))}
SP: dict[str, Any] = {"executor": "local", "cache": False}


class Gated(nn.Module):
    def __init__(self, inner: int) -> None:
        super().__init__()
        self.both = nn.Linear(WIDTH, 2 * inner, bias=False)
        self.down = nn.Linear(inner, WIDTH, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        gate, up = self.both(x).chunk(2, dim=-1)
        return self.down(F.silu(gate) * up)


def single(job: sp.Job) -> None:
    model = Gated(INNER)
    job.start(model)
    loss = model(job.batch["x"]).pow(2).mean()
    loss.backward()
    job.end(loss=loss)


def parallel(pieces: Callable[[int], Sequence[Piece]]) -> Callable[[sp.Job], None]:
    def step(job: sp.Job) -> None:
        model, first = Gated(OWN), job.rank * OWN
        down = sp.piece("down.weight", dim=1, start=first, size=OWN)
        stated = {"both.weight": pieces(first), "down.weight": down}
        job.start(model, parameters=stated)
        loss = ReduceFrom.apply(model(job.batch["x"])).pow(2).mean()
        loss.backward()
        job.end(loss=loss)

    return step


def columns(*starts: int) -> list[Piece]:
    return [sp.piece("both.weight", dim=0, start=start, size=OWN) for start in starts]


@pytest.mark.parametrize(
    ("pieces", "verdict"),
    [
        (lambda first: columns(first, INNER + first), "proved"),
        (lambda first: columns(INNER + first, first), "refuted"),
        (lambda first: columns(2 * first, 2 * first + OWN), "refuted"),
    ],
    ids=["gate and up", "up and gate", "rows as they follow"],
)
def test_gate_and_up(tmp_path: Path, pieces: Callable[[int], list[Piece]], verdict: str) -> None:
    out = tmp_path / "run"
    result = sp.verify(single, parallel(pieces), world_size=TP, batch=BATCH, out=out, **SP)
    assert result.verdict == verdict, sp.told(result)
    conclusions = [c for c in result.conclusions if (c.kind, c.name) == ("gradient", "both.weight")]
    assert len(conclusions) >= 2 if verdict == "proved" else not all(c.holds for c in conclusions)


def test_pieces_that_are_too_few_are_invalid_input(tmp_path: Path) -> None:
    step = parallel(lambda first: columns(first))
    with pytest.raises(InvalidInput, match="stated as"):
        sp.assert_equivalent(single, step, world_size=TP, batch=BATCH, out=tmp_path / "run")
