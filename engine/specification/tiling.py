"""Whether the boxes of families of ranks cover a tensor.

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

import numpy as np

from shardproof.engine.algebra.affine import Affine

#: Boxes that are written out where arithmetic does not decide.
MOST_BOXES = 1 << 16
#: Cells of the grid of all boundaries of boxes that are marked one by one.
MOST_CELLS = 1 << 22

Box = tuple[tuple[int, int], ...]


class TooMany(Exception):
    """More boxes than are written out; says how many."""


class Boxes(NamedTuple):
    """The boxes of ``shape`` at ``offset``, over coordinates of ``extents`` (those that occur).

    Example: ``Boxes((8*tp, 0), (8, 8), (("tp", 2),))``: two boxes, which cover a tensor of [16, 8].
    """

    offset: tuple[Affine, ...]
    shape: tuple[int, ...]
    extents: tuple[tuple[str, int], ...]

    @property
    def members(self) -> int:
        """How many boxes the family has, one for each member."""
        return prod(extent for _, extent in self.extents)


def boxes(offset: Sequence[Affine], shape: Sequence[int], extents: Mapping[str, int]) -> Boxes:
    """The boxes of a tensor that a family of ranks holds, by the offset and the shape of its shard.

    Example: of a shard at ``(8*tp, 0)`` on dp 4 x tp 2 ranks the extents are ``(("tp", 2),)``:
    replicas hold the same box.
    """
    axes = sorted({axis for start in offset for axis in start.axes})
    return Boxes(tuple(offset), tuple(shape), tuple((a, extents[a]) for a in axes))


def covers(families: Iterable[Boxes], full: Sequence[int]) -> bool:
    """Whether boxes are inside of ``full`` and together all of it; they may overlap.  Raises
    `TooMany`.

    Example: boxes of 4 positions at ``4*tp``, with ``tp`` of two positions, cover 8 positions; at 0
    on both ranks they do not.
    """
    different = set(families)
    if any(_counts(family, full) for family in different):
        return True
    written = sum(family.members for family in different)
    if written > MOST_BOXES:
        raise TooMany(f"{written} boxes that are no grid, at most {MOST_BOXES} are compared")
    return _covered({box for family in different for box in _written_out(family)}, full)


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


def _covered(boxes: set[Box], full: Sequence[int]) -> bool:
    """Whether boxes are inside and cover every cell of the grid of their boundaries."""
    if not boxes:
        return False
    if any(
        not 0 <= low <= high <= n for box in boxes for (low, high), n in zip(box, full, strict=True)
    ):
        return False
    if sum(prod(high - low for low, high in box) for box in boxes) < prod(full):
        return False
    cuts = [
        {edge: i for i, edge in enumerate(sorted({0, n, *(e for box in boxes for e in box[d])}))}
        for d, n in enumerate(full)
    ]
    if prod(len(edges) for edges in cuts) > MOST_CELLS:
        raise TooMany(f"{len(boxes)} boxes that are no grid, with too many boundaries")
    seen = np.zeros([len(edges) - 1 for edges in cuts], dtype=bool)
    for box in boxes:
        cells = zip(cuts, box, strict=True)
        seen[tuple(slice(edges[low], edges[high]) for edges, (low, high) in cells)] = True
    return bool(seen.all())
