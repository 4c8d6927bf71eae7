"""Lineages through communication: sums, gathers and slices over ranks and microbatches.

Members are explicit (one lineage per program of the group) or implicit (one lineage that stands
for all coordinates along mesh axes).  Partial sums over the intervals of one digit of a position
join to the sum over their union; complete copies add up to a multiple.  What is neither is taken as
it is.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from math import prod

from shardproof.engine.algebra.affine import Affine, affine
from shardproof.engine.lineage.expressions import AtCoordinate, Maximum, OverRanks
from shardproof.engine.lineage.layout import Misaligned, merge
from shardproof.engine.lineage.lineage import BROADCAST, Atom, Layout, Lineage, Term
from shardproof.engine.lineage.sums import Over, merge_parts, root_kinds, term_over_axis
from shardproof.partition.inference.interpreter import LineageReading
from shardproof.partition.inference.views import lineage_axes, local_view


def total(
    reading: LineageReading, members: Sequence[Lineage], over: Over, kind: str = "sum"
) -> Lineage:
    """The sum (or maximum) over explicit members and over mesh axes."""
    joined = [
        reduce(lambda x, a: _over_axis(reading, x, a[0], a[1], kind), over, m) for m in members
    ]
    shape = joined[0].shape
    if kind == "max":
        return _maximum(reading, joined)
    terms = merge_parts(reading.table, [term for x in joined for term in x.terms], reading.mesh)
    return reading.fold(Lineage(shape, tuple(terms)))


def _maximum(reading: LineageReading, members: Sequence[Lineage]) -> Lineage:
    """The elementwise maximum: copies of one tensor, or partial maxima of one."""
    first = members[0]
    if all(m == first for m in members):
        return first
    if all(
        len(m.terms) == 1
        and m.terms[0].factor > 0
        and root_kinds(reading.table, m.terms[0].parts) == {"max"}
        for m in members
    ):
        views = [m.terms[0] for m in members]
        terms = merge_parts(reading.table, views, reading.mesh, add=False)
        if len(terms) == 1:
            return Lineage(first.shape, tuple(terms))
    taken = tuple(reading.piece(m).terms[0] for m in members)
    node = reading.local_node(Maximum(taken), first.shape, taken)
    return local_view(node, first.shape)


def _over_axis(reading: LineageReading, x: Lineage, axis: str, extent: int, kind: str) -> Lineage:
    """The sum (maximum) of a family of tensors along one mesh axis."""

    def over(term: Term) -> Term:
        """One term's sum; of a position of many that moves along the axis as part of a sum."""
        try:
            return term_over_axis(reading.table, term, axis, extent, kind, reading.mesh)
        except Misaligned:
            part = None if kind == "max" or term.parts else reading.as_part(term)
            if part is None:
                raise
            return term_over_axis(reading.table, part, axis, extent, kind, reading.mesh)

    try:
        terms = [over(t) for t in x.terms]
    except Misaligned:
        taken = reading.piece(x)
        node = reading.table.define(
            OverRanks(axis, extent, kind, taken.terms[0].node),
            tuple(n for n in x.shape if n != 1),
            lineage_axes(x, reading.table) - {axis},
        )
        return local_view(node, x.shape)
    return Lineage(x.shape, tuple(terms))


def gather(reading: LineageReading, members: Sequence[Lineage], over: Over, dim: int) -> Lineage:
    """Concatenation along ``dim`` in group order, over explicit members or one mesh axis."""
    if not over:
        return reading.concat(members, dim)
    result = members[0]
    for axis, extent in reversed(over):
        result = _gather_axis(reading, result, axis, extent, dim)
    return result


def _gather_axis(reading: LineageReading, x: Lineage, axis: str, extent: int, dim: int) -> Lineage:
    shape = (*x.shape[:dim], x.shape[dim] * extent, *x.shape[dim + 1 :])
    try:
        return Lineage(shape, tuple(_grow(reading, t, axis, extent, dim) for t in x.terms))
    except Misaligned:
        members = [at_coordinate(reading, x, axis, i) for i in range(extent)]
        return reading.concat(members, dim)


def _grow(reading: LineageReading, term: Term, axis: str, extent: int, dim: int) -> Term:
    """The union along ``axis`` of a term's views, as one view longer in ``dim``."""
    if axis in reading.table[term.node].coordinates:
        raise Misaligned
    if any(p.start.coefficient(axis) for p in term.parts):
        raise Misaligned
    dims = list(term.layout.dims)
    for i, atoms in enumerate(dims):
        if i != dim and any(a.start.coefficient(axis) for a in atoms):
            raise Misaligned
    if any(a.start.coefficient(axis) for a in term.layout.fixed):
        raise Misaligned
    lead = next((i for i, a in enumerate(dims[dim]) if a.size != 1), len(dims[dim]) - 1)
    if lead < 0:
        raise Misaligned
    atom = dims[dim][lead]
    rest = dims[dim][lead + 1 :]
    if any(a.start.coefficient(axis) for a in dims[dim][:lead]):
        raise Misaligned  # which block it is, outside of what every member has
    if atom.axis == BROADCAST:
        if any(a.start.coefficient(axis) for a in rest):
            raise Misaligned
        grown = atom._replace(size=atom.size * extent, extent=atom.size * extent)
    else:
        if atom.start.coefficient(axis) != atom.size or any(
            a.axis != BROADCAST and not a.full for a in rest
        ):
            raise Misaligned
        grown = atom._replace(start=atom.start.fix(axis, 0), size=atom.size * extent)
    dims[dim] = merge((*dims[dim][:lead], grown, *rest))
    return term._replace(layout=term.layout._replace(dims=tuple(dims)))


def at_coordinate(reading: LineageReading, x: Lineage, axis: str, position: int) -> Lineage:
    """The member of a family at one coordinate (a value of its own where the family's node
    depends on the coordinate)."""

    def fixed(atom: Atom) -> Atom:
        return atom._replace(start=atom.start.fix(axis, position))

    terms = []
    for term in x.terms:
        node = term.node
        if axis in reading.table[node].coordinates:
            held = reading.table[node]
            node = reading.table.define(
                AtCoordinate(axis, position, node), held.extents, held.coordinates - {axis}
            )
        layout = Layout(
            tuple(tuple(fixed(a) for a in dim) for dim in term.layout.dims),
            tuple(fixed(a) for a in term.layout.fixed),
        )
        parts = tuple(p._replace(start=p.start.fix(axis, position)) for p in term.parts)
        terms.append(Term(term.factor, node, layout, parts, term.places))
    return Lineage(x.shape, tuple(terms))


def own_slice(
    reading: LineageReading, x: Lineage, over: Over, dim: int, position: int, count: int
) -> Lineage:
    """What one rank keeps of ``x`` when ``dim`` is scattered over a group."""
    size = x.shape[dim]
    if count == 1 and len(over) > 1 and size % prod(extent for _, extent in over) == 0:
        # Axis by axis: a dimension of several atoms is cut in one of them at a time.
        for axis, extent in over:
            step = x.shape[dim] // extent
            x = reading.slice(x, dim, affine(0, {axis: step}), step)
        return x
    start: Affine = affine(0)
    for axis, extent in over:
        count *= extent
        start = start * extent + affine(0, {axis: 1})
    step = -(-size // count)
    start = (start + position) * step
    kept = step if start.terms else max(0, min(step, size - start.const))
    return reading.slice(x, dim, start, kept)
