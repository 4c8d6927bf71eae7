"""Whether the boxes of families of ranks cover a tensor, each element once.

A family holds boxes of one shape, at offsets that are affine in its coordinates.  Where every
coordinate moves boxes along one dimension only, each coefficient is as long as everything that is
smaller, and the last one ends where the dimension does, the offsets count through the cells of a
grid in mixed radix: no box is looked at.  Other families are written out, as far as `MOST_BOXES`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import product
from math import prod
from typing import NamedTuple

from shardproof.engine.algebra.affine import Affine

#: Boxes that are written out where arithmetic does not decide.
MOST_BOXES = 1 << 16
#: Boxes of different shapes that are compared in pairs.
MOST_PAIRS = 2048

Box = tuple[tuple[int, int], ...]


class TooMany(Exception):
    """More boxes than are written out; says how many."""


class Boxes(NamedTuple):
    """The boxes of ``shape`` at ``offset``, over coordinates of ``extents`` (those that occur)."""

    offset: tuple[Affine, ...]
    shape: tuple[int, ...]
    extents: tuple[tuple[str, int], ...]

    @property
    def members(self) -> int:
        return prod(extent for _, extent in self.extents)


def boxes(offset: Sequence[Affine], shape: Sequence[int], extents: Mapping[str, int]) -> Boxes:
    """The boxes of a shard."""
    axes = sorted({axis for start in offset for axis in start.axes})
    return Boxes(tuple(offset), tuple(shape), tuple((a, extents[a]) for a in axes))


def tiles(families: Iterable[Boxes], full: Sequence[int]) -> bool:
    """Whether different boxes are disjoint, inside, and of the volume of ``full``; copies of a box
    count once.  Raises `TooMany`."""
    different = set(families)
    if len(different) == 1 and _counts(next(iter(different)), full):
        return True
    written = sum(family.members for family in different)
    if written > MOST_BOXES:
        raise TooMany(f"{written} boxes that are no grid, at most {MOST_BOXES} are compared")
    return _disjoint({box for family in different for box in _written_out(family)}, full)


def _counts(family: Boxes, full: Sequence[int]) -> bool:
    """Whether offsets count through a grid, in mixed radix along every dimension."""
    extents = dict(family.extents)
    used = [axis for start in family.offset for axis in start.axes if extents[axis] > 1]
    if len(used) > len(set(used)):
        return False
    for start, size, n in zip(family.offset, family.shape, full, strict=True):
        steps = sorted((abs(c), extents[a]) for a, c in start.terms if extents[a] > 1)
        least = start.const + sum(min(c, 0) * (extents[a] - 1) for a, c in start.terms)
        reach = size
        for step, count in steps:
            if step != reach:
                return False
            reach *= count
        if least or reach != n or size < 1:
            return False
    return True


def _written_out(family: Boxes) -> Iterator[Box]:
    for chosen in product(*(range(extent) for _, extent in family.extents)):
        here = dict(zip((axis for axis, _ in family.extents), chosen, strict=True))
        places = [start.at(here) for start in family.offset]
        yield tuple((p, p + n) for p, n in zip(places, family.shape, strict=True))


def _disjoint(found: set[Box], full: Sequence[int]) -> bool:
    """Whether different boxes are disjoint, inside, and of the full volume."""
    if not found:
        return False
    volume = 0
    for box in found:
        if any(not 0 <= low <= high <= n for (low, high), n in zip(box, full, strict=True)):
            return False
        volume += prod(high - low for low, high in box)
    if volume != prod(full):
        return False
    first = next(iter(found))
    if all(
        high > low and high - low == end - start and start % (high - low) == 0
        for box in found
        for (low, high), (start, end) in zip(first, box, strict=True)
    ):
        return True  # different cells of one grid
    if len(found) > MOST_PAIRS:
        raise TooMany(f"{len(found)} boxes that are no grid, at most {MOST_PAIRS} are compared")
    ranked = sorted(found)
    return not any(
        all(a[0] < b[1] and b[0] < a[1] for a, b in zip(x, y, strict=True))
        for i, x in enumerate(ranked)
        for y in ranked[i + 1 :]
    )
