"""Integers that are computed of ids: exact functions of the id, and rows that they choose.

A vocabulary that is divided over ranks is looked up by ``where(lo <= id < hi, id - lo, 0)``, and
the rows of other ids are zeroed.  `Ids` carries the first as an exact function of the id, `Lookup`
the rows until it is known which ids count; both end as one `embedding` or `pick` that begins at
``lo``, or are refused.  Nothing is assumed of an id but its domain.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any

from shardproof.engine.errors import Unsupported
from shardproof.frontends.aten.lowering import (
    Const,
    Lowered,
    Lowering,
    Operand,
    Real,
    Shape,
    broadcast,
    floating,
    fraction,
)
from shardproof.frontends.aten.masks import flags, numbers
from shardproof.frontends.aten.masks import inverse as inverse_of
from shardproof.frontends.builder import piecewise
from shardproof.frontends.builder.piecewise import Function

#: Ids of which nothing is known.  Functions are constant or the id itself beyond the numbers that a
#: program compares them with, so that larger ids are treated as these are.
DOMAIN = (-(1 << 30), 1 << 30)

#: Ids of one interval that a predicate becomes numbers by.
MOST_CLASSES = 1 << 20

#: How a tensor was moved: the name of a movement of `Lowering`, and what it was given.
Move = tuple[str, tuple[int, ...]]


class Narrow(Unsupported):
    """Ids of value ``origin`` must lie in [0, rows) for a lookup to read rows that exist."""

    def __init__(self, origin: int, rows: int) -> None:
        super().__init__(f"ids may choose other rows than the {rows} that there are")
        self.origin = origin
        self.rows = rows


@dataclass(frozen=True, slots=True)
class Ids:
    """``function`` of every entry of ``origin``, which is then moved; predicates are 0 or 1."""

    origin: Real
    moves: tuple[Move, ...]
    function: Function
    shape: Shape
    dtype: str

    def moved(self, name: str, given: Sequence[int], shape: Shape) -> Ids:
        moves = self.moves
        if name == "reshape" and moves and moves[-1][0] == "reshape":
            moves = moves[:-1]
        if (moves, shape) != ((), self.origin.shape) or name != "reshape":
            moves = (*moves, (name, tuple(given)))
        return replace(self, moves=moves, shape=shape)

    def reshape(self, shape: Shape) -> Ids:
        return self if shape == self.shape else self.moved("reshape", shape, shape)

    def expand(self, shape: Shape) -> Ids:
        return self if shape == self.shape else self.moved("expand", shape, shape)

    def permute(self, order: Sequence[int]) -> Ids:
        return self.moved("permute", order, tuple(self.shape[i] for i in order))

    def slice(self, dim: int, start: int, size: int) -> Ids:
        shape = (*self.shape[:dim], size, *self.shape[dim + 1 :])
        return self.moved("slice", (dim, start, size), shape)

    def held(self, lo: Lowering) -> Real:
        """The ids themselves, moved."""
        x: Any = self.origin
        for name, given in self.moves:
            x = getattr(lo, name)(x, *given) if name == "slice" else getattr(lo, name)(x, given)
        return lo.real(x)

    def real(self, lo: Lowering) -> Real:
        number = piecewise.value(self.function)
        if number is not None:
            held = lo.real(Const(Fraction(number), self.shape, self.dtype))
            return flags(held) if self.dtype == "bool" else held
        if self.dtype == "bool":
            return flags(self.indicated(lo))
        if len(self.function) == 1:
            (piece,) = self.function
            x = lo.scale(self.held(lo), Fraction(piece.slope))
            return replace(lo.real(lo.shift(x, Fraction(piece.offset))), dtype=self.dtype)
        values = sorted({piece.offset for piece in self.function})
        if len(values) != 2 or any(piece.slope for piece in self.function):
            raise Unsupported("a number that is different functions of an id for different ids")
        low, high = values
        mask = piecewise.compare("EQ", self.function, piecewise.constant(self.function, high))
        held = numbers(lo, replace(self, function=mask, dtype="bool").real(lo), self.dtype)
        return lo.real(lo.shift(lo.scale(held, Fraction(high - low)), Fraction(low)))

    def indicated(self, lo: Lowering) -> Real:
        """A predicate as 0 and 1: whether the id is one of those of which it holds, or is none of
        those of which it does not."""
        held = self.held(lo)
        sizes = [
            sum(p.high - p.low for p in self.function if p.offset == value) for value in (0, 1)
        ]
        fewer = int(sizes[1] < sizes[0])
        total: Any = Const(Fraction(0), self.shape, "float32")
        for piece in self.function:
            if piece.offset == fewer:
                if piece.high - piece.low > MOST_CLASSES:
                    raise Unsupported("a choice by ids of very many")
                width = (*self.shape, piece.high - piece.low)
                ones = lo.real(Const(Fraction(1), width, "float32"))
                found = lo.emits("pick", [ones, held], {"start": piece.low}, "float32")[0]
                total = lo.add(total, found)
        found = lo.real(total)
        return found if fewer else lo.real(inverse_of(lo, found))

    def at(self) -> tuple[int, tuple[Move, ...], Shape]:
        """Of which id every entry is."""
        return self.origin.number, self.moves, self.shape


def integral(dtype: str) -> bool:
    return dtype.startswith(("int", "uint"))


def ids(x: Operand) -> Ids | None:
    """An operand as a function of ids, if it is integers of the input."""
    if isinstance(x, Ids):
        return x
    if isinstance(x, Real) and integral(x.dtype):
        low, high = x.domain or DOMAIN
        return Ids(x, (), piecewise.identity(low, high), x.shape, x.dtype)
    return None


def number_of(x: Operand) -> int | None:
    if isinstance(x, Const) and x.value.denominator == 1:
        return int(x.value)
    return int(x) if isinstance(x, (bool, int)) or (isinstance(x, float) and x % 1 == 0) else None


def pair(x: Operand, y: Operand) -> tuple[Ids, Function, Function] | None:
    """Two operands as functions of one id, and what they are like; None: they are none."""
    a, b = ids(x), ids(y)
    if a is not None and b is not None:
        if a.at() != b.at():
            raise Unsupported("ids together with ids of other positions")
        return a, a.function, b.function
    like = a or b
    number = number_of(y if a is not None else x)
    if like is None or number is None:
        return None
    given = x if a is None else y
    if isinstance(given, Const) and broadcast(given.shape, like.shape) != like.shape:
        raise Unsupported("ids that are broadcast")
    other = piecewise.constant(like.function, number)
    return (like, like.function, other) if a is not None else (like, other, like.function)


def made(lo: Lowering, like: Ids, function: Function) -> Ids:
    dtype = lo.expected[0][1] if lo.expected else like.dtype
    return replace(like, function=function, dtype=dtype or like.dtype)


def computed(lo: Lowering, name: str, x: Operand, y: Operand, factor: Fraction) -> Any:
    """``x + factor y`` or ``x y`` of ids and whole numbers; None: it is something else."""
    if isinstance(y, Lookup) or isinstance(x, Lookup):
        return _lessened(x, y, factor) if name == "add" else None
    if factor.denominator != 1 or not (_whole(x) or _whole(y)):
        return None
    found = pair(x, y)
    if found is None:
        return None
    like, f, g = found
    if factor != 1:
        g = piecewise.combine("multiply", g, piecewise.constant(g, int(factor)))
    return made(lo, like, piecewise.combine(name, f, g))


def _whole(x: Operand) -> bool:
    return isinstance(x, Ids) or (isinstance(x, Real) and integral(x.dtype))


def cast(x: Ids, dtype: str) -> Ids:
    """As another type that all of a function's values fit: of whole numbers, or a predicate as
    floating-point numbers 0 and 1."""
    if dtype == "bool" and x.dtype != "bool":
        zero = piecewise.constant(x.function, 0)
        return replace(x, function=piecewise.compare("NE", x.function, zero), dtype=dtype)
    if floating(dtype) and (x.dtype == "bool" or floating(x.dtype)):
        return replace(x, dtype=dtype)
    if x.dtype != "bool" and dtype not in ("int64", "int32"):
        raise Unsupported(f"a cast of ids to {dtype}")
    return replace(x, dtype=dtype)


def compared(lo: Lowering, direction: str, x: Operand, y: Operand) -> Ids | None:
    """A comparison of ids with a number, or with ids of the same positions."""
    pairs = pair(x, y)
    if pairs is None:
        return None
    like, f, g = pairs
    return replace(made(lo, like, piecewise.compare(direction, f, g)), dtype="bool")


def inverse(x: Ids) -> Ids:
    """A predicate's opposite."""
    return replace(x, function=piecewise.negated(x.function))


# -- lookups -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Lookup:
    """Rows of ``table`` (``picked`` False), or an entry of each row of it (True), chosen by ids;
    zero for ids where ``live`` is 0."""

    table: Real
    ids: Ids
    live: Function
    picked: bool
    shape: Shape
    dtype: str

    def reshape(self, shape: Shape) -> Any:
        if self.picked:
            return replace(self, ids=self.ids.reshape(shape), shape=shape)
        if shape == self.shape:
            return self
        raise Unsupported("a view of rows before it is known which ones count")

    def expand(self, shape: Shape) -> Any:
        raise Unsupported("rows that are broadcast before it is known which ones count")

    def permute(self, order: Sequence[int]) -> Any:
        raise Unsupported("rows that are permuted before it is known which ones count")

    def slice(self, dim: int, start: int, size: int) -> Any:
        raise Unsupported("a part of rows before it is known which ones count")

    def rows(self) -> int:
        return self.table.shape[-1 if self.picked else 0]

    def real(self, lo: Lowering) -> Real:
        parts = piecewise.chosen_rows(self.ids.function, self.live, self.rows())
        if parts is None or len(parts) > 1:
            raise Narrow(self.ids.origin.number, self.rows())
        if not parts:
            return lo.real(Const(Fraction(0), self.shape, self.dtype))
        (part,) = parts
        table: Any = self.table
        if self.picked:
            table = lo.reshape(table, (*self.ids.shape, self.rows()))
        dim = len(table.shape) - 1 if self.picked else 0
        table = lo.real(lo.slice(table, dim, part.row, part.size))
        held = self.ids.held(lo)
        if self.picked:
            return lo.emits("pick", [table, held], {"start": part.id}, self.dtype)[0]
        return lo.emits("embedding", [held, table], {"start": part.id}, self.dtype)[0]


@dataclass(frozen=True, slots=True)
class Less:
    """A lookup of entries, less a number that ids decide: what is written back over them."""

    lookup: Lookup
    number: Ids

    @property
    def shape(self) -> Shape:
        return self.lookup.shape

    @property
    def dtype(self) -> str:
        return self.lookup.dtype

    def real(self, lo: Lowering) -> Real:
        return lo.real(lo.sub(lo.real(self.lookup), lo.real(self.number)))

    def reshape(self, shape: Shape) -> Any:
        raise Unsupported("a view of entries that are written back")

    def expand(self, shape: Shape) -> Any:
        raise Unsupported("a view of entries that are written back")

    def permute(self, order: Sequence[int]) -> Any:
        raise Unsupported("a view of entries that are written back")

    def slice(self, dim: int, start: int, size: int) -> Any:
        raise Unsupported("a part of entries that are written back")


def _lessened(x: Operand, y: Operand, factor: Fraction) -> Less | None:
    if isinstance(x, Lookup) and x.picked and isinstance(y, Ids) and factor == -1:
        return Less(x, y) if x.ids.at() == y.at() else None
    return None


def written_back(lo: Lowering, table: Lowered, chosen: Lowered, less: Less) -> Any:
    """``table`` [n, v], less a number at one entry of each row."""
    found = ids(chosen)
    held = lo.real(table)
    if (
        found is None
        or found.at() != less.lookup.ids.at()
        or held != less.lookup.table
        or found.function != less.lookup.ids.function
    ):
        raise Unsupported("entries that are written over those of other ids")
    count = less.number.function
    if any(p.slope or p.offset not in (0, 1) for p in count):
        raise Unsupported("entries that lose other numbers than 0 or 1")
    parts = piecewise.chosen_rows(found.function, count, held.shape[1])
    if parts is None or len(parts) > 1:
        raise Narrow(found.origin.number, held.shape[1])
    if not parts:
        return held
    (part,) = parts
    if (part.row, part.size) != (0, held.shape[1]):
        raise Unsupported("entries of some of the columns that are written over")
    zero = lo.real(Const(Fraction(0), held.shape, held.dtype))
    ones = lo.real(Const(Fraction(1), found.shape, held.dtype))
    return lo.sub(held, lo.derivative("pick", [zero, found.held(lo)], ones, 0, start=part.id))


@dataclass(frozen=True, slots=True)
class Kept:
    """Rows of a value that count where ids decide it, and are zero elsewhere."""

    rows: Real
    ids: Ids

    @property
    def shape(self) -> Shape:
        return self.rows.shape

    @property
    def dtype(self) -> str:
        return self.rows.dtype

    def real(self, lo: Lowering) -> Real:
        raise Unsupported("rows of the input that ids zero")

    def reshape(self, shape: Shape) -> Any:
        raise Unsupported("a view of rows that ids zero")

    def expand(self, shape: Shape) -> Any:
        raise Unsupported("a view of rows that ids zero")

    def permute(self, order: Sequence[int]) -> Any:
        raise Unsupported("a view of rows that ids zero")

    def slice(self, dim: int, start: int, size: int) -> Any:
        raise Unsupported("a part of rows that ids zero")


def added_rows(lo: Lowering, gradient: Lowered, chosen: Lowered, rows: int) -> Any:
    """A table of ``rows`` rows: the sum of the gradient's rows by id; what ids zero counts none."""
    found = ids(chosen)
    if found is None:
        raise Unsupported("rows chosen by what are no ids")
    live = piecewise.constant(found.function, 1)
    given = gradient
    if isinstance(gradient, Kept):
        if gradient.ids.at() != found.at():
            raise Unsupported("rows that are zeroed by ids of other positions")
        given, live = gradient.rows, gradient.ids.function
    parts = piecewise.chosen_rows(found.function, live, rows)
    if parts is None or len(parts) != 1:
        raise Narrow(found.origin.number, rows)
    (part,) = parts
    if (part.row, part.size) != (0, rows):
        raise Unsupported("a gradient of some of the rows")
    table = lo.real(Const(Fraction(0), (rows, given.shape[-1]), given.dtype))
    return lo.derivative("embedding", [found.held(lo), table], lo.real(given), 1, start=part.id)


def rows_of(lo: Lowering, table: Lowered, chosen: Lowered) -> Any:
    """Rows of a table by ids: a lookup, which becomes a value as soon as something reads it."""
    found = ids(chosen)
    if found is None:
        raise Unsupported("rows chosen by what are no ids")
    held = lo.real(table)
    live = piecewise.constant(found.function, 1)
    return Lookup(held, found, live, False, (*found.shape, *held.shape[1:]), held.dtype)


def entries_of(lo: Lowering, table: Lowered, chosen: Lowered) -> Any:
    """An entry of each row of a table [n, v], by ids [n]."""
    found = ids(chosen)
    if found is None:
        raise Unsupported("entries chosen by what are no ids")
    held = lo.real(table)
    live = piecewise.constant(found.function, 1)
    return Lookup(held, found, live, True, found.shape, held.dtype)


def restricted(x: Lookup, mask: Ids, kept: bool) -> Lookup:
    """The lookup, zero where the mask is not ``kept``."""
    if mask.shape != x.ids.shape and mask.shape == (*x.ids.shape, 1):
        mask = mask.reshape(x.ids.shape)
    if mask.at() != x.ids.at():
        raise Unsupported("rows that are zeroed by ids of other positions")
    count = mask.function if kept else piecewise.negated(mask.function)
    return replace(x, live=piecewise.combine("and", x.live, count))


def written(lo: Lowering, x: Lowered, mask: Lowered, value: Operand) -> Any:
    """``x`` with ``value`` where the mask is true, if ids decide it; None: it is something else."""
    if not isinstance(mask, Ids):
        return None
    number = number_of(value)
    if isinstance(x, Lookup):
        if number != 0 and not (isinstance(value, float) and value == 0):
            raise Unsupported(f"rows that are {value} instead of zero")
        return restricted(x, mask, False)
    found = ids(x)
    rows = x.shape[:-1]
    if found is None and isinstance(x, Real) and number == 0 and mask.shape in (rows, (*rows, 1)):
        return Kept(x, inverse(mask.reshape(rows)))
    if found is None and isinstance(x, Real):
        if piecewise.value(mask.function) == 0:
            return x
        held = lo.expand(numbers(lo, flags(mask.indicated(lo)), x.dtype), x.shape)
        return chosen(lo, held, fraction(value), x) if isinstance(value, (int, float)) else None
    if found is None or number is None:
        raise Unsupported("values of the input that are chosen by ids")
    if found.at() != mask.at():
        raise Unsupported("ids that are chosen by ids of other positions")
    other = piecewise.constant(found.function, number)
    return replace(found, function=piecewise.select(mask.function, other, found.function))


def chosen(lo: Lowering, mask: Lowered, number: Fraction, x: Lowered) -> Any:
    """``number`` where the mask is 1, ``x`` where it is 0."""
    rest = lo.shift(lo.scale(mask, Fraction(-1)), Fraction(1))
    kept = lo.mul(x, rest)
    return kept if number == 0 else lo.add(kept, lo.scale(mask, number))


def entries_written(lo: Lowering, table: Const, chosen: Lowered, values: Ids) -> Any:
    """Zeros [n, v] with one entry of each row written, where ids decide it the same number."""
    found = ids(chosen)
    numbers = sorted({p.offset for p in values.function} - {0})
    if (
        found is None
        or found.at() != values.at()
        or len(numbers) > 1
        or any(p.slope for p in values.function)
    ):
        raise Unsupported("entries that are written by ids of other positions")
    zero = lo.real(Const(Fraction(0), table.shape, table.dtype))
    live = piecewise.compare("NE", values.function, piecewise.constant(values.function, 0))
    parts = piecewise.chosen_rows(found.function, live, table.shape[1])
    if parts is None or len(parts) > 1:
        raise Narrow(found.origin.number, table.shape[1])
    if not parts:
        return zero
    (part,) = parts
    if (part.row, part.size) != (0, table.shape[1]):
        raise Unsupported("entries of some of the columns that are written over")
    ones = lo.real(Const(Fraction(numbers[0]), found.shape, table.dtype))
    return lo.derivative("pick", [zero, found.held(lo)], ones, 0, start=part.id)
