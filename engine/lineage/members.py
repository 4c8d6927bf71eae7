"""Members of a family: what a lineage is at coordinates."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import product
from math import prod

from shardproof.engine.algebra.affine import Affine
from shardproof.engine.lineage.lineage import Lineage, StridedInterval, View


def concrete(lineage: Lineage, here: Mapping[str, int]) -> Lineage:
    """The member of a family at the given coordinates.

    Example: of ``n5[a0[<8*tp> +8 of 16]]``, at ``{"tp": 1}``: ``n5[a0[8 +8 of 16]]``.
    """

    def at(value: Affine) -> Affine:
        for axis, position in here.items():
            value = value.fix(axis, position)
        return value

    def atoms(dim: Iterable[StridedInterval]) -> tuple[StridedInterval, ...]:
        return tuple(a._replace(start=at(a.start)) for a in dim)

    addends = tuple(
        t._replace(
            view=View(tuple(atoms(d) for d in t.view.dims), atoms(t.view.fixed)),
            partials=tuple(p._replace(start=at(p.start)) for p in t.partials),
        )
        for t in lineage.addends
    )
    return Lineage(lineage.shape, addends)


def axes_of(lineage: Lineage) -> set[str]:
    """The coordinates that a lineage's intervals move with.

    Example: of ``n5[a0[<8*tp> +8 of 16]]`` that is ``{"tp"}``.
    """
    axes: set[str] = set()
    for addend in lineage.addends:
        for interval in (*(a for dim in addend.view.dims for a in dim), *addend.view.fixed):
            axes.update(interval.start.axes)
        for partial in addend.partials:
            axes.update(partial.start.axes)
    return axes


def every(axes: Iterable[str], extents: Mapping[str, int], most: int) -> Iterator[dict[str, int]]:
    """All coordinates along axes; none where there are more than ``most``.

    Example: along ``tp`` of extent 2, ``{"tp": 0}`` and ``{"tp": 1}``.
    """
    names = sorted(axes)
    if prod(extents[axis] for axis in names) <= most:
        for here in product(*(range(extents[axis]) for axis in names)):
            yield dict(zip(names, here, strict=True))
