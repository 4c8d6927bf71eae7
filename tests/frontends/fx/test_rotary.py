"""Exported modules that compute with positions, over halves of a batch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import shardproof

torch = pytest.importorskip("torch")


class Rotary(torch.nn.Module):  # type: ignore[misc, name-defined]
    """Angles by steps of two and by positions from 1 on, an einsum with an ellipsis."""

    def __init__(self, turned: bool) -> None:
        super().__init__()
        self.w = torch.nn.Parameter(torch.ones(4, 4))
        self.turned = turned

    def forward(self, x: Any) -> Any:
        """Half of the features turned by the other half."""
        rate = 1.0 / 100.0 ** (torch.arange(0, 4, 2) / 4)
        angle = torch.arange(1, 4)[:, None] * rate
        y = torch.einsum("...i,ij->...j", x, self.w)
        a, b = y[..., :2], y[..., 2:]
        if self.turned:
            a, b = b, a
        return torch.cat([a * angle.cos() - b * angle.sin(), b * angle.cos()], -1)


@pytest.mark.parametrize("turned", [False, True])
def test_positions_by_steps_are_numbers(turned: bool, tmp_path: Path) -> None:
    one, ranks = tmp_path / "one.pt2", tmp_path / "ranks"
    ranks.mkdir()
    torch.export.save(torch.export.export(Rotary(False), (torch.ones(4, 3, 4),)), one)
    for rank in range(2):
        half = torch.export.export(Rotary(turned), (torch.ones(2, 3, 4),))
        torch.export.save(half, ranks / f"r{rank}.pt2")
    result = shardproof.verify(one, ranks, out=tmp_path / "run", cache_dir=tmp_path / "cache")
    assert result.verdict == ("refuted" if turned else "proved"), result.reason
    if not turned:
        assert shardproof.check(tmp_path / "run").ok
