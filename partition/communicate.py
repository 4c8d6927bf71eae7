"""Lineages through communication: sums, gathers and slices over ranks and microbatches.

Members are explicit (one lineage per program of the group) or implicit (one lineage that stands
for all coordinates along mesh axes).  Partial sums over consecutive intervals join to the sum over
their union; complete copies add up to a multiple.  What is neither is taken as it is.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce

from engine.affine import ZERO, Affine, affine
from engine.layout import Misaligned, merge
from engine.lineage import BROADCAST, Atom, Layout, Lineage, Part, Term
from partition.infer import LineageReading, lineage_axes, local_view

Over = tuple[tuple[str, int], ...]


def total(
    reading: LineageReading, members: Sequence[Lineage], over: Over, kind: str = "sum"
) -> Lineage:
    """The sum (or maximum) over explicit members and over mesh axes."""
    joined = [reduce(lambda x, a: _over_axis(reading, x, a[0], a[1], kind), over, m)
              for m in members]
    shape = joined[0].shape
    if kind == "max":
        return _maximum(reading, joined)
    terms = _merge_parts([term for x in joined for term in x.terms])
    return reading.fold(Lineage(shape, tuple(terms)))


def _kinds(reading: LineageReading, parts: Sequence[Part]) -> set[str]:
    found = set()
    for part in parts:
        token = reading.table.tokens[part.token]
        while token.kind == "via":
            token = reading.table.tokens[token.inner]
        found.add(token.kind)
    return found


def _maximum(reading: LineageReading, members: Sequence[Lineage]) -> Lineage:
    """The elementwise maximum: copies of one tensor, or partial maxima of one."""
    first = members[0]
    if all(m == first for m in members):
        return first
    if all(
        len(m.terms) == 1 and m.terms[0].factor > 0 and _kinds(reading, m.terms[0].parts) == {"max"}
        for m in members
    ):
        terms = _merge_parts([m.terms[0] for m in members], add=False)
        if len(terms) == 1:
            return Lineage(first.shape, tuple(terms))
    taken = tuple(reading.piece(m).terms[0] for m in members)
    node = reading.local_node("maximum", (taken,), first.shape, taken)
    return local_view(node, first.shape)


def _merge_parts(terms: Sequence[Term], *, add: bool = True) -> list[Term]:
    """Join partial sums of one view over consecutive intervals.

    Terms are grouped by everything but the interval of one part; within a group every interval
    must occur equally often (``add``: that count multiplies the factor; a maximum ignores it).
    """
    groups: dict[tuple[object, ...], list[Term]] = {}
    for term in terms:
        key = (term.factor, term.node, term.layout, tuple(p.token for p in term.parts))
        groups.setdefault(key, []).append(term)
    result: list[Term] = []
    for group in groups.values():
        result += _merge_group(group, add) if group[0].parts and len(group) > 1 else group
    return result


def _merge_group(group: list[Term], add: bool) -> list[Term]:
    width = len(group[0].parts)
    varying = [i for i in range(width) if len({t.parts[i] for t in group}) > 1]
    if not varying:
        factor = group[0].factor * (len(group) if add else 1)
        return [group[0]._replace(factor=factor)]
    if len(varying) > 1:
        return group
    which = varying[0]
    counts: dict[Part, int] = {}
    for term in group:
        counts[term.parts[which]] = counts.get(term.parts[which], 0) + 1
    if len(set(counts.values())) != 1:
        return group
    union = _union(list(counts))
    if union is None:
        return group
    kept = [p for i, p in enumerate(group[0].parts) if i != which]
    if not (union.start == ZERO and union.size == union.extent):
        kept.append(union)
    factor = group[0].factor * (next(iter(counts.values())) if add else 1)
    return [group[0]._replace(factor=factor, parts=tuple(sorted(kept, key=lambda p: p.token)))]


def _union(parts: Sequence[Part]) -> Part | None:
    """The interval that the parts tile, if they do."""
    origin = parts[0].start
    offsets = [part.start - origin for part in parts]
    if any(offset.terms for offset in offsets):
        return None
    ranked = sorted(zip((o.const for o in offsets), parts, strict=True), key=lambda p: p[0])
    end = ranked[0][0]
    for offset, part in ranked:
        if offset != end:
            return None
        end += part.size
    return ranked[0][1]._replace(size=end - ranked[0][0])


def _over_axis(
    reading: LineageReading, x: Lineage, axis: str, extent: int, kind: str
) -> Lineage:
    """The sum (maximum) of a family of tensors along one mesh axis."""
    terms: list[Term] = []
    for term in x.terms:
        joined = _term_over_axis(reading, term, axis, extent, kind)
        if joined is None:
            taken = reading.piece(x)
            node = reading.table.node(
                "over", (axis, extent, kind, taken.terms[0].node),
                tuple(n for n in x.shape if n != 1),
                lineage_axes(x, reading.table) - {axis},
            )
            return local_view(node, x.shape)
        terms.append(joined)
    return Lineage(x.shape, tuple(terms))


def _term_over_axis(
    reading: LineageReading, term: Term, axis: str, extent: int, kind: str
) -> Term | None:
    if axis in reading.table[term.node].coordinates:
        return None
    atoms = [a for dim in term.layout.dims for a in dim] + list(term.layout.fixed)
    if any(a.start.coefficient(axis) for a in atoms):
        return None
    moving = [p for p in term.parts if p.start.coefficient(axis)]
    if not moving:
        return term if kind == "max" else term._replace(factor=term.factor * extent)
    if kind == "max" and (term.factor < 0 or _kinds(reading, term.parts) != {"max"}):
        return None
    if len(moving) > 1 or moving[0].start.coefficient(axis) != moving[0].size:
        return None
    part = moving[0]
    union = part._replace(start=part.start.fix(axis, 0), size=part.size * extent)
    kept = [p for p in term.parts if p is not part]
    if not (union.start == ZERO and union.size == union.extent):
        kept.append(union)
    return term._replace(parts=tuple(sorted(kept, key=lambda p: p.token)))


def gather(
    reading: LineageReading, members: Sequence[Lineage], over: Over, dim: int
) -> Lineage:
    """Concatenation along ``dim`` in group order, over explicit members or one mesh axis."""
    if not over:
        return reading.concat(members, dim)
    result = members[0]
    for axis, extent in reversed(over):
        result = _gather_axis(reading, result, axis, extent, dim)
    return result


def _gather_axis(
    reading: LineageReading, x: Lineage, axis: str, extent: int, dim: int
) -> Lineage:
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
            node = reading.table.node(
                "at", (axis, position, node), held.extents, held.coordinates - {axis}
            )
        layout = Layout(
            tuple(tuple(fixed(a) for a in dim) for dim in term.layout.dims),
            tuple(fixed(a) for a in term.layout.fixed),
        )
        parts = tuple(p._replace(start=p.start.fix(axis, position)) for p in term.parts)
        terms.append(Term(term.factor, node, layout, parts))
    return Lineage(x.shape, tuple(terms))


def own_slice(
    reading: LineageReading, x: Lineage, over: Over, dim: int, position: int, count: int
) -> Lineage:
    """What one rank keeps of ``x`` when ``dim`` is scattered over a group."""
    size = x.shape[dim]
    start: Affine = affine(0)
    for axis, extent in over:
        count *= extent
        start = start * extent + affine(0, {axis: 1})
    step = -(-size // count)
    start = (start + position) * step
    kept = step if start.terms else max(0, min(step, size - start.const))
    return reading.slice(x, dim, start, kept)

