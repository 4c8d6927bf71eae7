"""One position of many as part of the sum, or the maximum, over all of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from shardproof.engine.lineage.expressions import Amax, Einsum, Expression, Operand
from shardproof.engine.lineage.floating import floating, joined, settled
from shardproof.engine.lineage.lineage import BROADCAST, Addend, PartialRange, StridedInterval, View
from shardproof.engine.lineage.nodes import NodeTable, Reduction
from shardproof.engine.lineage.positions import normal
from shardproof.engine.lineage.views import Misaligned

#: What a reduction may be: that of a product with nothing else, or a maximum.
KINDS: Final = ("sum", "max")


def part_of(table: NodeTable, addend: Addend, number: int, kind: str = "sum") -> Addend | None:
    """A view of one position of many as part of the node ``number``, where that is a sum (``kind``
    "max": a maximum) over the positions of what is viewed; None where it is none.

    Example: where ``n9`` is the sum of ``n4`` over its eight heads, ``n4[a1[3]] at a0[2 +1 of 8]``
    is ``n9[a0[3]] part #0[2 +1 of 8]``; of a sum over rows and columns one entry is a part of both.
    A sum may be of one position of another axis alone: then the view has to be of that position.
    A block of rows is one position of the blocks, as ``n4[a0[<2*tp> +2 of 4]]`` where ``n9`` adds
    up the two halves.
    """
    ways = dict.fromkeys((addend.view, settled(addend.view)))
    parts = (_part_of(table, addend._replace(view=view), number, kind) for view in ways)
    return next((part for part in parts if part is not None), None)


def _reduced(definition: Expression, kind: str) -> tuple[Operand, tuple[int, ...], int] | None:
    """What a sum or a maximum is over, its outputs, and the sign of what is taken the maximum of;
    None: it is of another kind, or of a product."""
    if kind == "max" and isinstance(definition, Amax):
        return definition.operand, definition.outputs, definition.sign
    if kind == "sum" and isinstance(definition, Einsum) and len(definition.operands) == 1:
        return definition.operands[0], definition.outputs, 0
    return None


def _part_of(table: NodeTable, addend: Addend, number: int, kind: str) -> Addend | None:
    """`part_of`, of positions that are in no dimension, or alone in one."""
    reduced = _reduced(table[number].definition, kind)
    if reduced is None or reduced[2] * addend.factor < 0:
        return None
    read, outputs, sign = reduced
    labels = [label for *_, label in read.intervals]
    if read.node != addend.node or len(set(labels)) < len(labels):
        return None  # of a diagonal a view tells nothing about its other positions
    summed = [(a, s, e, x) for a, s, e, x in read.intervals if x not in outputs]
    if not summed or addend.partials:
        return None
    dims, single = floating(addend.view)
    fixed = [StridedInterval(a, s, e, start, 1) for a, s, e, start in read.fixed]
    # Joined: which microbatch of which rank is one position of all rows.
    pools = (pool for pool in (single, joined(single)) if set(pool).issuperset(fixed))
    placed = ((pool, own) for pool in pools if (own := _at(pool, summed)) is not None)
    single, own = next(placed, ((), None))
    if own is None:
        return None
    place = {(a, s): (outputs.index(x), e) for a, s, e, x in read.intervals if x in outputs}

    def reindexed(interval: StridedInterval) -> StridedInterval:
        """An interval of what is viewed, along the axis of the sum that it becomes."""
        if interval.axis == BROADCAST:
            return interval
        for (a, s), (there, e) in place.items():
            inside = interval.stride % s == 0 and interval.stride * interval.extent <= s * e
            if a == interval.axis and interval.stride >= s and inside:
                return interval._replace(axis=there, stride=interval.stride // s)
        raise Misaligned

    try:
        view = View(
            tuple(tuple(reindexed(a) for a in dim) for dim in dims),
            tuple(reindexed(a) for a in single if a not in own and a not in fixed),
        )
    except Misaligned:
        return None
    partials = [
        PartialRange(table.reduction(Reduction(kind, number, label)), a.start, 1, extent)
        for a, (*_, extent, label) in zip(own, summed, strict=True)
    ]
    factor = abs(addend.factor) if sign else addend.factor
    return Addend(factor, number, view, normal(partials))


def _at(
    single: Sequence[StridedInterval], summed: Sequence[tuple[int, int, int, int]]
) -> list[StridedInterval] | None:
    """The one position of every axis that is summed over; None where one has none, or several."""
    own = [[a for a in single if (a.axis, a.stride, a.extent) == x[:3]] for x in summed]
    return [one[0] for one in own] if all(len(one) == 1 for one in own) else None


class Reductions:
    """Sums and maxima of one node over one of its labels, of the nodes below ``size``: a view of
    one position of many is part of such a sum.

    Example: with ``n9``, the sum of ``n4`` over its eight heads, ``part`` of
    ``n4[a1[3]] at a0[2 +1 of 8]`` is ``n9[a0[3]] part #0[2 +1 of 8]``.
    """

    def __init__(self, table: NodeTable, size: int) -> None:
        self.table = table
        self.of: dict[tuple[str, int], list[int]] = {}
        for number in range(size):
            for kind in KINDS:
                reduced = _reduced(table[number].definition, kind)
                if reduced is not None:
                    self.of.setdefault((kind, reduced[0].node), []).append(number)

    def part(self, addend: Addend, kind: str = "sum") -> Addend | None:
        """A view as part of a sum or a maximum; None where it is none."""
        numbers = self.of.get((kind, addend.node), ())
        parts = (part_of(self.table, addend, number, kind) for number in numbers)
        return next((part for part in parts if part is not None), None)
