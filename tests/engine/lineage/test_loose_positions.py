"""Single positions of an axis, wherever a view has them, join to the interval that they are."""

from __future__ import annotations

from fractions import Fraction

from shardproof.engine.algebra.affine import affine
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
