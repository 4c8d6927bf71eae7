"""Whether two lineages are one, however sums and positions of one of many are written.

A sum is a node or its addends; the sum of all entries of a sum is the sum of the sums; a number
that is a product of sums is the sum of the products; a position of one of many may be in a
dimension or in none.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from fractions import Fraction
from math import prod
from typing import Final, TypeAlias

from shardproof.engine.lineage.expressions import Combine, Einsum, One, Operand
from shardproof.engine.lineage.floating import settled
from shardproof.engine.lineage.lineage import BROADCAST, Addend, Lineage, StridedInterval, View
from shardproof.engine.lineage.nodes import Node, NodeTable
from shardproof.engine.lineage.sums import collect

#: Products that a number is written as.
MOST_PRODUCTS: Final = 64

#: Products of numbers, each by how often it has which factors, and how often it is added.
Polynomial: TypeAlias = dict[frozenset[tuple[Operand, int]], Fraction]


def placed_alike(have: Lineage, want: Lineage) -> bool:
    """Whether two lineages are equal, wherever positions of one of many are put.

    Example: ``[4] = n5[a0[3 +1 of 8] x a1[4]]`` and ``[4] = n5[a1[4]] at a0[3 +1 of 8]`` are equal.
    """
    if have.shape != want.shape or len(have.addends) != len(want.addends):
        return False
    return have == want or all(
        a._replace(view=settled(a.view)) == b._replace(view=settled(b.view))
        for a, b in zip(have.addends, want.addends, strict=True)
    )


def same_number(nodes: NodeTable, have: Lineage | None, want: Lineage | None) -> bool:
    """Whether two lineages of one element are equal, however its dimensions are written.

    Example: ``[1] = n12[1]`` and ``[] = n12[]`` are.
    """
    if have is None or want is None or any(n != 1 for n in (*have.shape, *want.shape)):
        return False
    return same_addends(nodes, _scalar(have), _scalar(want))


def _scalar(x: Lineage) -> Lineage:
    """One element without dimensions, where these say nothing."""
    if any(dim for addend in x.addends for dim in addend.view.dims):
        return x
    return Lineage((), tuple(t._replace(view=t.view._replace(dims=())) for t in x.addends))


def same_addends(nodes: NodeTable, have: Lineage, want: Lineage) -> bool:
    """Whether two lineages are one, whether a sum is a node or its addends, and wherever positions
    of one of many are put.

    Example: ``[4] = n11[a0[4]]``, where ``n11`` is ``sum(n9[a:4], n10[a:4] -> a)``, and
    ``[4] = n9[a0[4]] + n10[a0[4]]``.
    """
    left, right = (
        collect([t._replace(view=settled(t.view)) for t in _unfolded(nodes, x.addends)])
        for x in (have, want)
    )
    return have.shape == want.shape and (
        set(left) == set(right) or (not have.shape and _same_polynomial(nodes, left, right))
    )


def _same_polynomial(nodes: NodeTable, have: list[Addend], want: list[Addend]) -> bool:
    """Whether two numbers are one when products of sums are multiplied out.

    Example: ``n9[] + n10[]`` and ``n12[]``, where ``n12`` is ``n11 n3`` and ``n11`` the sum of
    ``n7`` and ``n8``, and ``n9`` and ``n10`` are ``n7 n3`` and ``n8 n3``.
    """
    try:
        return _polynomial(nodes, have) == _polynomial(nodes, want)
    except _NoPolynomial:
        return False


class _NoPolynomial(Exception):
    """A number that is not whole, may be minus infinity, or has too many products."""


def _polynomial(nodes: NodeTable, addends: list[Addend]) -> Polynomial:
    total: Polynomial = {}
    known: dict[int, Polynomial] = {}
    for addend in addends:
        if addend.partials or addend.places or addend.view.fixed:
            raise _NoPolynomial
        _add(total, addend.factor, _multiplied(nodes, Operand(addend.node, ()), known))
    return {factors: often for factors, often in total.items() if often}


def _multiplied(nodes: NodeTable, operand: Operand, known: dict[int, Polynomial]) -> Polynomial:
    """A number that a definition reads, multiplied out; ``known``: nodes that are numbers."""
    node = nodes[operand.node]
    if operand.node in known:
        return known[operand.node]
    if nodes.is_masked(operand.node):
        raise _NoPolynomial
    number = not node.extents and not node.coordinates
    total: Polynomial = {}
    match node.definition:
        case One():
            return {frozenset(): Fraction(1)}
        case Combine(factors=factors, operands=operands) if number:
            for factor, inner in zip(factors, operands, strict=True):
                _add(total, factor, _multiplied(nodes, inner, known))
        case Einsum(operands=operands) if number and not any(o.intervals for o in operands):
            total[frozenset()] = Fraction(1)
            for inner in operands:
                total = _product(total, _multiplied(nodes, inner, known))
        case _:
            return {frozenset({(operand, 1)}): Fraction(1)}
    known[operand.node] = total
    return total


def _product(one: Polynomial, other: Polynomial) -> Polynomial:
    total: Polynomial = {}
    for left, often in one.items():
        for right, more in other.items():
            both = Counter(dict(left)) + Counter(dict(right))
            _add(total, often, {frozenset(both.items()): more})
    return total


def _add(total: Polynomial, factor: Fraction, other: Polynomial) -> None:
    for factors, often in other.items():
        total[factors] = total.get(factors, Fraction(0)) + factor * often
    if len(total) > MOST_PRODUCTS:
        raise _NoPolynomial


def _unfolded(nodes: NodeTable, addends: Iterable[Addend]) -> Iterator[Addend]:
    """Terms with sums in place of the nodes that are defined as these."""
    for addend in addends:
        inner = _operands(nodes[addend.node], addend) or _summands(nodes, addend)
        if inner:
            yield from _unfolded(nodes, inner)
        else:
            yield addend


def sums_in(nodes: NodeTable, addends: Iterable[Addend]) -> Iterator[int]:
    """The nodes of terms, and of the terms in sums that these are defined as.

    Example: of ``n11[a0[4]]``, where ``n11`` is ``sum(n9[a:4], n10[a:4] -> a)``, 11, 9 and 10.
    """
    for addend in addends:
        yield addend.node
        yield from sums_in(nodes, _operands(nodes[addend.node], addend) or _summands(nodes, addend))


def _operands(node: Node, addend: Addend) -> list[Addend]:
    """A view of a sum as the views of its operands (none: it is no sum, or one whose operands do
    not have its axes as they are)."""
    total = node.definition
    if not isinstance(total, Combine) or node.coordinates or addend.partials:
        return []
    labels = total.outputs
    views = []
    for factor, operand in zip(total.factors, total.operands, strict=True):
        axes = {label: axis for axis, _, _, label in operand.intervals}
        plain = [
            (stride, extent) == (1, node.extents[labels.index(label)])
            for _, stride, extent, label in operand.intervals
        ]
        own = {axis for axis, _, _, _ in operand.intervals}
        if operand.fixed or not all(plain) or not len(own) == len(axes) == len(labels):
            return []
        layout = addend.view

        def relabelled(
            intervals: Iterable[StridedInterval], axes: Mapping[int, int] = axes
        ) -> tuple[StridedInterval, ...]:
            return tuple(
                a if a.axis == BROADCAST else a._replace(axis=axes[labels[a.axis]])
                for a in intervals
            )

        view = View(tuple(relabelled(dim) for dim in layout.dims), relabelled(layout.fixed))
        views.append(Addend(addend.factor * factor, operand.node, view, places=addend.places))
    return views


def _summands(nodes: NodeTable, addend: Addend) -> list[Addend]:
    """The sum of all entries of a sum as the sums of what its operands read (none: it is no such
    sum, or one that is summed nowhere)."""
    total = nodes[addend.node].definition
    if (
        not isinstance(total, Einsum)
        or len(total.operands) != 1
        or total.outputs
        or addend.partials
    ):
        return []
    sums = _sums_of(nodes, total.operands[0]) or []
    return [addend._replace(factor=addend.factor * factor, node=n) for factor, n in sums]


def _sums_of(nodes: NodeTable, read: Operand) -> list[tuple[Fraction, int]] | None:
    """All entries of a sum, added up, as numbers and how often each is added; None: it is no sum
    that is read altogether, or one that is summed nowhere.

    What an operand does not vary along is added as often as there are positions.
    """
    each = nodes[read.node]
    inner = each.definition
    if not isinstance(inner, Combine) or each.coordinates or nodes.is_masked(read.node):
        return None
    if not _reads_all(nodes, read):
        return None
    sums: list[tuple[Fraction, int]] = []
    for factor, operand in zip(inner.factors, inner.operands, strict=True):
        number = _sum_of(nodes, operand)
        own = _sums_of(nodes, operand) if number is None else [(Fraction(1), number)]
        if own is None or len(sums) + len(own) > MOST_PRODUCTS:
            return None
        varies = {label for *_, label in operand.intervals}
        pairs = zip(inner.outputs, each.extents, strict=True)
        times = factor * prod(extent for label, extent in pairs if label not in varies)
        sums += [(times * often, n) for often, n in own]
    return sums


def _sum_of(nodes: NodeTable, operand: Operand) -> int | None:
    """The number that is the sum of all entries that an operand reads, which may be sums over other
    labels themselves; None: it is no node."""
    labels: dict[int, int] = {}
    read = tuple(
        (axis, stride, extent, labels.setdefault(label, len(labels)))
        for axis, stride, extent, label in operand.intervals
    )
    number = nodes.find(Einsum((operand._replace(intervals=read),), ()))
    inner = nodes[operand.node]
    if number is not None or inner.coordinates or not isinstance(inner.definition, Einsum):
        return number
    return nodes.find(Einsum(inner.definition.operands, ())) if _reads_all(nodes, operand) else None


def _reads_all(nodes: NodeTable, operand: Operand) -> bool:
    """Whether an operand reads every entry of its node once."""
    labels = {label for *_, label in operand.intervals}
    read = sorted(interval[:3] for interval in operand.intervals)
    every = [interval[:3] for interval in _all_of(nodes, operand.node).intervals]
    return read == every and not operand.fixed and len(labels) == len(read)


def _all_of(nodes: NodeTable, number: int) -> Operand:
    """How the sum of all entries of a node reads it."""
    extents = nodes[number].extents
    return Operand(number, tuple((axis, 1, n, axis) for axis, n in enumerate(extents)))
