"""Where a value is made: by the nearest operator that has a place."""

from __future__ import annotations

import pytest

from shardproof.diagnosis.locate.made import made_at
from shardproof.engine.plan.ir import Source
from shardproof.engine.schedule.instances import Instance


def row(inputs: tuple[int, ...], output: int, place: str = "") -> Instance:
    return Instance("op", "add", (0,), inputs, (output,), {}, Source(location=place))


ROWS = [
    row((), 0, "first.py:1"),
    row((0,), 1, "second.py:2"),
    row((0, -1, 1), 2),
    row((4,), 3),
    row((3,), 4),
]


@pytest.mark.parametrize(
    ("value", "place"),
    [(1, "second.py:2"), (2, "second.py:2"), (0, "first.py:1"), (4, ""), (-1, ""), (9, "")],
    ids=["its own", "of its last term", "of none before", "a circle", "none", "unknown"],
)
def test_place(value: int, place: str) -> None:
    assert made_at(ROWS, value) == place
