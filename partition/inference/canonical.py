"""Canonical forms of multilinear definitions: the same sum of products is the same node.

Operands are ordered, labels renumbered by first use, and labels that always occur together are
merged, so that the form does not depend on how a plan splits and joins dimensions on its way.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import permutations, product
from typing import NamedTuple

from shardproof.engine.algebra.affine import Affine
from shardproof.engine.lineage.expressions import Operand
from shardproof.engine.lineage.lineage import StridedInterval

#: An operand before labels are final: node, (interval, label) pairs, fixed intervals, a weight that
#: orders operands of the same node (the factor of a sum; empty for products).
Draft = tuple[
    int, tuple[tuple[StridedInterval, int], ...], tuple[StridedInterval, ...], tuple[object, ...]
]


#: Operands that differ in nothing but their labels, of which every order is compared.
MOST_PERMUTED = 4


class Canonical(NamedTuple):
    """A definition in canonical form. ``operands`` in canonical order, ``order[i]``: the draft that
    operand i came from; ``labels``: old label -> (new label, stride, extent) inside it: several old
    labels may have been merged into one new label, outermost first; ``outputs``: new output labels,
    ascending.

    Example: of ``x[b:4, i:8] w[o:6, i:8]`` with labels 5, 7 and 6, ``labels`` is
    ``{5: (0, 1, 4), 6: (2, 1, 6), 7: (1, 1, 8)}`` and ``outputs`` ``(0, 2)``.
    """

    operands: tuple[Operand, ...]
    order: tuple[int, ...]
    labels: dict[int, tuple[int, int, int]]
    outputs: tuple[int, ...]
    extents: dict[int, int]


def _fixed(intervals: Sequence[StridedInterval]) -> tuple[tuple[int, int, int, Affine], ...]:
    ranked = sorted(intervals, key=lambda a: (a.axis, a.stride, a.extent, str(a.start)))
    return tuple((a.axis, a.stride, a.extent, a.start) for a in ranked)


def _outline(draft: Draft) -> tuple[object, ...]:
    """What an operand is, before labels: comparable, node number first."""
    node, intervals, fixed, weight = draft
    shape = sorted((a.axis, -a.stride, a.extent) for a, _ in intervals)
    positions = sorted((a.axis, a.stride, a.extent, str(a.start)) for a in fixed)
    return (node, tuple(shape), tuple(positions), weight)


def _alike(drafts: Sequence[Draft]) -> list[list[int]]:
    """The drafts in the order of their outlines, those of one outline together."""
    outlines = [_outline(d) for d in drafts]
    groups: list[list[int]] = []
    for i in sorted(range(len(drafts)), key=lambda i: outlines[i]):
        if groups and outlines[groups[-1][0]] == outlines[i]:
            groups[-1].append(i)
        else:
            groups.append([i])
    return groups


class _Order(NamedTuple):
    """An order of the first drafts, the numbers that it gives their labels, and their intervals."""

    drafts: tuple[int, ...]
    numbers: dict[int, int]
    intervals: tuple[tuple[tuple[int, int, int, int], ...], ...]

    def of(self, labels: frozenset[int], *, named: bool = True) -> tuple[tuple[int, int], ...]:
        """The numbers of some of the labels, with the labels where ``named``."""
        own = ((x if named else 0, n) for x, n in self.numbers.items() if x in labels)
        return tuple(sorted(own))

    def then(
        self, own: Sequence[int], ranked: Sequence[Sequence[tuple[StridedInterval, int]]]
    ) -> _Order:
        """This order with more drafts behind it; ``ranked``: labelled intervals of each draft."""
        numbers = dict(self.numbers)
        made = [
            tuple(
                (a.axis, a.stride, a.extent, numbers.setdefault(label, len(numbers)))
                for a, label in ranked[i]
            )
            for i in own
        ]
        return _Order((*self.drafts, *own), numbers, (*self.intervals, *made))


def _orders(drafts: Sequence[Draft], outputs: frozenset[int]) -> list[_Order]:
    """The orders of the drafts, by their outlines, of which the intervals come first.  Drafts of
    one outline are put in every order, group by group: of what is the same so far, and numbers
    outputs and the labels that are still to come in the same way, the rest is the same too."""
    ranked = [sorted(d[1], key=lambda p: (p[0].axis, -p[0].stride)) for d in drafts]
    orders = [_Order((), {}, ())]
    groups = _alike(drafts)
    for k, group in enumerate(groups):
        left = frozenset(x for later in groups[k + 1 :] for i in later for _, x in drafts[i][1])
        choices = list(permutations(group)) if len(group) <= MOST_PERMUTED else [tuple(group)]
        first: dict[tuple[object, ...], _Order] = {}
        least: tuple[tuple[tuple[int, int, int, int], ...], ...] | None = None
        for order, own in product(orders, choices):
            longer = order.then(own, ranked)
            if least is None or longer.intervals < least:
                least = longer.intervals
                first.clear()
            if longer.intervals == least:
                first.setdefault((longer.of(left), longer.of(outputs - left, named=False)), longer)
        orders = list(first.values())
    return orders


def _coarsen(
    drafts: Sequence[Draft], outputs: frozenset[int]
) -> tuple[list[Draft], dict[int, tuple[int, int, int]]]:
    """Merge label pairs that are outer and inner part of one axis wherever they occur."""
    where: dict[int, tuple[int, int, int]] = {}
    current = [{label: interval for interval, label in d[1]} for d in drafts]
    changed = True
    merged: dict[int, list[tuple[int, int]]] = {}
    while changed:
        changed = False
        holders: dict[int, list[int]] = {}
        for i, intervals in enumerate(current):
            for label in intervals:
                holders.setdefault(label, []).append(i)
        for outer, inner in _candidates(current):
            if holders[outer] != holders[inner] or (outer in outputs) != (inner in outputs):
                continue
            if not all(_adjacent(current[i][outer], current[i][inner]) for i in holders[outer]):
                continue
            extent = current[holders[outer][0]][inner].extent
            for i in holders[outer]:
                a, b = current[i].pop(outer), current[i][inner]
                current[i][inner] = b._replace(extent=a.extent * b.extent)
            members = merged.pop(inner, [(inner, 1)])
            merged[inner] = [
                (label, stride * extent) for label, stride in merged.pop(outer, [(outer, 1)])
            ] + members
            changed = True
            break
    for target, members in merged.items():
        for label, stride in members:
            where[label] = (target, stride, 0)
    result: list[Draft] = [
        (d[0], tuple((interval, label) for label, interval in intervals.items()), d[2], d[3])
        for d, intervals in zip(drafts, current, strict=True)
    ]
    return result, where


def _adjacent(outer: StridedInterval, inner: StridedInterval) -> bool:
    return (
        outer.axis == inner.axis
        and inner.extent > 0
        and outer.extent > 0
        and outer.stride == inner.stride * inner.extent
    )


def _candidates(current: Sequence[dict[int, StridedInterval]]) -> list[tuple[int, int]]:
    candidates: list[tuple[int, int]] = []
    for intervals in current:
        items = list(intervals.items())
        for outer, a in items:
            for inner, b in items:
                if outer != inner and _adjacent(a, b) and (outer, inner) not in candidates:
                    candidates.append((outer, inner))
    return candidates


def canonical(
    drafts: Sequence[Draft], outputs: frozenset[int], extents: dict[int, int]
) -> Canonical:
    """The canonical form of a definition with the given operands and output labels.

    Example: ``x[b, i] w[o, i]`` and ``w[p, j] x[c, j]`` have one form, and are one node.

    ``extents``: full extent of every label.
    """
    strides: dict[int, tuple[int, int, int]] = {}
    original = {label: extents[label] for label in extents}
    if any(len({a.axis for a, _ in d[1]}) < len(d[1]) for d in drafts):
        drafts, strides = _coarsen(drafts, outputs)
        extents = dict(extents)
        for _, intervals, _, _ in drafts:
            for interval, label in intervals:
                if label in {t for t, _, _ in strides.values()}:
                    extents[label] = interval.extent

    def numbered(order: _Order) -> tuple[int, ...]:
        return tuple(sorted(number for x, number in order.numbers.items() if x in outputs))

    best = min(_orders(drafts, outputs), key=numbered)
    order, numbers = best.drafts, best.numbers
    result = tuple(
        Operand(drafts[i][0], own, _fixed(drafts[i][2]))
        for i, own in zip(order, best.intervals, strict=True)
    )
    labels: dict[int, tuple[int, int, int]] = {}
    for label in original:
        target, stride, _ = strides.get(label, (label, 1, 0))
        if target in numbers:
            labels[label] = (numbers[target], stride, original[label])
    return Canonical(
        operands=result,
        order=order,
        labels=labels,
        outputs=numbered(best),
        extents={numbers[x]: extents[x] for x in numbers},
    )
