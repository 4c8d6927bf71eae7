"""Sums up to each position, of which a part lies before all positions that are read.

A rank that has a block of positions adds up what is before each of them in its own block, and adds
the totals of the blocks before it.  An order of positions shows all of such a block, so its total
is a part of the sum up to each position, whichever of these positions is read.  So it is of what is
multiplied with the order, as the scores of a linear attention.
"""

from __future__ import annotations

from collections.abc import Container, Sequence
from typing import NamedTuple

from shardproof.engine.algebra.affine import ZERO
from shardproof.engine.lineage.expressions import Einsum
from shardproof.engine.lineage.floating import settled
from shardproof.engine.lineage.lineage import BROADCAST, Addend, Dim, StridedInterval, View
from shardproof.engine.lineage.nodes import NodeTable
from shardproof.partition.inference.masked_sums import free_and_summed
from shardproof.partition.inference.masks import axes_along, rows_behind
from shardproof.partition.inference.match import Matcher
from shardproof.partition.inference.visible import intervals_read, not_behind


class _Running(NamedTuple):
    """A sum up to each position of an axis, or from each on: that axis of the node, the order that
    is a factor, how far behind its row the last column is that the order shows, whether rows are
    summed, the definitions that have the order, and whether nothing else depends on the position.

    Example: of ``n9 = einsum(n8[c:16, a:16], n6[a:16, b:4] -> b c)``, where ``n8`` is the order of
    positions, axis 1, 8, 0, False, ``{8, 9}`` and True.
    """

    axis: int
    order: int
    apart: int
    from_each: bool
    opened: frozenset[int]
    alone: bool = True


def as_earlier(
    nodes: NodeTable, matcher: Matcher, addends: Sequence[Addend]
) -> tuple[list[Addend], frozenset[int]] | None:
    """Addends with totals of earlier positions as parts of a sum up to each position that is among
    them, and the definitions that show it; None where there are none.

    Example: of the running sums ``n9[a0[4 +4 of 8]] part #1[4 +4 of 8]`` and the total of the first
    four positions, ``n9[_[4]] at a0[3 +1 of 8] part #1[0 +4 of 8]``, the latter as
    ``n9[a0[4 +4 of 8]] part #1[0 +4 of 8]``.
    """
    for target in addends:
        running = _running(nodes, target)
        if running is None:
            continue
        made = [_as_part(matcher, t, target, running) or t for t in addends]
        if made != list(addends):
            changed = {own.node for t, own in zip(made, addends, strict=True) if t != own}
            return made, running.opened | changed
    return None


def _running(nodes: NodeTable, addend: Addend) -> _Running | None:
    """The running sum of which a view is a part along its own positions; None: it is none."""
    definition = nodes[addend.node].definition
    if len(addend.partials) != 1 or addend.places or not isinstance(definition, Einsum):
        return None
    reduction = nodes.reductions[addend.partials[0].reduction]
    if (reduction.kind, reduction.node) != ("sum", addend.node):
        return None
    for operand in definition.operands:
        pairs = free_and_summed(nodes, operand, definition.outputs, reduction.where)
        for (axis, label), summed in pairs:
            made = _ordered(nodes, operand.node, definition.outputs.index(label), axis, summed)
            if made is not None:
                return _inside(made, addend.node, definition, label)
    return None


def _ordered(nodes: NodeTable, number: int, axis: int, free: int, summed: int) -> _Running | None:
    """The running sum along two axes of a node; None: no order of these is a factor of it."""
    apart = rows_behind(nodes, number)
    if apart is not None:
        return _Running(axis, number, apart, (free, summed) == (1, 0), frozenset({number}))
    definition = nodes[number].definition
    if not isinstance(definition, Einsum):
        return None
    for operand in definition.operands:
        inside = axes_along(operand, definition.outputs, (free, summed))
        made = None if inside is None else _ordered(nodes, operand.node, axis, *inside)
        if made is not None:
            return _inside(made, number, definition, definition.outputs[free])
    return None


def _inside(made: _Running, number: int, definition: Einsum, label: int) -> _Running:
    """The running sum of a factor as that of a product, along a label of it."""
    reads = [o for o in definition.operands if any(x == label for *_, x in o.intervals)]
    return made._replace(opened=made.opened | {number}, alone=made.alone and len(reads) == 1)


def _as_part(matcher: Matcher, addend: Addend, target: Addend, running: _Running) -> Addend | None:
    """A total of earlier positions as a part of the running sum that is read as ``target``; None:
    it is no such total."""
    if addend is target or addend.places or len(addend.partials) > 1:
        return None
    if addend.node != target.node:
        own = matcher.under_order(addend, target.node, running.order)
    else:
        own = addend if addend.partials else _up_to(addend, target, running)
        own = own if own is None or _shows(running, own) else None
    if own is None or len(own.partials) != 1:
        return None
    (part,), (whole,) = own.partials, target.partials
    if (part.reduction, part.extent) != (whole.reduction, whole.extent):
        return None
    moved = own._replace(view=target.view)
    return moved if _alike(own, target, running) and _shows(running, moved) else None


def _up_to(addend: Addend, target: Addend, running: _Running) -> Addend | None:
    """A running sum at one position as the part that the order shows of it there."""
    read = intervals_read(addend.view).get(running.axis)
    if read is None or read.size != 1 or read.start.terms:
        return None
    part = target.partials[0]
    first, last = 0, read.start.const + running.apart
    if running.from_each:
        first, last = read.start.const - running.apart, part.extent - 1
    if not 0 <= first <= last < part.extent:
        return None
    shown = part._replace(start=ZERO + first, size=last + 1 - first)
    return addend._replace(partials=(shown,))


def _shows(running: _Running, addend: Addend) -> bool:
    """Whether the order shows all of a part of a running sum, at all positions that are read."""
    read = intervals_read(addend.view).get(running.axis)
    (part,) = addend.partials
    if read is None:
        return False
    if running.from_each:
        return not_behind(read.start + (read.size - 1), part.start + running.apart)
    return not_behind(part.start + (part.size - 1), read.start + running.apart)


def _alike(own: Addend, target: Addend, running: _Running) -> bool:
    """Whether two views read the same of their node; of its positions any, where what is summed
    depends on none but by the order, or where one reads none."""
    read = (*(a for dim in own.view.dims for a in dim), *own.view.fixed)
    any_position = running.alone or all(a.axis != running.axis for a in read)
    skipped = {BROADCAST, running.axis} if any_position else {BROADCAST}
    one, other = settled(own.view), settled(target.view)
    return _without(one, skipped) == _without(other, skipped)


def _without(
    view: View, skipped: Container[int]
) -> tuple[tuple[Dim, ...], frozenset[StridedInterval]]:
    """What a view reads of a node but for some axes."""
    dims = tuple(tuple(a for a in dim if a.axis not in skipped) for dim in view.dims)
    return dims, frozenset(a for a in view.fixed if a.axis not in skipped)
