"""One position of many as part of the sum over all of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import Final, NamedTuple

from shardproof.engine.lineage.expressions import Amax, Einsum, Expression, Operand
from shardproof.engine.lineage.floating import floating, joined, settled
from shardproof.engine.lineage.lineage import BROADCAST, Addend, PartialRange, StridedInterval, View
from shardproof.engine.lineage.nodes import NodeTable, Reduction
from shardproof.engine.lineage.positions import normal
from shardproof.engine.lineage.views import Misaligned

#: What a reduction may be: that of a product with nothing else, or a maximum.
KINDS: Final = ("sum", "max")


class _Digit(NamedTuple):
    """Positions of what is viewed, (axis, stride, extent), as a digit of a label of a sum: every
    ``step`` positions of it."""

    axis: int
    stride: int
    extent: int
    label: int
    step: int = 1


class _Read(NamedTuple):
    """How a sum reads what is viewed: labels by digits, and fixed positions."""

    digits: tuple[_Digit, ...]
    fixed: tuple[StridedInterval, ...] = ()


def part_of(table: NodeTable, addend: Addend, number: int, kind: str = "sum") -> Addend | None:
    """A view of one position of many as part of the node ``number``, where that is a sum (``kind``
    "max": a maximum) over the positions of what is viewed; None where it is none.

    Example: where ``n9`` is the sum of ``n4`` over its eight heads, ``n4[a1[3]] at a0[2 +1 of 8]``
    is ``n9[a0[3]] part #0[2 +1 of 8]``; of a sum over rows and columns one entry is a part of both.
    A sum may be of one position of another axis alone: then the view has to be of that position.
    A block of rows is one position of the blocks, as ``n4[a0[<2*tp> +2 of 4]]`` where ``n9`` adds
    up the two halves.
    What is viewed may be a sum of the same over fewer labels itself: over the columns of each row,
    where ``n9`` adds up rows and columns.
    """
    ways = dict.fromkeys((addend.view, settled(addend.view)))
    parts = (_part_of(table, addend._replace(view=view), number, kind) for view in ways)
    return next((part for part in parts if part is not None), None)


def _outputs(definition: Expression, kind: str, factor: Fraction) -> tuple[int, ...] | None:
    """The outputs of a sum, or of a maximum of which a multiple is one; None: it is of another
    kind."""
    if kind == "max" and isinstance(definition, Amax):
        return definition.outputs if definition.sign * factor > 0 else None
    return definition.outputs if kind == "sum" and isinstance(definition, Einsum) else None


def _part_of(table: NodeTable, addend: Addend, number: int, kind: str) -> Addend | None:
    """`part_of`, of positions that are in no dimension, or alone in one."""
    outputs = _outputs(table[number].definition, kind, addend.factor)
    if outputs is None or addend.partials:
        return None
    read = _read(table, addend.node, number)
    summed = [d for d in read.digits if d.label not in outputs] if read else []
    if read is None or not summed:
        return None
    dims, single = floating(addend.view)
    fixed = read.fixed
    # Joined: which microbatch of which rank is one position of all rows.
    pools = (pool for pool in (single, joined(single)) if set(pool).issuperset(fixed))
    placed = ((pool, own) for pool in pools if (own := _at(pool, summed)) is not None)
    single, own = next(placed, ((), None))
    if own is None:
        return None
    place = {(d.axis, d.stride): d for d in read.digits if d.label in outputs}

    def reindexed(interval: StridedInterval) -> StridedInterval:
        """An interval of what is viewed, along the axis of the sum that it becomes."""
        if interval.axis == BROADCAST:
            return interval
        for (a, s), digit in place.items():
            inside = (
                interval.stride % s == 0 and interval.stride * interval.extent <= s * digit.extent
            )
            if a == interval.axis and interval.stride >= s and inside:
                stride = interval.stride // s * digit.step
                return interval._replace(axis=outputs.index(digit.label), stride=stride)
        raise Misaligned

    try:
        view = View(
            tuple(tuple(reindexed(a) for a in dim) for dim in dims),
            tuple(reindexed(a) for a in single if a not in own and a not in fixed),
        )
    except Misaligned:
        return None
    partials = [
        PartialRange(
            table.reduction(Reduction(kind, number, d.label)),
            a.start * d.step,
            d.step,
            d.step * d.extent,
        )
        for a, d in zip(own, summed, strict=True)
    ]
    factor = addend.factor if kind == "sum" else abs(addend.factor)
    return Addend(factor, number, view, normal(partials))


def _at(
    single: Sequence[StridedInterval], summed: Sequence[_Digit]
) -> list[StridedInterval] | None:
    """The one position of every axis that is summed over; None where one has none, or several."""
    own = [[a for a in single if (a.axis, a.stride, a.extent) == x[:3]] for x in summed]
    return [one[0] for one in own] if all(len(one) == 1 for one in own) else None


def _read(table: NodeTable, node: int, number: int) -> _Read | None:
    """How the node ``number`` adds up ``node``, or the same as that over more labels, or takes the
    maximum of it; None where it does not."""
    total, own = table[number].definition, table[node].definition
    if isinstance(total, Amax):
        return _whole(total.operand) if total.operand.node == node else None
    if not isinstance(total, Einsum):
        return None
    if len(total.operands) == 1 and total.operands[0].node == node:
        return _whole(total.operands[0])
    if not isinstance(own, Einsum):
        return None
    axes = {label: axis for axis, label in enumerate(own.outputs)}
    extents = table[node].extents
    if own.operands == total.operands and set(total.outputs) < set(own.outputs):
        return _Read(tuple(_Digit(axis, 1, extents[axis], x) for x, axis in axes.items()))
    return _coarser(own, total, axes)


def _whole(read: Operand) -> _Read | None:
    """How an operand is read; of a diagonal a view tells nothing about its other positions."""
    digits = tuple(_Digit(*interval) for interval in read.intervals)
    return _Read(digits, _positions(read)) if _each_once(read) else None


def _coarser(own: Einsum, total: Einsum, axes: Mapping[int, int]) -> _Read | None:
    """How a sum reads one of the same node over fewer labels, of which several may be one label of
    the other one; None where it does not."""
    if len(own.operands) > 1 or len(total.operands) > 1:
        return None
    (fine,), (coarse,) = own.operands, total.operands
    if (fine.node, fine.fixed) != (coarse.node, coarse.fixed):
        return None
    if not _each_once(fine) or not _each_once(coarse):
        return None
    digits: list[_Digit] = []
    left = sorted(fine.intervals)
    for axis, stride, extent, label in coarse.intervals:
        step = 1
        for interval in [x for x in left if x[0] == axis and x[1] >= stride]:
            if interval[1] != stride * step or step == extent:
                continue
            left.remove(interval)
            _, _, size, inner = interval
            if inner in axes:
                digits.append(_Digit(axes[inner], 1, size, label, step))
            elif label in total.outputs:
                return None
            step *= size
        if step != extent:
            return None
    return None if left else _Read(tuple(digits))


def _each_once(read: Operand) -> bool:
    labels = [label for *_, label in read.intervals]
    return len(set(labels)) == len(labels)


def _positions(read: Operand) -> tuple[StridedInterval, ...]:
    return tuple(StridedInterval(a, s, e, start, 1) for a, s, e, start in read.fixed)


class Reductions:
    """Sums and maxima of one node over one of its labels, of the nodes below ``size``: a view of
    one position of many is part of such a sum.

    Example: with ``n9``, the sum of ``n4`` over its eight heads, ``part`` of
    ``n4[a1[3]] at a0[2 +1 of 8]`` is ``n9[a0[3]] part #0[2 +1 of 8]``.
    """

    def __init__(self, table: NodeTable, size: int) -> None:
        self.table = table
        self.of: dict[tuple[str, int], list[int]] = {}
        self._alike: dict[tuple[int, ...], list[int]] = {}
        for number in range(size):
            definition = table[number].definition
            if isinstance(definition, Amax):
                self.of.setdefault(("max", definition.operand.node), []).append(number)
            elif isinstance(definition, Einsum):
                read = tuple(o.node for o in definition.operands)
                self._alike.setdefault(read, []).append(number)
                if len(read) == 1:
                    self.of.setdefault(("sum", read[0]), []).append(number)

    def part(self, addend: Addend, kind: str = "sum") -> Addend | None:
        """A view as part of a sum or a maximum; None where it is none."""
        return self._first(addend, self.of.get((kind, addend.node), ()), kind)

    def wider(self, addend: Addend) -> Addend | None:
        """A view of a sum as part of a sum of the same over more labels, as the definitions of both
        say; None where it is none.

        Example: with ``n8``, the sum of ``n4`` over its columns, and ``n9``, that over rows and
        columns, ``n8[] at a0[2 +1 of 8]`` is ``n9[] part #0[2 +1 of 8]``.
        """
        own = self.table[addend.node].definition
        if not isinstance(own, Einsum):
            return None
        alike = self._alike.get(tuple(o.node for o in own.operands), ())
        return self._first(addend, alike, "sum")

    def _first(self, addend: Addend, numbers: Sequence[int], kind: str) -> Addend | None:
        parts = (part_of(self.table, addend, number, kind) for number in numbers)
        return next((part for part in parts if part is not None), None)
