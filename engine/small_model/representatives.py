"""Which positions of a claim's axes represent the others.

The positions of an axis are written in digits (`engine.small_model.mixed_radix`); the grid cuts the
range of each digit at every interval boundary that the claim mentions.  Every piece between cuts
keeps at least `FEWEST` positions (as many as the claim has labels that run along it, if those are
more: `engine.small_model.bounds`): single ones, and a last one that stands for the rest of the
piece. Digits of equal extent are cut alike, which relates the axes that an operator identifies.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from itertools import pairwise, product
from math import prod

from shardproof.engine.algebra.affine import Affine
from shardproof.engine.errors import Unsupported
from shardproof.engine.interpreters.dims import Dim, Factor
from shardproof.engine.lineage import blocks as blocks_of
from shardproof.engine.lineage.blocks import Block
from shardproof.engine.lineage.lineage import (
    ABSOLUTE,
    BROADCAST,
    Addend,
    Lineage,
    PartialRange,
    StridedInterval,
)
from shardproof.engine.lineage.nodes import NodeTable
from shardproof.engine.lineage.places import alone, clipped, radix, split
from shardproof.engine.lineage.views import Misaligned
from shardproof.engine.small_model.mixed_radix import Axis, MixedRadix, Relation, Shift

Interval = tuple[int, int]
Over = tuple[tuple[str, int], ...]

#: Positions that every piece of an axis keeps, or all that it has.
FEWEST = 2
#: Rounds in which cuts are carried between blocks and the axes that they are of.
MOST_SHIFTED = 8
#: Positions of an axis, and entries of a tensor, of claims that are stated without reduction.
MOST_WHOLE, MOST_ENTRIES = 1024, 4096


class Representatives(MixedRadix):
    """The represented positions of one claim.  Raises `Unsupported` where boundaries cut through
    the digits of an axis.

    Example: 16 columns of which rank ``tp`` has ``<8*tp> +8 of 16`` are represented on rank 1 by 8
    and 9; where all ranks are summed over, by 0, 1, 8 and 9.

    ``extents``: of the mesh coordinates.  Coordinates in ``over`` are summed or gathered by the
    operator and are represented like a digit; any other takes one value.  ``boundaries``: (size of
    a local dimension, place) where the operator itself cuts or joins it.  ``related``: local
    dimensions that the operator takes for one another.  ``needs``: how many positions a piece of a
    digit (axis, stride, extent) has to keep, if more than `FEWEST`; ``more``: how many it keeps
    beyond.  ``point``: the member of the family, where it is not the second along every coordinate.
    ``exact``: nothing is reduced; raises `Unsupported` unless everything is small.
    """

    def __init__(
        self,
        nodes: NodeTable,
        lineages: Sequence[Lineage],
        defined: Sequence[int],
        extents: Mapping[str, int],
        over: Over,
        more: int = 0,
        boundaries: Iterable[tuple[int, int]] = (),
        *,
        related: Sequence[Relation] | None = None,
        point: Mapping[str, int] | None = None,
        needs: Callable[[Axis, int, int], int] | None = None,
        exact: bool = False,
    ) -> None:
        super().__init__(nodes, lineages, defined, extents, related)
        self.more = more
        summed = {axis for axis, _ in over}
        self.generic = {
            axis: 0 if axis in summed or extent == 1 else 1 for axis, extent in extents.items()
        } | dict(point or {})
        self.units: dict[int, int] = {}
        self.coordinates = dict(self.generic)
        self.cuts: dict[int, set[int]] = {}
        self.local: dict[int, Dim] = {}
        #: By size of a local dimension: what lies side by side along one, and all that lies there.
        self.exact = exact
        self.placed: dict[int, list[Addend]] = {}
        self.beside: dict[int, list[Addend]] = {}
        if exact:
            self._check_small(lineages)
            return
        if needs is not None:
            self._note_required(needs)
        for _, extent in over:
            self.cuts.setdefault(extent, set()).update((0, extent))
        for extent, place in boundaries:
            self.cuts.setdefault(extent, {0, extent}).add(place)
        self._note_cuts(lineages)
        self._note_sides(lineages)
        self._note_shifts(defined)
        if related is not None:
            self._note_absolute(lineages)
        self._note_local(lineages)
        self._check_joined(lineages, over)

    def _check_small(self, lineages: Sequence[Lineage]) -> None:
        for shape in (x.shape for x in lineages):
            if prod(shape) > MOST_ENTRIES or any(n > MOST_WHOLE for n in shape):
                raise Unsupported(f"a tensor of {list(shape)} that cannot be reduced")

    @staticmethod
    def _every(size: int) -> list[tuple[int, int]]:
        """All positions, each of which stands for itself."""
        if size > MOST_WHOLE:
            raise Unsupported(f"a range of {size} positions that cannot be reduced")
        return [(position, 1) for position in range(size)]

    def reset(self) -> None:
        """Put all coordinates back to their one value."""
        self.coordinates.update(self.generic)

    def at(self, value: Affine) -> int:
        """The number that an affine function is at the member that is looked at."""
        return value.at(self.coordinates)

    def _intervals(
        self, digits: Sequence[tuple[int, int]], start: int, size: int
    ) -> list[Interval]:
        """The interval of each digit, innermost first, that [start, start + size) is made of."""
        low, high = start, start + size
        result: list[Interval] = []
        single = False
        for _, extent in digits:
            if single:
                value = low % extent if extent else low
                result.append((value, value + 1))
                low = low // extent if extent else 0
            elif extent and low % extent == 0 and high % extent == 0:
                result.append((0, extent))
                low, high = low // extent, high // extent
            elif not extent or low // extent == (high - 1) // extent:
                first = low % extent if extent else low
                result.append((first, first + high - low))
                low = low // extent if extent else 0
                single = True
            else:
                raise Unsupported(f"positions {start} to {start + size} cut through a block")
        if low:  # They would be taken for those at the beginning of the digits.
            raise Unsupported(f"positions {start} to {start + size} lie beyond what is read")
        return result

    def _note_required(self, needs: Callable[[Axis, int, int], int]) -> None:
        """How many positions the pieces of a range keep: as many as any digit of it needs."""
        for axis in self.strides:
            with suppress(Unsupported):  # what reads this axis will say so
                for stride, extent in self._digits(axis):
                    most = max(self.units.get(extent, 0), needs(axis, stride, extent))
                    self.units[extent] = most

    # -- cuts -------------------------------------------------------------------------------

    def _note_cuts(self, lineages: Sequence[Lineage]) -> None:
        for lineage in lineages:
            for addend in lineage.addends:
                for interval in (*(a for d in addend.view.dims for a in d), *addend.view.fixed):
                    if interval.axis == BROADCAST:
                        continue
                    self._cut(
                        (addend.node, interval.axis),
                        interval.stride,
                        interval.extent,
                        self.at(interval.start),
                        interval.size,
                    )
                for partial in addend.partials:
                    self._cut(
                        self._range(partial),
                        1,
                        partial.extent,
                        self.at(partial.start),
                        partial.size,
                    )

    def _note_sides(self, lineages: Sequence[Lineage]) -> None:
        """Where values lie side by side along a dimension, all dimensions of that size are cut."""
        placed = self.placed
        for lineage in lineages:
            for addend in lineage.addends:
                for place in addend.places:
                    self.cuts.setdefault(place.extent, {0, place.extent}).update(
                        (place.start, place.start + place.size)
                    )
                    size = lineage.shape[place.dim]
                    placed.setdefault(size, []).append(alone(addend, place.dim))
        for size, addends in placed.items():
            for lineage in lineages:
                for dim in (d for d, n in enumerate(lineage.shape) if n == size):
                    for addend in lineage.addends:
                        own = alone(addend, dim)
                        self.beside.setdefault(size, []).append(own)
                        with suppress(Misaligned):
                            self._cut_along(own, size, addends)

    def _cut_along(self, own: Addend, size: int, addends: Sequence[Addend]) -> None:
        """Cut what an addend of one dimension views where ``addends`` lie along it."""
        sizes = radix([own, *addends], 0, size)
        one = split(own, 0, sizes)
        bounds: list[set[int]] = [{0, n} for n in sizes]
        for other in addends:
            for place in other.places:
                inner = 1
                for part in reversed(range(len(sizes))):
                    if inner < place.extent <= inner * sizes[part]:
                        bounds[part] |= {place.start // inner, (place.start + place.size) // inner}
                    inner *= sizes[part]
        for part, positions in enumerate(bounds):
            for low, high in pairwise(sorted(positions)):
                inside = clipped(one, part, low, high - low, sizes[part])
                if inside is not None:
                    self._cut_where_read(inside)

    def _cut_where_read(self, addend: Addend) -> None:
        """Cut the axes of an addend where they have digits at its strides; where they have none,
        nothing is read there that could be cut (an operand of which only the shape counts)."""
        for interval in (*(a for dim in addend.view.dims for a in dim), *addend.view.fixed):
            key = addend.node, interval.axis
            if interval.axis != BROADCAST and self.within(key, interval.stride, interval.extent):
                start = self.at(interval.start)
                self._cut(key, interval.stride, interval.extent, start, interval.size)

    def _note_shifts(self, defined: Sequence[int]) -> None:
        """Cut blocks and the axes that they are of alike, until nothing changes."""
        shifts = [s for n in defined for s in self.shifts(n) if s.digit.size != s.digit.extent]
        for _ in range(MOST_SHIFTED if shifts else 0):
            before = {extent: set(cuts) for extent, cuts in self.cuts.items()}, dict(self.units)
            for shift in shifts:
                self._shift(shift)
            if before == (self.cuts, self.units):
                return
        if shifts:
            raise Unsupported("blocks of one axis that overlap")

    def _shift(self, shift: Shift) -> None:
        inside, around, (inner, outer, size, start, extent) = shift
        # A block of one position has no digit of its own.
        stride, last = (self.within(inside, inner, size) or [(inner, 1)])[-1]
        step = stride // inner
        at, above = next(iter(self.within(around, outer * step, extent // step)), (0, 0))
        if start % step or size != step * last or at != outer * step:
            raise Unsupported(f"a block of {size} positions from {start} in blocks of {step}")
        if above == last:
            return  # it is a digit of its own, and cut like all of that extent
        first = start // step
        cuts = self.cuts.setdefault(last, {0, last})
        for stop in sorted(cuts):
            self._cut(around, at, extent // step, first, stop)
        begin = first % above if above else first
        cuts |= {p - begin for p in self.cuts[above] if begin <= p <= begin + last}
        units = max(self.units.get(last, 0), self.units.get(above, 0))
        self.units[last] = self.units[above] = units

    def _check_joined(self, lineages: Sequence[Lineage], over: Over) -> None:
        """A coordinate that is summed over represents the digit that a part moves along: refuse one
        that is represented by few positions of what are several digits."""
        for partial in (p for x in lineages for addend in x.addends for p in addend.partials):
            for axis, extent in over:
                step = abs(partial.start.coefficient(axis))
                within = (s for s in self.strides[self._range(partial)] if step < s < step * extent)
                if any(within) and len(self._blocks(extent)) < extent:
                    raise Unsupported(f"a sum along {axis} over several digits of a range")

    def _cut(self, key: Axis, stride: int, extent: int, start: int, size: int) -> None:
        digits = self.within(key, stride, extent)
        for (_, e), (low, high) in zip(digits, self._intervals(digits, start, size), strict=True):
            self.cuts.setdefault(e, set()).update((low, high))

    def _note_absolute(self, lineages: Sequence[Lineage]) -> None:
        """Absolute positions are cut where the dimensions that count them are."""
        for lineage in lineages:
            for addend in lineage.addends:
                for interval in (a for dim in addend.view.dims for a in dim):
                    if interval.axis != BROADCAST and interval.extent == ABSOLUTE:
                        start = self.at(interval.start)
                        places = self.cuts.get(interval.size, set())
                        cuts = self.cuts.setdefault(ABSOLUTE, set())
                        cuts |= {start + place for place in places}

    def _blocks(self, extent: int) -> list[tuple[int, int]]:
        """(first position, length) of the blocks of a digit's range."""
        bounds = sorted(self.cuts.get(extent, set()) | ({0, extent} if extent else set()))
        blocks: list[tuple[int, int]] = []
        units = max(FEWEST, self._required(extent)) + self.more
        for low, high in pairwise(bounds):
            singles = min(units - 1, high - low - 1)
            blocks += [(low + i, 1) for i in range(singles)]
            blocks.append((low + singles, high - low - singles))
        return blocks

    def _required(self, extent: int) -> int:
        """The most of all where dimensions of different ranges (positions and what they count) have
        to be represented alike."""
        return max(self.units.values(), default=0) if self.places else self.units.get(extent, 0)

    def _kept(self, extent: int, interval: Interval) -> list[tuple[int, int]]:
        """(position, multiplicity) of the represented positions of a digit in an interval."""
        result = []
        for first, length in self._blocks(extent):
            begin, end = max(first, interval[0]), min(first + length, interval[1])
            if begin < end:
                result.append((begin, end - begin))
        return result

    # -- what claims ask for ----------------------------------------------------------------

    def positions(
        self, key: Axis, stride: int, extent: int, size: int, partials: Sequence[PartialRange] = ()
    ) -> list[tuple[int, int]]:
        """(position, multiplicity) that represent [0, size) of a label's range, where ``partials``
        hold (of stride 1)."""
        if self.exact:
            ranges = [(p.extent, self.at(p.start), p.size) for p in partials]
            return [
                (position, 1)
                for position, _ in self._every(size)
                if all(first <= position % n < first + many for n, first, many in ranges)
            ]
        if key not in self.strides:
            self._stride(key, stride, extent)
        digits = self.within(key, stride, extent)
        intervals = self._intervals(digits, 0, size)
        for partial in partials:
            inner = self.within(key, stride, partial.extent)
            if prod(e for _, e in inner) != partial.extent:
                raise Unsupported(f"a range that repeats every {partial.extent} positions")
            # The intervals of the digits inside a period; those outside are not restricted.
            pieces = self._intervals(inner, self.at(partial.start), partial.size)
            for k, (low, high) in enumerate(pieces):
                intervals[k] = max(low, intervals[k][0]), min(high, intervals[k][1])
        places = [
            [(p * s // stride, w) for p, w in self._kept(e, interval)]
            for (s, e), interval in zip(digits, intervals, strict=True)
        ]
        places.reverse()
        result = []
        for chosen in product(*places):
            weight = 1
            for _, w in chosen:
                weight *= w
            result.append((sum(p for p, _ in chosen), weight))
        return result

    def classes(self, key: Axis, low: int, high: int) -> list[tuple[int, int]] | None:
        """(position, multiplicity) of what represents [low, high) of an axis without an end, and
        nothing beside it; None where there is no such thing.

        Example: of 24 classes of which each of two ranks has twelve, 0 and 12 once, 1 and 13 for
        eleven each.
        """
        if self.exact:
            return [(p, 1) for p in range(low, high)] if high - low <= MOST_WHOLE else None
        try:
            digits = self.within(key, 1, ABSOLUTE)
            intervals = self._intervals(digits, low, high - low)
        except Unsupported:
            return None
        places: list[list[tuple[int, int]]] = []
        for (stride, extent), (begin, end) in zip(digits, intervals, strict=True):
            own = [b for b in self._blocks(extent) if begin < b[0] + b[1] and b[0] < end]
            # A single position that nothing cuts stands for itself.
            own = own or [(begin, 1)]
            if sum(n for _, n in own) != end - begin:
                return None
            places.insert(0, [(p * stride, n) for p, n in own])
        return [(sum(p for p, _ in own), prod(n for _, n in own)) for own in product(*places)]

    def digits(self, key: Axis, atom: StridedInterval) -> list[tuple[Factor, list[int]]]:
        """For each digit of an atom, outermost first: multiplicities, and the places along the
        node's axis of its represented positions (the places of all digits add up)."""
        if self.exact:
            start = self.at(atom.start)
            places = [atom.stride * (start + i) for i in range(atom.size)]
            return [((1,) * atom.size, places)]
        digits = self.within(key, atom.stride, atom.extent)
        if atom.extent != ABSOLUTE and prod(e for _, e in digits) != atom.extent:
            raise Unsupported(f"an axis read at stride {atom.stride}, where it is not split")
        intervals = self._intervals(digits, self.at(atom.start), atom.size)
        result = []
        for (s, e), interval in zip(digits, intervals, strict=True):
            kept = self._kept(e, interval)
            result.append((tuple(w for _, w in kept), [p * s for p, _ in kept]))
        result.reverse()
        return result

    def inside(self, key: Axis, blocks: Iterable[Block], full: int, index: int) -> int:
        """Where a position of a block's axis is on the axis ``key`` that it is of.

        Example: position 4 of the first three of every four is position 5.
        """
        return blocks_of.place(blocks, key[1], full, index)

    def _note_local(self, lineages: Sequence[Lineage]) -> None:
        """How local dimensions are represented, for tensors that are constant along them."""
        for lineage in lineages:
            for addend in lineage.addends:
                for dim in addend.view.dims:
                    size = prod(a.size for a in dim)
                    if any(a.axis == BROADCAST for a in dim) or size in self.local:
                        continue
                    factors = [f for a in dim for f, _ in self.digits((addend.node, a.axis), a)]
                    self.local[size] = tuple(factors)

    def broadcast_dim(self, lineage: Lineage, dim: int, inner: int, size: int) -> Dim:
        """``size`` positions of a local dimension, ``inner`` apart, along which a tensor does not
        vary: represented as what the operator takes it for."""
        if self.exact:
            return self.constant_dim(size)
        key = (self.places.get(id(lineage), 0), dim)
        if key[0] >= 0 or key not in self.strides:
            return self.constant_dim(size)
        bounds = {s // inner for s in self.strides[key] if s % inner == 0}
        steps = sorted({1, size} | {s for s in bounds if s < size})
        if any(high % low for low, high in pairwise(steps)):
            raise Unsupported(f"a dimension of {size} in blocks of {steps}")
        factors = [tuple(w for _, w in self._blocks(h // low)) for low, h in pairwise(steps)]
        return tuple(reversed(factors))

    def represented(self, size: int, sizes: Sequence[int], part: int, low: int, high: int) -> Dim:
        """How positions [low, high) of part ``part`` of a local dimension of ``size``, split into
        ``sizes``, are represented where nothing lies there: as what does elsewhere."""
        # What has places itself comes first: another dimension may have this size by chance.
        for addend in (*self.placed.get(size, ()), *self.beside.get(size, ())):
            with suppress(Misaligned):
                own = split(addend, 0, tuple(sizes))
                piece = clipped(own, part, low, high - low, sizes[part])
                if piece is None or any(p.dim == part for p in piece.places):
                    continue
                intervals = piece.view.dims[part]
                if all(a.axis != BROADCAST for a in intervals):
                    return tuple(
                        f for a in intervals for f, _ in self.digits((addend.node, a.axis), a)
                    )
        return self.constant_dim(high - low)

    def constant_dim(self, size: int) -> Dim:
        """A dimension of ``size`` along which a tensor is constant, represented like any other
        of its size."""
        if self.exact:
            return ((1,) * size,)
        known = self.local.get(size)
        return known if known is not None else (tuple(w for _, w in self._blocks(size)),)

    def coordinate(self, axis: str, extent: int) -> list[tuple[int, int]]:
        """(position, multiplicity) of the represented coordinates along a mesh axis."""
        if self.exact:
            return self._every(extent)
        return self._blocks(extent)
