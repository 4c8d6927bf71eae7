"""Sums opened: the addends of a view of a sum, and what cancels among them.

``1 - (1 - x)`` is the sum of 1 and of a view of the node ``1 - x``.  Opened, that view is 1 and
``-x``; the ones cancel, and what is left is a view of ``x``.  So opened are also the exponents of
sums that logarithms are added to, and the exponentials in products of which a logarithm is taken.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from shardproof.engine.algebra.affine import ZERO
from shardproof.engine.lineage.expressions import Combine, Unary
from shardproof.engine.lineage.floating import settled
from shardproof.engine.lineage.lineage import (
    ABSOLUTE,
    BROADCAST,
    Addend,
    StridedInterval,
    View,
)
from shardproof.engine.lineage.nodes import NodeTable
from shardproof.engine.lineage.views import constant_interval, merge
from shardproof.partition.inference.laws import factor_views


def opened(nodes: NodeTable, addend: Addend) -> list[Addend]:
    """A view of a sum as the views of its operands (none: it is no sum, or one that reads an
    operand otherwise than along whole axes).

    Example: a view of ``1 - x`` is ``n0[_[4], _[8]]``, the number 1, and ``-1*n1[a0[4], a1[8]]``.
    """
    node = nodes[addend.node]
    total = node.definition
    if not isinstance(total, Combine) or node.coordinates or addend.partials:
        return []
    outputs = total.outputs
    views = []
    for factor, operand in zip(total.factors, total.operands, strict=True):
        axes = {
            outputs.index(label): axis
            for axis, stride, extent, label in operand.intervals
            if (stride, extent) == (1, node.extents[outputs.index(label)])
        }
        if operand.fixed or len(axes) < len(operand.intervals):
            return []
        dims = tuple(merge(_operand_intervals(dim, axes)) for dim in addend.view.dims)
        fixed = tuple(a for a in _operand_intervals(addend.view.fixed, axes) if a.axis != BROADCAST)
        own = Addend(addend.factor * factor, operand.node, View(dims, fixed), places=addend.places)
        views.append(own)
    return views


def _operand_intervals(
    intervals: Iterable[StridedInterval], axes: Mapping[int, int]
) -> tuple[StridedInterval, ...]:
    """Intervals of a sum's axes as those of an operand, which may not vary along some."""
    return tuple(
        constant_interval(a.size) if axes.get(a.axis) is None else a._replace(axis=axes[a.axis])
        for a in intervals
    )


def cancelled(nodes: NodeTable, addends: Sequence[Addend]) -> list[Addend] | None:
    """The addends of a sum without one that another, opened, has with the opposite sign; None where
    nothing cancels.  Minus infinity cancels nothing.

    Example: of 1 and ``-1 + x``, ``x`` is left; of ``x`` and ``y``, None.
    """
    for place, addend in enumerate(addends):
        total = nodes[addend.node].definition
        if not isinstance(total, Combine):
            continue
        read = {operand.node for operand in total.operands}
        for other_place, other in enumerate(addends):
            if other_place == place or other.node not in read or nodes.is_masked(other.node):
                continue
            parts = opened(nodes, addend)
            against = next((n for n, p in enumerate(parts) if _opposite(nodes, p, other)), None)
            if against is not None:
                kept = [t for n, t in enumerate(addends) if n not in (place, other_place)]
                return [*kept, *parts[:against], *parts[against + 1 :]]
    return None


def _opposite(nodes: NodeTable, one: Addend, other: Addend) -> bool:
    if one.partials or other.partials or one.places != other.places:
        return False
    alike = one.node == nodes.one or settled(one.view) == settled(other.view)
    return alike and (one.node, one.factor) == (other.node, -other.factor)


def logarithms(
    nodes: NodeTable, addend: Addend
) -> tuple[tuple[int, ...], list[Addend], list[tuple[Addend, bool]]] | None:
    """The exponent of an exponential, a view of a node: the node's extents, the addends that it is
    without its logarithms, and what these are taken of, each with whether it is added; all of them
    read along all axes of the node.  None where it is no such sum.

    Example: of ``x + log(x)`` of shape [4, 8], the addend ``x`` and that the logarithm of ``x`` is
    added.
    """
    node = nodes[addend.node]
    shape = node.extents
    if ABSOLUTE in shape:
        return None
    axes = tuple((StridedInterval(i, 1, n, ZERO, n),) for i, n in enumerate(shape))
    whole = Addend(addend.factor, addend.node, View(axes))
    rest: list[Addend] = []
    bases: list[tuple[Addend, bool]] = []
    for part in _with_logarithms(nodes, opened(nodes, whole) or [whole]):
        inner = nodes[part.node].definition
        if isinstance(inner, Unary) and inner.function == "log" and abs(part.factor) == 1:
            bases.append((part._replace(factor=inner.factor, node=inner.node), part.factor > 0))
        else:
            rest.append(part)
    return (shape, rest, bases) if bases else None


def _with_logarithms(nodes: NodeTable, addends: Iterable[Addend]) -> Iterator[Addend]:
    """Addends, those that are sums with a logarithm as what these add up: in ``x - (m + log(s))``
    too a logarithm is subtracted."""
    for addend in addends:
        parts = opened(nodes, addend)
        inner = [nodes[part.node].definition for part in parts]
        if any(isinstance(d, Unary) and d.function == "log" for d in inner):
            yield from parts
        else:
            yield addend


def exponents_of(nodes: NodeTable, addend: Addend) -> tuple[list[Addend], list[Addend]]:
    """A view of a product as the exponents of the exponentials among its factors, and its other
    factors, all of them as views of the same dimensions.  An exponent that may be minus infinity
    stays where it is.

    Example: of ``exp(x) / S`` of shape [4, 8], ``x[a0[4], a1[8]]`` and ``inv(S)[a0[4], _[8]]``.
    """
    exponents, rest = [], []
    for one in factor_views(nodes, addend):
        inner = nodes[one.node].definition
        power = isinstance(inner, Unary) and inner.function == "exp"
        if isinstance(inner, Unary) and power and not nodes.is_masked(inner.node):
            exponents.append(one._replace(factor=inner.factor, node=inner.node))
        elif one.node != nodes.one:
            rest.append(one)
    return exponents, rest


def reciprocal_of(nodes: NodeTable, addend: Addend) -> Addend | None:
    """What a view is one divided by, as a view of the same entries; None if it is no reciprocal.

    Example: ``S[a0[4]]`` for ``inv(S)[a0[4]]``.
    """
    inner = nodes[addend.node].definition
    if not isinstance(inner, Unary) or inner.function != "inv" or addend.factor != 1:
        return None
    return addend._replace(factor=inner.factor, node=inner.node)
