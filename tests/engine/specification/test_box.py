"""Boxes of values that lie side by side, at places that move along several axes."""

from __future__ import annotations

from fractions import Fraction
from itertools import product

import pytest

from shardproof.engine.algebra.affine import ZERO, Affine, affine
from shardproof.engine.lineage.lineage import Addend, Lineage, Place, StridedInterval, View
from shardproof.engine.lineage.members import concrete
from shardproof.engine.lineage.views import Misaligned
from shardproof.engine.specification.box import box_of

GROUPS, HEADS, HALF = 2, 3, 2
HEAD = 2 * HALF
ROWS = GROUPS * HEADS * HEAD
EXTENTS = {"tp": GROUPS, "dp": HEADS}


def turned() -> Lineage:
    """Heads, each of two halves that are values of their own."""
    dims = (
        tuple(StridedInterval(axis, 1, n, ZERO, n) for axis, n in enumerate((GROUPS, HEADS, HALF))),
    )
    halves = (
        Addend(Fraction(1), 7 + half, View(dims), places=(Place(0, half * HALF, HALF, HEAD),))
        for half in range(2)
    )
    return Lineage((ROWS,), tuple(halves))


@pytest.mark.parametrize(
    ("start", "size"),
    [
        (affine(0, {"tp": HEADS * HEAD, "dp": HEAD}), HEAD),
        (affine(0, {"tp": HEADS * HEAD}), HEADS * HEAD),
        (affine(HALF, {"tp": HEADS * HEAD, "dp": HEAD}), HALF),
    ],
    ids=["a head", "a group of heads", "the second half of a head"],
)
def test_a_box_is_at_each_place_what_it_is_there(start: Affine, size: int) -> None:
    family = box_of(turned(), (start,), (size,), EXTENTS)
    for tp, dp in product(range(GROUPS), range(HEADS)):
        here = {"tp": tp, "dp": dp}
        own = box_of(turned(), (start.fix("tp", tp).fix("dp", dp),), (size,), EXTENTS)
        assert concrete(family, here) == own


def test_halves_that_move_are_no_view() -> None:
    start = affine(0, {"tp": HEADS * HEAD, "dp": HALF})
    with pytest.raises(Misaligned):
        box_of(turned(), (start,), (HALF,), EXTENTS)
