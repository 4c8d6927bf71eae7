"""Which positions parts say that a sum runs over: held against sets of positions."""

from __future__ import annotations

from itertools import permutations, product

import pytest

from shardproof.engine.algebra.affine import Affine, affine
from shardproof.engine.lineage.lineage import PartialRange
from shardproof.engine.lineage.positions import along, normal, repeated, union
from shardproof.engine.lineage.views import Misaligned

RANGE = 48
MESH = {"edp": 2, "mb": 3, "ep": 4}


def held(partials: tuple[PartialRange, ...], here: dict[str, int]) -> set[int]:
    """The positions of the range that all parts hold for."""
    return {
        i
        for i in range(RANGE)
        if all(p.start.at(here) <= i % p.extent < p.start.at(here) + p.size for p in partials)
    }


def coordinates(axes: tuple[str, ...]) -> list[dict[str, int]]:
    return [
        dict(zip(axes, chosen, strict=True)) for chosen in product(*(range(MESH[a]) for a in axes))
    ]


@pytest.mark.parametrize("order", list(permutations(MESH)), ids="-".join)
@pytest.mark.parametrize(
    ("start", "size"),
    [
        (affine(0, {"edp": 24, "mb": 8, "ep": 2}), 2),
        (affine(0, {"mb": 16, "ep": 4, "edp": 2}), 2),
        (affine(0, {"ep": 12, "edp": 6, "mb": 2}), 2),
        (affine(24, {"edp": -24, "mb": 8, "ep": 2}), 2),
        (affine(46, {"mb": -16, "ep": -4, "edp": -2}), 2),
    ],
    ids=["edp mb ep", "mb ep edp", "ep edp mb", "edp in reverse", "all in reverse"],
)
def test_digits_are_summed_in_any_order(order: tuple[str, ...], start: Affine, size: int) -> None:
    """After every sum the parts hold for the union of what was summed; in the end for all."""
    partials: tuple[PartialRange, ...] = (PartialRange(0, start, size, RANGE),)
    left = tuple(MESH)
    for axis in order:
        (moving,) = (p for p in partials if p.start.coefficient(axis))
        kept = [p for p in partials if p is not moving]
        left = tuple(a for a in left if a != axis)
        after = normal([*kept, *along(moving, axis, MESH[axis], MESH)])
        for here in coordinates(left):
            members = [held(partials, {**here, axis: i}) for i in range(MESH[axis])]
            assert sum(map(len, members)) == len(set().union(*members))
            assert held(after, here) == set().union(*members)
        partials = after
    assert partials == ()


@pytest.mark.parametrize(
    ("start", "size"),
    [
        (affine(0, {"mb": 4}), 6),  # members overlap
        (affine(0, {"mb": 5}), 2),  # steps that are no digit of the range
        (affine(0, {"mb": 12, "ep": 4}), 2),  # members reach into the next block
        (affine(11, {"mb": 12}), 2),  # one member lies in two blocks
        (affine(8, {"mb": -4}), 6),  # members overlap, from the last one on
        (affine(24, {"mb": -12, "ep": -1}), 2),  # members reach into the block before
        (affine(0, {"mb": 12, "unknown": 1}), 1),
    ],
)
def test_what_is_no_digit_is_not_summed(start: Affine, size: int) -> None:
    with pytest.raises(Misaligned):
        along(PartialRange(0, start, size, RANGE), "mb", 3, {**MESH, "ep": 5})


def part(start: int, size: int = 2) -> PartialRange:
    return PartialRange(0, affine(start), size, RANGE)


def test_members_that_lie_equally_far_apart() -> None:
    found = union([part(0), part(12), part(24), part(36)], MESH)
    assert found is not None
    assert normal(found) == (PartialRange(0, affine(0), 2, 12),)
    found = union([part(12), part(0)], MESH)
    assert found is not None
    assert normal(found) == (
        PartialRange(0, affine(0), 2, 12),
        PartialRange(0, affine(0), 24, RANGE),
    )
    found = union([part(0), part(2), part(12), part(14)], MESH)
    assert found is not None
    assert normal(found)[0] == PartialRange(0, affine(0), 4, 12)


@pytest.mark.parametrize(
    "parts",
    [
        [part(0), part(12), part(36)],  # one is missing
        [part(0), part(12, 4)],  # of unequal length
        [part(0), part(1)],  # overlapping
        [part(0), part(5)],  # steps that are no digit
        [part(0), PartialRange(0, affine(0, {"mb": 12}), 2, RANGE)],
    ],
)
def test_members_that_are_no_digit_stay_apart(parts: list[PartialRange]) -> None:
    assert union(parts, MESH) is None


def test_a_part_inside_one_period_is_one_interval() -> None:
    inner, outer = PartialRange(0, affine(2), 2, 12), PartialRange(0, affine(24), 12, RANGE)
    assert normal([inner, outer]) == (PartialRange(0, affine(26), 2, RANGE),)
    assert repeated(part(2), 12, 4, MESH)[1] == PartialRange(0, affine(0), RANGE, RANGE)
