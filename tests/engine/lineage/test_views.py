"""Cutting and joining views, against the positions that they stand for."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardproof.engine.algebra.affine import affine
from shardproof.engine.interpreters import dims as weighted
from shardproof.engine.lineage.lineage import BROADCAST, Dim, StridedInterval
from shardproof.engine.lineage.views import Misaligned, adjoin, constant_interval, narrow


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
