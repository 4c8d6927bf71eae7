"""Places: views that lie side by side in one tensor."""

from __future__ import annotations

from fractions import Fraction
from itertools import product

import numpy as np
import pytest
from numpy.typing import NDArray

from shardproof.checker.values.views import ViewChecker
from shardproof.engine.algebra.affine import ZERO, affine
from shardproof.engine.lineage.joining import joined
from shardproof.engine.lineage.lineage import Addend, Place, StridedInterval, View
from shardproof.engine.lineage.places import cut, left, local_positions, reshaped_addend
from shardproof.engine.lineage.views import Misaligned

#: Places of a dimension of 2,048, innermost first, and what they leave: the first halves of heads
#: of 128 in the first 1,536 columns are 12 times 64.
CASES = [
    ([], 2048),
    ([Place(0, 64, 64, 128)], 1024),
    ([Place(0, 0, 1536, 2048)], 1536),
    ([Place(0, 0, 64, 128), Place(0, 0, 1536, 2048)], 768),
    ([Place(0, 0, 64, 128), Place(0, 1536, 256, 2048)], 128),
]


@pytest.mark.parametrize(("places", "expected"), CASES)
def test_places_inside_one_another_leave_their_shares(places: list[Place], expected: int) -> None:
    assert left((2048,), places) == (expected,)
    assert ViewChecker.left(Addend(1, 0, View(((),)), (), tuple(places)), (2048,)) == [expected]  # type: ignore[arg-type]


#: A dimension of 32 in which every second 4 positions are those of a node of 16.
SIZE, SHARE, PERIOD = 32, 4, 8


def half(first: int) -> Addend:
    own = (StridedInterval(0, 4, 4, ZERO, 4), StridedInterval(0, 1, 4, ZERO, 4))
    places = (Place(0, first, SHARE, PERIOD),)
    return Addend(Fraction(1), 0, View((own,)), places=places)


def entries(addend: Addend | None, size: int, at: int) -> NDArray[np.float64]:
    """What an addend is in a dimension of ``size``, entry by entry, where the axis is ``at``; the
    node's entries are 1, 2, ..."""
    found = np.zeros(size)
    if addend is not None:
        (dim,) = addend.view.dims
        steps = [[a.stride * (a.start.at({"tp": at}) + i) for i in range(a.size)] for a in dim]
        held = [
            i
            for i in range(size)
            if all(p.start <= i % p.extent < p.start + p.size for p in addend.places)
        ]
        found[held] = [1 + sum(way) for way in product(*steps)]
    return found


@pytest.mark.parametrize("places", [places for places, _ in CASES])
def test_where_a_view_is_read_at_each_position(places: list[Place]) -> None:
    """The positions that all places hold, in their order; beside a dimension of one position."""
    size, count = 2048, left((2048,), places)[0]
    dims = ((StridedInterval(0, 1, count, ZERO, count),), ())
    addend = Addend(Fraction(1), 0, View(dims), places=tuple(places))
    held = [
        i for i in range(size) if all(p.start <= i % p.extent < p.start + p.size for p in places)
    ]
    found = [local_positions(addend, (i,)) for i in range(size)]
    assert [i for i, at in enumerate(found) if at is not None] == held
    assert [at for at in found if at is not None] == [(n, 0) for n in range(count)]
    with pytest.raises(Misaligned):
        local_positions(addend, (0, 0))


def test_places_that_cut_a_period_of_inner_ones_are_refused() -> None:
    dims = ((StridedInterval(0, 1, 4, ZERO, 4),),)
    places = (Place(0, 0, 2, 4), Place(0, 3, 4, 8))
    with pytest.raises(Misaligned):
        local_positions(Addend(Fraction(1), 0, View(dims), places=places), (5,))


@pytest.mark.parametrize("first", [0, SHARE])
@pytest.mark.parametrize("step", [8, 16])
@pytest.mark.parametrize(
    ("start", "size"), [(0, 2), (2, 2), (4, 4), (6, 2), (5, 1), (0, 8), (4, 8)]
)
def test_an_interval_that_moves_by_whole_periods(
    first: int, step: int, start: int, size: int
) -> None:
    """As NumPy slices it, at every coordinate; or it is no view."""
    whole = half(first)
    try:
        found = cut(whole, (SIZE,), 0, affine(start, {"tp": step}), size)
    except Misaligned:
        assert (start, size) == (4, 8)  # across two periods
        return
    for at in range(2):
        low = start + step * at
        expected = entries(whole, SIZE, 0)[low : low + size]
        np.testing.assert_array_equal(entries(found, size, at), expected)


def test_an_interval_that_moves_by_parts_of_periods_is_no_view() -> None:
    with pytest.raises(Misaligned):
        cut(half(0), (SIZE,), 0, affine(0, {"tp": 4}), 4)


#: A tensor, a place in its second dimension, and what the tensor is reshaped to.
RESHAPED = [
    ((2, 8, 3), (0, 1), (16, 3)),
    ((2, 8, 3), (1, 7), (16, 3)),
    ((2, 8, 3), (7, 1), (2, 24)),
    ((2, 8, 3), (4, 4), (2, 2, 4, 3)),
    ((1, 8, 3), (3, 1), (8, 3, 1)),
    ((2, 8, 1), (3, 1), (1, 2, 8)),
    ((4, 2, 3), (1, 1), (2, 2, 2, 3)),
]


@pytest.mark.parametrize(("shape", "place", "target"), RESHAPED)
def test_a_reshape_moves_entries_and_keeps_one_position_beside_its_dimension(
    shape: tuple[int, ...], place: tuple[int, int], target: tuple[int, ...]
) -> None:
    start, size = place
    own = (shape[0], size, shape[2])
    dims = tuple((StridedInterval(i, 1, n, ZERO, n),) for i, n in enumerate(own[:1] + own[2:]))
    middle = (StridedInterval(2, 1, 9, ZERO, size),)
    view = View((dims[0], middle, dims[1]))
    addend = Addend(Fraction(1), 0, view, (), (Place(1, start, size, shape[1]),))
    made = reshaped_addend(addend, shape, target)
    node = np.arange(1, 1 + own[0] * own[2] * 9).reshape(own[0], own[2], 9)

    def whole(addend: Addend, shape: tuple[int, ...]) -> NDArray[np.int64]:
        entries = np.zeros(shape, np.int64)
        sizes = left(shape, addend.places)
        values = np.zeros(sizes, np.int64)
        for at in np.ndindex(*sizes):
            index = dict.fromkeys(range(3), 0)
            for position, dim in zip(at, addend.view.dims, strict=True):
                rest = position
                for a in reversed(dim):
                    index[a.axis] += a.stride * (a.start.const + rest % a.size)
                    rest //= a.size
            for a in addend.view.fixed:
                index[a.axis] += a.stride * a.start.const
            values[at] = node[tuple(index.values())]
        held = []
        for dim, n in enumerate(shape):
            along = [p for p in addend.places if p.dim == dim]
            inside = [
                all(p.start <= i % p.extent < p.start + p.size for p in along) for i in range(n)
            ]
            held.append([i for i in range(n) if inside[i]])
        entries[np.ix_(*held)] = values
        return entries

    assert np.array_equal(whole(made, target), whole(addend, shape).reshape(target))
    if size == 1 and shape[2] > 1 and target[-1] == shape[2]:
        assert [a.axis for a in made.view.dims[-1]] == [1]


def rows(start: int, size: int, *, loose: bool = False, axis: int = 0, at: int = -1) -> Addend:
    """Rows of a node [4, 3], which lie at the same rows of a tensor of that shape (or at ``at``);
    ``loose``: the one row belongs to no dimension."""
    own = StridedInterval(axis, 1, 4, affine(start), size)
    columns = (StridedInterval(1, 1, 3, ZERO, 3),)
    view = View(((), columns), (own,)) if loose else View(((own,), columns))
    place = Place(0, start if at < 0 else at, size, 4)
    return Addend(Fraction(1), 0, view, places=(place,))


WHOLE = Addend(
    Fraction(1),
    0,
    View(((StridedInterval(0, 1, 4, ZERO, 4),), (StridedInterval(1, 1, 3, ZERO, 3),))),
)


@pytest.mark.parametrize(
    "parts",
    [
        [rows(0, 1, loose=True), rows(1, 3)],
        [rows(0, 3), rows(3, 1, loose=True)],
        [rows(0, 1, loose=True), rows(1, 1, loose=True), rows(2, 2)],
        [rows(n, 1, loose=True) for n in range(4)],
    ],
)
def test_a_row_that_belongs_to_no_dimension_joins_those_beside_it(parts: list[Addend]) -> None:
    assert joined(parts) == [WHOLE]


@pytest.mark.parametrize(
    "parts",
    [
        [rows(0, 1, loose=True, at=3), rows(1, 3, at=0)],  # the first row is behind the others
        [rows(2, 1, loose=True, at=0), rows(1, 3)],  # another row
        [rows(0, 1, loose=True, axis=2), rows(1, 3)],  # a position of another axis
        [rows(0, 1, loose=True)._replace(factor=Fraction(2)), rows(1, 3)],
    ],
)
def test_a_row_that_lies_elsewhere_joins_nothing(parts: list[Addend]) -> None:
    assert sorted(map(str, joined(parts))) == sorted(map(str, parts))
