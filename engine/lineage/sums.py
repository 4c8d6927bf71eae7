"""Sums of views: joining partial sums over ranks and microbatches, by arithmetic on intervals.

Partial sums of one view over disjoint positions are the sum over their union; complete copies
add up to a multiple.  These are exact statements at true size; everything else is left apart.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fractions import Fraction

from shardproof.engine.lineage.lineage import Addend, Lineage, PartialRange, Place, View
from shardproof.engine.lineage.nodes import NodeTable
from shardproof.engine.lineage.positions import along, normal, union
from shardproof.engine.lineage.views import Misaligned

#: In place of how many positions a sum of what does not vary is over: that is not known.
SOME = 0
#: Intervals of unlike extents that are joined at once.
MOST_INTERVALS = 64

Over = tuple[tuple[str, int], ...]


def largest(factors: Sequence[Fraction]) -> Fraction:
    """The factor that is taken out of a sum: of largest magnitude, positive if there is a choice,
    so that factors do not pile up from sum to sum and do not depend on the order.

    Example: of 1/2 and -3 it is -3.
    """
    return max(factors, key=lambda f: (abs(f), f))


def collect(addends: Sequence[Addend]) -> list[Addend]:
    """Equal views as one addend with the sum of their factors; zero addends are dropped.

    Example: ``n5[a0[8]]``, ``-1*n5[a0[8]]`` and ``n7[a0[8]]`` are ``n7[a0[8]]``.
    """
    collected: dict[tuple[int, View, tuple[PartialRange, ...], tuple[Place, ...]], Fraction] = {}
    for addend in addends:
        key = (addend.node, addend.view, addend.partials, addend.places)
        collected[key] = collected.get(key, Fraction(0)) + addend.factor
    return [Addend(f, *key) for key, f in collected.items() if f]


def root_kinds(nodes: NodeTable, partials: Sequence[PartialRange]) -> set[str]:
    """Whether partial ranges are of sums or of maxima, perhaps inside of an operand.

    Example: of ``#0[<8*tp> +8 of 16]``, where #0 is ``sum over b in n3``, {"sum"}; so it is of a
    reduction that is #0 in an operand of another node.
    """
    kinds = set()
    for partial in partials:
        reduction = nodes.reductions[partial.reduction]
        while reduction.kind == "via":
            reduction = nodes.reductions[reduction.inner]
        kinds.add(reduction.kind)
    return kinds


def merge_partials(
    nodes: NodeTable, addends: Sequence[Addend], mesh: Mapping[str, int], *, add: bool = True
) -> list[Addend]:
    """Join partial sums (``add``) or maxima of one view over disjoint intervals; sums of partial
    maxima, and maxima of partial sums, are left apart.

    Example: ``n3[a0[4]] part #0[0 +8 of 16]`` and ``n3[a0[4]] part #0[8 +8 of 16]`` are
    ``n3[a0[4]]``.

    Terms are grouped by everything but the interval of one part; within a group every interval
    must occur equally often (``add``: that count multiplies the factor; a maximum ignores it).
    ``mesh``: extents of the coordinates.
    """
    groups: dict[tuple[object, ...], list[Addend]] = {}
    for addend in addends:
        ranges = tuple((p.reduction, p.extent) for p in addend.partials)
        key = (addend.factor, addend.node, addend.view, ranges, addend.places)
        groups.setdefault(key, []).append(addend)
    result: list[Addend] = []
    for group in groups.values():
        kinds = root_kinds(nodes, group[0].partials)
        joins = len(group) > 1 and kinds == ({"sum"} if add else {"max"})
        result += _merge_group(nodes, group, mesh, add) if joins else group
    result = _merge_periods(nodes, result, mesh, add)
    if len(result) < len(addends):
        # What was joined may join what was not.
        return merge_partials(nodes, result, mesh, add=add)
    return result


def _merge_periods(
    nodes: NodeTable, addends: list[Addend], mesh: Mapping[str, int], add: bool
) -> list[Addend]:
    """Terms of one part each, whose intervals repeat with unlike extents, joined where they are
    together as intervals that repeat with the largest one.

    Example: ``#3[0 +2 of 12]``, ``#3[10 +2 of 12]``, ``#3[4 +4 of 12]`` and ``#3[2 +2 of 6]``,
    which is ``#3[2 +2 of 12]`` and ``#3[8 +2 of 12]``, are all of the sum.
    """
    groups: dict[tuple[object, ...], list[Addend]] = {}
    for number, t in enumerate(addends):
        alone = t.partials[0].reduction if len(t.partials) == 1 else ("other", number)
        groups.setdefault((t.factor, t.node, t.view, t.places, alone), []).append(t)
    result: list[Addend] = []
    for group in groups.values():
        # Two parts of one term are of two sums: together they are no interval of either.
        spread = _with_largest(group) if len(group) > 1 else []
        joins = root_kinds(nodes, group[0].partials) == ({"sum"} if add else {"max"})
        joined = union(spread, mesh) if spread and joins else None
        result += group if joined is None else [group[0]._replace(partials=normal(joined))]
    return result


def _with_largest(group: Sequence[Addend]) -> list[PartialRange]:
    """The parts of terms as intervals that repeat with the largest extent; none where they all do,
    or some cannot."""
    parts = [part for t in group for part in t.partials]
    most = max((part.extent for part in parts), default=0)
    if all(p.extent == most for p in parts) or any(most % p.extent for p in parts):
        return []
    return (
        [
            p._replace(start=p.start + n, extent=most)
            for p in parts
            for n in range(0, most, p.extent)
        ]
        if sum(most // p.extent for p in parts) <= MOST_INTERVALS
        else []
    )


def _merge_group(
    nodes: NodeTable, group: list[Addend], mesh: Mapping[str, int], add: bool
) -> list[Addend]:
    width = len(group[0].partials)
    varying = [i for i in range(width) if len({t.partials[i] for t in group}) > 1]
    if not varying:
        factor = group[0].factor * (len(group) if add else 1)
        return [group[0]._replace(factor=factor)]
    if len(varying) > 1:
        return _merge_partials(nodes, group, varying, mesh, add)
    which = varying[0]
    counts: dict[PartialRange, int] = {}
    for addend in group:
        counts[addend.partials[which]] = counts.get(addend.partials[which], 0) + 1
    if len(set(counts.values())) != 1:
        return group
    joined = union(list(counts), mesh)
    if joined is None:
        return group
    kept = [p for i, p in enumerate(group[0].partials) if i != which]
    factor = group[0].factor * (next(iter(counts.values())) if add else 1)
    return [group[0]._replace(factor=factor, partials=normal([*kept, *joined]))]


def _merge_partials(
    nodes: NodeTable,
    group: list[Addend],
    varying: Sequence[int],
    mesh: Mapping[str, int],
    add: bool,
) -> list[Addend]:
    """Terms that differ in several intervals: joined along one of them where all others agree, as
    long as that joins any."""
    for which in varying:
        rows: dict[tuple[PartialRange, ...], list[Addend]] = {}
        for addend in group:
            others = tuple(p for i, p in enumerate(addend.partials) if i != which)
            rows.setdefault(others, []).append(addend)
        addends = [
            addend for row in rows.values() for addend in _merge_group(nodes, row, mesh, add)
        ]
        if len(addends) < len(group):
            return merge_partials(nodes, addends, mesh, add=add)
    return group


def addend_over_axis(
    nodes: NodeTable, addend: Addend, axis: str, extent: int, kind: str, mesh: Mapping[str, int]
) -> Addend:
    """The sum (``kind`` "max": maximum) of a family of views along one mesh axis, as one view.

    Example: ``n3[a0[4]] part #0[<8*tp> +8 of 16]`` over two ranks along ``tp`` is ``n3[a0[4]]``,
    and ``n3[a0[4]]`` (complete on each) is ``2*n3[a0[4]]``.

    Raises `Misaligned` if the views differ in anything but the interval of one partial sum, or if
    those intervals overlap or are no digit of a position.  ``mesh``: extents of the coordinates.
    """
    if axis in nodes[addend.node].coordinates:
        raise Misaligned
    intervals = [a for dim in addend.view.dims for a in dim] + list(addend.view.fixed)
    if any(a.start.coefficient(axis) for a in intervals):
        raise Misaligned
    moving = [p for p in addend.partials if p.start.coefficient(axis)]
    if kind == "sum" and root_kinds(nodes, addend.partials) - {"sum"}:
        raise Misaligned  # partial maxima do not add up
    if not moving:
        return addend if kind == "max" else addend._replace(factor=addend.factor * extent)
    if kind == "max" and (addend.factor < 0 or root_kinds(nodes, addend.partials) != {"max"}):
        raise Misaligned
    if len(moving) > 1:
        raise Misaligned
    kept = [p for p in addend.partials if p is not moving[0]]
    return addend._replace(partials=normal([*kept, *along(moving[0], axis, extent, mesh)]))


def family_sum(nodes: NodeTable, x: Lineage, over: Over, mesh: Mapping[str, int]) -> Lineage:
    """The sum of a family along mesh axes; raises `Misaligned` where it is no sum of views.

    Example: over ``tp`` of extent 2, ``n5[a0[8]] part #3[<8*tp> +8 of 16]`` is the complete sum
    ``n5[a0[8]]``.
    """
    addends = list(x.addends)
    for axis, extent in over:
        addends = [addend_over_axis(nodes, addend, axis, extent, "sum", mesh) for addend in addends]
    return Lineage(x.shape, tuple(collect(merge_partials(nodes, addends, mesh))))
