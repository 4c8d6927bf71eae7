"""The laws of `engine.ops.laws` over lineages: the node that a value is written as.

``1 / exp(x)`` is a view of the node ``exp(-x)``, ``1 / sqrt(x)`` one of ``rsqrt(x)``; a product in
which ``exp(x)`` meets ``exp(-x)``, or ``x`` meets ``1 / x``, is the product of what is left of it,
also where they meet in products of products.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from fractions import Fraction
from functools import reduce
from math import prod
from operator import and_
from typing import NamedTuple

from shardproof.engine.lineage.expressions import Einsum, Operand, Unary
from shardproof.engine.lineage.lineage import ABSOLUTE, BROADCAST, Addend, StridedInterval, View
from shardproof.engine.lineage.nodes import NodeTable
from shardproof.engine.lineage.views import constant_interval, merge
from shardproof.engine.ops.laws import (
    NAMED_POWERS,
    exponent_of,
    of_constant,
    power,
    power_of_power,
    settled,
)

#: Products of products that are looked into, one inside the other.
DEEPEST = 4


class Factor(NamedTuple):
    """A view of a node in a product: its intervals with the labels that they run along.

    Example: ``Factor(n5[...], ((a0[4], 0), (a1[8], 1)))`` in a product with the labels 0 and 1.
    """

    addend: Addend
    intervals: tuple[tuple[StridedInterval, int], ...]


def rewritten(table: NodeTable, function: str, addend: Addend) -> Addend | None:
    """A function of an addend, where a law says what it is: ``1 / c``, ``1 / exp(x)``.

    Example: ``inv`` of ``exp(x)`` is the node ``exp(-x)``, ``inv`` of the number 4 is 1/4; ``exp``
    of ``x`` is None.
    """
    if addend.node == table.one:
        value = of_constant(function, addend.factor)
        return None if value is None else addend._replace(factor=value)
    node, exponential = table[addend.node], _exponential(table, addend.node)
    if not addend.factor or not isinstance(node.definition, Unary):
        return None
    if function != "inv" or exponential is None:
        return _one_power(table, function, addend, node.definition)
    if table.is_masked(exponential.node):
        return None
    opposite = table.define(_opposite(exponential), node.extents, node.coordinates)
    return Addend(1 / addend.factor, opposite, addend.view)


def _one_power(table: NodeTable, function: str, addend: Addend, unary: Unary) -> Addend | None:
    """A power of a power."""
    inner, outer = exponent_of(unary.function), exponent_of(function)
    if inner is None or outer is None:
        return None
    power = power_of_power(addend.factor, inner, outer)
    if power is None:
        return None
    node, factor = _raised(table, unary.factor, unary.node, power[1])
    return Addend(power[0] * factor, node, addend.view)


def _raised(
    table: NodeTable, scale: Fraction, operand: int, exponent: Fraction
) -> tuple[int, Fraction]:
    """The node of a power of ``scale`` times a node, and its factor."""
    if exponent == 1:
        return operand, scale
    node = table[operand]
    factor = 1 / scale if exponent == -1 else Fraction(1)
    raised = Unary(power(exponent), scale * factor, operand)
    return table.define(raised, node.extents, node.coordinates), factor


def factors_of(table: NodeTable, factor: Factor) -> list[Factor]:
    """The factors of a product without sums, in the labels of the whole; itself if it is none.

    Example: of the node ``n18 = n1[a, b] n5[a, b]``, the factors ``n1`` and ``n5``.
    """
    return _flat(table, factor, DEEPEST)


def factor_views(table: NodeTable, addend: Addend) -> list[Addend]:
    """The factors of an addend, each as a view of the same dimensions; itself if it is no product.
    Its own factor is left out.

    Example: ``3*n18[a0[4], a1[8]]`` gives ``n1[a0[4], a1[8]]`` and ``n5[a0[4], a1[8]]``.
    """
    atoms = [interval for dim in addend.view.dims for interval in dim]
    labels = [n for n, a in enumerate(atoms) if a.axis != BROADCAST]
    whole = Factor(addend._replace(factor=Fraction(1)), tuple((atoms[n], n) for n in labels))
    views = []
    for one in factors_of(table, whole):
        own = {label: interval for interval, label in one.intervals}
        numbers = iter(range(len(atoms)))
        dims = tuple(
            merge([own.get(next(numbers)) or constant_interval(a.size) for a in dim])
            for dim in addend.view.dims
        )
        views.append(one.addend._replace(view=View(dims, one.addend.view.fixed)))
    return views


def is_power(table: NodeTable, number: int, known: int) -> bool:
    """Whether a node is an exponential or a reciprocal, and none of the first ``known``.

    Example: of nodes 16 and above, which only the parallel side has, ``n20 = inv(n19)`` is one.
    """
    definition = table[number].definition
    inverse = isinstance(definition, Unary) and definition.function == "inv"
    return is_exponential(table, number, known) or (number >= known and inverse)


def is_exponential(table: NodeTable, number: int, known: int) -> bool:
    """Whether a node is an exponential, and none of the first ``known``.

    Example: of nodes 16 and above, which only the parallel side has, ``n19 = exp(n12)`` is one,
    ``n18`` is not.
    """
    return number >= known and _exponential(table, number) is not None


def common_exponentials(
    table: NodeTable, read: Sequence[Sequence[Addend]], known: int
) -> Counter[Addend]:
    """The exponentials that all products have among their factors, and none of the first ``known``
    nodes, with how often.

    Example: of ``exp(m) x`` and ``exp(m) y`` the one ``exp(m)``.
    """
    each = [Counter(f for f in own if is_exponential(table, f.node, known)) for own in read]
    return reduce(and_, each)


class Left(NamedTuple):
    """What is left of a product: its factor, the addends and their intervals, the dimensions of the
    result, with broadcasts where nothing varies any more, and the labels that are left: those of
    the result, and the extents of all.

    Example: of ``exp(x) exp(-x) x`` the addend ``x`` with its labels; of the sum of
    ``exp(x) exp(-x)`` over eight columns the factor 8 and no addend.
    """

    factor: Fraction
    addends: list[Addend]
    intervals: list[tuple[tuple[StridedInterval, int], ...]]
    dims: list[list[int | StridedInterval]]
    outputs: frozenset[int]
    extents: dict[int, int]

    @property
    def factors(self) -> list[Factor]:
        """The addends with their labels."""
        return [Factor(t, i) for t, i in zip(self.addends, self.intervals, strict=True)]


def left(
    table: NodeTable,
    factor: Fraction,
    factors: Sequence[Factor],
    dims: Sequence[Sequence[int | StridedInterval]],
    outputs: frozenset[int],
    extents: Mapping[int, int],
    intervals: Mapping[int, StridedInterval],
) -> Left | None:
    """What is left of a product where some of its factors cancel; None if none do.  A label that
    is summed and that nothing varies along any more is counted.

    Example: ``exp(x) exp(-x) x`` leaves ``x``; ``exp(x) x`` is None.
    """
    flat = [x for one in factors for x in _flat(table, one, DEEPEST)]
    if not any(_may_cancel(table, x.addend.node) for x in flat):
        return None
    # No product is opened further than it has to be: its claim reads what is opened.
    for depth in range(DEEPEST + 1):
        every = [x for one in factors for x in _flat(table, one, depth)]
        scale, kept = _without_powers(table, _without_exponentials(table, every))
        if len(kept) < len(every):
            kept = _folded(table, factors, depth, kept)
            break
    else:
        return None
    factor *= scale
    used = frozenset(label for x in kept for _, label in x.intervals)
    spread = [
        [
            x
            if isinstance(x, StridedInterval) or x in used
            else constant_interval(intervals[x].size)
            for x in dim
        ]
        for dim in dims
    ]
    factor *= prod(intervals[label].size for label in extents.keys() - used - outputs)
    kept_extents = {label: n for label, n in extents.items() if label in used}
    addends, atoms = [x.addend for x in kept], [x.intervals for x in kept]
    return Left(factor, addends, atoms, spread, outputs & used, kept_extents)


def outside(
    table: NodeTable, factors: Sequence[Factor], outputs: frozenset[int], known: int
) -> tuple[list[Factor], list[Factor]] | None:
    """The factors of a product under a sum, and exponentials and reciprocals that the sum does not
    run along; None where there are none.  ``known``: nodes below are the single-device program's,
    which stay.

    Example: of ``x[b, i] exp(m)[b]`` summed over ``i``, ``x`` and, outside of the sum, ``exp(m)``.
    """
    flat = [x for one in factors for x in _flat(table, one, DEEPEST)]
    out = [
        x
        for x in flat
        if is_power(table, x.addend.node, known)
        and outputs.issuperset(label for _, label in x.intervals)
    ]
    if not out or len(out) == len(flat):
        return None
    return _folded(table, factors, DEEPEST, [x for x in flat if x not in out]), out


def _folded(
    table: NodeTable, factors: Sequence[Factor], depth: int, kept: Sequence[Factor]
) -> list[Factor]:
    """What is kept of the factors of products, where these are opened no further than they have to
    be: a product of which all is kept is one factor, as it was."""
    rest = Counter(kept)

    def matching(one: Factor, depth: int) -> list[Factor]:
        own = Counter(_flat(table, one, depth))
        if own <= rest:
            rest.subtract(own)
            return [one]
        inside = _flat(table, one, 1) if depth else [one]
        if inside == [one]:
            return []
        return [x for part in inside for x in matching(part, depth - 1)]

    whole = [x for one in factors for x in matching(one, depth)]
    return [*whole, *(+rest).elements()]


def _may_cancel(table: NodeTable, number: int) -> bool:
    return _exponential(table, number) is not None or _power(table, number) is not None


def _without_exponentials(table: NodeTable, flat: Sequence[Factor]) -> list[Factor]:
    kept: list[Factor] = []
    for one in flat:
        other = next((x for x in kept if _cancel(table, x, one)), None)
        if other is None:
            kept.append(one)
        else:
            kept.remove(other)
    return kept


class _Power(NamedTuple):
    """A node is ``scale`` times node ``operand``, to a power."""

    exponent: Fraction
    scale: Fraction
    operand: int


def _power(table: NodeTable, number: int) -> _Power | None:
    """What power a node is, of those that meet others (square roots and reciprocals)."""
    definition = table[number].definition
    if not isinstance(definition, Unary):
        return None
    exponent = exponent_of(definition.function)
    if exponent is None or definition.function not in NAMED_POWERS.values():
        return None
    return _Power(exponent, definition.factor, definition.node)


def _without_powers(table: NodeTable, factors: Sequence[Factor]) -> tuple[Fraction, list[Factor]]:
    """A product in which powers of one base that go up and down are one, and its factor."""
    for first in factors:
        base = _power(table, first.addend.node)
        if base is None or first.addend.partials:
            continue
        own: dict[int, Fraction] = {}
        for i, x in enumerate(factors):
            exponent = _exponent(table, x, base, first)
            if exponent is not None:
                own[i] = exponent
        left = settled(list(own.values()))
        if left is None:
            continue
        plain = sum(factors[i].addend.node == base.operand for i in own)
        kept = [x for i, x in enumerate(factors) if i not in own]
        scale = base.scale**-plain
        for exponent in left:
            node, share = _raised(table, base.scale, base.operand, exponent)
            scale *= share
            kept.append(first._replace(addend=first.addend._replace(factor=Fraction(1), node=node)))
        share, kept = _without_powers(table, kept)
        return scale * share, kept
    return Fraction(1), list(factors)


def _exponent(table: NodeTable, one: Factor, base: _Power, like: Factor) -> Fraction | None:
    """Which power of a base a factor is, if it is one, read as another is."""
    if one.addend.partials or one.addend.view.fixed != like.addend.view.fixed:
        return None
    if sorted(one.intervals) != sorted(like.intervals):
        return None
    if one.addend.node == base.operand:
        return Fraction(1)
    power = _power(table, one.addend.node)
    if power is None or (power.scale, power.operand) != (base.scale, base.operand):
        return None
    return power.exponent


def _exponential(table: NodeTable, number: int) -> Unary | None:
    """The definition of a node that is an exponential."""
    definition = table[number].definition
    return definition if isinstance(definition, Unary) and definition.function == "exp" else None


def _opposite(power: Unary) -> Unary:
    """``exp(-x)`` for ``exp(x)``."""
    return Unary("exp", -power.factor, power.node)


def _cancel(table: NodeTable, one: Factor, other: Factor) -> bool:
    """Whether two factors are ``exp(x)`` and ``exp(-x)``, read alike."""
    power = _exponential(table, one.addend.node)
    if power is None or table[other.addend.node].definition != _opposite(power):
        return False
    return (
        not table.is_masked(power.node)
        and not one.addend.partials
        and not other.addend.partials
        and one.addend.view.fixed == other.addend.view.fixed
        and sorted(one.intervals) == sorted(other.intervals)
    )


def _flat(table: NodeTable, factor: Factor, depth: int) -> list[Factor]:
    """The factors of a product without sums, in the labels of the whole; itself if it is none."""
    product = table[factor.addend.node].definition
    if not isinstance(product, Einsum) or not depth:
        return [factor]
    parts = [table.reductions[partial.reduction] for partial in factor.addend.partials]
    if any(part.kind != "via" for part in parts):
        return [factor]
    extents = table[factor.addend.node].extents
    whole = {label: (axis, extents[axis]) for axis, label in enumerate(product.outputs)}
    if any(not _reads(o, whole) for o in product.operands):
        return [factor]
    flat = []
    for place, o in enumerate(product.operands):
        intervals: list[tuple[StridedInterval, int]] = []
        fixed = [StridedInterval(*read, 1) for read in o.fixed]
        for axis, stride, _, name in o.intervals:
            at = whole[name][0]
            intervals += [
                (_inside(interval, axis, stride), label)
                for interval, label in factor.intervals
                if interval.axis == at
            ]
            fixed += [_inside(a, axis, stride) for a in factor.addend.view.fixed if a.axis == at]
        own = tuple(
            partial._replace(reduction=part.inner)
            for part, partial in zip(parts, factor.addend.partials, strict=True)
            if part.where == place
        )
        addend = Addend(Fraction(1), o.node, View((), tuple(sorted(fixed))), own)
        flat += _flat(table, Factor(addend, tuple(intervals)), depth - 1)
    return flat


def _inside(interval: StridedInterval, axis: int, stride: int) -> StridedInterval:
    """What an interval of a label is of an operand's axis, along which the label runs in steps."""
    return interval._replace(axis=axis, stride=interval.stride * stride)


def _reads(operand: Operand, whole: Mapping[int, tuple[int, int]]) -> bool:
    """Whether an operand is read along labels that the product has, as far as they run there."""
    return all(
        name in whole and extent == whole[name][1] and (stride == 1 or extent != ABSOLUTE)
        for _, stride, extent, name in operand.intervals
    )
