"""Sums of views: joining partial sums over ranks and microbatches, by arithmetic on intervals.

Partial sums of one view over disjoint positions are the sum over their union; complete copies
add up to a multiple.  These are exact statements at true size; everything else is left apart.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fractions import Fraction

from shardproof.engine.lineage.layout import Misaligned
from shardproof.engine.lineage.lineage import Layout, Lineage, Part, Place, Term
from shardproof.engine.lineage.nodes import NodeTable
from shardproof.engine.lineage.positions import along, normal, union

#: In place of how many positions a sum of what does not vary is over: that is not known.
SOME = 0

Over = tuple[tuple[str, int], ...]


def largest(factors: Sequence[Fraction]) -> Fraction:
    """The factor that is taken out of a sum: of largest magnitude, positive if there is a choice,
    so that factors do not pile up from sum to sum and do not depend on the order."""
    return max(factors, key=lambda f: (abs(f), f))


def collect(terms: Sequence[Term]) -> list[Term]:
    """Equal views as one term with the sum of their factors; zero terms are dropped."""
    collected: dict[tuple[int, Layout, tuple[Part, ...], tuple[Place, ...]], Fraction] = {}
    for term in terms:
        key = (term.node, term.layout, term.parts, term.places)
        collected[key] = collected.get(key, Fraction(0)) + term.factor
    return [Term(f, *key) for key, f in collected.items() if f]


def root_kinds(nodes: NodeTable, parts: Sequence[Part]) -> set[str]:
    """Whether parts are of sums or of maxima."""
    found = set()
    for part in parts:
        token = nodes.tokens[part.token]
        while token.kind == "via":
            token = nodes.tokens[token.inner]
        found.add(token.kind)
    return found


def merge_parts(
    nodes: NodeTable, terms: Sequence[Term], mesh: Mapping[str, int], *, add: bool = True
) -> list[Term]:
    """Join partial sums (``add``) or maxima of one view over disjoint intervals; sums of partial
    maxima, and maxima of partial sums, are left apart.

    Terms are grouped by everything but the interval of one part; within a group every interval
    must occur equally often (``add``: that count multiplies the factor; a maximum ignores it).
    ``mesh``: extents of the coordinates.
    """
    groups: dict[tuple[object, ...], list[Term]] = {}
    for term in terms:
        ranges = tuple((p.token, p.extent) for p in term.parts)
        key = (term.factor, term.node, term.layout, ranges, term.places)
        groups.setdefault(key, []).append(term)
    result: list[Term] = []
    for group in groups.values():
        kinds = root_kinds(nodes, group[0].parts)
        joins = len(group) > 1 and kinds == ({"sum"} if add else {"max"})
        result += _merge_group(nodes, group, mesh, add) if joins else group
    if len(result) < len(terms):
        # What was joined may join what was not.
        return merge_parts(nodes, result, mesh, add=add)
    return result


def _merge_group(
    nodes: NodeTable, group: list[Term], mesh: Mapping[str, int], add: bool
) -> list[Term]:
    width = len(group[0].parts)
    varying = [i for i in range(width) if len({t.parts[i] for t in group}) > 1]
    if not varying:
        factor = group[0].factor * (len(group) if add else 1)
        return [group[0]._replace(factor=factor)]
    if len(varying) > 1:
        return _merge_rows(nodes, group, varying, mesh, add)
    which = varying[0]
    counts: dict[Part, int] = {}
    for term in group:
        counts[term.parts[which]] = counts.get(term.parts[which], 0) + 1
    if len(set(counts.values())) != 1:
        return group
    joined = union(list(counts), mesh)
    if joined is None:
        return group
    kept = [p for i, p in enumerate(group[0].parts) if i != which]
    factor = group[0].factor * (next(iter(counts.values())) if add else 1)
    return [group[0]._replace(factor=factor, parts=normal([*kept, *joined]))]


def _merge_rows(
    nodes: NodeTable,
    group: list[Term],
    varying: Sequence[int],
    mesh: Mapping[str, int],
    add: bool,
) -> list[Term]:
    """Terms that differ in several intervals: joined along one of them where all others agree, as
    long as that joins any."""
    for which in varying:
        rows: dict[tuple[Part, ...], list[Term]] = {}
        for term in group:
            others = tuple(p for i, p in enumerate(term.parts) if i != which)
            rows.setdefault(others, []).append(term)
        terms = [term for row in rows.values() for term in _merge_group(nodes, row, mesh, add)]
        if len(terms) < len(group):
            return merge_parts(nodes, terms, mesh, add=add)
    return group


def term_over_axis(
    nodes: NodeTable, term: Term, axis: str, extent: int, kind: str, mesh: Mapping[str, int]
) -> Term:
    """The sum (``kind`` "max": maximum) of a family of views along one mesh axis, as one view.

    Raises `Misaligned` if the views differ in anything but the interval of one partial sum, or if
    those intervals overlap or are no digit of a position.  ``mesh``: extents of the coordinates.
    """
    if axis in nodes[term.node].coordinates:
        raise Misaligned
    atoms = [a for dim in term.layout.dims for a in dim] + list(term.layout.fixed)
    if any(a.start.coefficient(axis) for a in atoms):
        raise Misaligned
    moving = [p for p in term.parts if p.start.coefficient(axis)]
    if kind == "sum" and root_kinds(nodes, term.parts) - {"sum"}:
        raise Misaligned  # partial maxima do not add up
    if not moving:
        return term if kind == "max" else term._replace(factor=term.factor * extent)
    if kind == "max" and (term.factor < 0 or root_kinds(nodes, term.parts) != {"max"}):
        raise Misaligned
    if len(moving) > 1:
        raise Misaligned
    kept = [p for p in term.parts if p is not moving[0]]
    return term._replace(parts=normal([*kept, *along(moving[0], axis, extent, mesh)]))


def family_sum(nodes: NodeTable, x: Lineage, over: Over, mesh: Mapping[str, int]) -> Lineage:
    """The sum of a family along mesh axes; raises `Misaligned` where it is no sum of views."""
    terms = list(x.terms)
    for axis, extent in over:
        terms = [term_over_axis(nodes, term, axis, extent, "sum", mesh) for term in terms]
    return Lineage(x.shape, tuple(collect(merge_parts(nodes, terms, mesh))))
