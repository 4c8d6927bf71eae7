"""Integers that are computed of ids: exact functions of the id, and rows that they choose.

A vocabulary that is divided over ranks is looked up by ``where(lo <= id < hi, id - lo, 0)``, and
the rows of other ids are zeroed.  `Ids` carries the first as an exact function of the id;
`frontends.aten.lookups` the rows.  Nothing is assumed of an id but its domain.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any

from shardproof.engine.errors import Unsupported
from shardproof.frontends.aten.lowering import (
    Const,
    Lowering,
    Operand,
    Real,
    Shape,
    broadcast,
    floating,
)
from shardproof.frontends.aten.masks import flags, numbers
from shardproof.frontends.aten.masks import inverse as inverse_of
from shardproof.frontends.aten.places import Move, Places, places
from shardproof.frontends.builder import piecewise
from shardproof.frontends.builder.piecewise import Function

#: Ids of which nothing is known.  Functions are constant or the id itself beyond the numbers that a
#: program compares them with, so that larger ids are treated as these are.
DOMAIN = (-(1 << 30), 1 << 30)

#: Ids of one interval that a predicate becomes numbers by.
MOST_CLASSES = 1 << 20

#: Pieces of a function of ids that becomes a number.
MOST_CASES = 16


class Narrow(Unsupported):
    """Ids of value ``origin`` must lie in [0, rows) for a lookup to read rows that exist.

    Example: rows of a table of 16 rows by ids of which it is only known that they are in [0, 64).
    """

    def __init__(self, origin: int, rows: int) -> None:
        super().__init__(f"ids may choose other rows than the {rows} that there are")
        self.origin = origin
        self.rows = rows


class Marked(Unsupported):
    """Integers of value ``origin`` may be ``mark``, which is no row and counts for nothing; where a
    loss asks, all others are in [0, rows).

    Example: labels of ``cross_entropy`` over 16 classes may be -100, and are in [0, 16) otherwise.
    """

    def __init__(self, origin: int, mark: int, rows: int | None = None) -> None:
        super().__init__(f"labels may be {mark}")
        self.origin = origin
        self.mark = mark
        self.rows = rows


@dataclass(frozen=True, slots=True)
class Ids:
    """``function`` of every entry of ``origin``, which is then moved; predicates are 0 or 1.

    Example: ``ids - 16`` with ids in [0, 64) has the ``function`` of one piece, slope 1 and offset
    -16; ``ids >= 16`` is 0 on [0, 16) and 1 on [16, 64).
    """

    origin: Real
    moves: tuple[Move, ...]
    function: Function
    shape: Shape
    dtype: str

    def after_move(self, name: str, given: Sequence[int], shape: Shape) -> Ids:
        """The ids after one more move; two reshapes in a row are one."""
        moves = self.moves
        if name == "reshape" and moves and moves[-1][0] == "reshape":
            moves = moves[:-1]
        if (moves, shape) != ((), self.origin.shape) or name != "reshape":
            moves = (*moves, (name, tuple(given)))
        return replace(self, moves=moves, shape=shape)

    def reshape(self, shape: Shape) -> Ids:
        """The same ids, in their order, in another shape."""
        return self if shape == self.shape else self.after_move("reshape", shape, shape)

    def expand(self, shape: Shape) -> Ids:
        """The ids repeated along dimensions of size 1 and new leading ones."""
        return self if shape == self.shape else self.after_move("expand", shape, shape)

    def permute(self, order: Sequence[int]) -> Ids:
        """The ids with their dimensions in another order."""
        return self.after_move("permute", order, tuple(self.shape[i] for i in order))

    def slice(self, dim: int, start: int, size: int) -> Ids:
        """``size`` positions of a dimension of ids, from ``start`` on."""
        shape = (*self.shape[:dim], size, *self.shape[dim + 1 :])
        return self.after_move("slice", (dim, start, size), shape)

    def moved_input(self, lo: Lowering) -> Real:
        """The ids themselves, moved."""
        x: Any = self.origin
        for name, given in self.moves:
            x = getattr(lo, name)(x, *given) if name == "slice" else getattr(lo, name)(x, given)
        return lo.real(x)

    def real(self, lo: Lowering) -> Real:
        """The ids as a value: a constant, the input times a slope plus an offset, or one of two
        numbers."""
        number = piecewise.value(self.function)
        if number is not None:
            real = lo.real(Const(Fraction(number), self.shape, self.dtype))
            return flags(real) if self.dtype == "bool" else real
        if self.dtype == "bool":
            return flags(self.indicated(lo))
        if len(self.function) == 1:
            (piece,) = self.function
            x = lo.scale(self.moved_input(lo), Fraction(piece.slope))
            return replace(lo.real(lo.shift(x, Fraction(piece.offset))), dtype=self.dtype)
        values = sorted({piece.offset for piece in self.function})
        if len(values) != 2 or any(piece.slope for piece in self.function):
            return self._by_cases(lo)
        low, high = values
        mask = piecewise.compare("EQ", self.function, piecewise.constant(self.function, high))
        flag = replace(self, function=mask, dtype="bool").real(lo)
        kind = "float32" if integral(self.dtype) else self.dtype
        real = numbers(lo, flag, kind)
        of = lo.real(lo.shift(lo.scale(real, Fraction(high - low)), Fraction(low)))
        return lo.whole(of, self.span(), self.dtype) if integral(self.dtype) else of

    def _by_cases(self, lo: Lowering) -> Real:
        """The sum over the pieces of what the function is there, times whether the id is there.

        Where it may be negative it stands for none, and no reader of it is to take that for a row.
        """
        if len(self.function) > MOST_CASES or self.span()[0] < 0:
            raise Unsupported("a number that is different functions of an id for different ids")
        x = replace(self.moved_input(lo), dtype="float32", domain=None)
        total: Any = Const(Fraction(0), self.shape, "float32")
        for piece in self.function:
            here = tuple(p._replace(slope=0, offset=int(p == piece)) for p in self.function)
            holds = replace(self, function=here, dtype="bool").indicated(lo)
            there = lo.shift(lo.scale(x, Fraction(piece.slope)), Fraction(piece.offset))
            total = lo.add(total, lo.mul(holds, there))
        return lo.whole(lo.real(total), self.span(), self.dtype)

    def span(self) -> tuple[int, int]:
        """What numbers the function has: from the first to before the second.

        Example: ``ids - 16`` with ids in [0, 64) has those of [-16, 48).
        """
        ends = [p.at(x) for p in self.function for x in (p.low, p.high - 1)]
        return min(ends), max(ends) + 1

    def indicated(self, lo: Lowering) -> Real:
        """A predicate as 0 and 1: whether the id is one of those of which it holds, or is none of
        those of which it does not."""
        real = self.moved_input(lo)
        sizes = [
            sum(p.high - p.low for p in self.function if p.offset == value) for value in (0, 1)
        ]
        fewer = int(sizes[1] < sizes[0])
        few = sizes[1 - fewer] <= MOST_CLASSES
        if few and self._negative(fewer) and not self._negative(1 - fewer):
            fewer = 1 - fewer  # An id is compared with classes, and none of them is negative.
        total: Any = Const(Fraction(0), self.shape, "float32")
        for piece in self.function:
            if piece.offset == fewer:
                if piece.high - piece.low > MOST_CLASSES:
                    raise Unsupported("a choice by ids of very many")
                width = (*self.shape, piece.high - piece.low)
                ones = lo.real(Const(Fraction(1), width, "float32"))
                holds = lo.emits("pick", [ones, real], {"start": piece.low}, "float32")[0]
                total = lo.add(total, holds)
        holds = lo.real(total)
        return holds if fewer else lo.real(inverse_of(lo, holds))

    def _negative(self, value: int) -> bool:
        return any(p.low < 0 for p in self.function if p.offset == value)

    def at(self) -> tuple[int, Places | tuple[Move, ...], Shape]:
        """Of which id every entry is."""
        where = places(self.origin.shape, self.moves)
        return self.origin.number, self.moves if where is None else where, self.shape


def marked(x: Real, mark: int) -> Ids:
    """Integers of an input that are not negative, or -1, which stands for ``mark``.

    Example: labels with the domain [-1, 6) and the mark -100 are -100 at -1, and themselves on
    [0, 6).
    """
    _, high = x.domain or DOMAIN
    function = (piecewise.Piece(-1, 0, 0, mark), piecewise.Piece(0, high, 1, 0))
    return Ids(x, (), function, x.shape, x.dtype)


def integral(dtype: str) -> bool:
    """Whether an element type is of whole numbers, bool not among them.

    Example: "int64" and "uint8" are, "bool" and "float32" are not.
    """
    return dtype.startswith(("int", "uint"))


def ids(x: Operand) -> Ids | None:
    """An operand as a function of ids, if it is integers of the input.

    Example: an int64 input with the domain (0, 64) is the identity on [0, 64); without a domain it
    is the identity on `DOMAIN`; a float32 one is None.
    """
    if isinstance(x, Ids):
        return x
    if isinstance(x, Real) and integral(x.dtype):
        low, high = x.domain or DOMAIN
        return Ids(x, (), piecewise.identity(low, high), x.shape, x.dtype)
    return None


def bounds(x: Operand) -> tuple[int, int] | None:
    """Between which whole numbers an operand is known to be: from the first to before the second;
    None: it is no whole number, or nothing is known of it.

    Example: ids with the domain (0, 64) plus 1 are in (1, 65); an int64 input without a domain is
    None.
    """
    known = ids(x)
    if known is None or (isinstance(x, Real) and x.domain is None) or known.dtype == "bool":
        return None
    return known.span()


def number_of(x: Operand) -> int | None:
    """The whole number that an operand is everywhere; None: it is none, or not everywhere the
    same.

    Example: ``2.0`` is 2, a constant tensor of threes is 3, 2.5 is None.
    """
    if isinstance(x, Const) and x.value.denominator == 1:
        return int(x.value)
    return int(x) if isinstance(x, (bool, int)) or (isinstance(x, float) and x % 1 == 0) else None


def pair(x: Operand, y: Operand) -> tuple[Ids, Function, Function] | None:
    """Two operands as functions of one id, and what they are like; None: they are none.

    Example: of ids in [0, 64) and 16: the ids, their identity, and the function that is 16 on [0,
    64).
    """
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
    """Ids at the places of ``like`` with another function of the input, of the type that is
    expected.

    Example: ``ids < 0`` is made like ``ids``, with another function, and has the type bool that the
    comparison's result is expected to have.
    """
    dtype = lo.expected[0][1] if lo.expected else like.dtype
    return replace(like, function=function, dtype=dtype or like.dtype)


def computed(lo: Lowering, name: str, x: Operand, y: Operand, factor: Fraction) -> Any:
    """``x + factor y`` or ``x y`` of ids and whole numbers; None: it is something else.

    Example: "add" of ids and 16 with the factor -1 is ``id - 16``; "multiply" of ids and a float32
    tensor is None, and so is that of a mask of ids as float32 and -3.4e38, which hides scores.
    """
    if factor.denominator != 1 or not (_whole(x) or _whole(y)):
        return None
    a, b = ids(x), ids(y)
    if a is not None and b is not None and a.at() != b.at():
        return _of_both(lo, name, a, b, int(factor))
    operands = pair(x, y)
    if operands is None:
        return None
    like, f, g = operands
    try:
        if factor != 1:
            g = piecewise.combine("multiply", g, piecewise.constant(g, int(factor)))
        return made(lo, like, piecewise.combine(name, f, g))
    except Unsupported as error:
        if isinstance(error, piecewise.Overflow) and lo.expected and floating(lo.expected[0][1]):
            return None  # Numbers, of which none is too large.
        if isinstance(error, piecewise.Overflow) and not any(_is_known(i) for i in (a, b)):
            return _of_unknown(lo, name, x, y, factor)
        if like.origin.domain is None and like.origin.number not in lo.origins:
            return None  # A number that was computed, such as how many labels count, times another.
        raise


def _is_known(x: Ids | None) -> bool:
    """Whether integers are ids of a domain, or what is computed of such."""
    return x is not None and (x.origin.domain is not None or bool(x.moves) or len(x.function) > 1)


def _of_unknown(lo: Lowering, name: str, x: Operand, y: Operand, factor: Fraction) -> Real:
    """``x + factor y`` or ``x y`` of whole numbers of which nothing is known, as a value.

    Example: how many labels count, which ranks have added up, times 6.
    """
    a, b = (lo.real(i) if isinstance(i, Ids) else i for i in (x, y))
    a, b = (replace(i, dtype="float32", domain=None) if isinstance(i, Real) else i for i in (a, b))
    first, second, _ = lo.operands(a, b)
    real = lo.real(lo.mul(first, second) if name == "multiply" else lo.add(first, second, factor))
    dtype = lo.expected[0][1]
    lo.values[real.number] = replace(lo.values[real.number], dtype=dtype)
    return replace(real, dtype=dtype, domain=None)


def _of_both(lo: Lowering, name: str, x: Ids, y: Ids, factor: int) -> Real:
    """``x + factor y`` or ``x y`` of ids of different places, as whole numbers of a value.

    Example: rows in [0, 4) times 8 plus columns in [0, 8) are whole numbers in [0, 32).
    """
    a, b = (replace(lo.real(i), dtype="float32", domain=None) for i in (x, y))
    ends = [(m, n) for m in _ends(x) for n in _ends(y)]
    if name == "add":
        extremes, combined = [m + factor * n for m, n in ends], lo.add(a, b, Fraction(factor))
    else:
        extremes, combined = [m * n for m, n in ends], lo.mul(a, b)
    span = min(extremes), max(extremes) + 1
    return lo.whole(lo.real(combined), span, lo.expected[0][1])


def _ends(x: Ids) -> tuple[int, int]:
    low, high = x.span()
    return low, high - 1


def _whole(x: Operand) -> bool:
    return isinstance(x, Ids) or (isinstance(x, Real) and integral(x.dtype))


def cast(x: Ids, dtype: str) -> Ids:
    """As another type that all of a function's values fit: of whole numbers, or a predicate as
    floating-point numbers 0 and 1.

    Example: a predicate as float32 is the same function, 0 and 1; ids in [0, 64) as bool are 0 at
    id 0 and 1 on [1, 64), as int16 they are refused.
    """
    if dtype == "bool" and x.dtype != "bool":
        zero = piecewise.constant(x.function, 0)
        return replace(x, function=piecewise.compare("NE", x.function, zero), dtype=dtype)
    if floating(dtype) and (x.dtype == "bool" or floating(x.dtype)):
        return replace(x, dtype=dtype)
    if x.dtype != "bool" and dtype not in ("int64", "int32"):
        raise Unsupported(f"a cast of ids to {dtype}")
    return replace(x, dtype=dtype)


def compared(lo: Lowering, direction: str, x: Operand, y: Operand) -> Ids | None:
    """A comparison of ids with a number, or with ids of the same positions.

    Example: "GE" of ids in [0, 64) and 16 is 0 on [0, 16) and 1 on [16, 64).
    """
    pairs = pair(x, y)
    if pairs is None:
        return None
    like, f, g = pairs
    _note_mark(lo, like, direction, piecewise.value(g))
    return replace(made(lo, like, piecewise.compare(direction, f, g)), dtype="bool")


def _note_mark(lo: Lowering, like: Ids, direction: str, number: int | None) -> None:
    """That an input's integers are told from a negative number, with which their domain begins, if
    there is one."""
    origin = like.origin
    begins = origin.domain is None or origin.domain[0] == number
    if direction in ("EQ", "NE") and number is not None and number < 0 and begins:
        shard = lo.origins.get(origin.number)
        if shard is not None and lo.shards[shard].kind != "constant":
            lo.labels.marked(lo.shards[shard].name, number)


def inverse(x: Ids) -> Ids:
    """A predicate's opposite.

    Example: of ``ids >= 16`` it is 1 on [0, 16) and 0 on [16, 64).
    """
    return replace(x, function=piecewise.negated(x.function))


def wrapped(x: Ids, rows: int) -> Ids:
    """Where an index is negative it counts from the end.

    Example: with 64 rows, ``id - 64`` for ids in [0, 64) chooses row ``id``.
    """
    f = x.function
    negative = piecewise.compare("LT", f, piecewise.constant(f, 0))
    other = piecewise.combine("add", f, piecewise.constant(f, rows))
    return replace(x, function=piecewise.select(negative, other, f))


def is_own(x: Ids, rows: int) -> bool:
    """Whether ids are an input's own, negative ones counted from the end or not.

    Example: those of ``table[ids]`` are, of any integers; ``ids - 3`` are not.
    """
    return all(
        slope == 1 and offset == (rows if high <= 0 and offset else 0)
        for _, high, slope, offset in x.function
    )


def placed_at(x: Ids, size: int) -> Ids:
    """Ids that choose one of ``size`` positions each; an input's own are among them, which raises
    `Narrow` where that is not known yet.

    Example: of ``cache[arange(n), slots]`` of a cache [n, 16, 8] the slots are in [0, 16).
    """
    low, high = x.span()
    if is_own(x, size) and not -size <= low <= high <= size:
        raise Narrow(x.origin.number, size)
    return wrapped(x, size)
