"""What is no one view is several side by side: NumPy says what they are."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from itertools import product

import numpy as np
import pytest
from numpy.typing import NDArray

from shardproof.engine.algebra.affine import ZERO, affine
from shardproof.engine.lineage.cutting import cut_up, moved_apart
from shardproof.engine.lineage.joining import joined
from shardproof.engine.lineage.lineage import (
    ABSOLUTE,
    Addend,
    Lineage,
    Place,
    StridedInterval,
    View,
)
from shardproof.engine.lineage.places import collapsed, normal, placed, reshaped_addend
from shardproof.engine.lineage.views import Misaligned
from shardproof.engine.specification.box import box_of

ROWS, COLUMNS = 6, 5
NODE = np.arange(1, ROWS * COLUMNS + 1).reshape(ROWS, COLUMNS)


def axis(number: int, extent: int) -> StridedInterval:
    return StridedInterval(number, 1, extent, ZERO, extent)


#: The node, row after row.
FLAT = Addend(Fraction(1), 0, View(((axis(0, ROWS), axis(1, COLUMNS)),)))


def entries(addends: Sequence[Addend], shape: tuple[int, ...]) -> NDArray[np.int64]:
    """A tensor by the definition of lineages, entry by entry."""
    found = np.zeros(shape, dtype=np.int64)
    for addend in addends:
        kept, steps = [], []
        for dim, size in enumerate(shape):
            own = [p for p in addend.places if p.dim == dim]
            kept.append(
                [
                    i
                    for i in range(size)
                    if all(p.start <= i % p.extent < p.start + p.size for p in own)
                ]
            )
            held = addend.view.dims[dim]
            ways = product(*(range(a.size) for a in held))
            steps.append(
                [
                    [(a.axis, a.stride * (a.start.const + i)) for a, i in zip(held, w, strict=True)]
                    for w in ways
                ]
            )
            assert len(kept[-1]) == len(steps[-1])
        for places, moves in zip(product(*kept), product(*steps), strict=True):
            index = [0, 0]
            for number, step in (pair for move in moves for pair in move):
                index[number] += step
            for a in addend.view.fixed:
                index[a.axis] += a.stride * a.start.const
            found[places] += NODE[tuple(index)]
    return found


@pytest.mark.parametrize("first", [0, 3])
def test_an_interval_of_rows_laid_flat(first: int) -> None:
    """Every interval of a flat tensor in which the node begins somewhere, and both parts of it put
    together again."""
    size = ROWS * COLUMNS + 2 * first
    whole = placed(FLAT, 0, first, ROWS * COLUMNS, size)
    expected = entries([whole], (size,))
    for start in range(size):
        for count in range(1, size - start + 1):
            found = cut_up(whole, (size,), 0, affine(start), count)
            np.testing.assert_array_equal(entries(found, (count,)), expected[start : start + count])
        parts = [
            placed(t, 0, low, high - low, size)
            for low, high in ((0, start), (start, size))
            for t in cut_up(whole, (size,), 0, affine(low), high - low)
            if high > low
        ]
        assert joined(parts) == [whole]


@pytest.mark.parametrize(("first", "size", "period"), [(0, 1, 2), (1, 1, 3), (0, 2, 3), (1, 2, 4)])
def test_an_interval_of_what_repeats(first: int, size: int, period: int) -> None:
    """Every other position, say: the first three of four were no view of those."""
    rows = StridedInterval(0, 1, ROWS, ZERO, ROWS)
    view = View(((rows, StridedInterval(1, 1, COLUMNS, affine(1), size)),))
    whole = Addend(Fraction(1), 0, view, places=(Place(0, first, size, period),))
    length = ROWS * period
    expected = entries([whole], (length,))
    for start in range(length):
        for count in range(1, length - start + 1):
            found = cut_up(whole, (length,), 0, affine(start), count)
            np.testing.assert_array_equal(entries(found, (count,)), expected[start : start + count])


@pytest.mark.parametrize("target", [(5, 8), (2, 5, 4), (4, 2, 5), (40,)])
@pytest.mark.parametrize("start", range(11))
def test_an_interval_of_a_flat_tensor_as_rows_of_another_length(
    start: int, target: tuple[int, ...]
) -> None:
    addend = FLAT._replace(places=normal([Place(0, start, 30, 40)]))
    try:
        found = moved_apart(addend, (40,), target)
    except Misaligned:
        pytest.fail("an interval of rows is rows and parts of rows")
    expected = entries([addend], (40,)).reshape(target)
    np.testing.assert_array_equal(entries(found, target), expected)


@pytest.mark.parametrize("extent", [ROWS, ABSOLUTE], ids=["of six", "without an end"])
def test_rows_that_begin_at_no_block_are_taken_apart(extent: int) -> None:
    rows = StridedInterval(0, 1, extent, affine(1), 4)
    addend = Addend(Fraction(1), 0, View(((rows,), (axis(1, COLUMNS),))))
    shape, target = (4, COLUMNS), (2, 2, COLUMNS)
    expected = entries([addend], shape).reshape(target)
    apart = moved_apart(addend, shape, target)
    assert len(apart) == 2
    np.testing.assert_array_equal(entries(apart, target), expected)
    with pytest.raises(Misaligned):
        moved_apart(addend, shape, (2, 2 * COLUMNS))


@pytest.mark.parametrize("groups", [(2, 6), (3, 4), (2, 2, 3)])
@pytest.mark.parametrize("start", range(8))
def test_channels_beside_others_as_groups(start: int, groups: tuple[int, ...]) -> None:
    """Five of twelve channels, in groups that begin elsewhere, for each of six rows."""
    view = View(((axis(0, ROWS),), (axis(1, COLUMNS),)))
    addend = Addend(Fraction(1), 0, view, places=(Place(1, start, COLUMNS, 12),))
    target = (ROWS, *groups)
    expected = entries([addend], (ROWS, 12)).reshape(target)
    found = moved_apart(addend, (ROWS, 12), target)
    np.testing.assert_array_equal(entries(found, target), expected)
    back = [t for own in found for t in moved_apart(own, target, (ROWS, 12))]
    np.testing.assert_array_equal(entries(back, (ROWS, 12)), entries([addend], (ROWS, 12)))
    assert joined([collapsed(t) for t in back]) == [addend]


def test_what_is_one_view_stays_one() -> None:
    assert moved_apart(FLAT, (30,), (6, 5)) == [reshaped_addend(FLAT, (30,), (6, 5))]
    with pytest.raises(Misaligned):
        cut_up(FLAT, (30,), 0, affine(0, {"tp": 3}), 3)


@pytest.mark.parametrize(
    ("places", "expected"),
    [
        ((Place(0, 0, 3, 4), Place(0, 4, 4, 8)), (Place(0, 4, 3, 8),)),
        ((Place(0, 1, 2, 4), Place(0, 4, 4, 8), Place(0, 0, 8, 16)), (Place(0, 5, 2, 16),)),
        ((Place(0, 0, 3, 4), Place(0, 0, 8, 16)), None),
        ((Place(0, 0, 3, 4), Place(1, 4, 4, 8)), None),
    ],
    ids=["one in one", "three", "in each of two", "of two dimensions"],
)
def test_places_that_are_one_interval(
    places: tuple[Place, ...], expected: tuple[Place, ...] | None
) -> None:
    addend = Addend(Fraction(1), 0, View(((),)), places=places)
    found = collapsed(addend).places
    assert found == (places if expected is None else expected)
    for dim in {p.dim for p in places}:
        kept = [
            [
                i
                for i in range(48)
                if all(p.start <= i % p.extent < p.start + p.size for p in own if p.dim == dim)
            ]
            for own in (places, found)
        ]
        assert kept[0] == kept[1]


def test_a_box_that_ends_within_a_row_is_several_views() -> None:
    """As of the gradient of a weight whose rows are heads of five: what nine of its rows are."""
    size = ROWS * COLUMNS
    whole = Lineage((size,), (FLAT,))
    expected = entries(whole.addends, (size,))
    for start in range(size):
        for count in range(1, size - start + 1):
            found = box_of(whole, [affine(start)], (count,), {})
            np.testing.assert_array_equal(
                entries(found.addends, (count,)), expected[start : start + count]
            )
    with pytest.raises(Misaligned):
        # Where it begins depends on the rank: it is no view of one form.
        box_of(whole, [affine(0, {"tp": 9})], (9,), {"tp": 3})
