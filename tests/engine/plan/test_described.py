"""The axes of a plan's mesh, in words."""

from __future__ import annotations

import pytest

from shardproof.engine.plan.mesh import described
from tests.shardproof.faces import tiny


@pytest.mark.parametrize(
    ("degrees", "said"),
    [
        ({"dp": 2, "tp": 1}, "dp 2"),
        ({"dp": 1, "tp": 1}, ""),
        ({"dp": 2, "tp": 1, "pp": 2, "layers": 2}, "2 programs x dp 2"),
    ],
)
def test_axes_are_named(degrees: dict[str, int], said: str) -> None:
    assert described(tiny(**degrees)) == said


def test_the_sizes_multiply_to_the_ranks() -> None:
    plan = tiny(dp=2, tp=2, pp=2, layers=2)
    product = 1
    for part in described(plan).split(" x "):
        product *= next(int(word) for word in part.split() if word.isdecimal())
    assert product == plan.ranks == 8
