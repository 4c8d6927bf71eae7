"""Exported ranks of which each has its own rows of a constant, some of them zeros and ones."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import shardproof

torch = pytest.importorskip("torch")
nn = torch.nn


class Shifted(nn.Module):  # type: ignore[misc, name-defined]
    """Rows that are shifted by a constant each, and where they are kept."""

    def __init__(self, numbers: list[float], kept: list[float]) -> None:
        super().__init__()
        self.numbers, self.kept = numbers, kept
        self.weight = nn.Parameter(torch.ones(6, 4))

    def forward(self, x: Any) -> Any:
        shifted = x + torch.tensor(self.numbers)[:, None]
        return (shifted @ self.weight).relu() * torch.tensor(self.kept)[:, None]


@pytest.mark.parametrize(
    ("numbers", "kept"),
    [
        ([0.0, 1.0, 2.0, 3.0], [1.0] * 4),  # rank 0's numbers look like a mask
        ([0.0, 7.0, 1.0, 8.0], [0.0, 1.0, 1.0, 1.0]),  # beside one that is written in pieces
    ],
)
@pytest.mark.parametrize("wrong", [False, True])
def test_rows_of_a_constant_that_look_like_a_mask(
    numbers: list[float], kept: list[float], wrong: bool, tmp_path: Path
) -> None:
    (tmp_path / "ranks").mkdir()
    for rank in (None, 0, 1):
        rows = slice(0, 4) if rank is None else slice(2 * rank, 2 * rank + 2)
        own = list(numbers)[rows]
        if wrong and rank == 0:
            own[1] = own[1] + 1
        model = Shifted(own, kept[rows])
        name = "single.pt2" if rank is None else f"ranks/r{rank}.pt2"
        x = torch.ones(len(own), 6)
        torch.export.save(torch.export.export(model, (x,)), tmp_path / name)
    result = shardproof.verify(tmp_path / "single.pt2", tmp_path / "ranks", out=tmp_path / "run")
    assert result.verdict == ("refuted" if wrong else "proved"), result.reason
    assert wrong or shardproof.check(tmp_path / "run").ok
