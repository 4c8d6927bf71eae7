"""Sums of values at positions beside each other, whichever rank added up which of them.

What a convolution sends back to a position is added up over the taps that read it.  Where ranks
divide the positions, those at a seam are read by two ranks: each adds up its own taps, and one of
them both sums.  Such a sum is taken apart into what was added up first, and looked for among the
single device's sums of the same values, at the position at which all its addends are these.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from fractions import Fraction
from typing import NamedTuple, TypeAlias

from shardproof.engine.lineage.expressions import Combine
from shardproof.engine.lineage.floating import settled, sunk
from shardproof.engine.lineage.lineage import (
    BROADCAST,
    Addend,
    Dim,
    StridedInterval,
    View,
)
from shardproof.engine.lineage.nodes import NodeTable
from shardproof.engine.lineage.sums import collect
from shardproof.engine.lineage.views import constant_interval, merge
from shardproof.partition.inference.blocks import uncut
from shardproof.partition.inference.chains import Chains, in_blocks
from shardproof.partition.inference.shared_blocks import based, inside
from shardproof.partition.inference.substitution import Read, TooLarge

#: Sums of more addends are not taken apart.
MOST_ADDENDS = 32

#: The nodes that a sum adds up, each as often as it does.
_Names: TypeAlias = tuple[int, ...]


class _Sum(NamedTuple):
    """A sum of the single device: its factors and reads, labelled by its axes, and the definitions
    that show them."""

    node: int
    addends: list[tuple[Fraction, Read]]
    opened: frozenset[int]


class Stencils:
    """The sums of the single device, those below ``reference_size``, by what they add up.

    Example: of ``n9``, which is ``sum(n4[a0=a:6], n5[a0=a:6])``, where ``n4`` and ``n5`` are the
    blocks [1, 7) and [0, 6) of ``n3``, the sum of ``n3`` at 5 and ``n3`` at 4 is ``n9`` at 4.
    """

    def __init__(
        self, table: NodeTable, reference_size: int, mesh: Mapping[str, int] | None = None
    ) -> None:
        self._table = table
        self._size = reference_size
        self._mesh = mesh or {}
        self._sums: dict[_Names, list[_Sum]] | None = None

    def of(self, addends: Sequence[Addend]) -> tuple[Addend, frozenset[int]] | None:
        """A sum, some of whose addends ranks may have added up first, as a view of one that the
        single device has, and the definitions that show it; None where it has none.

        Example: of ``n3[1] at a0[4 +1 of 7]`` and ``n3[1] at a0[5 +1 of 7]``, ``n9[1] at a0[4 +1 of
        6]``.
        """
        apart = self._apart(addends)
        if apart is None:
            return None
        own, opened = apart
        names = tuple(sorted(t.node for t in own))
        if len(own) < 2 or any(n >= self._size for n in names):
            return None
        for one in self._single().get(names, ()):
            made = self._placed(one, own)
            if made is not None:
                return made, opened | one.opened
        return None

    def _apart(self, addends: Sequence[Addend]) -> tuple[list[Addend], frozenset[int]] | None:
        """Addends with sums taken apart, and which these were; None if they are too many."""
        left, own, opened = list(addends), list[Addend](), set[int]()
        while left:
            addend = left.pop()
            parts = self._opened(addend)
            if parts is None:
                own.append(self._of_no_block(addend))
                continue
            opened.add(addend.node)
            left += parts
            if len(left) + len(own) > MOST_ADDENDS:
                return None
        return collect(own), frozenset(opened)

    def _opened(self, addend: Addend) -> list[Addend] | None:
        """The addends of a view of a sum, or of a block of one; None for anything else."""
        node = self._table[addend.node]
        total = in_blocks(self._table, node.definition) or node.definition
        if not isinstance(total, Combine) or node.coordinates or addend.partials or addend.places:
            return None
        parts = []
        for factor, operand in zip(total.factors, total.operands, strict=True):
            intervals = tuple((a, s, n, total.outputs.index(x)) for a, s, n, x in operand.intervals)
            view = _through(addend.view, Read(operand.node, intervals, operand.fixed))
            if view is None:
                return None
            parts.append(Addend(addend.factor * factor, operand.node, view))
        return parts

    def _single(self) -> dict[_Names, list[_Sum]]:
        """The single device's sums, by the nodes that they add up."""
        if self._sums is None:
            self._sums = {}
            chains = Chains(self._table, self._size)
            for number in range(self._size):
                node = self._table[number]
                if not isinstance(node.definition, Combine) or node.coordinates:
                    continue
                try:
                    addends, _, _, opened = chains.addends(number)
                except TooLarge:
                    continue
                if len(addends) <= MOST_ADDENDS:
                    names = tuple(sorted(based(self._table, read.node)[0] for _, read in addends))
                    one = _Sum(number, addends, opened)
                    self._sums.setdefault(names, []).append(one)
        return self._sums

    def _placed(self, one: _Sum, own: Sequence[Addend]) -> Addend | None:
        """The view of a sum that is the sum of these addends; None where it has none."""
        wanted = Counter((t.node, t.view) for t in own)
        factor, read = max(one.addends, key=lambda pair: len(pair[1].intervals))
        for addend in own:
            if addend.node != based(self._table, read.node)[0]:
                continue
            view = self._read_back(one, read, addend)
            if view is None:
                continue
            ratio = addend.factor / factor
            images = list(self._images(one, view))
            if Counter((t.node, t.view) for t in images) != wanted:
                continue
            factors = {(t.node, t.view): t.factor for t in images}
            if all(ratio * factors[t.node, t.view] == t.factor for t in own):
                return Addend(ratio, one.node, view)
        return None

    def _images(self, one: _Sum, view: View) -> Iterator[Addend]:
        """What a view of a sum adds up, each as a view of no block."""
        for factor, read in one.addends:
            own = _through(view, read)
            if own is None:
                return
            yield self._of_no_block(Addend(factor, read.node, own))

    def _of_no_block(self, addend: Addend) -> Addend:
        """An addend as a view of no block, in the one form of that."""
        base = uncut(self._table, addend) or addend
        return base._replace(view=sunk(settled(base.view)))

    def _read_back(self, one: _Sum, read: Read, addend: Addend) -> View | None:
        """The view of a sum of which this addend, read as ``read``, is a view of its node."""
        extents = self._table[one.node].extents
        _, starts = based(self._table, read.node)
        labels: dict[int, tuple[int, int]] = {}
        for axis, stride, extent, label in read.intervals:
            summed = label >= len(extents)
            if summed or stride != 1 or extent != extents[label] or axis in labels:
                return None
            labels[axis] = label, starts.get(axis, 0)
        if len({label for label, _ in labels.values()}) < len(extents):
            return None
        whole = self._table[addend.node].extents

        def back(interval: StridedInterval) -> StridedInterval | None:
            label, start = labels[interval.axis]
            sizes = whole[interval.axis], extents[label]
            moved = inside(interval, start, *sizes, self._mesh)
            return None if moved is None else moved._replace(axis=label)

        dims: list[Dim] = []
        for dim in addend.view.dims:
            kept = [a for a in dim if a.axis == BROADCAST or a.axis in labels]
            moved = [a if a.axis == BROADCAST else back(a) for a in kept]
            if len(kept) < len(dim) or any(a is None for a in moved):
                return None
            dims.append(tuple(a for a in moved if a is not None))
        fixed = [back(a) for a in addend.view.fixed if a.axis in labels]
        if any(a is None for a in fixed):
            return None
        return View(tuple(dims), tuple(a for a in fixed if a is not None))


def _through(view: View, read: Read) -> View | None:
    """A view of a value, whose axis i is label i of what it reads, as a view of that; None where it
    reads two axes at one label.

    Example: ``[a1[4 +2 of 8]]`` of what reads ``n3`` along label 1 as its axis 0, and axis 1 at 2
    of 3, is ``[a0[4 +2 of 8]] at a1[2 +1 of 3]`` of ``n3``.
    """
    axes: dict[int, tuple[int, int]] = {}
    for axis, stride, _, label in read.intervals:
        if label in axes:
            return None
        axes[label] = axis, stride

    def below(interval: StridedInterval) -> StridedInterval:
        if interval.axis not in axes:
            return constant_interval(interval.size)
        axis, stride = axes[interval.axis]
        return interval._replace(axis=axis, stride=interval.stride * stride)

    dims = tuple(merge([below(a) for a in dim]) for dim in view.dims)
    fixed = tuple(below(a) for a in view.fixed if a.axis in axes)
    alone = tuple(StridedInterval(axis, stride, n, at, 1) for axis, stride, n, at in read.fixed)
    return View(dims, (*fixed, *alone))
