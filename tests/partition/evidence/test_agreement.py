"""Boxes that values are recorded as, where what they consist of lies side by side."""

from __future__ import annotations

from fractions import Fraction

import pytest

from shardproof.engine.algebra.affine import affine
from shardproof.engine.lineage.lineage import Addend, Lineage, Place, StridedInterval, View
from shardproof.engine.plan.recorded import RecordedSlice
from shardproof.partition.evidence.agreement import agree, lie_apart


def rows(node: int, start: int, size: int, *places: Place) -> Addend:
    """Some rows of eight of a node, all of its four columns."""
    dims = (
        (StridedInterval(0, 1, 8, affine(start), size),),
        (StridedInterval(1, 1, 4, affine(0), 4),),
    )
    return Addend(Fraction(1), node, View(dims), (), places)


def halves(start: int, size: int, first: int = 1) -> Lineage:
    """Two nodes side by side along the columns: the rows from ``start`` on."""
    left, right = Place(1, 0, 4, 8), Place(1, 4, 4, 8)
    return Lineage((size, 8), (rows(first, start, size, left), rows(2, start, size, right)))


def box(low: tuple[int, int], high: tuple[int, int]) -> RecordedSlice:
    return RecordedSlice(7, low, high)


ALL = box((0, 0), (8, 8)), halves(0, 8)


@pytest.mark.parametrize(
    ("claim", "value", "right"),
    [
        (box((2, 0), (4, 8)), halves(2, 2), True),
        (box((2, 0), (4, 8)), halves(4, 2), False),
        (box((2, 0), (4, 8)), halves(2, 2, first=3), False),
        (box((0, 4), (8, 8)), Lineage((8, 4), (rows(2, 0, 8),)), True),
        (box((0, 0), (8, 4)), Lineage((8, 4), (rows(2, 0, 8),)), False),
        (box((2, 4), (3, 8)), Lineage((1, 4), (rows(2, 2, 1),)), True),
    ],
    ids=["rows", "other rows", "another value", "one half", "the other half", "one row"],
)
def test_values_side_by_side_are_compared_where_their_boxes_meet(
    claim: RecordedSlice, value: Lineage, right: bool
) -> None:
    """Halves that are values of their own had no place in the tensor that they are halves of."""
    assert agree(*ALL, claim, value) is right
    assert agree(claim, value, *ALL) is right


def test_what_lies_side_by_side_is_no_sum() -> None:
    assert lie_apart(halves(0, 8))
    assert not lie_apart(Lineage((8, 4), (rows(1, 0, 8), rows(2, 0, 8))))


@pytest.mark.parametrize(("start", "right"), [(1, True), (2, False)])
def test_rows_behind_a_constant_digit_go_on(start: int, right: bool) -> None:
    """``[_[1] x a0[0 +1 of 8]]`` goes on along axis 0: its constant digit has one position."""

    def row(at: int) -> Lineage:
        one = StridedInterval(-1, 1, 1, affine(0), 1)
        addend = rows(1, at, 1)
        dims = ((one, *addend.view.dims[0]), addend.view.dims[1])
        return Lineage((1, 4), (addend._replace(view=View(dims)),))

    both = box((0, 0), (1, 4)), row(0)
    assert agree(*both, box((1, 0), (2, 4)), row(start)) is right
