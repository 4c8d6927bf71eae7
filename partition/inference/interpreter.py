"""Lineage inference: operators read over lineages.

`LineageInterpreter` is the reading of an operator's declaration in which a tensor is its lineage:
an operator applied to views of reference nodes gives a view of the node that the same operator
defines on the whole tensors.  Every step is exact at true size.  Where a result is no view of such
a node (operands that do not line up, a non-linear function of a partial sum), the operands are
taken as they are: `LineageInterpreter.piece` makes nodes of them, which the single-device program
does not have. Inference therefore never fails for a declared operator, and never claims more than
it knows; what it claims is checked by the solvers at each operator.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from fractions import Fraction
from functools import partial
from math import prod
from string import ascii_letters

from shardproof.engine.algebra.affine import Affine
from shardproof.engine.errors import ShapeMismatch, Unsupported
from shardproof.engine.lineage.cutting import cut_up, moved_apart
from shardproof.engine.lineage.expressions import (
    Amax,
    Causal,
    Concatenated,
    Most,
    Onehot,
    Order,
    Unary,
)
from shardproof.engine.lineage.floating import picked, sunk
from shardproof.engine.lineage.joining import joined, permuted
from shardproof.engine.lineage.lineage import (
    ABSOLUTE,
    BROADCAST,
    Addend,
    Lineage,
    StridedInterval,
    View,
)
from shardproof.engine.lineage.places import (
    MOST_REGIONS,
    collapsed,
    has_places,
    placed,
    side_by_side,
)
from shardproof.engine.lineage.sums import collect, merge_partials
from shardproof.engine.lineage.views import Misaligned, regroup
from shardproof.engine.ops.primitives import labels
from shardproof.partition.inference.blocks import parts_of
from shardproof.partition.inference.canonical import canonical
from shardproof.partition.inference.choices import Choices
from shardproof.partition.inference.closing import composed
from shardproof.partition.inference.exponentials import closed_maximum
from shardproof.partition.inference.families import along_axes
from shardproof.partition.inference.floats import Way, dropped, ways
from shardproof.partition.inference.laws import factor_views
from shardproof.partition.inference.opened import (
    exponents_of,
    logarithms,
    opened,
    reciprocal_of,
)
from shardproof.partition.inference.pieces import each
from shardproof.partition.inference.values import tried
from shardproof.partition.inference.views import (
    adjoin_addends,
    at_one_position,
    causal_view,
    constant_view,
    exchanged,
    local_view,
    partial_sums,
    result_view,
    view_of_constant,
)
from shardproof.partition.inference.visible import hides_all
from shardproof.partition.inference.windows import Reads

#: Exponents that are taken apart, one in what another one has beside.
MOST_EXPONENTS = 3


class LineageInterpreter(Choices):
    """A `engine.ops.primitives.Interpreter` over lineages; all nodes go to ``table``.

    Example: ``einsum("bi,oi->bo", ...)`` of ``n1[a0[4], a1[<4*tp> +4 of 8]]`` and
    ``n2[a0[6], a1[<4*tp> +4 of 8]]`` is ``n4[a0[4], a1[6]] part #1[<4*tp> +4 of 8]``.
    """

    def unary(self, function: str, x: Lineage) -> Lineage:
        """A function of every entry, as a node of its own."""
        several = self._each(x, lambda lineage: self.unary(function, lineage))
        if several is not None:
            return several
        if function == "exp" and (apart := self._apart(x)) is not None:
            return apart
        addend = self._single(self._block(x) if function in ("log", "inv") else x)
        if function == "exp" and hides_all(self.table, addend):
            return Lineage(x.shape, ())
        made = None
        if function == "inv":
            made = self._reciprocals(addend)
        elif function == "exp":
            made = self._without_logarithms(addend)
        elif function == "log" and (total := self._without_exponentials(x.shape, addend)):
            return total
        return Lineage(x.shape, (made or self._function(function, addend),))

    def _without_exponentials(self, shape: tuple[int, ...], addend: Addend) -> Lineage | None:
        """``log(exp(a) b)`` as ``a + log(b)``, and ``log(c / b)`` as ``-log(b / c)``; None if
        nothing there is an exponential or a reciprocal."""
        exponents, rest = exponents_of(self.table, addend)
        inverse = reciprocal_of(self.table, rest[0]) if len(rest) == 1 else None
        if addend.factor <= 0 or not (exponents or inverse):
            return None
        constant = Addend(addend.factor, self.table.one, view_of_constant(shape))
        names = labels(len(shape))
        factors = [Lineage(shape, (t,)) for t in (constant, *rest)]
        left = self.einsum(f"{','.join([names] * len(factors))}->{names}", *factors)
        # Exponentials are positive: it is defined where the logarithm of what is left is.
        self.rewrote = True
        parts = [Lineage(shape, (t,)) for t in exponents]
        signs = [Fraction(1)] * len(parts)
        if inverse is not None:
            divided = inverse._replace(factor=inverse.factor / addend.factor)
            parts.append(self.unary("log", Lineage(shape, (divided,))))
            signs.append(Fraction(-1))
        elif rest or addend.factor != 1:
            parts.append(Lineage(shape, (self._function("log", self._single(left)),)))
            signs.append(Fraction(1))
        return self.combine(parts, signs, Fraction(0))

    def _is_taken(self, x: Lineage, whole: Sequence[Addend]) -> bool:
        """Whether the single-device program takes the exponential of a sum as it is; ``whole``: its
        addends, with parts of maxima as maxima."""
        assert self.references is not None
        if len(whole) == 1:
            return self.references.has(whole[0]) or self.had(whole[0])
        total = self._closed_maxima(x)
        return total is not None and self.references.has(total.addends[0])

    def _apart(
        self, x: Lineage, depth: int = MOST_EXPONENTS, divides: bool = False
    ) -> Lineage | None:
        """The exponential of a sum that the single-device program does not take one of, as a
        product of exponentials: of one that it has, where there is one, and of all that is added
        beside; None where this is none.  ``divides``: a logarithm is subtracted beside."""
        if self.references is None or not depth or not x.addends:
            return None
        try:
            whole = [closed_maximum(self.windows, t) if t.partials else t for t in x.addends]
        except Misaligned:
            return None
        if self._is_taken(x, whole):
            return None
        parts = whole
        if len(whole) == 1 and self.references.of(whole[0]) is None:
            parts = opened(self.table, whole[0]) or whole
        several = [
            (self.references.of(part), parts[:place] + parts[place + 1 :])
            for place, part in enumerate(parts)
        ]
        power, rest = next(((p, r) for p, r in several if p is not None), (None, parts))
        if power is None and len(parts) == 1 and not x.addends[0].partials:
            return None
        if power is not None:
            rest = [*rest, *(t._replace(factor=-t.factor) for t in power.rest)]
        if any(self.table.is_masked(t.node) for t in rest):
            return None
        factors = [] if power is None else [Lineage(x.shape, (power.power,))]
        collected = collect(rest)
        divides = divides or any(self._divides(t) for t in collected)
        for t in collected:
            own = Lineage(x.shape, (t,))
            factors.append(
                (None if divides else self._taken_of(own))
                or self._apart(own, depth - 1, divides)
                or Lineage(x.shape, (self._without_logarithms(t) or self._function("exp", t),))
            )
        self.rewrote = True
        if self.matcher is not None:
            self.matcher.meets = True
        if not factors:
            # The parts of the exponent add up to zero.
            one = Addend(Fraction(1), self.table.one, view_of_constant(x.shape))
            return Lineage(x.shape, (one,))
        names = labels(len(x.shape))
        return self.einsum(f"{','.join([names] * len(factors))}->{names}", *factors)

    def _divides(self, addend: Addend) -> bool:
        """Whether an exponent's addend is a logarithm that is subtracted, or a sum with one."""
        parts = logarithms(self.table, addend)
        return parts is not None and any(not up for _, up in parts[2])

    def _taken_of(self, x: Lineage) -> Lineage | None:
        """The sum over blocks of which ``x`` is the logarithm, as parts of the sum over all of the
        range; None: it is none.  Where a logarithm is subtracted beside it stays as it is, for that
        may be taken of the same sum."""
        (addend,) = x.addends
        inner = self.table[addend.node].definition
        if not isinstance(inner, Unary) or inner.function != "log" or self.reference_size is None:
            return None
        if inner.factor != 1 or addend.factor != 1:
            return None
        factors = factor_views(self.table, addend._replace(node=inner.node))
        parts = [parts_of(self.table, f, self.reference_size) for f in factors]
        if not any(parts):
            return None
        read = [Lineage(x.shape, tuple(p) or (f,)) for p, f in zip(parts, factors, strict=True)]
        names = labels(len(x.shape))
        return self.einsum(f"{','.join([names] * len(read))}->{names}", *read)

    def _without_logarithms(self, addend: Addend) -> Addend | None:
        """``exp(a + log(b))`` as ``b exp(a)``, and ``exp(a - log(b))`` as ``exp(a) / b``; None if
        no logarithm is added there."""
        parts = logarithms(self.table, addend)
        if parts is None:
            return None
        shape, rest, bases = parts
        names = ascii_letters[: len(shape)]
        already = len(self.partial)
        factors = [
            base if up else self.unary("inv", base)
            for base, up in ((Lineage(shape, (base,)), up) for base, up in bases)
        ]
        if rest:
            factors.append(self.unary("exp", self.fold(Lineage(shape, tuple(rest)))))
        whole = self.einsum(f"{','.join([names] * len(factors))}->{names}", *factors)
        try:
            one = addend._replace(factor=Fraction(1))
            made = composed(one, self._single(whole))
        except Misaligned:
            return None
        # Of the logarithms' operands one is divided by where the addend reads them.
        functions = self.partial[already:]
        self.partial[already:] = [(f, tried(partial(composed, one), t) or t) for f, t in functions]
        self.rewrote = True
        return made

    def reshape(self, x: Lineage, shape: tuple[int, ...]) -> Lineage:
        """The same view with its dimensions regrouped, or a tensor that only this side has."""
        if prod(shape) != prod(x.shape):
            raise ShapeMismatch(f"view of {list(x.shape)} as {list(shape)}")
        if shape == x.shape:
            return x
        try:
            apart = [moved_apart(t, x.shape, shape) for t in x.addends]
            addends = tuple(joined([t for own in apart for t in own]))
        except Misaligned:
            addends = (self._regrouped(self.piece(x).addends[0], x.shape, shape),)
        return Lineage(shape, addends)

    @staticmethod
    def _regrouped(piece: Addend, before: tuple[int, ...], shape: tuple[int, ...]) -> Addend:
        try:
            return piece._replace(view=regroup(piece.view, shape))
        except Misaligned:
            raise Unsupported(
                f"a view of {list(before)} as {list(shape)}, whose dimensions are no parts or "
                "products of these"
            ) from None

    def slice(self, x: Lineage, dim: int, start: Affine, size: int) -> Lineage:
        """Part of a dimension of the same nodes."""
        start = start.settled(self.mesh)
        shape = (*x.shape[:dim], size, *x.shape[dim + 1 :])
        if size > x.shape[dim] or (not start.terms and not 0 <= start.const <= x.shape[dim] - size):
            raise ShapeMismatch(f"slice [{start}, +{size}) of a dimension of {x.shape[dim]}")

        def sliced(given: Lineage, start: Affine) -> Lineage:
            apart = [cut_up(t, x.shape, dim, start, size) for t in given.addends]
            return Lineage(shape, tuple(map(self.whole, joined([t for own in apart for t in own]))))

        try:
            return sliced(x, start)
        except Misaligned:
            pass
        try:
            return along_axes(lambda at: sliced(x, at), start, self.mesh)
        except Misaligned:
            return sliced(self.piece(x), start)

    def concat(self, xs: Sequence[Lineage], dim: int) -> Lineage:
        """Tensors one after the other: one view of a node, where they are consecutive in it."""
        shape = list(xs[0].shape)
        for x in xs[1:]:
            if x.shape[:dim] != xs[0].shape[:dim] or x.shape[dim + 1 :] != xs[0].shape[dim + 1 :]:
                raise ShapeMismatch(f"concatenation of {[list(x.shape) for x in xs]}")
        shape[dim] = sum(x.shape[dim] for x in xs)
        try:
            return Lineage(tuple(shape), tuple(adjoin_addends(xs, dim, self.mesh)))
        except Misaligned:
            pass
        try:
            if exchanged(xs, dim):
                # Nothing of the single device has its positions in such an order.
                raise Misaligned
            return Lineage(tuple(shape), tuple(self._side_by_side(xs, dim, shape[dim])))
        except Misaligned:
            pieces = tuple(self.piece(x).addends[0] for x in xs)
            node = self.local_node(Concatenated(dim, pieces), tuple(shape), pieces)
            return local_view(node, tuple(shape))

    def _side_by_side(self, xs: Sequence[Lineage], dim: int, whole: int) -> list[Addend]:
        addends: list[Addend] = []
        start = 0
        for x in xs:
            size = x.shape[dim]
            terms = x.addends
            if size == 1:
                # Which of several a part is, along an axis that runs elsewhere, is not where it
                # is put here.
                terms = tuple(t._replace(view=sunk(t.view, dim)) for t in terms)
            addends += [placed(collapsed(t), dim, start, size, whole) for t in terms if size]
            start += size
        if len(addends) > MOST_REGIONS:
            raise Misaligned
        return joined(addends)

    def amax(self, x: Lineage, dim: int) -> Lineage:
        """The maximum over a dimension, or its part over a shard of one; of one position: that."""
        if x.shape[dim] > 1:
            return self._maximum(x, dim)
        known = self.reference_size or 0
        made = tried(lambda t: self._maximum(t, dim), x) if known else None
        if made and any(t.partials and t.node < known for t in made.addends):
            return made
        return self.reshape(x, x.shape[:dim] + x.shape[dim + 1 :])

    def _maximum(self, x: Lineage, dim: int) -> Lineage:
        if has_places(x):
            order = [i for i in range(len(x.shape)) if i != dim]
            rows = permuted(x, [*order, dim])
            # The dimensions of a region may be divided; the one that is reduced is its last.
            several = self._each(rows, lambda part: self.amax(part, len(part.shape) - 1), 1)
            several = several or self._largest(x, dim)
            if several is not None:
                return several
        if x.addends and all(_constant_along(t, dim) for t in x.addends):
            return Lineage(
                x.shape[:dim] + x.shape[dim + 1 :], tuple(_without(t, dim) for t in x.addends)
            )
        addend = self._single(x)
        try:
            return self._placed_amax(x.shape, addend, dim)
        except Misaligned:
            return self._amax(x.shape, self.piece(x).addends[0], dim)

    def _largest(self, x: Lineage, dim: int) -> Lineage | None:
        """The maximum along a dimension in which several values lie side by side: that of their
        maxima (None: something else is there too, or values lie side by side elsewhere alone)."""
        try:
            parts = side_by_side(x, dim)
            return None if len(parts) == 1 else self.most([self.amax(p, dim) for p in parts])
        except Misaligned:
            return None

    def most(self, xs: Sequence[Lineage]) -> Lineage:
        """The elementwise maximum of tensors of one shape, as parts of one maximum or as a node;
        raises `Misaligned` where it is neither."""
        if has_places(*xs):
            return each(xs, self.most)
        # Logarithms of sums, say, beside maxima of blocks: each is one value.
        xs = [x if len(x.addends) == 1 else self._closed_maxima(x) or x for x in xs]
        if any(len(x.addends) != 1 for x in xs):
            raise Misaligned
        addends = merge_partials(self.table, [x.addends[0] for x in xs], self.mesh, add=False)
        if len(addends) == 1:
            return Lineage(xs[0].shape, tuple(addends))
        whole = [closed_maximum(self.windows, t) if t.partials else t for t in addends]
        # Minus infinity is larger than nothing.
        whole = [t for t in whole if not hides_all(self.table, t)] or whole
        return self._placed_sum(xs[0].shape, whole, Most)

    def _placed_amax(self, shape: tuple[int, ...], addend: Addend, dim: int) -> Lineage:
        """`_amax`, with positions of one of many where the single-device program has them."""

        def another(way: Way) -> Addend:
            dims = way.addends[0].view.dims
            behind = list(zip(way.labels[0], dims[len(shape) :], strict=True))
            over = tuple(a for letter, d in behind if letter not in way.kept for a in d)
            more = [d for letter, d in behind if letter in way.kept]
            own = (*dims[:dim], (*over, *dims[dim]), *dims[dim + 1 : len(shape)], *more)
            moved = way.addends[0]._replace(view=way.addends[0].view._replace(dims=own))
            made = self._amax((*shape, *(1,) * len(more)), moved, dim).addends[0]
            return dropped(made, len(shape) - 1)

        def others() -> Iterator[Addend | None]:
            inside = addend._replace(view=sunk(addend.view))
            yield tried(lambda t: self._amax(shape, t, dim).addends[0], inside)
            readings = ways([addend], self.mesh, ascii_letters, sums=True, reads=self.reads)
            yield from (tried(another, way) for way in readings)

        if self.reference_size is None:
            addend = addend._replace(view=picked(addend.view, [dim]))
        first = tried(lambda t: self._amax(shape, t, dim).addends[0], addend)
        maximum = self._first_reading([addend], first, others)
        return Lineage(shape[:dim] + shape[dim + 1 :], (maximum,))

    def _amax(self, shape: tuple[int, ...], addend: Addend, dim: int) -> Lineage:
        reduced = shape[:dim] + shape[dim + 1 :]
        view = at_one_position(addend.view, dim)
        if all(a.axis == BROADCAST for a in view.dims[dim]):
            return Lineage(reduced, (_without(addend._replace(view=view), dim),))
        reads = Reads(self.windows, [addend._replace(view=view)])
        kept: list[list[int | StridedInterval]] = []
        intervals: dict[int, StridedInterval] = {}
        outputs: set[int] = set()
        for i, atoms in enumerate(view.dims):
            items: list[int | StridedInterval] = []
            for interval in atoms:
                if interval.axis == BROADCAST:
                    items.append(interval)
                    continue
                label = len(intervals)
                # Along an axis without an end it is that of a block, and no part of another one.
                ends = i == dim and interval.extent == ABSOLUTE
                intervals[label] = reads.label(label, [interval], [0], closed=ends)
                items.append(label)
                if i != dim:
                    outputs.add(label)
            if i != dim:
                kept.append(items)
        extents = {label: interval.extent for label, interval in intervals.items()}
        (whole,), (read,) = reads.settled()
        form = canonical([(whole.node, read, whole.view.fixed, ())], frozenset(outputs), extents)
        sign = 1 if addend.factor > 0 else -1
        definition = Amax(sign, form.operands[0], form.outputs)
        node = self._definition(definition, form.outputs, form.extents, [whole])
        partials = [
            p._replace(
                reduction=self.table.reduction(
                    self.table.reductions[p.reduction]._replace(kind="max")
                )
            )
            for p in partial_sums(self.table, node, form.labels, frozenset(outputs), intervals)
        ]
        result = result_view(kept, form.labels, form.outputs, intervals)
        return Lineage(reduced, (Addend(abs(addend.factor), node, result, tuple(partials)),))

    def onehot(self, ids: Lineage, start: Affine, size: int) -> Lineage:
        """Which classes ids name, from ``start`` on."""
        several = self._each(ids, lambda lineage: self.onehot(lineage, start, size))
        if several is not None:
            return several
        addend = self._single(ids)
        operand = self.table[addend.node]
        node = self.table.define(
            Onehot(addend.factor, addend.node), (*operand.extents, ABSOLUTE), operand.coordinates
        )
        classes = StridedInterval(len(operand.extents), 1, ABSOLUTE, start.settled(self.mesh), size)
        view = View((*addend.view.dims, (classes,)), addend.view.fixed)
        return Lineage((*ids.shape, size), (Addend(Fraction(1), node, view),))

    def causal(self, queries: int, keys: int) -> Lineage:
        """The causal mask, minus infinity where the key comes after the query."""
        return causal_view(self.table, queries, keys, Causal())

    def order(self, queries: int, keys: int) -> Lineage:
        """The causal mask as numbers: 1, or 0 where the key comes after the query."""
        return causal_view(self.table, queries, keys, Order())

    def constant(self, name: str) -> Lineage:
        """A table of constants by its name."""
        return constant_view(self.table, name)


def _constant_along(addend: Addend, dim: int) -> bool:
    """Whether a view does not vary along a dimension, and is nowhere zero on its way."""
    return not addend.places and all(a.axis == BROADCAST for a in addend.view.dims[dim])


def _without(addend: Addend, dim: int) -> Addend:
    """A view that does not vary along a dimension, without it."""
    dims = addend.view.dims[:dim] + addend.view.dims[dim + 1 :]
    return addend._replace(view=addend.view._replace(dims=dims))
