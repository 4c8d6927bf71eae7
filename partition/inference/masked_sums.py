"""Parts of sums under a mask: a part is the whole sum where the mask hides all that it leaves out,
and nothing where the mask hides all that it has.

Keys behind all queries of a block add nothing to sums of exponentials, so a sum over the others is
whole; which positions masks hide is told by `masks` and `visible`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple, TypeAlias

from shardproof.engine.lineage.expressions import Einsum, Operand
from shardproof.engine.lineage.lineage import ABSOLUTE, Addend, PartialRange, StridedInterval
from shardproof.engine.lineage.nodes import NodeTable
from shardproof.engine.specification.boxes import whole
from shardproof.partition.inference.masks import hidden
from shardproof.partition.inference.visible import (
    Read,
    Zero,
    intervals_read,
    not_behind,
    zero_in,
)

#: How often a part of a sum repeats whose intervals are looked at one by one.
MOST_PERIODS = 16


def completed(nodes: NodeTable, addend: Addend) -> tuple[Addend, frozenset[int]] | None:
    """Part of a sum as the whole one, where all that it leaves out is zero as a causal mask says,
    and the definitions that show it; None where it is no such part.

    Example: of the sum over keys of masked exponentials, for the queries ``[0, 2)``, the part over
    the keys ``[0, 2)``.
    """
    read = intervals_read(addend.view)
    if addend.places or not addend.partials:
        return None
    kept: list[PartialRange] = []
    shown: frozenset[int] = frozenset()
    for partial in addend.partials:
        by = _shown(nodes, addend.node, read, partial, partial.reduction, _hides_rest)
        if by is None:
            kept.append(partial)
        else:
            shown |= by
    if len(kept) == len(addend.partials):
        return None
    return addend._replace(partials=tuple(kept)), shown


def vanished(nodes: NodeTable, addend: Addend) -> Zero:
    """The definitions by which a part of a sum is zero, as a causal mask hides all of it (None: it
    is not).

    Example: of the sum over queries of masked exponentials, for the keys ``[6, 8)``, the part over
    the queries ``[0, 2)``.
    """
    read = intervals_read(addend.view)
    for partial in addend.partials:
        by = _shown(nodes, addend.node, read, partial, partial.reduction, _hides_part)
        if by is not None:
            return by
    return None


def in_one_period(nodes: NodeTable, addend: Addend) -> list[Addend]:
    """A part of a sum that repeats, as its intervals in the whole range of the sum, of which a
    causal mask may hide some; a part of something else as it is.

    Example: of the sum over twelve queries ``part #3[2 +2 of 6]`` is ``part #3[2 +2 of 12]`` and
    ``part #3[8 +2 of 12]``.
    """
    if len(addend.partials) != 1:
        return [addend]
    (part,) = addend.partials
    reduction = nodes.reductions[part.reduction]
    while reduction.kind == "via":
        reduction = nodes.reductions[reduction.inner]
    definition = nodes[reduction.node].definition
    if not isinstance(definition, Einsum):
        return [addend]
    intervals = [i for operand in definition.operands for i in operand.intervals]
    whole = max(
        (extent for _, _, extent, label in intervals if label == reduction.where), default=0
    )
    if whole % part.extent or whole // part.extent > MOST_PERIODS:
        return [addend]
    return [
        addend._replace(partials=(part._replace(start=part.start + n, extent=whole),))
        for n in range(0, whole, part.extent)
    ] or [addend]


class Cut(NamedTuple):
    """A part of a sum over the axis ``summed`` of a node, at the positions ``there`` of its axis
    ``free``.

    Example: of masked exponentials of queries (axis 0) and keys (axis 1), the sum over the keys
    ``[0, 2)`` for the queries ``[0, 2)``.
    """

    nodes: NodeTable
    node: int
    free: int
    there: StridedInterval
    summed: int
    part: PartialRange


#: By which definitions the node of a cut is zero where a part of its sum is, or is not.
Hides: TypeAlias = Callable[[Cut], Zero]


def _shown(
    nodes: NodeTable, number: int, read: Read, part: PartialRange, token: int, hides: Hides
) -> Zero:
    """The definitions by which what ``hides`` tells of a part of a sum is zero, or None."""
    reduction = nodes.reductions[token]
    definition = nodes[number].definition
    if not isinstance(definition, Einsum) or reduction.node != number:
        return None
    if reduction.kind == "via":
        operand = definition.operands[reduction.where]
        inside = {
            axis: read[definition.outputs.index(label)]
            for axis, stride, extent, label in operand.intervals
            if (stride, extent) == (1, nodes[operand.node].extents[axis])
            and label in definition.outputs
            and definition.outputs.index(label) in read
        }
        by = _shown(nodes, operand.node, inside, part, reduction.inner, hides)
        return None if by is None else by | {number}
    if reduction.kind != "sum":
        return None
    for operand in definition.operands:
        pairs = free_and_summed(nodes, operand, definition.outputs, reduction.where)
        for (axis, label), reduced in pairs:
            there = read.get(definition.outputs.index(label))
            by = there and hides(Cut(nodes, operand.node, axis, there, reduced, part))
            if by is not None:
                return by | {number}
    return None


def _hides_rest(cut: Cut) -> Zero:
    """The definitions by which a node is zero at the positions that a part of its sum leaves out,
    for those that are read (None: it is not)."""
    nodes, number, free, there, summed, part = cut
    by = None
    to_end = part.start + (part.size - part.extent)
    if not part.start.terms and not part.start.const:
        last = there.start + (there.size - 1)
        if not_behind(last, part.start + (part.size - 1)):
            by = hidden(nodes, number, free, summed)
    elif not to_end.terms and not to_end.const and not_behind(part.start, there.start):
        by = hidden(nodes, number, summed, free)
    return _hides_around(cut) if by is None else by


def _hides_around(cut: Cut) -> Zero:
    """As `_hides_rest`, of what masks of several kinds hide before and behind the part together.

    Example: a window of three keys shows to the queries ``[6, 12)`` no keys but ``[4, 12)``.
    """
    nodes, number, free, there, summed, part = cut
    extent = nodes[number].extents[summed]
    if part.start.terms or there.start.terms or part.extent != extent or there.stride != 1:
        return None
    first, end = part.start.const, part.start.const + part.size
    box = dict(enumerate(whole(nodes, number)))
    box[free] = (there.start.const, there.start.const + there.size - 1)
    every: frozenset[int] = frozenset()
    for low, high in ((0, first - 1), (end, extent - 1)):
        if low <= high:
            box[summed] = (low, high)
            by = zero_in(nodes, number, tuple(box[axis] for axis in sorted(box)))
            if by is None:
                return None
            every |= by
    return every


def _hides_part(cut: Cut) -> Zero:
    """The definitions by which a node is zero at the positions that a part of its sum has, for
    those that are read (None: it is not)."""
    nodes, number, free, there, summed, part = cut
    if part.extent != nodes[number].extents[summed]:
        return None
    if not_behind(part.start + part.size, there.start):
        return hidden(nodes, number, summed, free)
    if not_behind(there.start + there.size, part.start):
        return hidden(nodes, number, free, summed)
    return None


def free_and_summed(
    nodes: NodeTable, operand: Operand, outputs: Sequence[int], reduced: int
) -> Iterable[tuple[tuple[int, int], int]]:
    """Pairs of an axis (with its label) that is free and one that is summed, both whole.

    Example: of ``n4[a:8, b:8]`` summed over ``b``, axis 0 (with ``a``) and axis 1.
    """
    whole = [
        (axis, label)
        for axis, stride, extent, label in operand.intervals
        if stride == 1 and nodes[operand.node].extents[axis] in (extent, ABSOLUTE)
    ]
    summed = [axis for axis, label in whole if label == reduced]
    return [(one, axis) for one in whole if one[1] in outputs for axis in summed]
