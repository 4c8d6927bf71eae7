"""Values over lineages: which node a tensor is, read as the single-device program reads it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence, Set
from fractions import Fraction
from functools import cache, partial
from itertools import islice
from math import prod
from typing import TypeVar

from shardproof.engine.claims.cone import operands
from shardproof.engine.lineage.expressions import (
    Combine,
    Comparison,
    Einsum,
    Expression,
    Local,
    Opaque,
    Operand,
)
from shardproof.engine.lineage.floating import sunk
from shardproof.engine.lineage.lineage import BROADCAST, Addend, Lineage, PartialRange
from shardproof.engine.lineage.nodes import NodeTable
from shardproof.engine.lineage.reductions import part_of
from shardproof.engine.lineage.sums import collect, merge_partials
from shardproof.engine.lineage.views import Misaligned
from shardproof.partition.inference.digits import AsRead
from shardproof.partition.inference.earlier import as_earlier
from shardproof.partition.inference.exponentials import References
from shardproof.partition.inference.floats import (
    MOST_FRUITLESS,
    SHORT,
    SHORTER,
    Way,
    sizes_of,
)
from shardproof.partition.inference.masked_sums import completed, vanished
from shardproof.partition.inference.masks import masked_once
from shardproof.partition.inference.match import Matcher
from shardproof.partition.inference.regrouped import Regrouped
from shardproof.partition.inference.shared_blocks import SharedBlocks
from shardproof.partition.inference.shares import Shares
from shardproof.partition.inference.slots import at_slots
from shardproof.partition.inference.stencils import Stencils
from shardproof.partition.inference.views import (
    lineage_axes,
    local_view,
    narrowed,
    view_of_constant,
    widened,
)
from shardproof.partition.inference.visible import Masked, shows_all
from shardproof.partition.inference.windows import Windows

#: Readings of all ranks that are multiplied out.
MOST_RANKED = 3


def in_order(addends: Iterable[Addend]) -> tuple[Addend, ...]:
    """Addends in an order that depends on the order of nodes and reductions, not on their numbers:
    over others that lie alike it is the same.

    Example: views of ``n5`` and of ``n1`` come as those of ``n1`` and of ``n5``.
    """

    def place(addend: Addend) -> tuple[object, ...]:
        partials = tuple(p._replace(reduction=0) for p in addend.partials)
        reductions = tuple(p.reduction for p in addend.partials)
        return addend.node, reductions, repr(addend._replace(node=0, partials=partials))

    return tuple(sorted(addends, key=place))


class Values:
    """Values over lineages, and the nodes that they become; all nodes go to ``table``.

    Example: after the reading of ``(a + b) c`` the table has a node for it, and ``known`` gives it
    as a view of the single device's ``a c + b c``.
    """

    def __init__(
        self,
        table: NodeTable,
        reference_size: int | None = None,
        mesh: Mapping[str, int] | None = None,
    ) -> None:
        """``reference_size``: nodes below are the single-device program's (None: all are);
        ``mesh``: how far every coordinate reaches."""
        self.table = table
        self.reference_size = reference_size
        self.mesh = mesh or {}
        self._reads: AsRead | None = None
        self.windows = Windows(table, reference_size is None, self.mesh)
        #: What a mask says of a part of a sum, which many readings ask again.
        self.completed = cache(partial(completed, table))
        self.vanished = cache(partial(vanished, table))
        self.partial: list[tuple[str, Addend]] = []
        self.counted: set[int] = set()
        self.rewrote = False
        #: How many products were written as definitions, each of them one reading of views.
        self.products = 0
        #: How often in a row no reading of views of these sizes gave a value of the single device.
        self.fruitless: Counter[Hashable] = Counter()
        #: How often a sum was written without what is zero in it, which only its operands' own
        #: definitions tell.
        self.dropped = 0
        #: Definitions by which sums were seen to be zero, and values to be others.
        self.opened: set[int] = set()
        self.matcher = (
            None if reference_size is None else Matcher(table, reference_size, self.opened)
        )
        self.references = None if reference_size is None else References(table, reference_size)
        self.regrouped = Regrouped(table) if reference_size is None else None
        self.masked = None if reference_size is None else Masked(table, reference_size)
        self.stencils = (
            None if reference_size is None else Stencils(table, reference_size, self.mesh)
        )
        self.shared_blocks = SharedBlocks(table, reference_size or 0, self.mesh)
        #: Fixed positions at which the single-device program reads values.
        self._parts: Set[tuple[int | None, object]] | None = None
        self.shares = None if reference_size is None else Shares(table, reference_size)

    def shape(self, x: Lineage) -> tuple[int, ...]:
        """The local shape."""
        return x.shape

    def known(self, x: Lineage) -> Lineage:
        """The value over a node of the single-device program, where it has one by another route."""
        return x if self.matcher is None else self.matcher.known(x)

    def with_earlier(self, addends: list[Addend]) -> list[Addend]:
        """Addends with totals of earlier positions as parts of sums up to each position.

        Example: what `as_earlier` makes of ``n9[a0[4 +4 of 8]] part #1[4 +4 of 8]`` and the total
        of the first four positions is ``n9[a0[4 +4 of 8]] part #1[0 +8 of 8]``.
        """
        if self.matcher is None or len(addends) < 2:
            return addends
        made = as_earlier(self.table, self.matcher, addends)
        if made is None:
            return addends
        self.rewrote = True
        self.opened |= made[1]
        return collect(merge_partials(self.table, made[0], self.mesh))

    def _definition(
        self,
        definition: Expression,
        outputs: Sequence[int],
        extents: Mapping[int, int],
        addends: Sequence[Addend],
    ) -> int:
        coordinates: set[str] = set()
        for addend in addends:
            coordinates |= self.table[addend.node].coordinates
            for interval in addend.view.fixed:
                coordinates.update(interval.start.axes)
        return self.table.define(
            definition, tuple(extents[x] for x in outputs), frozenset(coordinates)
        )

    def of_all_slots(
        self,
        addends: Sequence[Addend],
        letters: str,
        make: Callable[[Way], Addend],
        *,
        adds: bool = False,
    ) -> Addend | None:
        """What the single-device program makes of blocks of an axis as a position of what it makes
        of all blocks; None where they are no such blocks, and for ranks.

        Example: the norm of the keys of a fused projection is that of its queries, elsewhere.

        ``adds``: all that is added up has to be of the block, but for numbers.
        """
        real = {k for k, t in enumerate(addends) if adds and t.node != self.table.one}
        way = at_slots(addends, letters, real) if self.reference_size is None else None
        if way is None:
            return None
        made = tried(make, way)
        return None if made is None else made._replace(view=sunk(made.view))

    def in_stencil(self, addends: Sequence[Addend]) -> list[Addend]:
        """A sum as one of the single device's of the same addends, wherever it begins there and
        whoever added up some of them first; none where it has none.

        Example: at a seam what two taps of a convolution of three send back, and what a
        neighbour's tap does, as a position of what all three send back.
        """
        made = None if self.stencils is None else self.stencils.of(addends)
        if made is None:
            return []
        self.opened |= made[1]
        self.rewrote = True
        return [made[0]]

    @property
    def reads(self) -> AsRead:
        """How the single-device program reads its values."""
        if self._reads is None:
            self._reads = AsRead(self.table, self.reference_size or 0)
        return self._reads

    def part_of_sum(self, addend: Addend, kind: str = "sum") -> Addend | None:
        """A view of one position of many as part of the single-device program's sum over them, or
        of their maximum (``kind`` "max"); None where it has none.

        Example: the sum over the pixels of one row, where that program adds up rows and pixels.
        """
        part = self.reads.part(addend, kind)
        if part is None and kind == "sum" and (part := self.reads.wider(addend)) is not None:
            self.opened.add(addend.node)
            self.rewrote = True
        return part

    def part_of_any(self, addend: Addend, sums: Set[int]) -> Addend | None:
        """A view of one position of many as part of one of some sums over them, whichever program
        has these; None where it is none.

        Example: ``n4[a1[3]] at a0[0 +1 of 8]``, of attention to the first of eight keys alone, and
        ``n9[a0[3]] part #0[0 +1 of 8]``, what the softmax's backward adds up of it.
        """
        part = self.part_of_sum(addend)
        if part is not None and part.node in sums:
            return part
        parts = (part_of(self.table, addend, number) for number in sorted(sums))
        return next((own for own in parts if own is not None), None)

    def _first_reading(
        self,
        addends: Sequence[Addend],
        first: Addend | None,
        others: Callable[[], Iterable[Addend | None]],
    ) -> Addend:
        """The first way of reading views that gives a value of the single-device program; raises
        `Misaligned` where none gives one at all.  ``first``: by their dimensions; ``others``: by
        their axes, where one position of many and what is in it are one interval, then further
        ones."""
        size = self.reference_size
        guess = size is not None and (first is None or first.node >= size)
        if size is not None and guess and all(self._is_common(t.node, size) for t in addends):
            made: list[Addend] = []
            sizes = sizes_of(addends)
            most = SHORT if self.fruitless[sizes] >= MOST_FRUITLESS else None
            if any(t.node >= size for t in addends):
                most = SHORTER
            for other in islice(others(), most):
                if other is not None and other.node < size:
                    del self.fruitless[sizes]
                    return other
                if other is not None:
                    made.append(other)
            self.fruitless[sizes] += 1
            if (regrouped := self._by_another_route(first, made)) is not None:
                return regrouped
            first = self._of_all(first, made)
        if guess and self.matcher is not None and self.matcher.meets:
            # Exponentials are written by others: what is made of them has no such value yet.
            first = next(iter(others()), None) or first
        if first is None:
            raise Misaligned
        return first

    def _is_of_all(self, number: int) -> bool:
        """Whether a value is defined over all positions of its operands, or at those at which the
        single-device program reads them, too: half of the columns of a fused projection.  Not at a
        fixed one of a rank's."""
        node = self.table[number]
        inside = node.definition.operands if isinstance(node.definition, Combine | Einsum) else ()
        return not node.coordinates and all(self._is_parted(operand) for operand in inside)

    def _is_parted(self, operand: Operand) -> bool:
        """Whether the single-device program reads an operand at its fixed positions, too; of what
        only the parallel side has, any of its values."""
        if not operand.fixed or self.reference_size is None:
            return not operand.fixed
        if self._parts is None:
            numbers = range(self.reference_size)
            reads = [own for n in numbers for own in operands(self.table, n) if own.fixed]
            self._parts = {(node, own.fixed) for own in reads for node in (own.node, None)}
        node = operand.node if operand.node < self.reference_size else None
        return (node, operand.fixed) in self._parts

    def _of_all(self, first: Addend | None, readings: Sequence[Addend]) -> Addend | None:
        """The first reading, or one that keeps its fixed positions as axes, or has fewer axes where
        one position of many and what is in it are one interval: so others find it that are made of
        it, or of other positions.

        Example: of ``a + b`` at row 1 of 2, row 1 of ``a + b``, to which ``c`` at row 1 is added.
        """
        if first is None:
            return None
        alike = [t for t in readings if _ranges(t) == _ranges(first) and self._is_of_all(t.node)]
        if not self._is_of_all(first.node):
            return next(iter(alike), first)
        fewer = len(self.table[first.node].extents)
        inside = [t for t in alike[:1] if len(self.table[t.node].extents) < fewer]
        return next(iter(inside), first)

    def _by_another_route(self, first: Addend | None, readings: Sequence[Addend]) -> Addend | None:
        """The first reading that keeps positions as an axis, and is a value of the single-device
        program by another route, or the one by dimensions; None where neither is.

        Example: of ``a + (b + c)`` at row ``<dp>`` of 2, row ``<dp>`` of ``(a + b) + c``.
        """
        if self.matcher is None or (first is not None and self._is_of_all(first.node)):
            return None
        wide = (reading for reading in readings if self._is_of_all(reading.node))
        for reading in (next(wide, None), first, *self._of_all_ranks(readings)):
            if reading is None:
                continue
            with self.matcher.aside():
                made = self.matcher.known(Lineage((), (reading,))).addends[0]
            if made is not reading:
                return made
        return None

    def _of_all_ranks(self, readings: Sequence[Addend]) -> list[Addend]:
        """Readings that depend on no coordinate, the smallest values first: what differs by rank is
        an axis, what is fixed everywhere stays so.

        Example: of ``a - b`` at row ``<dp>`` of 4, real parts of ``a`` and of ``b``, row ``<dp>``
        of the difference of these parts in all rows.
        """
        alike = {t.node: t for t in readings if not self.table[t.node].coordinates}
        return sorted(alike.values(), key=lambda t: prod(self.table[t.node].extents))[:MOST_RANKED]

    def _is_common(self, number: int, size: int) -> bool:
        """Whether a node is one of the single-device program, or a mask, which is nobody's own, or
        a sum or a product over all positions of others."""
        definition = self.table[number].definition
        if number < size or isinstance(definition, Comparison):
            return True
        return isinstance(definition, Combine | Einsum) and self._is_of_all(number)

    def _masked(self, addends: Sequence[Addend]) -> list[Addend]:
        """The addends of a sum without the masks that another has already, and without those that
        hide nothing."""
        once = masked_once(self.table, addends)
        return [t for t in once if len(once) == 1 or not shows_all(self.table, t)]

    def piece(self, x: Lineage) -> Lineage:
        """The tensor as a node of its own (a value that only the parallel program has), without the
        dimensions along which nothing varies.

        Example: of ``n6[_[4], a0[8]] + n7[_[4], a0[8]]`` it is ``n9[_[4], a0[8]]``: n9 has one
        axis, however many rows a rank has.
        """
        if not x.addends:
            return Lineage(
                x.shape, (Addend(Fraction(0), self.table.one, view_of_constant(x.shape)),)
            )
        wide = [dim for dim, size in enumerate(x.shape) if size > 1 and not _varies(x, dim)]
        if wide:
            return widened(self.piece(narrowed(x, wide)), x.shape)
        share = self.shares and self.shares.of_sum(x.addends, x.shape, self.mesh)
        if share:
            return Lineage(x.shape, (share.view(x.shape),))
        ranked = in_order(x.addends)
        intervals = (a for t in ranked for dim in t.view.dims for a in dim)
        self.counted.update(a.size for a in intervals if a.axis == BROADCAST)
        node = self.local_node(Opaque(ranked), x.shape, ranked)
        return local_view(node, x.shape)

    def scaled_piece(self, x: Lineage) -> Lineage:
        """`piece`, with the factor that all addends have before the node, or the part that it is.

        Example: ``-1/2*n6[a0[4]]`` is ``-1/2`` times ``piece(n6[a0[4]])``. What is masked keeps its
        sign: minus infinity has no negative.
        """
        if len(x.addends) == 1 and (part := self.shared(x.shape, x.addends)):
            return Lineage(x.shape, tuple(part))
        factors = {t.factor for t in x.addends}
        masked = any(self.table.is_masked(t.node) for t in x.addends)
        if len(factors) != 1 or (masked and min(factors) < 0):
            return self.piece(x)
        (factor,) = factors
        own = self.piece(Lineage(x.shape, tuple(t._replace(factor=Fraction(1)) for t in x.addends)))
        return Lineage(x.shape, tuple(t._replace(factor=factor) for t in own.addends))

    def scaled_pieces(self, x: Lineage) -> list[Addend]:
        """`scaled_piece` of one addend, and it as part of every other local tensor of the
        single-device program that it is a part of.

        Example: of the second half of the columns, for some of the rows: of all columns, and of
        that half of them.
        """
        (first,) = self.scaled_piece(x).addends
        ways = [first]
        if self.shares is not None:
            (addend,) = x.addends
            own = [addend._replace(factor=Fraction(1))]
            for share in self.shares.each_of_sum(own, x.shape, self.mesh):
                ways.append(share.beside([share]).view(x.shape)._replace(factor=addend.factor))
        return list(dict.fromkeys(ways))

    def shared(self, shape: tuple[int, ...], addends: Sequence[Addend]) -> list[Addend] | None:
        """Each addend as part of a local tensor of the single-device program, all of which begin
        alike, with its factor; None where one is no part."""
        if self.shares is None:
            return None
        shares = [self.shares.of(t, shape, self.mesh) for t in addends]
        known = [share for share in shares if share is not None]
        if len(known) < len(addends):
            return None
        views = (share.beside(known).view(shape) for share in known)
        return [v._replace(factor=t.factor) for v, t in zip(views, addends, strict=True)]

    def local_node(
        self, definition: Local, shape: tuple[int, ...], addends: Sequence[Addend]
    ) -> int:
        """The node of a value that only this side has; its axes are the local dimensions."""
        axes = lineage_axes(Lineage(shape, tuple(addends)), self.table)
        return self.table.define(definition, tuple(n for n in shape if n != 1), axes)


def _ranges(addend: Addend) -> list[PartialRange]:
    """The ranges that an addend is part of the sums over, whatever is summed."""
    return [part._replace(reduction=0) for part in addend.partials]


def _varies(x: Lineage, dim: int) -> bool:
    """Whether what a tensor is may differ from one position of a dimension to another."""
    intervals = (a for t in x.addends for a in t.view.dims[dim])
    placed = any(place.dim == dim for t in x.addends for place in t.places)
    return placed or any(a.axis != BROADCAST for a in intervals)


W = TypeVar("W")
V = TypeVar("V")


def tried(make: Callable[[W], V], way: W) -> V | None:
    """What ``make`` gives for a way of reading views, or None where it raises `Misaligned`.

    Example: the concatenation of two different inputs as one view is None.
    """
    try:
        return make(way)
    except Misaligned:
        return None
