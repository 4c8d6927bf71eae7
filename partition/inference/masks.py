"""Masks in sums: minus infinity, added twice or multiplied by 2, is no less than it was."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fractions import Fraction

from shardproof.engine.errors import Unsupported
from shardproof.engine.lineage.expressions import Causal, Combine, Operand
from shardproof.engine.lineage.lineage import BROADCAST, Addend, StridedInterval
from shardproof.engine.lineage.nodes import NodeTable


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
        t._replace(factor=Fraction(1)) if _is_mask(nodes, t) and t.factor > 0 else t
        for t in addends
    ]


def masked_once(nodes: NodeTable, addends: Sequence[Addend]) -> list[Addend]:
    """The addends of a sum without the masks that another of them has already.

    Example: of ``(s + mask) + mask``, where the first is a node of its own, only that node is left.
    """
    return [
        t
        for t in addends
        if not _is_mask(nodes, t)
        or t.factor <= 0
        or not any(u.factor > 0 and _has(nodes, u, t) for u in addends if u is not t)
    ]


def _is_mask(nodes: NodeTable, addend: Addend) -> bool:
    return isinstance(nodes[addend.node].definition, Causal)


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
