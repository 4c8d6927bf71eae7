"""Bounds of numbers that the ranks have so many times as large as the single device."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from tests.frontends.fx.test_own_numbers import Model, verified  # noqa: E402


class Bounded(Model):
    """What is larger than a bound, and the sizes of the rest; on the ranks by way of numbers
    that are four times as large."""

    def forward(self, x: Any) -> Any:
        size = 4 if self.wrong else 1
        bound = 2.0 if self.wrong == "bound" else 0.5
        larger = (x * size).clamp(min=bound * size) / size
        return larger + torch.relu(x * size) / size + 3 * (x * -size).abs() / size


@pytest.mark.parametrize(("ranks", "expected"), [("size", "proved"), ("bound", "refuted")])
def test_a_bound_of_numbers_so_many_times_as_large(
    ranks: str, expected: str, tmp_path: Path
) -> None:
    result = verified(tmp_path, Bounded(), Bounded(ranks), (4, 2))
    assert result.verdict == expected, result.reason
