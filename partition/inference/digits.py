"""The digits in which the single-device program reads the axes of its values.

One position of an axis is a head, and then a half of what is in it, where the single-device program
reads that axis so; one of all rows stays what it is.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple, TypeAlias

from shardproof.engine.algebra.affine import affine
from shardproof.engine.lineage.blocks import Block
from shardproof.engine.lineage.expressions import Combine, Einsum, Operand, Restrict
from shardproof.engine.lineage.floating import floating, joined, sunk
from shardproof.engine.lineage.lineage import (
    ABSOLUTE,
    BROADCAST,
    Addend,
    StridedInterval,
    View,
)
from shardproof.engine.lineage.nodes import NodeTable
from shardproof.engine.lineage.reductions import Reductions

#: (axis, stride, whether a fixed position is read).
_Digit: TypeAlias = tuple[int, int, bool]


class Cut(NamedTuple):
    """A view in the digits in which a definition reads its node; ``fixed``: those of which that
    reads a fixed position, which are not in the view.

    Example: ``n24[a1[4]] at a0/4[0 +1 of 2]``, fixed ``a0/2[1 +1 of 2]``: the second half of what
    is in the first head, where the single-device program takes second halves of all heads.
    """

    addend: Addend
    fixed: tuple[StridedInterval, ...]


class AsRead(Reductions):
    """How the nodes below ``size`` read others: sums over one label; and of every node in which
    digits (axis, stride, whether a fixed position) one of them reads it.

    Example: where ``n28 = einsum(n14[...], n24[a0/4=c:2, a0=b:2, a0/2=1 of 2])``, a view of ``n24``
    at ``a0/2[1 +1 of 4]`` is also one at ``a0/4[0 +1 of 2]`` and ``a0/2[1 +1 of 2]``.
    """

    def __init__(self, table: NodeTable, size: int) -> None:
        super().__init__(table, size)
        self._read: dict[int, list[frozenset[_Digit]]] = {}
        self._blocks: dict[int, list[tuple[int, Block]]] = {}
        self._together: dict[tuple[int, ...], list[tuple[Operand, ...]]] = {}
        for number in range(size):
            definition = table[number].definition
            if isinstance(definition, Restrict) and len(definition.blocks) == 1:
                self._blocks.setdefault(definition.node, []).append((number, definition.blocks[0]))
            if not isinstance(definition, Combine | Einsum):
                continue
            nodes = tuple(sorted({operand.node for operand in definition.operands}))
            if 1 < len(nodes) == len(definition.operands):
                self._together.setdefault(nodes, []).append(definition.operands)
            for operand in definition.operands:
                digits = {(axis, stride, False) for axis, stride, *_ in operand.intervals}
                digits |= {(axis, stride, True) for axis, stride, *_ in operand.fixed}
                known = self._read.setdefault(operand.node, [])
                if digits not in known:
                    known.append(frozenset(digits))

    def inside(self, addend: Addend) -> Addend:
        """The view as one of the smallest part of its node that the single-device program reads by
        itself, at a position of it; otherwise as it is.

        Example: of a table of 8 rows of which 5 are read, row 4 of 8 is row 4 of these 5.
        """
        known = self._blocks.get(addend.node, ())
        for number, block in sorted(known, key=lambda other: other[1].size):
            moved = [_inside(a, block) for a in addend.view.fixed]
            elsewhere = (a.axis == block.axis for dim in addend.view.dims for a in dim)
            if any(elsewhere) or None in moved or moved == list(addend.view.fixed):
                continue
            fixed = tuple(a for a in moved if a is not None)
            return addend._replace(node=number, view=addend.view._replace(fixed=fixed))
        return addend

    def cuts(self, addend: Addend) -> Iterator[Cut]:
        """A view in each of these ways of which some digit is another than its own or is fixed."""
        for read in self._read.get(addend.node, ()):
            cut = _as(addend, read)
            if cut is not None:
                yield cut

    def together(self, addends: Sequence[Addend]) -> Iterator[tuple[Cut, ...]]:
        """Views of several nodes in the ways in which one definition reads all of them, at the
        positions that it fixes.

        Example: one of four blocks of a mask is added to a product of its own in each block: of
        what ranks add up there, the view of the mask is cut as that block's sum reads it.
        """
        nodes = tuple(sorted(t.node for t in addends))
        for operands in self._together.get(nodes, ()):
            read = {operand.node: operand for operand in operands}
            cuts = [_at(t, read[t.node]) for t in addends]
            if None not in cuts:
                yield tuple(cut for cut in cuts if cut is not None)


def _at(addend: Addend, operand: Operand) -> Cut | None:
    """A view in the digits in which an operand reads its node; None: not at its fixed positions."""
    digits = {(axis, stride, False) for axis, stride, *_ in operand.intervals}
    digits |= {(axis, stride, True) for axis, stride, *_ in operand.fixed}
    cut = _as(addend, frozenset(digits)) or Cut(addend, ())
    return (
        cut
        if {(a.axis, a.stride, a.extent, a.start) for a in cut.fixed} == {*operand.fixed}
        else None
    )


def _as(addend: Addend, read: frozenset[_Digit]) -> Cut | None:
    """A view in some digits; None if no digit is another than its own or is fixed."""
    whole = sunk(addend.view)
    dims, single = floating(whole)
    places = joined(single)
    strides = frozenset((axis, stride) for axis, stride, _ in read)
    digits = [digit for place in places for digit in _cut(place, strides)]
    own = []
    for dim in dims:
        cut = [_cut(interval, strides) for interval in dim]
        digits += [digit for each in cut for digit in each[:-1]]
        own.append(tuple(each[-1] for each in cut))
    fixed = tuple(d for d in digits if (d.axis, d.stride, True) in read)
    if not fixed and len(digits) <= len(places) and whole == addend.view:
        return None
    return Cut(
        addend._replace(view=View(tuple(own), tuple(d for d in digits if d not in fixed))), fixed
    )


def _inside(interval: StridedInterval, block: Block) -> StridedInterval | None:
    """A position of an axis as one inside of a block of it; None: it is not in it."""
    if interval.axis != block.axis:
        return interval
    start = interval.start - block.start
    whole = interval.stride == 1 and interval.extent == block.extent
    if not whole or start.terms or not 0 <= start.const <= block.size - interval.size:
        return None
    return interval._replace(extent=block.size, start=start)


def _cut(interval: StridedInterval, read: frozenset[tuple[int, int]]) -> list[StridedInterval]:
    """An interval as digits, outermost first, all but the last of them single positions."""
    if interval.axis == BROADCAST or interval.extent == ABSOLUTE:
        return [interval]
    for stride in sorted(stride for axis, stride in read if axis == interval.axis):
        inner, rest = divmod(stride, interval.stride)
        if rest or not interval.size <= inner < interval.extent or interval.extent % inner:
            continue
        start = affine(interval.start.const % inner)
        outside = interval.start - start
        if inner == 1 or start.const + interval.size > inner or not outside.divisible(inner):
            continue
        outer = StridedInterval(
            interval.axis, stride, interval.extent // inner, outside // inner, 1
        )
        return [*_cut(outer, read), interval._replace(extent=inner, start=start)]
    return [interval]
