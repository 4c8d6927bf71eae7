"""Intervals of different axes, or of one axis in different places, that one label runs along.

``x[:h] * x[h:]`` reads two blocks of one axis by one label; so do the query and the key of a fused
projection.  A *window* of each is chosen, all of one size, in which the intervals lie alike.  The
single-device program's are what it reads; a parallel program's are those of the single device that
its intervals lie in.  A window that is one of several equal ones is a fixed position (which of
them) beside a label that runs inside; any other is a block (`engine.lineage.blocks`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import product
from math import gcd
from typing import NamedTuple

from shardproof.engine.algebra.affine import Affine
from shardproof.engine.lineage.blocks import Block, extents
from shardproof.engine.lineage.expressions import Restrict
from shardproof.engine.lineage.lineage import ABSOLUTE, BROADCAST, Addend, StridedInterval
from shardproof.engine.lineage.nodes import NodeTable
from shardproof.engine.lineage.views import Misaligned, constant_interval
from shardproof.partition.inference.views import join

#: Where an interval may run, in positions of its interval: (start, size).
Window = tuple[int, int]
#: Ways to choose windows that are looked at.
MOST_CHOICES = 256


class Settled(NamedTuple):
    """Where one label runs that intervals have in common. ``joined``: where the label runs (of no
    axis: there is none); for each view its interval, a position of its axis that is fixed, and a
    block of its axis that it is about.

    Example: of ``x[:4] * x[4:]`` on an axis of 8, ``joined`` is ``a1[4]``, and the fixed positions
    are ``a1/4[0 +1 of 2]`` and ``a1/4[1 +1 of 2]``.
    """

    joined: StridedInterval
    intervals: tuple[StridedInterval | None, ...]
    fixed: tuple[StridedInterval | None, ...]
    blocks: tuple[Block | None, ...]


class Windows:
    """Chooses windows; ``defining``: of the single-device program, which says what they are.

    Example: for columns ``<2*tp> +2`` and ``<2*tp + 4> +2`` of 8, the gate and the up projection of
    a rank, the two halves of the axis.
    """

    def __init__(self, table: NodeTable, defining: bool, mesh: Mapping[str, int]) -> None:
        self.table = table
        self.defining = defining
        self.mesh = mesh

    def settle(
        self,
        position: Sequence[StridedInterval | None],
        nodes: Sequence[int],
        *,
        closed: bool = False,
        widest: bool = False,
    ) -> Settled:
        """Aligned intervals that are no common interval as one label (``closed``: which runs along
        what they are, no further; ``widest``: along the largest windows of the single-device
        program that they lie in); raises `Misaligned` where they are none."""
        none = (None,) * len(position)
        varying = [i for i, a in enumerate(position) if a is not None and a.axis != BROADCAST]
        intervals = [a for a in position if a is not None and a.axis != BROADCAST]
        if len({a.size for a in intervals}) > 1:
            raise Misaligned
        of = [nodes[i] for i in varying]
        windows = self._windows(intervals, of, closed and not widest, widest)
        result: list[StridedInterval | None] = list(position)
        fixed: list[StridedInterval | None] = list(none)
        blocks: list[Block | None] = list(none)
        for i, interval, window in zip(varying, intervals, windows, strict=True):
            own = self._endless(interval, nodes[i], window)
            result[i], fixed[i], blocks[i] = _inside(own, window)
        size = windows[0][1]
        if size == 1:
            return Settled(constant_interval(1), none, tuple(fixed), tuple(blocks))
        first = result[varying[0]]
        assert first is not None
        return Settled(first, tuple(result), tuple(fixed), tuple(blocks))

    def _endless(self, interval: StridedInterval, node: int, window: Window) -> StridedInterval:
        """An interval of classes of a one-hot that ran along an axis with an end: that of a window
        has none, since classes have no digits."""
        axis = self.table[node].extents[interval.axis]
        if axis != ABSOLUTE or window == (0, interval.extent):
            return interval
        return interval._replace(extent=ABSOLUTE)

    def _windows(
        self,
        intervals: Sequence[StridedInterval],
        nodes: Sequence[int],
        closed: bool,
        widest: bool,
    ) -> Sequence[Window]:
        exact = not any(a.start.terms for a in intervals)
        if exact and (self.defining or closed):
            windows: Sequence[Window] = [(a.start.const, a.size) for a in intervals]
            self._note(intervals, nodes, windows)
            return windows
        step = -1 if widest else 1
        known = [self._known(a, n)[::step] for a, n in zip(intervals, nodes, strict=True)]
        for count, chosen in enumerate(product(*known)):
            if count > MOST_CHOICES:
                break
            if self._alike(intervals, chosen):
                return chosen
        if exact:
            return [(a.start.const, a.size) for a in intervals]
        return self._equal_blocks(intervals)

    def _note(
        self, intervals: Sequence[StridedInterval], nodes: Sequence[int], windows: Sequence[Window]
    ) -> None:
        for interval, node, (start, size) in zip(intervals, nodes, windows, strict=True):
            known = self.table.blocks.setdefault((node, interval.axis, _period(interval)), [])
            window = start * interval.stride, size * interval.stride
            if window not in known:
                known.append(window)
                known.sort(key=lambda w: (w[1], w[0]))

    def _known(self, interval: StridedInterval, node: int) -> list[Window]:
        """Windows of the single-device program that an interval lies in, the smallest first."""
        low, high = self._span(interval.start)
        noted = self.table.blocks.get((node, interval.axis, _period(interval)), ())
        scaled = [
            (start // interval.stride, size // interval.stride)
            for start, size in noted
            if start % interval.stride == 0 and size % interval.stride == 0
        ]
        if interval.extent != ABSOLUTE:
            scaled.append((0, interval.extent))
        return [w for w in scaled if w[0] <= low and high + interval.size <= w[0] + w[1]]

    def _span(self, start: Affine) -> tuple[int, int]:
        try:
            return start.span(self.mesh)
        except KeyError:
            raise Misaligned from None

    def _alike(self, intervals: Sequence[StridedInterval], windows: Sequence[Window]) -> bool:
        if len({size for _, size in windows}) > 1:
            return False
        return len({a.start - start for a, (start, _) in zip(intervals, windows, strict=True)}) == 1

    def _equal_blocks(self, intervals: Sequence[StridedInterval]) -> list[Window]:
        """The largest blocks into which all axes divide, if each interval is in one of them."""
        size = 0
        for interval in intervals:
            apart = interval.start - intervals[0].start
            if apart.terms or interval.extent == ABSOLUTE:
                raise Misaligned
            size = gcd(size, interval.extent, apart.const)
        windows = []
        for interval in intervals:
            low, high = self._span(interval.start)
            start = low // size * size
            if high + interval.size > start + size:
                raise Misaligned
            windows.append((start, size))
        if not self._alike(intervals, windows):
            raise Misaligned
        return windows


def _period(interval: StridedInterval) -> int:
    return interval.stride * interval.extent if interval.extent != ABSOLUTE else ABSOLUTE


def _inside(
    interval: StridedInterval, window: Window
) -> tuple[StridedInterval | None, StridedInterval | None, Block | None]:
    """An interval as an interval of a window: its interval there, a fixed position, a block."""
    start, size = window
    if (start, size) == (0, interval.extent):
        return interval, None, None
    if size == 1 and interval.extent == ABSOLUTE:
        return None, interval, None
    inner = StridedInterval(
        interval.axis, interval.stride, size, interval.start - start, interval.size
    )
    if interval.extent != ABSOLUTE and start % size == 0 and interval.extent % size == 0:
        outer = interval.stride * size, interval.extent // size
        return inner, StridedInterval(interval.axis, *outer, Affine(start // size), 1), None
    stride = interval.stride
    return inner, None, Block(interval.axis, start * stride, size * stride, _period(interval))


def compressed(interval: StridedInterval, blocks: Sequence[Block]) -> StridedInterval:
    """An interval of an axis as one of what ``blocks`` leave of it: a block of them is what the
    interval runs in, or lies inside or outside of.

    Example: of an axis of 8 with the block [0, 4), the outer digit ``a0/8[4]`` is ``a0/4[4]``.
    """
    stride = interval.stride
    for block in blocks:
        if block.axis == interval.axis and block.extent and interval.stride >= block.extent:
            if interval.stride % block.extent:
                raise Misaligned
            stride = stride // block.extent * block.size
    return interval._replace(stride=stride)


class Reads:
    """How a definition reads the views that it is made of, label by label.

    Example: for ``x[:4] * x[4:]`` ``label`` gives ``a1[4]``, and ``settled`` both views at their
    fixed positions.
    """

    def __init__(
        self, windows: Windows, addends: Sequence[Addend], *, widest: bool = False
    ) -> None:
        """``widest``: closed labels are parts of what the single-device program reads."""
        self.windows = windows
        self.addends = addends
        self.widest = widest
        self._intervals: list[list[tuple[StridedInterval, int]]] = [[] for _ in addends]
        self._fixed: dict[int, list[StridedInterval]] = {}
        self._blocks: dict[int, list[Block]] = {}

    def label(
        self,
        label: int,
        position: Sequence[StridedInterval | None],
        owners: Sequence[int],
        *,
        closed: bool = False,
    ) -> StridedInterval:
        """Note a label that runs along one interval of each of the views ``owners``, and where it
        runs; raises `Misaligned`."""
        if not closed:
            try:
                joined = join(position)
            except Misaligned:
                pass
            else:
                if joined.axis != BROADCAST:
                    for k, interval in zip(owners, position, strict=True):
                        if interval is not None and interval.axis != BROADCAST:
                            self._intervals[k].append(
                                (interval._replace(extent=joined.extent), label)
                            )
                return joined
        nodes = [self.addends[k].node for k in owners]
        widest = closed and self.widest
        settled = self.windows.settle(position, nodes, closed=closed, widest=widest)
        for i, k in enumerate(owners):
            interval, fixed, block = settled.intervals[i], settled.fixed[i], settled.blocks[i]
            if interval is not None and interval.axis != BROADCAST:
                self._intervals[k].append((interval._replace(extent=settled.joined.extent), label))
            if fixed is not None:
                self._fixed.setdefault(k, []).append(fixed)
            if block is not None:
                self._blocks.setdefault(k, []).append(block)
        return settled.joined

    def settled(self) -> tuple[list[Addend], list[tuple[tuple[StridedInterval, int], ...]]]:
        """The views, over the blocks of nodes that are read and at the positions that are fixed,
        and their intervals with labels."""
        if not self._fixed and not self._blocks:
            return list(self.addends), [tuple(own) for own in self._intervals]
        addends, intervals = [], []
        for k, (addend, own) in enumerate(zip(self.addends, self._intervals, strict=True)):
            blocks = self._blocks.get(k, ())
            fixed = (*addend.view.fixed, *self._fixed.get(k, ()))
            positions = tuple(compressed(atom, blocks) for atom in fixed)
            node = self._block(addend, blocks) if blocks else addend.node
            addends.append(addend._replace(node=node, view=addend.view._replace(fixed=positions)))
            intervals.append(tuple((compressed(atom, blocks), label) for atom, label in own))
        return addends, intervals

    def _block(self, addend: Addend, unordered: Sequence[Block]) -> int:
        if addend.partials:
            raise Misaligned  # a part is of the whole node
        blocks = tuple(sorted(unordered, key=lambda b: (b.axis, b.extent == ABSOLUTE, b.extent)))
        node = self.windows.table[addend.node]
        try:
            full = extents(blocks, node.extents)
        except ValueError:
            raise Misaligned from None
        return self.windows.table.define(Restrict(addend.node, blocks), full, node.coordinates)


def is_endless(position: Sequence[StridedInterval | None]) -> bool:
    """Whether aligned intervals are all of axes without an end (classes of a one-hot): a sum over
    them is one over the block that is read.

    Example: ``a1[0 +16 of *]`` alone is, ``a1[0 +16 of 32]`` is not.
    """
    intervals = [a for a in position if a is not None and a.axis != BROADCAST]
    return bool(intervals) and all(a.extent == ABSOLUTE for a in intervals)
