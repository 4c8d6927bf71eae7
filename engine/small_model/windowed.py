"""Windows of an axis that overlap, each as a tensor of its own.

What the taps of a convolution read is the same axis, begun at several places.  To cut it so that
all of these windows are cut alike, every position would be kept.  Here each window of an axis is
taken for a tensor of its own, of which nothing is known: whatever holds for any tensors in these
places holds for windows of one.  Windows of no more positions than every piece keeps are read as
they are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import pairwise

from shardproof.engine.errors import Unsupported
from shardproof.engine.interpreters.dims import Factor
from shardproof.engine.lineage.blocks import Block, is_shift, of_axis
from shardproof.engine.lineage.expressions import Combine, Einsum, Restrict, Unary
from shardproof.engine.lineage.lineage import (
    BROADCAST,
    Lineage,
    PartialRange,
    StridedInterval,
)
from shardproof.engine.lineage.nodes import NodeTable
from shardproof.engine.small_model.mixed_radix import Axis
from shardproof.engine.small_model.representatives import Interval, Representatives

#: Positions of windows are numbered from here on; those of axes are smaller.
FIRST = 1 << 40


class Windowed(Representatives):
    """The represented positions of one claim, where axes that are read along themselves are read in
    windows; raises `Unsupported` where one is read at other strides as well, or by its number.

    Example: of ``n5[a0[0 +30 of 32]]``, ``n5[a0[1 +30 of 32]]`` and their sum, two positions of the
    first window and the same two of the second, four letters.
    """

    def __init__(
        self,
        nodes: NodeTable,
        lineages: Sequence[Lineage],
        defined: Sequence[int],
        extents: Mapping[str, int],
        more: int,
        boundaries: Iterable[tuple[int, int]],
        *,
        point: Mapping[str, int],
        needs: Callable[[Axis, int, int], int],
    ) -> None:
        """As `Representatives`, where no ranks are joined, and no dimensions related."""
        self._numbers: dict[Interval, int] = {}
        self._windows: list[Interval] = []
        self._read = (lineages, defined)
        self._otherwise: set[Axis] | None = None
        for number in defined:
            definition = nodes[number].definition
            if not isinstance(definition, Einsum | Combine | Unary | Restrict):
                raise Unsupported(f"windows of a {definition.kind}")
        super().__init__(
            nodes, lineages, defined, extents, (), more, boundaries, point=point, needs=needs
        )

    # -- which axes -------------------------------------------------------------------------

    def windowed(self, key: Axis) -> bool:
        """Whether an axis, and what is read along it, is read along itself alone.

        Example: the rows of an image are, those of which a block of 4 is one position are not.
        """
        if self._otherwise is None:
            self._otherwise = self._read_otherwise()
        return key not in self._otherwise and self._is_alone(key)

    def _is_alone(self, key: Axis) -> bool:
        node, axis = key
        full = self.full.get(key, 0)
        whole = axis < 0 or full == self.nodes[node].extents[axis]
        return full > 0 and whole and self._digits(key) == ((1, full),)

    def _read_otherwise(self) -> set[Axis]:
        """Axes that are read at other strides as well, or twice by one view, and all axes that are
        read along these."""
        lineages, defined = self._read
        otherwise = set[Axis]()
        for lineage in lineages:
            for addend in lineage.addends:
                view = addend.view
                read = (*(a for d in view.dims for a in d), *view.fixed)
                axes = [a.axis for a in read if a.axis != BROADCAST]
                otherwise |= {(addend.node, a) for a in axes if axes.count(a) > 1}
        pairs = list[tuple[Axis, Axis]]()
        for number in defined:
            for one, _, (node, axis), stride, extent in self.relations(number):
                pairs.append((one, (node, axis)))
                if (stride, extent) != (1, self.nodes[node].extents[axis]):
                    otherwise.add(one)
            pairs += [(inside, around) for inside, around, _ in self.shifts(number)]
            for operand in self.nodes[number].definition.reads():
                axes = [a for a, *_ in operand.intervals] + [a for a, *_ in operand.fixed]
                otherwise |= {(operand.node, a) for a in axes if axes.count(a) > 1}
        otherwise |= {key for pair in pairs for key in pair if not self._is_alone(key)}
        changed = True
        while changed:
            more = {key for pair in pairs for key in pair if not otherwise.isdisjoint(pair)}
            changed = not more <= otherwise
            otherwise |= more
        return otherwise

    # -- cuts -------------------------------------------------------------------------------

    def _cut(self, key: Axis, stride: int, extent: int, start: int, size: int) -> None:
        if not self.windowed(key):
            super()._cut(key, stride, extent, start, size)
        elif key[1] < 0:
            # Parts of a sum are windows of its range side by side.
            self.cuts.setdefault(extent, {0, extent}).update((start, start + size))

    def _note_shifts(self, defined: Sequence[int]) -> None:
        """Blocks of windows begin where they do; others are cut as they are elsewhere."""
        super()._note_shifts(
            [n for n in defined if not any(self.windowed(s.inside) for s in self.shifts(n))]
        )

    def _required(self, extent: int) -> int:
        return max(self.units.values(), default=0)

    # -- positions --------------------------------------------------------------------------

    def _in_windows(self, start: int, size: int) -> list[tuple[int, int]]:
        """(position, multiplicity) of what is represented of [start, start + size) of an axis: a
        window for each piece of a local dimension of that size."""
        result = []
        for low, high in pairwise(sorted(self.cuts.get(size, set()) | {0, size})):
            kept = [(p - low, w) for p, w in self._blocks(size) if low <= p < high]
            if len(kept) == high - low:
                result += [(start + low + p, w) for p, w in kept]
            else:
                result += [(self._number((start + low, high - low), p), w) for p, w in kept]
        return result

    def _number(self, window: Interval, place: int) -> int:
        """The number of a place in a window."""
        if window not in self._numbers:
            self._numbers[window] = len(self._windows)
            self._windows.append(window)
        return FIRST * (self._numbers[window] + 1) + place

    def inside(self, key: Axis, blocks: Iterable[Block], full: int, index: int) -> int:
        """Where a position of a block is on the axis that it is of; of a window's, in the window
        that it is there.

        Example: place 1 of the window [0, 30) of ``n5 where a0[2 +30 of 32]`` is that place of the
        window [2, 32).
        """
        if not self.windowed(key):
            return super().inside(key, blocks, full, index)
        (block, *others) = of_axis(blocks, key[1])
        if others or not is_shift(blocks, key[1], full):
            raise Unsupported("windows of a block that is no interval")
        if index < FIRST:
            return index + block.start
        number, place = divmod(index, FIRST)
        start, size = self._windows[number - 1]
        return self._number((start + block.start, size), place)

    def positions(
        self, key: Axis, stride: int, extent: int, size: int, partials: Sequence[PartialRange] = ()
    ) -> list[tuple[int, int]]:
        """As in `Representatives`, in windows: a part of a sum is one.

        Example: of a part [8, 16) of 32 positions, places 0 and 1 of that window.
        """
        if key not in self.strides or not self.windowed(key):
            return super().positions(key, stride, extent, size, partials)
        if stride != 1 or len(partials) > 1 or any(p.extent != size for p in partials):
            raise Unsupported("windows of a range that is read in another way, too")
        whole = [(self.at(p.start), p.size) for p in partials] or [(0, size)]
        return self._in_windows(*whole[0])

    def digits(self, key: Axis, atom: StridedInterval) -> list[tuple[Factor, list[int]]]:
        """As in `Representatives`, of one window.

        Example: of ``a0[1 +30 of 32]`` multiplicities 1 and 29, of places 0 and 1 of that window.
        """
        if not self.windowed(key):
            return super().digits(key, atom)
        kept = self._in_windows(self.at(atom.start), atom.size)
        return [(tuple(w for _, w in kept), [p for p, _ in kept])]
