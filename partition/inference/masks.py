"""Masks in sums: minus infinity, added twice or multiplied by 2, is no less than it was."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import NamedTuple

from shardproof.engine.errors import Unsupported
from shardproof.engine.lineage.blocks import Block
from shardproof.engine.lineage.expressions import (
    Causal,
    Combine,
    Einsum,
    Operand,
    Order,
    Restrict,
    Unary,
)
from shardproof.engine.lineage.lineage import BROADCAST, Addend, StridedInterval
from shardproof.engine.lineage.nodes import NodeTable
from shardproof.partition.inference.laws import Factor


def unscaled(nodes: NodeTable, addends: Sequence[Addend]) -> Sequence[Addend]:
    """The addends of a sum, masks without a positive factor; raises `Unsupported` for a negative
    one: minus infinity less minus infinity is no number.

    Example: ``s + 2*mask`` is ``s + mask``; ``-1*mask`` is refused.
    """
    masked = [t for t in addends if nodes.is_masked(t.node)]
    if not masked:
        return addends
    if any(t.factor < 0 for t in masked):
        raise Unsupported("the negative of masked entries, which are minus infinity")
    return [
        t._replace(factor=Fraction(1)) if is_mask(nodes, t) and t.factor > 0 else t for t in addends
    ]


def masked_once(nodes: NodeTable, addends: Sequence[Addend]) -> list[Addend]:
    """The addends of a sum without the masks that another of them has already.

    Example: of ``(s + mask) + mask``, where the first is a node of its own, only that node is left.
    """
    return [
        t
        for t in addends
        if not is_mask(nodes, t)
        or t.factor <= 0
        or not any(u.factor > 0 and _has(nodes, u, t) for u in addends if u is not t)
    ]


def is_of_a_table(nodes: NodeTable, addends: Sequence[Addend], owners: Sequence[int]) -> bool:
    """Whether a label of a product is one of a table of positions alone, where something else is a
    factor too: the product has as many positions of it as the table, and no others.

    Example: of the product of ``x[b, i]`` with the order of positions ``[i, j]``, ``j`` is.
    """
    if len(owners) != 1 or not _is_of_positions(nodes, addends[owners[0]].node):
        return False
    return not all(_is_of_positions(nodes, t.node) for t in addends)


def are_positions(nodes: NodeTable, addends: Sequence[Addend], owners: Sequence[int]) -> bool:
    """Whether what has a label says of positions how they lie, and no more: a sum along it counts
    positions.

    Example: of the sum of the order of positions ``[i, j]``, ``j`` is, and of its product with
    ``x[b, j]`` it is not.
    """
    return all(_is_of_positions(nodes, addends[k].node) for k in owners)


def _is_of_positions(nodes: NodeTable, number: int) -> bool:
    """Whether a node says of positions how they lie, or is a product of such."""
    definition = nodes[number].definition
    if isinstance(definition, Einsum):
        return all(_is_of_positions(nodes, o.node) for o in definition.operands)
    if isinstance(definition, Restrict):
        return _is_of_positions(nodes, definition.node)
    return isinstance(definition, Order)


def is_mask(nodes: NodeTable, addend: Addend) -> bool:
    """Whether a view is of a causal mask itself.

    Example: one of ``n10 = causal mask`` is, one of ``n11 = sum(n9, n10)`` is not.
    """
    return isinstance(nodes[addend.node].definition, Causal)


def is_order(nodes: NodeTable, addend: Addend) -> bool:
    """Whether a view is of a causal order itself, which multiplies by 0 or 1.

    Example: one of ``n30 = causal order`` is, one of ``n31 = einsum(n29, n30)`` is not.
    """
    return isinstance(nodes[addend.node].definition, Order)


def _has(nodes: NodeTable, view: Addend, mask: Addend) -> bool:
    """Whether the definition of a viewed node adds this very part of the mask."""
    total = nodes[view.node].definition
    if not isinstance(total, Combine) or mask.view.fixed:
        return False
    return any(
        factor > 0 and read.node == mask.node and _same_partial(view, mask, read, total.outputs)
        for factor, read in zip(total.factors, total.operands, strict=True)
    )


def _same_partial(view: Addend, mask: Addend, read: Operand, outputs: Sequence[int]) -> bool:
    axes = {axis: (outputs.index(label), stride) for axis, stride, _, label in read.intervals}
    if read.fixed or len(axes) < 2:
        return False
    for mine, dim in zip(view.view.dims, mask.view.dims, strict=True):
        varying = [interval for interval in dim if interval.axis != BROADCAST]
        if varying and not (len(mine) == len(dim) == 1 and _reads(mine[0], varying[0], axes)):
            return False
    return True


def _reads(
    interval: StridedInterval, other: StridedInterval, axes: Mapping[int, tuple[int, int]]
) -> bool:
    """Whether an interval of a node runs over what ``other`` does of an operand, each axis of which
    is (axis of the node, stride)."""
    return (
        axes[other.axis] == (interval.axis, 1)
        and (interval.stride, interval.start, interval.size) == (1, other.start, other.size)
        and other.stride == 1
    )


class Seen(NamedTuple):
    """Factors of a product without a mask that another of them has; ``opened``: the definitions
    that show it.

    Example: of the gradient of causal weights times the order of positions, the gradient.
    """

    rest: list[Factor]
    opened: frozenset[int]


def seen_anyway(nodes: NodeTable, factors: Sequence[Factor]) -> Seen | None:
    """Factors without one that is 0 or 1 as a mask says, where another has that mask (None: none
    is without effect).

    Example: of causal weights times the order of positions, the weights alone.
    """
    order, *others = sorted(factors, key=lambda x: not is_order(nodes, x.addend))
    if not is_order(nodes, order.addend):
        return None
    opened = next((by for x in others if (by := masked_by(nodes, x, order))), None)
    return None if opened is None else Seen([x for x in factors if x is not order], opened)


def masked_by(nodes: NodeTable, factor: Factor, order: Factor) -> frozenset[int] | None:
    """The definitions by which a factor of a product is zero wherever a causal mask, read as
    another factor is, says so (None: it is not).

    Example: the weights of a causal attention are, so their gradient need not be masked again.
    """
    read = {interval.axis: (interval, label) for interval, label in order.intervals}
    whole = len(read) == len(order.intervals) == 2
    if not whole or order.addend.view.fixed or factor.addend.partials:
        return None
    axes, apart = [], []
    for axis in (0, 1):
        mine, label = read[axis]
        own = [i for i, other in factor.intervals if other == label]
        if len(own) != 1 or (own[0].stride, mine.stride) != (1, 1):
            return None
        axes.append(own[0].axis)
        apart.append(own[0].start - mine.start)
    if apart[0] != apart[1]:
        return None  # A mask is the same wherever both positions are moved by as much.
    return hidden(nodes, factor.addend.node, axes[0], axes[1])


def hidden(nodes: NodeTable, number: int, query: int, key: int) -> frozenset[int] | None:
    """The definitions by which a node is zero where its index along the axis ``key`` is behind that
    along ``query`` (None: it is not).

    Example: of the exponentials of masked scores, ``hidden(nodes, n14, 1, 2)`` is ``{14}``.
    """
    match nodes[number].definition:
        case Unary(function="exp", factor=factor, node=node):
            if factor > 0 and _is_masked(nodes, node, query, key):
                return frozenset({number})
        case Einsum(operands=operands, outputs=outputs):
            for operand in operands:
                inside = axes_along(operand, outputs, (query, key))
                by = None if inside is None else hidden(nodes, operand.node, *inside)
                if by is not None:
                    return by | {number}
        case Order() | Restrict():
            apart = rows_behind(nodes, number)
            if (query, key) == (0, 1) and apart is not None and apart <= 0:
                return frozenset({number})
        case Combine(operands=operands, outputs=outputs):
            every = frozenset({number})
            for operand in operands:
                inside = axes_along(operand, outputs, (query, key))
                by = None if inside is None else hidden(nodes, operand.node, *inside)
                if by is None:
                    return None
                every |= by
            return every
    return None


def rows_behind(nodes: NodeTable, number: int) -> int | None:
    """Of an order of positions, or a block of it, how far behind its row the last column is that it
    shows; None: it is another value.

    Example: of the block that begins at row 0 and column 1, what is below a diagonal, -1.
    """
    definition = nodes[number].definition
    blocks: tuple[Block, ...] = ()
    if isinstance(definition, Restrict):
        blocks, definition = definition.blocks, nodes[definition.node].definition
    if not isinstance(definition, Order) or any(block.extent for block in blocks):
        return None
    return sum(block.start if block.axis == 0 else -block.start for block in blocks)


def _is_masked(nodes: NodeTable, number: int, query: int, key: int) -> bool:
    """Whether a node is minus infinity there."""
    match nodes[number].definition:
        case Causal():
            return (query, key) == (0, 1)
        case Combine(factors=factors, operands=operands, outputs=outputs):
            for factor, operand in zip(factors, operands, strict=True):
                inside = axes_along(operand, outputs, (query, key))
                if factor > 0 and inside is not None and _is_masked(nodes, operand.node, *inside):
                    return True
    return False


def axes_along(
    operand: Operand, outputs: Sequence[int], axes: tuple[int, int]
) -> tuple[int, int] | None:
    """The axes of an operand that run along two axes of what reads it.

    Example: of ``n4[b:8, a:8]`` in a node with the axes ``a b``, (1, 0) along (0, 1).
    """
    along = []
    for axis in axes:
        own = [(a, s) for a, s, _, label in operand.intervals if label == outputs[axis]]
        if len(own) != 1 or own[0][1] != 1:
            return None
        along.append(own[0][0])
    return along[0], along[1]
