"""Whether boxes of families of ranks cover a tensor: by arithmetic, and box by box."""

from __future__ import annotations

import pytest

from shardproof.engine.algebra.affine import Affine, affine
from shardproof.engine.specification.tiling import MOST_BOXES, Boxes, TooMany, boxes, covers

MESH = {"dp": 4, "tp": 2}


def rows(start: Affine, size: int, extents: dict[str, int] = MESH) -> Boxes:
    return boxes((start, affine(0)), (size, 3), extents)


@pytest.mark.parametrize(
    ("start", "size", "holds"),
    [
        (affine(0, {"tp": 8, "dp": 2}), 2, True),
        (affine(0, {"tp": 2, "dp": 4}), 2, True),
        (affine(14, {"tp": -8, "dp": -2}), 2, True),
        (affine(0, {"tp": 8}), 8, True),  # every replica holds a copy
        (affine(0, {"tp": 8, "dp": 2}), 1, False),  # gaps
        (affine(0, {"tp": 8, "dp": 2}), 3, False),  # overlaps
        (affine(2, {"tp": 8, "dp": 2}), 2, False),  # beyond the end
        (affine(0, {"tp": 2, "dp": 2}), 2, False),  # the end is missing
        (affine(0), 16, True),
    ],
)
def test_one_family(start: Affine, size: int, holds: bool) -> None:
    family = rows(start, size)
    assert covers([family], (16, 3)) is holds
    # The same boxes as ranks of their own.
    axes = dict(family.extents)
    apart = [
        rows(start.fix("dp", i).fix("tp", j), size)
        for i in range(axes.get("dp", 1))
        for j in range(axes.get("tp", 1))
    ]
    assert covers(apart, (16, 3)) is holds


def test_two_dimensions() -> None:
    tp, dp = affine(0, {"tp": 4}), affine(0, {"dp": 2})
    assert covers([boxes((tp, dp), (4, 2), MESH)], (8, 8))
    assert not covers([boxes((tp, tp), (4, 4), MESH)], (8, 8))  # the diagonal only


def test_stages_hold_parts() -> None:
    half = boxes((affine(0, {"tp": 4}),), (4,), MESH)
    other = boxes((affine(8, {"tp": 4}),), (4,), MESH)
    assert covers([half, other], (16,))
    assert covers([half, other, half], (16,))
    assert not covers([half], (16,))
    assert not covers([half, boxes((affine(6, {"tp": 4}),), (4,), MESH)], (16,))


def test_ranks_of_a_grid_are_not_listed() -> None:
    """A family of more boxes than anybody can list is decided; one that is no grid says so."""
    many = {"dp": MOST_BOXES, "tp": MOST_BOXES}
    full = 2 * MOST_BOXES**2
    start = affine(0, {"dp": 2, "tp": 2 * MOST_BOXES})
    assert covers([rows(start, 2, many)], (full, 3))
    with pytest.raises(TooMany, match="no grid"):
        covers([rows(start, 1, many)], (full, 3))
    with pytest.raises(TooMany):
        covers([rows(start, 1, many), rows(start + 1, 1, many)], (full, 3))


def test_parts_and_the_whole_may_overlap() -> None:
    """One rank holds all of a parameter, others halves of it; or halves and quarters."""
    whole, left, right = (boxes((affine(s),), (n,), {}) for s, n in ((0, 8), (0, 4), (4, 4)))
    quarter, middle = (boxes((affine(s),), (n,), {}) for s, n in ((4, 2), (2, 4)))
    assert covers([whole, left], (8,))
    assert covers([left, right, quarter], (8,))
    assert covers([left, middle, right], (8,))
    assert not covers([left, quarter, middle], (8,))
