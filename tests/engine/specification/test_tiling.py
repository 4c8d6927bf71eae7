"""Whether boxes of families of ranks cover a tensor: by arithmetic, and box by box."""

from __future__ import annotations

import pytest

from shardproof.engine.algebra.affine import Affine, affine
from shardproof.engine.specification.tiling import MOST_BOXES, Boxes, TooMany, boxes, tiles

MESH = {"dp": 4, "tp": 2}


def rows(start: Affine, size: int, extents: dict[str, int] = MESH) -> Boxes:
    return boxes((start, affine(0)), (size, 3), extents)


@pytest.mark.parametrize(
    ("start", "size", "covers"),
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
def test_one_family(start: Affine, size: int, covers: bool) -> None:
    family = rows(start, size)
    assert tiles([family], (16, 3)) is covers
    # The same boxes as ranks of their own.
    axes = dict(family.extents)
    apart = [
        rows(start.fix("dp", i).fix("tp", j), size)
        for i in range(axes.get("dp", 1))
        for j in range(axes.get("tp", 1))
    ]
    assert tiles(apart, (16, 3)) is covers


def test_two_dimensions() -> None:
    tp, dp = affine(0, {"tp": 4}), affine(0, {"dp": 2})
    assert tiles([boxes((tp, dp), (4, 2), MESH)], (8, 8))
    assert not tiles([boxes((tp, tp), (4, 4), MESH)], (8, 8))  # the diagonal only


def test_stages_hold_parts() -> None:
    half = boxes((affine(0, {"tp": 4}),), (4,), MESH)
    other = boxes((affine(8, {"tp": 4}),), (4,), MESH)
    assert tiles([half, other], (16,))
    assert tiles([half, other, half], (16,))
    assert not tiles([half], (16,))
    assert not tiles([half, boxes((affine(6, {"tp": 4}),), (4,), MESH)], (16,))


def test_ranks_of_a_grid_are_not_listed() -> None:
    """A family of more boxes than anybody can list is decided; one that is no grid says so."""
    many = {"dp": MOST_BOXES, "tp": MOST_BOXES}
    full = 2 * MOST_BOXES**2
    start = affine(0, {"dp": 2, "tp": 2 * MOST_BOXES})
    assert tiles([rows(start, 2, many)], (full, 3))
    with pytest.raises(TooMany, match="no grid"):
        tiles([rows(start, 1, many)], (full, 3))
    with pytest.raises(TooMany):
        tiles([rows(start, 2, many), rows(start + 1, 2, many)], (full, 3))
