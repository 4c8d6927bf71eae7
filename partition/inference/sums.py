"""Sums of views: of one node where they are complete, side by side where they lie apart."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from fractions import Fraction
from itertools import islice
from math import prod
from string import ascii_letters
from typing import TypeVar

from shardproof.engine.errors import ShapeMismatch
from shardproof.engine.lineage.expressions import (
    Combine,
    Comparison,
    Einsum,
    Expression,
    Local,
    Most,
    Opaque,
    Order,
)
from shardproof.engine.lineage.floating import settled, sunk
from shardproof.engine.lineage.lineage import BROADCAST, Addend, Lineage, StridedInterval
from shardproof.engine.lineage.nodes import NodeTable
from shardproof.engine.lineage.places import has_places
from shardproof.engine.lineage.sums import collect, largest, merge_partials
from shardproof.engine.lineage.views import Misaligned, align
from shardproof.partition.inference.canonical import Draft, canonical
from shardproof.partition.inference.digits import AsRead
from shardproof.partition.inference.exponentials import References
from shardproof.partition.inference.floats import (
    MOST_FRUITLESS,
    SHORT,
    Way,
    dropped,
    sizes_of,
    spread_behind,
    ways,
)
from shardproof.partition.inference.masks import masked_once, unscaled
from shardproof.partition.inference.match import Matcher
from shardproof.partition.inference.opened import cancelled, logarithms
from shardproof.partition.inference.pieces import each
from shardproof.partition.inference.shares import Shares
from shardproof.partition.inference.views import (
    lineage_axes,
    local_view,
    narrowed,
    result_view,
    view_of_constant,
    widened,
)
from shardproof.partition.inference.visible import Masked, along_diagonal, completed
from shardproof.partition.inference.windows import Reads, Windows

#: Sums of more partial addends than this are taken as they are; those of single numbers (the norm
#: of all gradients has one for each parameter) of more than the second.
MOST_TERMS, MOST_NUMBERS = 32, 512


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
        self.partial: list[tuple[str, Addend]] = []
        self.counted: set[int] = set()
        self.rewrote = False
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
        self.masked = None if reference_size is None else Masked(table, reference_size)
        self.shares = None if reference_size is None else Shares(table, reference_size)

    def shape(self, x: Lineage) -> tuple[int, ...]:
        """The local shape."""
        return x.shape

    def known(self, x: Lineage) -> Lineage:
        """The value over a node of the single-device program, where it has one by another route."""
        return x if self.matcher is None else self.matcher.known(x)

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

    @property
    def reads(self) -> AsRead:
        """How the single-device program reads its values."""
        if self._reads is None:
            self._reads = AsRead(self.table, self.reference_size or 0)
        return self._reads

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
            short = self.fruitless[sizes] >= MOST_FRUITLESS
            for other in islice(others(), SHORT if short else None):
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
        """Whether a value is defined over all positions of its operands, not at a fixed one."""
        node = self.table[number]
        inside = node.definition.operands if isinstance(node.definition, Combine | Einsum) else ()
        return not node.coordinates and not any(operand.fixed for operand in inside)

    def _of_all(self, first: Addend | None, readings: Sequence[Addend]) -> Addend | None:
        """The first reading, or one that keeps its fixed positions as axes: so others find it that
        are made of it, or of other positions.

        Example: of ``a + b`` at row 1 of 2, row 1 of ``a + b``, to which ``c`` at row 1 is added.
        """
        if first is None or self._is_of_all(first.node):
            return first
        alike = (t for t in readings if t.partials == first.partials and self._is_of_all(t.node))
        return next(alike, first)

    def _by_another_route(self, first: Addend | None, readings: Sequence[Addend]) -> Addend | None:
        """The first reading that keeps positions as an axis, and is a value of the single-device
        program by another route; None where none is.

        Example: of ``a + (b + c)`` at row ``<dp>`` of 2, row ``<dp>`` of ``(a + b) + c``.
        """
        if self.matcher is None or (first is not None and self._is_of_all(first.node)):
            return None
        for reading in readings:
            if self._is_of_all(reading.node):
                made = self.matcher.known_aside(Lineage((), (reading,))).addends[0]
                return None if made is reading else made
        return None

    def _is_common(self, number: int, size: int) -> bool:
        """Whether a node is one of the single-device program, or a mask, which is nobody's own, or
        a sum or a product over all positions of others."""
        definition = self.table[number].definition
        if number < size or isinstance(definition, Comparison):
            return True
        return isinstance(definition, Combine | Einsum) and self._is_of_all(number)

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


def _varies(x: Lineage, dim: int) -> bool:
    """Whether what a tensor is may differ from one position of a dimension to another."""
    intervals = (a for t in x.addends for a in t.view.dims[dim])
    placed = any(place.dim == dim for t in x.addends for place in t.places)
    return placed or any(a.axis != BROADCAST for a in intervals)


class Sums(Values):
    """Sums over lineages.

    Example: ``n4[...] part #1[0 +4 of 8]`` and ``n4[...] part #1[4 +4 of 8]`` add up to
    ``n4[...]``; ``n1[...]`` and ``n5[...]`` to a new node, their sum.
    """

    def combine(
        self, xs: Sequence[Lineage], factors: Sequence[Fraction], constant: Fraction
    ) -> Lineage:
        """Tensors times factors, added up and joined to complete sums."""
        shape = xs[0].shape
        if any(x.shape != shape for x in xs):
            raise ShapeMismatch(f"sum of shapes {[list(x.shape) for x in xs]}")
        addends = [
            addend._replace(factor=addend.factor * factor)
            for x, factor in zip(xs, factors, strict=True)
            for addend in x.addends
        ]
        if constant:
            addends.append(Addend(constant, self.table.one, view_of_constant(shape)))
        return self.fold(Lineage(shape, tuple(addends)))

    def had(self, addend: Addend) -> bool:
        """Whether the single-device program takes the exponential of an exponent without the
        logarithms that are added to it.

        Example: of ``x - log(s)``, where it has ``exp(x)``.
        """
        parts = logarithms(self.table, addend)
        if parts is None or self.references is None:
            return False
        left = self.fold(Lineage(parts[0], tuple(parts[1]))).addends
        return len(left) == 1 and self.references.has(left[0])

    def fold(self, x: Lineage) -> Lineage:
        """Collect equal addends, join partial ones; a complete sum of several becomes a node."""
        if has_places(x):
            try:
                return each([x], lambda lineages: self.fold(lineages[0]))
            except Misaligned:
                return self.piece(x)
        addends = collect(unscaled(self.table, x.addends))
        if len(addends) > 1 and any(addend.partials for addend in addends):
            addends = collect(merge_partials(self.table, addends, self.mesh))
        if len(addends) > 1 and any(addend.partials for addend in addends):
            # The same view may be written in two ways.
            alike = [t._replace(view=settled(t.view)) for t in addends]
            again = collect(merge_partials(self.table, alike, self.mesh))
            addends = again if len(again) < len(addends) else addends
        if (
            len(addends) > 1
            and any(t.partials for t in addends)
            and not all(t.partials for t in addends)
        ):
            # One position is a part too, of a sum over all of them of which others are parts.
            sums = {t.node for t in addends if t.partials}
            whole = [t if t.partials else self._in_sums(t, sums) for t in addends]
            again = collect(merge_partials(self.table, whole, self.mesh))
            addends = again if len(again) < len(addends) else addends
        addends = self.nonzero([self.whole(t) for t in addends])
        if len(addends) < 2:
            return self.known(Lineage(x.shape, tuple(addends)))
        if any(addend.partials for addend in addends):
            if len(addends) > (MOST_NUMBERS if prod(x.shape) == 1 else MOST_TERMS):
                return self.piece(Lineage(x.shape, tuple(addends)))
            return Lineage(x.shape, tuple(addends))
        addends = masked_once(self.table, addends)
        if len(addends) == 1:
            return self.known(Lineage(x.shape, tuple(addends)))
        if (rest := cancelled(self.table, addends)) is not None:
            self.rewrote = True
            return self.fold(Lineage(x.shape, tuple(rest)))
        return self.factored(x.shape, addends) or self._complete_sum(x.shape, addends)

    def whole(self, addend: Addend) -> Addend:
        """Part of a sum as the whole one, where a causal mask hides all else of it."""
        made = completed(self.table, addend) if addend.partials and self.references else None
        if made is None:
            return addend
        self.rewrote = True
        self.dropped += 1
        self.opened |= made[1]
        return made[0]

    def under_masks(
        self,
        names: Sequence[str],
        addends: Sequence[Addend],
        make: Callable[[Sequence[Addend]], Addend],
    ) -> Iterator[Addend]:
        """What is made of operands otherwise viewed, where the single-device program has that:
        masks moved along their diagonal, and blocks of which a mask shows all as those of what is
        masked."""
        inside = [t._replace(view=sunk(t.view)) for t in addends]
        orders = {t.node for t in inside if isinstance(self.table[t.node].definition, Order)}
        readings = [(along_diagonal(self.table, names, inside), orders)]
        for place, addend in enumerate(inside):
            seen = None if self.masked is None else self.masked.of(addend)
            if seen is not None:
                readings.append(([*inside[:place], seen, *inside[place + 1 :]], {seen.node}))
        for reading, shown in readings:
            made = None if reading is None else tried(make, reading)
            if made is not None and made.node < (self.reference_size or 0):
                self.opened |= shown
                self.rewrote |= bool(shown)
                yield made

    def _complete_sum(self, shape: tuple[int, ...], addends: Sequence[Addend]) -> Lineage:
        """A sum of complete addends, as a node."""
        try:
            total = self._placed_sum(shape, addends)
            known = self.reference_size is None or total.addends[0].node < self.reference_size
            return self.known(total if known else self._as_parts(shape, addends) or total)
        except Misaligned:
            if parts := self.shared(shape, addends):
                made = tried(lambda ts: self._sum_node(shape, ts), parts)
                if made is not None and made.addends[0].node < (self.reference_size or 0):
                    return made
            pieces = [self.scaled_piece(Lineage(shape, (t,))).addends[0] for t in addends]
            return self.known(self._sum_node(shape, pieces))

    def nonzero(self, addends: Sequence[Addend]) -> list[Addend]:
        """Addends without sums that are zero (products know)."""
        return list(addends)

    def factored(self, shape: tuple[int, ...], addends: Sequence[Addend]) -> Lineage | None:
        """A sum as a product with the exponentials that all its addends have; None where they have
        none (products know)."""
        return None

    def _as_parts(self, shape: tuple[int, ...], addends: Sequence[Addend]) -> Lineage | None:
        """Positions of one value as parts of the sum over all of them, next to one another or not
        (a ring begins at each rank's own); positions that each rank has of several values as parts
        of the sums over all, which ranks add up."""
        several = len({addend.node for addend in addends}) > 1
        moving = (a.start.terms for t in addends for a in t.view.fixed)
        if several and not any(moving):
            return None
        parts = [part for addend in addends if (part := self.reads.part(addend)) is not None]
        if len(parts) < len(addends):
            return None
        return Lineage(shape, tuple(collect(merge_partials(self.table, parts, self.mesh))))

    def _in_sums(self, addend: Addend, sums: set[int]) -> Addend:
        """A view as part of one of some sums, if it is one."""
        part = self.reads.part(addend)
        return addend if part is None or part.node not in sums else part

    def _placed_sum(self, shape: tuple[int, ...], addends: Sequence[Addend]) -> Lineage:
        """`_sum_node`, with positions of one of many where the single-device program has them."""

        def another(way: Way) -> Addend:
            count = len(way.kept)
            spread = [
                spread_behind(t, len(shape), own, way.kept)
                for t, own in zip(way.addends, way.labels, strict=True)
            ]
            made = self._sum_node((*shape, *(1,) * count), spread).addends[0]
            return dropped(made, len(shape))

        def others() -> Iterator[Addend | None]:
            inside = [t._replace(view=sunk(t.view)) for t in addends]
            yield tried(lambda t: self._sum_node(shape, t).addends[0], inside)
            names = [ascii_letters[: len(shape)]] * len(addends)
            yield from self.under_masks(
                names, addends, lambda t: self._sum_node(shape, t).addends[0]
            )
            readings = ways(addends, self.mesh, ascii_letters, sums=False, reads=self.reads)
            yield from (tried(another, way) for way in readings)

        first = tried(lambda t: self._sum_node(shape, t).addends[0], addends)
        return Lineage(shape, (self._first_reading(addends, first, others),))

    def _sum_node(
        self,
        shape: tuple[int, ...],
        addends: Sequence[Addend],
        kind: type[Combine] | type[Most] = Combine,
    ) -> Lineage:
        outputs: set[int] = set()
        extents: dict[int, int] = {}
        intervals: dict[int, StridedInterval] = {}
        dims: list[list[int | StridedInterval]] = []
        reads = Reads(self.windows, addends)
        for i in range(len(shape)):
            dim: list[int | StridedInterval] = []
            for position in align([t.view.dims[i] for t in addends]):
                label = len(extents)
                joined = reads.label(label, position, range(len(addends)))
                if joined.axis == BROADCAST:
                    dim.append(joined)
                    continue
                extents[label] = joined.extent
                intervals[label] = joined
                outputs.add(label)
                dim.append(label)
            dims.append(dim)
        drafts: list[Draft] = [
            (t.node if t.node != self.table.one else -1, own, t.view.fixed, (t.factor,))
            for t, own in zip(*reads.settled(), strict=True)
        ]
        form = canonical(drafts, frozenset(outputs), extents)
        factors = [addends[i].factor for i in form.order]
        lead = self._lead(addends)
        lead = abs(lead) if kind is Most else lead
        operands = tuple(
            o._replace(node=self.table.one) if o.node == -1 else o for o in form.operands
        )
        definition = kind(tuple(f / lead for f in factors), operands, form.outputs)
        node = self._definition(definition, form.outputs, form.extents, addends)
        view = result_view(dims, form.labels, form.outputs, intervals)
        return Lineage(shape, (Addend(lead, node, view),))

    def _lead(self, addends: Sequence[Addend]) -> Fraction:
        """The factor that is taken out of a sum: of what is a sum already and was there first (the
        residual stream), so that factors do not pile up layer by layer.  A masked sum keeps its
        sign: minus infinity has no negative."""
        combined = [t for t in addends if isinstance(self.table[t.node].definition, Combine)]
        # Ones side by side, of which a mask consists, may be all that is added up.
        sums = combined or [t for t in addends if t.node != self.table.one] or addends
        first = min(t.node for t in sums)
        lead = largest([t.factor for t in sums if t.node == first])
        return abs(lead) if any(self.table.is_masked(t.node) for t in addends) else lead


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
