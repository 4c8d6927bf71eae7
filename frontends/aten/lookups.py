"""Rows and entries of a table that ids choose.

A `Lookup` carries the rows until it is known which ids count; it ends as `embedding` or `pick`,
each from the first id on that chooses one row each, or is refused.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from math import prod
from typing import Any

from shardproof.engine.errors import Unsupported
from shardproof.engine.plan.ir import Source
from shardproof.frontends.aten.ids import (
    Ids,
    Narrow,
    ids,
    integral,
    inverse,
    is_own,
    number_of,
    wrapped,
)
from shardproof.frontends.aten.log_probabilities import taken_apart
from shardproof.frontends.aten.lowering import (
    Const,
    Lowered,
    Lowering,
    Operand,
    Real,
    Shape,
    Undefined,
    Unviewed,
    floating,
    fraction,
    is_symbolic,
)
from shardproof.frontends.aten.masks import flags, numbers
from shardproof.frontends.aten.positive import note_if_none
from shardproof.frontends.aten.scattered import Scattered, interval, outside
from shardproof.frontends.builder import piecewise
from shardproof.frontends.builder.piecewise import Function


@dataclass(frozen=True, slots=True)
class Lookup:
    """Rows of ``table`` (``picked`` False), or an entry of each row of it (True), chosen by ids;
    zero for ids where ``live`` is 0.

    Example: ``F.embedding(ids, table)`` with ids [2, 3] and a table [16, 8] has the shape [2, 3,
    8], and ``live`` 1 for all ids; ``x[torch.arange(2), ids]`` of x [2, 16] is picked.

    ``source``: the line that chooses, which is the place of the operator wherever that is written.
    """

    table: Real
    ids: Ids
    live: Function
    picked: bool
    shape: Shape
    dtype: str
    source: Source = field(compare=False)

    def reshape(self, shape: Shape) -> Any:
        """The entries in another shape; rows only in their own, until it is known which ones
        count."""
        if self.picked:
            return replace(self, ids=self.ids.reshape(shape), shape=shape)
        if shape == self.shape:
            return self
        raise Unsupported("a view of rows before it is known which ones count")

    def expand(self, shape: Shape) -> Any:
        """Refused until it is known which rows count."""
        raise Unsupported("rows that are broadcast before it is known which ones count")

    def permute(self, order: Sequence[int]) -> Any:
        """Refused until it is known which rows count."""
        raise Unsupported("rows that are permuted before it is known which ones count")

    def slice(self, dim: int, start: int, size: int) -> Any:
        """Refused until it is known which rows count."""
        raise Unsupported("a part of rows before it is known which ones count")

    @property
    def is_settled(self) -> bool:
        """Whether all ids count as they are: they choose rows that there are, or are an input's
        own (negative ones counted from the end), which has to choose such."""
        return not self.picked and (is_own(self.ids, self.rows()) or not self.astray())

    def rows(self) -> int:
        """How many rows, or entries of a row, there are to choose from."""
        return self.table.shape[-1 if self.picked else 0]

    def real(self, lo: Lowering) -> Real:
        """What the ids choose as a value, with zeros where ids do not count."""
        reader, lo.source = lo.source, self.source
        try:
            return entries_like(lo, self._chosen(lo), self.table)
        finally:
            lo.source = reader

    def _chosen(self, lo: Lowering) -> Real:
        every = self.picked and piecewise.value(self.live) == 1 and not self.astray()
        logs = taken_apart(lo, self.table) if every else None
        if logs is not None:
            scores, log = logs
            entries = replace(self, table=scores).real(lo)
            return lo.real(lo.sub(entries, lo.reshape(log, self.shape)))
        parts = piecewise.chosen_rows(self.ids.function, self.live, self.rows())
        if parts is None or self.astray():
            return self.repeated(lo)
        if not parts:
            return lo.real(Const(Fraction(0), self.shape, self.dtype))
        total: Any = self.part(lo, parts[0])
        for part in parts[1:]:
            total = lo.add(total, self.part(lo, part))
        return lo.real(total)

    def part(self, lo: Lowering, part: piecewise.Rows) -> Real:
        """What ids from ``part.id`` on choose, one row each; zero for any other id."""
        table: Any = self.table
        if self.picked:
            lo.picked.append(self.table)
            table = lo.reshape(table, (*self.ids.shape, self.rows()))
        dim = len(table.shape) - 1 if self.picked else 0
        table = lo.real(lo.slice(table, dim, part.row, part.size))
        real = self.ids.moved_input(lo)
        if self.picked:
            return lo.emits("pick", [table, real], {"start": part.id}, self.dtype)[0]
        flat = lo.real(lo.reshape(table, (part.size, prod(table.shape[1:]))))
        rows = lo.emits("embedding", [real, flat], {"start": part.id}, self.dtype)[0]
        return lo.real(lo.reshape(rows, self.shape))

    def repeated(self, lo: Lowering) -> Real:
        """As `real`, where many ids choose one row: that row, times whether the id is one of
        them; and where some choose rows that are none: whatever memory has there."""
        total: Any = None
        for low, high, rule in self.pieces():
            inside = rule.slope in (0, 1) and 0 <= rule.at(low) < self.rows()
            if not inside and (lo.unwritten is None or rule.slope not in (0, 1)):
                raise Narrow(self.ids.origin.number, self.rows())
            if inside and rule.slope:
                row_or_zero: Any = self.part(lo, piecewise.Rows(low, rule.at(low), high - low))
            else:
                memory = Undefined(self.shape, self.dtype)
                row = self.row(lo, rule.offset) if inside else lo.real(memory)
                among = interval(self.ids.function, low, high)
                row_or_zero = lo.mul(row, self.among(lo, among))
            total = row_or_zero if total is None else lo.add(total, row_or_zero)
        return lo.real(total)

    def astray(self) -> bool:
        """Whether any id chooses a row that is none, also one that does not count: it is read all
        the same, which fails before anything zeroes what was read."""
        return any(p.offset for p in outside(self.ids.function, self.rows()))

    def pieces(self) -> Iterator[tuple[int, int, piecewise.Piece]]:
        """Intervals of ids that count or choose rows that are none, cut where the rows begin and
        end."""
        read = piecewise.combine("or", self.live, outside(self.ids.function, self.rows()))
        for low, high, rule in piecewise.counted(self.ids.function, read):
            cuts = {low, high}
            if rule.slope == 1:
                cuts |= {c for c in (-rule.offset, self.rows() - rule.offset) if low < c < high}
            for begin, end in itertools.pairwise(sorted(cuts)):
                yield begin, end, rule

    def row(self, lo: Lowering, number: int) -> Any:
        """Row (or, of each row, entry) ``number``, for every id."""
        if self.picked:
            table = lo.reshape(self.table, (*self.ids.shape, self.rows()))
            return lo.reshape(lo.slice(table, len(self.ids.shape), number, 1), self.ids.shape)
        row = lo.slice(self.table, 0, number, 1)
        lead = (1,) * len(self.ids.shape)
        return lo.expand(lo.reshape(row, (*lead, *self.table.shape[1:])), self.shape)

    def among(self, lo: Lowering, pieces: Function) -> Any:
        """1 for ids of some intervals, 0 for others, of the lookup's shape."""
        real = replace(self.ids, function=pieces).indicated(lo)
        rest = (1,) * (len(self.shape) - len(real.shape))
        return lo.expand(lo.reshape(real, (*real.shape, *rest)), self.shape)


@dataclass(frozen=True, slots=True)
class Kept(Unviewed):
    """Rows of a value that count where ids decide it, and are zero elsewhere.

    Example: in the gradient of a vocabulary-parallel embedding, ``gradient.masked_fill(mask[...,
    None], 0)`` with ``mask`` of ids that another rank has.
    """

    about = "rows that ids zero"

    rows: Real
    ids: Ids

    @property
    def is_settled(self) -> bool:
        """Whether it is known which rows count: all ids choose rows that there are."""
        return True

    @property
    def shape(self) -> Shape:
        """That of the rows."""
        return self.rows.shape

    @property
    def dtype(self) -> str:
        """That of the rows."""
        return self.rows.dtype

    def real(self, lo: Lowering) -> Real:
        """The rows times 0 or 1; the gradient of an embedding takes them apart (`added_rows`)."""
        counts = numbers(lo, flags(self.ids.indicated(lo)), self.dtype)
        return lo.real(lo.mul(self.rows, lo.reshape(counts, (*self.ids.shape, 1))))


@dataclass(frozen=True, slots=True)
class Zeroed(Unviewed):
    """Entries of a value, zero where ids decide it (`mask` is 1).

    Example: logits of labels, zero where the label is a class of another rank.
    """

    about = "entries that ids zero"

    entries: Real | Const
    mask: Ids

    @property
    def shape(self) -> Shape:
        """That of the mask."""
        return self.mask.shape

    @property
    def dtype(self) -> str:
        """That of the entries."""
        return self.entries.dtype

    def reshape(self, shape: Shape) -> Zeroed:
        """The same entries, in their order, in another shape."""
        return replace(self, mask=self.mask.reshape(shape))

    def expand(self, shape: Shape) -> Zeroed:
        """One number that ids zero, repeated with them; other entries are refused."""
        return self._alike(self.mask.expand(shape))

    def permute(self, order: Sequence[int]) -> Zeroed:
        """One number that ids zero, with its dimensions in another order."""
        return self._alike(self.mask.permute(order))

    def slice(self, dim: int, start: int, size: int) -> Zeroed:
        """One number that ids zero, at some positions of a dimension."""
        return self._alike(self.mask.slice(dim, start, size))

    def _alike(self, mask: Ids) -> Zeroed:
        if not isinstance(self.entries, Const):
            raise Unsupported(f"a view of {self.about}")
        return Zeroed(replace(self.entries, shape=mask.shape), mask)

    def real(self, lo: Lowering) -> Real:
        """The entries times 0 or 1."""
        holds = numbers(lo, flags(self.mask.indicated(lo)), self.dtype)
        return lo.real(chosen(lo, holds, Fraction(0), lo.reshape(self.entries, self.shape)))


def added_entries(lo: Lowering, values: Zeroed, index: Ids, size: int) -> Real:
    """[..., size] of values [..., 1]: each at the place that a computed id gives it, zeros at the
    others and where the id does not count; raises `Unsupported` for ids of other positions.

    Example: the gradient of logits of a rank that has classes 6 to 11: of label 8, at place 2.
    """
    if index.at() != values.mask.at():
        raise Unsupported("entries that are zeroed by ids of other positions")
    live = piecewise.negated(values.mask.function)
    parts = piecewise.chosen_rows(index.function, live, size)
    if parts is None or len(parts) != 1:
        raise Narrow(index.origin.number, size)
    (part,) = parts
    if (part.row, part.size) != (0, size):
        raise Unsupported("entries at some of the places")
    lead = index.shape[:-1]
    zero = lo.real(Const(Fraction(0), (*lead, size), values.dtype))
    given = lo.real(lo.reshape(values.entries, lead))
    place = lo.real(lo.reshape(index.moved_input(lo), lead))
    return lo.derivative("pick", [zero, place], given, 0, start=part.id)


def ids_of(lo: Lowering, chosen: Lowered) -> Ids | None:
    """Ids that are, or are computed: where a maximum is, or what a mask fills; None: other numbers.

    Example: ``scores.argmax(-1)`` of scores [2, 8] are ids in [0, 8).
    """
    known = ids(chosen)
    computed = known is None and is_symbolic(chosen) and integral(chosen.dtype)
    return ids(lo.real(chosen)) if computed else known


def computed_ids(lo: Lowering, x: Any) -> Any:
    """Where a maximum is as the value that it is, so that it is ids; anything else as it is.

    Example: of ``scores.argmax(-1) == 2`` the first operand.
    """
    computed = isinstance(x, Unviewed) and is_symbolic(x) and integral(x.dtype)
    return lo.real(x) if computed else x


def added_rows(lo: Lowering, gradient: Lowered, chosen: Lowered, rows: int) -> Any:
    """A table of ``rows`` rows: the sum of the gradient's rows by id; what ids zero counts none.

    Example: a gradient [6, 8] by six ids in [0, 16) and 16 rows is a table [16, 8], the derivative
    of ``embedding`` for its table.
    """
    index = ids_of(lo, chosen)
    if index is None:
        raise Unsupported("rows chosen by what are no ids")
    live = piecewise.constant(index.function, 1)
    given = gradient
    if isinstance(gradient, Kept):
        if gradient.ids.at() != index.at():
            raise Unsupported("rows that are zeroed by ids of other positions")
        given, live = gradient.rows, gradient.ids.function
    return Scattered(index, live, rows, given.dtype).table(lo, given)


def entries_like(lo: Lowering, chosen: Real, table: Real) -> Real:
    """Entries of a table, or zeros: whole numbers that lie where the table's do.

    Example: of the experts of tokens, in [0, 4), those in the order in which tokens are sorted.
    """
    if not integral(table.dtype) or table.domain is None:
        return chosen
    low, high = table.domain
    return lo.whole(chosen, (min(low, 0), max(high, 1)), table.dtype)


def rows_of(lo: Lowering, table: Lowered, chosen: Lowered) -> Any:
    """Rows of a table by ids: a lookup, which becomes a value as soon as something reads it.

    Example: rows of a table [16, 8] by ids [2, 3] in [0, 64) have the shape [2, 3, 8]; read as a
    value they raise `Narrow`, and by ``torch.where(ids < 16, ids, 0)`` they do not.
    """
    index = ids_of(lo, chosen)
    if index is None:
        raise Unsupported("rows chosen by what are no ids")
    real = lo.real(table)
    live = piecewise.constant(index.function, 1)
    if len(real.shape) == 1:  # numbers: rows of one entry
        column = lo.real(lo.reshape(real, (*real.shape, 1)))
        rows = Lookup(column, index, live, False, (*index.shape, 1), real.dtype, lo.source)
        return lo.reshape(rows.real(lo), index.shape)
    shape = (*index.shape, *real.shape[1:])
    return Lookup(real, index, live, False, shape, real.dtype, lo.source)


def entries_of(lo: Lowering, table: Lowered, chosen: Lowered, wraps: bool = True) -> Any:
    """An entry of each row of a table [n, v], by ids [n], as an index chooses it; ``wraps``: which
    counts negative ones from the end.

    Example: ``x[torch.arange(2), ids]`` of x [2, 16] and ids [2] is picked, of shape [2].
    """
    index = ids_of(lo, chosen)
    if index is None:
        raise Unsupported("entries chosen by what are no ids")
    real = lo.real(table)
    index = wrapped(index, real.shape[1]) if wraps else index
    live = piecewise.constant(index.function, 1)
    return Lookup(real, index, live, True, index.shape, real.dtype, lo.source)


def restricted(x: Lookup, mask: Ids, kept: bool) -> Lookup:
    """The lookup, zero where the mask is not ``kept``.

    Example: rows by ids in [0, 64), kept where ``ids < 16``: ``live`` is 1 on [0, 16) and 0 on [16,
    64).
    """
    mask = mask.reshape(x.ids.shape)
    if mask.at() != x.ids.at():
        raise Unsupported("rows that are zeroed by ids of other positions")
    count = mask.function if kept else piecewise.negated(mask.function)
    return replace(x, live=piecewise.combine("and", x.live, count))


def by_rows(x: Lookup, mask: Ids) -> bool:
    """Whether a mask is broadcast along what the ids of a lookup choose, so that it says of each id
    whether it counts.

    Example: of rows [4, 8] by ids [4] a mask [4, 1] is; a mask [4] is broadcast along other
    dimensions, and a mask [4] of four ids that choose entries is one of each.
    """
    rest = len(x.shape) - len(x.ids.shape)
    return mask.shape == (*x.ids.shape, *(1 for _ in range(rest)))


def written(lo: Lowering, x: Lowered, mask: Lowered, value: Operand) -> Any:
    """``x`` with ``value`` where the mask is true, if ids decide it; None: it is something else.

    Example: ``rows.masked_fill((ids >= 16)[:, None], 0)`` is the lookup of rows, restricted to ids
    below 16; ``ids.masked_fill(ids >= 16, 0)`` is ``id`` on [0, 16) and 0 on [16, 64).
    """
    if not isinstance(mask, Ids):
        return None
    number = number_of(value)
    if isinstance(x, Lookup) and not by_rows(x, mask):
        x = lo.real(x)
    if isinstance(x, Lookup):
        kept = restricted(x, mask, False)
        fill = value.value if isinstance(value, Const) else value
        if fill == 0 or not isinstance(fill, (int, float, Fraction)):
            return kept if fill == 0 else None
        holds = lo.scale(x.among(lo, mask.function), fraction(fill))
        return lo.add(lo.real(kept), holds)
    index = ids(x)
    rows = x.shape[:-1]
    if index is None and isinstance(x, Real) and number == 0 and mask.shape == (*rows, 1):
        return Kept(x, inverse(mask.reshape(rows)))
    entries = index is None and isinstance(x, (Real, Const)) and floating(x.dtype)
    varies = mask.shape == x.shape and piecewise.value(mask.function) is None
    if entries and varies and number == 0:
        return Zeroed(x, mask)  # type: ignore[arg-type]
    if (isinstance(x, Real) and index is None) or entries:
        if piecewise.value(mask.function) == 0:
            return x
        holds = lo.expand(numbers(lo, flags(mask.indicated(lo)), x.dtype), x.shape)
        return chosen(lo, holds, fraction(value), x) if isinstance(value, (int, float)) else None
    if index is None or number is None:
        raise Unsupported("values of the input that are chosen by ids")
    if index.at() != mask.at():
        raise Unsupported("ids that are chosen by ids of other positions")
    other = piecewise.constant(index.function, number)
    return replace(index, function=piecewise.select(mask.function, other, index.function))


def chosen(lo: Lowering, mask: Lowered, number: Fraction, x: Lowered) -> Any:
    """``number`` where the mask is 1, ``x`` where it is 0.

    Example: ``x.masked_fill(mask, 2)`` is ``x * (1 - mask) + mask * 2``, with 0 in place of 2 only
    the product.
    """
    note_if_none(lo, x)
    rest = lo.shift(lo.scale(mask, Fraction(-1)), Fraction(1))
    kept = lo.mul(x, rest)
    return kept if number == 0 else lo.add(kept, lo.scale(mask, number))


def entries_written(lo: Lowering, table: Const, chosen: Lowered, values: Ids) -> Any:
    """Zeros [n, v] with one entry of each row written, where ids decide it the same number.

    Example: zeros [n, v] with 1 at each row's label are the derivative of ``pick`` for ones.
    """
    index = ids(chosen)
    numbers = sorted({p.offset for p in values.function} - {0})
    if (
        index is None
        or index.at() != values.at()
        or len(numbers) > 1
        or any(p.slope for p in values.function)
    ):
        raise Unsupported("entries that are written by ids of other positions")
    live = piecewise.compare("NE", values.function, piecewise.constant(values.function, 0))
    written = Scattered(index, live, table.shape[1], table.dtype)
    return written.entries(lo, Fraction(numbers[0] if numbers else 0))
