"""Cutting and joining views, against the positions that they stand for."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardproof.engine.algebra.affine import affine
from shardproof.engine.interpreters import dims as weighted
from shardproof.engine.lineage.lineage import BROADCAST, Dim, StridedInterval
from shardproof.engine.lineage.views import (
    Misaligned,
    adjoin,
    constant_interval,
    interleave,
    narrow,
)


def positions(dim: Dim) -> list[tuple[tuple[int, int], ...]]:
    """What every position of a dimension reads: (axis, index) of each interval that varies."""
    each = [
        [
            (a.axis, a.stride * (a.start.const + i)) if a.axis != BROADCAST else ()
            for i in range(a.size)
        ]
        for a in dim
    ]
    return [tuple(sorted(x for x in p if x)) for p in itertools.product(*each)]  # type: ignore[misc]


@st.composite
def views(draw: st.DrawFn) -> Dim:
    """One to three intervals, each of an axis of its own."""
    intervals = []
    for axis in range(draw(st.integers(1, 3))):
        extent = draw(st.integers(1, 5))
        if draw(st.booleans()):
            intervals.append(StridedInterval(axis, 1, extent, affine(0), extent))
        elif draw(st.booleans()):
            start = draw(st.integers(0, extent - 1))
            intervals.append(
                StridedInterval(
                    axis, 1, extent, affine(start), draw(st.integers(1, extent - start))
                )
            )
        else:
            intervals.append(constant_interval(extent))
    return tuple(intervals)


@given(views(), st.data())
def test_a_cut_reads_what_is_between(dim: Dim, data: st.DataObject) -> None:
    whole = positions(dim)
    start = data.draw(st.integers(0, len(whole) - 1))
    size = data.draw(st.integers(1, len(whole) - start))
    try:
        found = narrow(dim, affine(start), size)
    except Misaligned:
        return
    assert positions(found) == whole[start : start + size]


@given(views(), st.data())
def test_parts_one_after_the_other_read_all_of_them(dim: Dim, data: st.DataObject) -> None:
    whole = positions(dim)
    size = data.draw(st.sampled_from([n for n in range(1, len(whole) + 1) if len(whole) % n == 0]))
    try:
        parts = [narrow(dim, affine(i), size) for i in range(0, len(whole), size)]
        found = adjoin(parts)
    except Misaligned:
        return
    assert positions(found) == whole


@given(st.data())
def test_blocks_with_their_digits_exchanged_are_one_view(data: st.DataObject) -> None:
    """Every block of a mixed-radix order, as the one view reads them."""
    counts = data.draw(st.lists(st.integers(2, 3), min_size=1, max_size=3))
    order = data.draw(st.permutations(range(len(counts))))
    size = data.draw(st.integers(1, 3))
    blocks = math.prod(counts)
    first = blocks * data.draw(st.integers(0, 1))
    numbers = np.arange(blocks).reshape(counts).transpose(order).reshape(-1) + first
    whole: Dim = (StridedInterval(0, 1, 2 * blocks * size, affine(0), 2 * blocks * size),)
    parts = [narrow(whole, affine(int(n) * size), size) for n in numbers]
    assert positions_of_axis(interleave(parts)) == [
        int(n) * size + i for n in numbers for i in range(size)
    ]


@pytest.mark.parametrize(
    "numbers", [(0, 2, 1, 5), (0, 1, 3, 2), (1, 0, 3, 2), (0, 4, 2, 6), (2, 0)]
)
def test_blocks_in_no_order_of_digits_are_no_view(numbers: tuple[int, ...]) -> None:
    whole: Dim = (StridedInterval(0, 1, 16, affine(0), 16),)
    with pytest.raises(Misaligned):
        interleave([narrow(whole, affine(2 * n), 2) for n in numbers])


@given(st.data())
def test_blocks_numbered_along_several_axes_are_one_view(data: st.DataObject) -> None:
    """Numbers of two axes and of blocks of a third, whichever runs fastest."""
    counts = (data.draw(st.integers(1, 3)), data.draw(st.integers(1, 3)), 4)
    order = data.draw(st.permutations(range(3)))
    numbers = np.stack(np.unravel_index(np.arange(math.prod(counts)), counts), axis=-1)
    numbers = numbers.reshape(*counts, 3).transpose(*order, 3).reshape(-1, 3)
    parts = [
        (
            StridedInterval(0, 1, 4, affine(int(a)), 1),
            StridedInterval(1, 2, 3, affine(int(b)), 1),
            StridedInterval(2, 1, 8, affine(2 * int(c)), 2),
        )
        for a, b, c in numbers
    ]
    assert totals(interleave(parts)) == [x for part in parts for x in totals(part)]


def totals(dim: Dim) -> list[tuple[int, ...]]:
    """The index of every position along three axes, each the sum of its digits."""
    each = [[(a.axis, a.stride * (a.start.const + i)) for i in range(a.size)] for a in dim]
    return [
        tuple(sum(n for axis, n in p if axis == wanted) for wanted in range(3))
        for p in itertools.product(*each)
    ]


def positions_of_axis(dim: Dim) -> list[int]:
    """The index of every position in the one axis that digits of it add up to."""
    each = [[a.stride * (a.start.const + i) for i in range(a.size)] for a in dim]
    return [sum(p) for p in itertools.product(*each)]


FACTORS: Dim = (StridedInterval(1, 1, 4, affine(0), 4), StridedInterval(2, 1, 2, affine(0), 2))


@pytest.mark.parametrize("size", [1, 2, 4, 8])
def test_blocks_of_two_factors_come_apart_and_together(size: int) -> None:
    """Eight heads as four groups of two: every rank's block is a view, and all of them are all."""
    parts = [narrow(FACTORS, affine(i), size) for i in range(0, 8, size)]
    assert [len(positions(p)) for p in parts] == [size] * (8 // size)
    assert positions(adjoin(parts)) == positions(FACTORS)


def test_parts_in_another_order_are_no_interval() -> None:
    parts = [narrow(FACTORS, affine(i), 1) for i in (0, 2, 1, 3, 4, 5, 6, 7)]
    with pytest.raises(Misaligned):
        adjoin(parts)


def test_an_interval_across_a_block_is_no_view() -> None:
    with pytest.raises(Misaligned):
        narrow(FACTORS, affine(1), 2)


@pytest.mark.parametrize("start", range(8))
def test_one_position_of_a_dimension_of_factors(start: int) -> None:
    """Factors (1, 2, 1) and (1, 1): eight positions, six of them kept."""
    dim: weighted.Dim = ((1, 2, 1), (1, 1))
    cut, taken = weighted.narrow(dim, start, 1)
    block = {0: 0, 1: 1, 2: 1, 3: 2}[start // 2]
    assert (cut, taken) == ((), slice(2 * block + start % 2, 2 * block + start % 2 + 1))
