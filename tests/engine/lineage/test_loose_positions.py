"""Single positions of an axis, wherever a view has them, join to the interval that they are."""

from __future__ import annotations

from fractions import Fraction

import pytest

from shardproof.engine.algebra.affine import affine
from shardproof.engine.lineage.floating import picked
from shardproof.engine.lineage.joining import joined
from shardproof.engine.lineage.lineage import Addend, Place, StridedInterval, View
from shardproof.engine.lineage.views import align, constant_interval


def at(axis: int, start: int, extent: int, size: int = 1, stride: int = 1) -> StridedInterval:
    return StridedInterval(axis, stride, extent, affine(start), size)


WHOLE = at(1, 0, 8, 8)


def part(
    start: int, *dims: tuple[StridedInterval, ...], fixed: tuple[StridedInterval, ...] = ()
) -> Addend:
    """A part of four, of one position each, along dimension 0."""
    place = Place(0, start, 1, 4)
    return Addend(Fraction(1), 5, View(dims, fixed), places=(place,))


def test_positions_inside_another_dimension() -> None:
    parts = [part(i, (), (at(0, i, 4), WHOLE)) for i in range(4)]
    (one,) = joined(parts)
    assert one.view == View(((at(0, 0, 4, 4),), (WHOLE,)))
    assert not one.places


def test_positions_beside_a_constant_of_one() -> None:
    parts = [part(i, (constant_interval(1),), (at(0, i, 4), WHOLE)) for i in range(4)]
    (one,) = joined(parts)
    assert one.view == View(((at(0, 0, 4, 4),), (WHOLE,)))


@pytest.mark.parametrize(("rest", "count"), [((), 1), ((at(2, 0, 4),), 2)])
def test_a_constant_of_one_beside_nothing(rest: tuple[StridedInterval, ...], count: int) -> None:
    """In another dimension, along which nothing varies, of one of the parts: it is written in two
    ways. A position there is another thing."""
    first = part(0, (constant_interval(1),), (), fixed=(at(0, 0, 4),))
    others = part(1, rest, (at(0, 1, 4, 3),))._replace(places=(Place(1, 1, 3, 4),))
    found = joined([first._replace(places=(Place(1, 0, 1, 4),)), others])
    assert len(found) == count
    if count == 1:
        assert found[0].view.dims[1] == (at(0, 0, 4, 4),)
        assert not found[0].places


def test_positions_of_two_digits() -> None:
    parts = [
        part(2 * i + j, (), (WHOLE,), fixed=(at(0, i, 2), at(2, j, 2)))
        for i in (0, 1)
        for j in (0, 1)
    ]
    (one,) = joined(parts)
    assert one.view == View(((at(0, 0, 2, 2), at(2, 0, 2, 2)), (WHOLE,)))


def test_positions_in_another_order_stay_apart() -> None:
    order = (1, 0, 3, 2)
    parts = [part(i, (), (at(0, order[i], 4), WHOLE)) for i in range(4)]
    assert len(joined(parts)) == 4


@pytest.mark.parametrize(("period", "count"), [(2, 2), (4, 1)])
def test_positions_that_take_turns_stay_apart(period: int, count: int) -> None:
    """In places that repeat, positions 0 and 1 stand before and behind each of 2 and 3: together
    they are 0, 2, 1, 3."""
    half = period // 2
    parts = [
        Addend(
            Fraction(1),
            5,
            View(((at(0, 2 * i, 4, 2),), (WHOLE,))),
            places=(Place(0, half * i, half, period),),
        )
        for i in (0, 1)
    ]
    assert len(joined(parts)) == count


def test_what_takes_turns_with_the_same_is_no_repetition() -> None:
    """Positions 0, 0, 1, 1 are not 0, 1, 0, 1; of what does not vary it makes no difference."""
    for dim, count in (((at(0, 0, 2, 2),), 2), ((constant_interval(2),), 1)):
        parts = [
            Addend(Fraction(1), 5, View((dim, (WHOLE,))), places=(Place(0, i, 1, 2),))
            for i in (0, 1)
        ]
        assert len(joined(parts)) == count


@pytest.mark.parametrize(("block", "count"), [(0, 1), (1, 2)])
def test_halves_that_are_written_in_two_ways(block: int, count: int) -> None:
    """Half an axis is an interval, or all of a digit at a position outside of it: even positions in
    the one way and odd ones in the other are all positions, if they are of the same half."""
    heads = at(0, 0, 16, 8), at(0, 0, 8, 8)
    outer = at(0, block, 2, stride=8)
    parts = [
        Addend(
            Fraction(1),
            5,
            View(((heads[i],), (at(1, 0, 8, 8, stride=2),), ()), (*fixed, at(1, i, 2))),
            places=(Place(2, i, 1, 2),),
        )
        for i, fixed in enumerate(((), (outer,)))
    ]
    whole = joined(parts)
    assert len(whole) == count
    if count == 1:
        assert whole[0].view.dims == ((heads[0],), (at(1, 0, 8, 8, stride=2),), (at(1, 0, 2, 2),))


def test_a_step_in_time_says_nothing_of_a_block() -> None:
    step, channels = at(3, 0, 5), StridedInterval(1, 1, 8, affine(0, {"tp": 4}), 4)
    other = channels._replace(axis=2)
    assert align([(step, channels), (other,)]) == [[step, None], [channels, other]]


def test_a_block_that_is_said_is_one() -> None:
    block, inner = at(3, 1, 2), at(4, 0, 4, 4)
    assert align([(block, inner), (at(2, 4, 8, 4),)]) == [
        [block, at(2, 1, 2, stride=4)],
        [inner, at(2, 0, 4, 4)],
    ]


def test_which_of_several_blocks_is_in_no_dimension() -> None:
    """A constant one of three blocks, beside others of its axis or cut out of a dimension; rows of
    an axis and the block that a rank has stay where they are."""
    which, inner = at(0, 1, 3, stride=8), at(0, 0, 8, 8)
    alone = View(((which,), (inner,), (WHOLE,)))
    assert picked(alone, [0, 1, 2]) == View(((), (inner,), (WHOLE,)), (which,))
    assert picked(alone, [1, 2]) == alone
    fused = View(((which, WHOLE), (inner,)))
    assert picked(fused, [0, 1]) == View(((WHOLE,), (inner,)), (which,))
    row = View(((at(2, 1, 3),), (WHOLE,)))
    assert picked(row, [0, 1]) == row
    moving = which._replace(start=affine(0, {"tp": 1}))
    assert picked(View(((moving,), (inner,))), [0, 1]) == View(((moving,), (inner,)))
