"""Sums of views: of one node where they are complete, side by side where they lie apart."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from fractions import Fraction
from itertools import islice, product
from math import prod
from string import ascii_letters

from shardproof.engine.errors import ShapeMismatch
from shardproof.engine.lineage.expressions import Combine, Most
from shardproof.engine.lineage.floating import floating, settled, sunk
from shardproof.engine.lineage.lineage import BROADCAST, Addend, Lineage, StridedInterval, View
from shardproof.engine.lineage.places import has_places
from shardproof.engine.lineage.sums import collect, largest, merge_partials
from shardproof.engine.lineage.views import Misaligned, align
from shardproof.partition.inference.blocks import uncut
from shardproof.partition.inference.canonical import Draft, canonical
from shardproof.partition.inference.floats import Way, dropped, spread_behind, ways
from shardproof.partition.inference.masked_sums import in_one_period
from shardproof.partition.inference.masks import is_order, unscaled
from shardproof.partition.inference.opened import cancelled, logarithms, opened
from shardproof.partition.inference.pieces import summed
from shardproof.partition.inference.values import Values, tried
from shardproof.partition.inference.views import (
    result_view,
    view_of_constant,
)
from shardproof.partition.inference.visible import along_diagonal
from shardproof.partition.inference.windows import Reads

#: Sums of more partial addends than this are taken as they are; those of single numbers (the norm
#: of all gradients has one for each parameter) of more than the second.
MOST_TERMS, MOST_NUMBERS = 32, 512
#: Ways to read the operands of one product that are tried.
MOST_WAYS = 16


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
                return summed(x, lambda there: self.in_region(self.fold(there)))
            except Misaligned:
                return self.piece(x)
        addends = collect(unscaled(self.table, x.addends))
        if len(addends) > 1 and any(addend.partials for addend in addends):
            addends = collect(merge_partials(self.table, addends, self.mesh))
        if len({addend.node for addend in addends}) < len(addends) or (
            len(addends) > 1 and any(addend.partials for addend in addends)
        ):
            again = self._joined(addends)
            addends = again if len(again) < len(addends) else addends
        if (
            len(addends) > 1
            and any(t.partials for t in addends)
            and not all(t.partials for t in addends)
        ):
            # One position is a part too, of a sum over all of them of which others are parts.
            sums = {t.node for t in addends if t.partials}
            whole = [part for t in addends for part in self._in_sums(t, sums)]
            again = self._joined(whole)
            addends = again if len(again) < len(whole) else addends
            merged = self._summed_over([t for t in addends if not t.partials])
            if merged:
                return self.fold(x._replace(addends=(*merged, *(t for t in addends if t.partials))))
        addends = self.nonzero([self.whole(t) for t in self._seen(self.with_earlier(addends))])
        if len(addends) < 2:
            return self.known(Lineage(x.shape, tuple(addends)))
        if any(addend.partials for addend in addends):
            if len(addends) > (MOST_NUMBERS if prod(x.shape) == 1 else MOST_TERMS):
                return self.piece(Lineage(x.shape, tuple(addends)))
            return self.together(x.shape, addends) or Lineage(x.shape, tuple(addends))
        addends = self._masked(addends)
        if len(addends) < 2:
            return self.known(Lineage(x.shape, tuple(addends)))
        if (rest := cancelled(self.table, addends)) is not None:
            self.rewrote = True
            return self.fold(Lineage(x.shape, tuple(rest)))
        return self.factored(x.shape, addends) or self._complete_sum(x.shape, addends)

    def _joined(self, addends: Sequence[Addend]) -> list[Addend]:
        """Equal addends and parts of one sum joined: the same view may be written in two ways."""
        alike = [t._replace(view=settled(t.view)) for t in addends]
        return collect(merge_partials(self.table, alike, self.mesh))

    def in_region(self, x: Lineage) -> Lineage:
        """A sum in a region of a tensor (what closes parts of sums knows more)."""
        return x

    def whole(self, addend: Addend) -> Addend:
        """Part of a sum as the whole one, where a causal mask hides all else of it."""
        made = self.completed(addend) if addend.partials else None
        if made is None:
            return addend
        self.rewrote = True
        self.dropped += 1
        self.opened |= made[1]
        return made[0]

    def _seen(self, addends: list[Addend]) -> list[Addend]:
        """Addends without what a causal mask hides of parts of sums, which may join then."""
        seen = [t for own in addends for t in self._visible(own)]
        joins = len(seen) > 1 and seen != addends
        return collect(merge_partials(self.table, seen, self.mesh)) if joins else seen

    def _visible(self, addend: Addend) -> list[Addend]:
        """A part of a sum without what a causal mask hides of it: nothing is left of one that it
        hides, and of one that repeats those intervals of which it shows any."""
        if self._vanishes(addend):
            return []
        apart = in_one_period(self.table, addend) if self.reference_size is not None else []
        kept = [t for t in apart if not self._vanishes(t)]
        return kept if len(kept) < len(apart) else [addend]

    def _vanishes(self, addend: Addend) -> bool:
        """Whether a causal mask hides all of a part of a sum that ranks have."""
        ranked = self.reference_size is not None and addend.partials
        by = self.vanished(addend) if ranked else None
        if by is None:
            return False
        self.rewrote = True
        self.dropped += 1
        self.opened |= by
        return True

    def readings(
        self,
        names: Sequence[str],
        addends: Sequence[Addend],
        make: Callable[[Sequence[Addend]], Addend],
        another: Callable[[Way], Addend],
        letters: str,
        *,
        sums: bool,
    ) -> Iterator[Addend | None]:
        """What is made of operands otherwise viewed: as intervals of their axes; with masks moved
        along their diagonal, and blocks of which a mask shows all as those of what is masked; with
        positions of one of many elsewhere (`floats.ways`).

        ``names``: the dimensions of each operand; ``make``, ``another``: what becomes of views, and
        of a `Way`; ``letters``: for its labels; ``sums``: positions may be summed over.
        """
        inside = [t._replace(view=sunk(t.view)) for t in addends]
        yield tried(make, inside)
        whole = [uncut(self.table, t) or t for t in inside]
        if whole != inside:
            yield tried(make, whole)
        orders = frozenset(t.node for t in inside if is_order(self.table, t))
        moved = along_diagonal(self.table, names, inside)
        alike = [] if moved is None else [(moved, orders)]
        for place, addend in enumerate(inside):
            seen = None if self.masked is None else self.masked.of(addend)
            if seen is not None:
                alike.append(([*inside[:place], seen[0], *inside[place + 1 :]], seen[1]))
        for views, shown in alike:
            yield from self._shown(tried(make, views), shown)
        for views, shown in alike:
            for way in ways(views, self.mesh, letters, sums=sums, reads=self.reads):
                yield from self._shown(tried(another, way), shown)
        for own in (addends, *self.shared_blocks.readings(inside)):
            plain = ways(own, self.mesh, letters, sums=sums, reads=self.reads)
            yield from (tried(another, way) for way in plain)

    def slid(
        self,
        names: Sequence[str],
        addends: Sequence[Addend],
        make: Callable[[Sequence[Addend]], Addend],
        own: Container[int] = (),
    ) -> Iterator[Addend]:
        """What is made of operands with masks moved along their diagonal: a value of the single
        device, or one of ``own`` nodes.

        Example: of rows 4 to 7 and a triangle of 4 by 4, the part of running sums of all rows.
        """
        orders = frozenset(t.node for t in addends if is_order(self.table, t))
        moved = along_diagonal(self.table, names, [t._replace(view=sunk(t.view)) for t in addends])
        if moved is not None:
            yield from self._shown(tried(make, moved), orders, own)

    def _shown(
        self, made: Addend | None, shown: frozenset[int], own: Container[int] = ()
    ) -> Iterator[Addend]:
        """A value of the single-device program, or one of ``own`` nodes, that these definitions
        show; nothing otherwise."""
        if made is not None and (made.node < (self.reference_size or 0) or made.node in own):
            self.opened |= shown
            self.rewrote |= bool(shown)
            yield made

    def _complete_sum(self, shape: tuple[int, ...], addends: Sequence[Addend]) -> Lineage:
        """A sum of complete addends, as a node; of the single device, as what was added up the same
        in other groups."""
        flat = None if self.regrouped is None else self.regrouped.flat(addends)
        if self.regrouped is None or flat is None:
            return self._sum(shape, addends)
        before = self.regrouped.known(flat, addends)
        if before is not None and before[0].shape == shape:
            self.opened |= before[1]
            self.rewrote = True
            return before[0]
        total = self._sum(shape, addends)
        self.regrouped.note(flat, addends, total)
        return total

    def _sum(self, shape: tuple[int, ...], addends: Sequence[Addend]) -> Lineage:
        try:
            total = self._placed_sum(shape, addends)
            known = self.reference_size is None or total.addends[0].node < self.reference_size
            if known:
                return self.known(total)
            total = self.known(self._as_parts(shape, addends) or total)
            if self._are_known(total.addends):
                return total
            if stencil := self.in_stencil(addends):
                return Lineage(shape, tuple(stencil))
            return self._of_shares(shape, addends) or self.together(shape, addends) or total
        except Misaligned:
            if made := self._of_shares(shape, addends):
                return made
            pieces = [self.scaled_piece(Lineage(shape, (t,))).addends[0] for t in addends]
            return self.known(self._sum_node(shape, pieces))

    def _of_shares(self, shape: tuple[int, ...], addends: Sequence[Addend]) -> Lineage | None:
        """A sum of parts of tensors that the single-device program takes as they are, as part of
        their sum there; None where it has none.

        Example: half of a table's rows, looked up as rows and read as heads, whose numbers have two
        digits: a rank's half is two views that agree, all of it is not.
        """
        parts = self.shared(shape, addends)
        made = tried(lambda ts: self._sum_node(shape, ts), parts) if parts else None
        return made if made is not None and self._are_known(made.addends) else None

    def _are_known(self, addends: Iterable[Addend]) -> bool:
        """Whether this is a parallel program, and all of these the single-device program's."""
        size = self.reference_size
        return size is not None and all(addend.node < size for addend in addends)

    def first_known(
        self, ways: Sequence[Sequence[Addend]], make: Callable[[Sequence[Addend]], Addend]
    ) -> Addend:
        """What ``make`` gives of one way to read each operand, the first that the single-device
        program has; that of the first ways, where it has none.

        Example: half of the columns beside a table of numbers for all columns: as part of all of
        them, or of that half, as the single device multiplies them.
        """
        first = make([own[0] for own in ways])
        if self._are_known([first]):
            return first
        others = islice(product(*ways), 1, MOST_WAYS)
        read = (tried(make, list(chosen)) for chosen in others)
        return next((x for x in read if x is not None and self._are_known([x])), first)

    def distributed(
        self, xs: Sequence[Lineage], make: Callable[[Sequence[Lineage]], list[Addend]]
    ) -> list[Addend]:
        """What ``make`` gives of the addends of an operand that is a sum which ranks alone have,
        where all of it is the single-device program's; none where it is not.

        Example: the sum over rows of ``a + b``, where the single device adds the means of both.
        """
        own = [place for place, x in enumerate(xs) if not self._are_known(x.addends)]
        if self.reference_size is None or len(own) != 1 or len(xs[own[0]].addends) != 1:
            return []
        (place,) = own
        x, made = xs[place], list[Addend]()
        parts = opened(self.table, x.addends[0])
        if not self._are_known(parts):
            return []
        for part in parts:
            more = make([*xs[:place], Lineage(x.shape, (part,)), *xs[place + 1 :]])
            if not self._are_known(more):
                return []
            made += more
        if made:
            self.opened.add(x.addends[0].node)
            self.rewrote = True
        return made

    def nonzero(self, addends: Sequence[Addend]) -> list[Addend]:
        """Addends without sums that are zero (products know)."""
        return list(addends)

    def factored(self, shape: tuple[int, ...], addends: Sequence[Addend]) -> Lineage | None:
        """A sum as a product with the exponentials that all its addends have; None where they have
        none (products know)."""
        return None

    def _as_parts(self, shape: tuple[int, ...], addends: Sequence[Addend]) -> Lineage | None:
        """Positions of one value as parts of the sum over all of them, next to one another or not
        (a ring begins at each rank's own); positions that a rank or a microbatch has of several
        values as parts of the sums over all, which are added up."""
        several = len({addend.node for addend in addends}) > 1
        parts = [part for addend in addends if (part := self.part_of_sum(addend)) is not None]
        if len(parts) < len(addends):
            if several and (merged := self._summed_over(addends)):
                return self.fold(Lineage(shape, tuple(merged)))
            parts = [] if several else self._positions(shape, addends)
        if not parts:
            return None
        return Lineage(shape, tuple(collect(merge_partials(self.table, parts, self.mesh))))

    def _summed_over(self, addends: Sequence[Addend]) -> list[Addend] | None:
        """Complete addends, with the sum over all positions of a value in place of these; None
        where no value is there at all of its positions.

        Example: ``n9[a1[4]] at a0[0 +1 of 2]``, ``n9[a1[4]] at a0[1 +1 of 2]`` and ``n7[a0[4]]``,
        the gradients of two rows, one on each rank, and what is complete already: ``n10[a0[4]]``
        and ``n7[a0[4]]``, where ``n10`` is the sum of ``n9`` over its rows.
        """
        counts = Counter(t.node for t in addends)
        views = [(counts[t.node] > 1 and self.part_of_sum(t)) or t for t in addends]
        if views == list(addends):
            return None
        merged = collect(merge_partials(self.table, views, self.mesh))
        return None if any(t.partials for t in merged) else merged

    def _positions(self, shape: tuple[int, ...], addends: Sequence[Addend]) -> list[Addend]:
        """Views of a node that ranks alone have, which differ in one position of many, as parts of
        the sum over all of them, in which the single-device program may have it; none where they
        are no such views.

        Example: ``n9[a1[4]] at a0[0 +1 of 2]`` and ``n9[a1[4]] at a0[1 +1 of 2]``, gradients of two
        microbatches of one row each, as both halves of the sum over rows.
        """
        if addends[0].node < (self.reference_size or 0):
            return []
        single = [set(floating(t.view)[1]) for t in addends]
        apart = [own - single[0].intersection(*single[1:]) for own in single]
        if {len(own) for own in apart} != {1}:
            return []
        digits = [next(iter(own)) for own in apart]
        if len({digit[:3] for digit in digits}) > 1:
            return []
        parts = []
        for addend, digit in zip(addends, digits, strict=True):
            dims = tuple(tuple(a for a in dim if a != digit) for dim in addend.view.dims)
            fixed = tuple(a for a in addend.view.fixed if a != digit)
            moved = addend._replace(view=View(((digit,), *dims), fixed))
            made = self.summed(Lineage((1, *shape), (moved,)))
            if len(made.addends) != 1 or not made.addends[0].partials:
                return []
            parts.append(made.addends[0])
        return parts

    def together(self, shape: tuple[int, ...], addends: Sequence[Addend]) -> Lineage | None:
        """A sum of what ranks made as what the single device makes of the sum (products know)."""
        return None

    def summed(self, x: Lineage) -> Lineage:
        """The sum over the first dimension (products know)."""
        return x

    def _in_sums(self, addend: Addend, sums: set[int], *, apart: bool = True) -> list[Addend]:
        """A view as part of one of some sums, if it is one; ``apart``: what ranks alone have added
        up is taken apart, where one of its addends is such a part.

        Example: a rank has the last entry of a bias, whose square it adds to those of a weight;
        the squares of the other entries are part of a sum.
        """
        if addend.partials:
            return [addend]
        part = self.part_of_any(addend, sums)
        if part is not None:
            return [part]
        if not apart or self.reference_size is None or addend.node < self.reference_size:
            return [addend]
        own = opened(self.table, addend)
        parts = [p for t in own for p in self._in_sums(t, sums, apart=False)]
        if parts == list(own):
            return [addend]
        self.opened.add(addend.node)
        self.rewrote = True
        return parts

    def _placed_sum(
        self,
        shape: tuple[int, ...],
        addends: Sequence[Addend],
        kind: type[Combine] | type[Most] = Combine,
    ) -> Lineage:
        """`_sum_node`, with positions of one of many where the single-device program has them."""

        def another(way: Way) -> Addend:
            count = len(way.kept)
            spread = [
                spread_behind(t, len(shape), own, way.kept)
                for t, own in zip(way.addends, way.labels, strict=True)
            ]
            made = self._sum_node((*shape, *(1,) * count), spread, kind).addends[0]
            return dropped(made, len(shape))

        def made(views: Sequence[Addend]) -> Addend:
            return self._sum_node(shape, views, kind).addends[0]

        def others() -> Iterator[Addend | None]:
            names = [ascii_letters[: len(shape)]] * len(addends)
            return self.readings(names, addends, made, another, ascii_letters, sums=False)

        known = self.of_all_slots(addends, ascii_letters, another, adds=True)
        if known is not None:
            return Lineage(shape, (known,))
        return Lineage(shape, (self._first_reading(addends, tried(made, addends), others),))

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
