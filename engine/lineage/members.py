"""Members of a family: what a lineage is at coordinates."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import product
from math import prod

from shardproof.engine.algebra.affine import Affine
from shardproof.engine.lineage.lineage import Atom, Layout, Lineage


def concrete(lineage: Lineage, here: Mapping[str, int]) -> Lineage:
    """The member of a family at the given coordinates."""

    def at(value: Affine) -> Affine:
        for axis, position in here.items():
            value = value.fix(axis, position)
        return value

    def atoms(dim: Iterable[Atom]) -> tuple[Atom, ...]:
        return tuple(a._replace(start=at(a.start)) for a in dim)

    terms = tuple(
        t._replace(
            layout=Layout(tuple(atoms(d) for d in t.layout.dims), atoms(t.layout.fixed)),
            parts=tuple(p._replace(start=at(p.start)) for p in t.parts),
        )
        for t in lineage.terms
    )
    return Lineage(lineage.shape, terms)


def axes_of(lineage: Lineage) -> set[str]:
    """The coordinates that a lineage's intervals move with."""
    found: set[str] = set()
    for term in lineage.terms:
        for atom in (*(a for dim in term.layout.dims for a in dim), *term.layout.fixed):
            found.update(atom.start.axes)
        for part in term.parts:
            found.update(part.start.axes)
    return found


def every(axes: Iterable[str], extents: Mapping[str, int], most: int) -> Iterator[dict[str, int]]:
    """All coordinates along axes; none where there are more than ``most``."""
    names = sorted(axes)
    if prod(extents[axis] for axis in names) <= most:
        for here in product(*(range(extents[axis]) for axis in names)):
            yield dict(zip(names, here, strict=True))
