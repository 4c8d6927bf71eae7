"""Whole numbers divided by a whole number, exactly: quotients that are rounded, what is left over,
and shifts; and whole numbers kept between two.

``floor(x / n)`` is emitted as ``floor((2 x + 1) / (2 n))``, which is the same of whole numbers and
keeps a half step away from where rounding could decide.
"""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from typing import Any

from shardproof.engine.errors import Unsupported
from shardproof.frontends.aten.filled import Filled
from shardproof.frontends.aten.ids import DOMAIN, Ids, ids, made, number_of
from shardproof.frontends.aten.lowering import Const, Lowered, Lowering, Operand, Real
from shardproof.frontends.aten.masks import clamped
from shardproof.frontends.aten.positions import Positions
from shardproof.frontends.aten.rules import lowers
from shardproof.frontends.aten.tables import table
from shardproof.frontends.builder import piecewise


@lowers("aten.clamp.default", "aten.clamp_min.default")
def _clamp(lo: Lowering, x: Lowered, least: float | None = None, most: float | None = None) -> Any:
    """Of ids, a function of the id."""
    if isinstance(x, Filled):
        return _clamp_filled(lo, x, least, most)
    of = ids(x)
    bounds = {"maximum": least, "minimum": most}
    numbers = {name: number_of(y) for name, y in bounds.items() if y is not None}
    if of is None or None in numbers.values():
        return clamped(lo, x, least, most)
    if isinstance(x, Real) and not x.shape and x.number not in lo.origins:
        return _clamped_count(lo, x, least, most)
    function = of.function
    for name, number in numbers.items():
        assert number is not None
        function = piecewise.combine(name, function, piecewise.constant(function, number))
    return made(lo, of, function)


def _clamped_count(lo: Lowering, x: Real, least: float | None, most: float | None) -> Any:
    """A whole number that was computed, between two.  Of ids it would be a function by cases, which
    a device that does not know how large it may be could not write.

    Example: ``mask.sum().clamp(min=1)`` is ``relu(mask.sum() - 1) + 1``.
    """
    result = clamped(lo, x, least, most)
    if isinstance(result, Real):
        lo.integral.add(result.number)
        return replace(result, dtype=x.dtype)
    return result


def _clamp_filled(lo: Lowering, x: Filled, least: float | None, most: float | None) -> Any:
    kept = _clamp(lo, x.kept, least, most)
    number = x.number if least is None else max(x.number, least)
    number = number if most is None else min(number, most)
    if not isinstance(kept, Ids) or number != int(number):
        raise Unsupported("whole numbers that a mask replaces, between two that are none")
    return replace(x, kept=kept, number=int(number))


@lowers("aten.clamp_max.default")
def _clamp_max(lo: Lowering, x: Lowered, most: float) -> Any:
    return _clamp(lo, x, None, most)


def quotient(lo: Lowering, x: Lowered, y: Operand, rounding: str) -> Any:
    """``x / y`` of whole numbers, rounded by "floor" or "trunc", as whole numbers again; raises
    `Unsupported` for a divisor that is no positive number, and for "trunc" of what may be negative.

    Example: ids in [0, 12) by 5 are whole numbers in [0, 3).
    """
    divisor = number_of(y)
    if divisor is None or divisor <= 0:
        raise Unsupported("a quotient of whole numbers by other than a positive number")
    if isinstance(x, Const):
        return Const(Fraction(x.value // divisor), x.shape, x.dtype)
    if isinstance(x, Positions):
        entries = table(lo, x.moving() // divisor, x.dtype)
        return lo.expand(entries, x.shape)
    by_parts = _divided(lo, x, divisor, rounding)
    if by_parts is not None:
        return by_parts[0]
    real = lo.real(x)
    low, high = _span(x) or DOMAIN
    if rounding != "floor" and low < 0:
        raise Unsupported("a quotient of whole numbers that may be negative, cut to a whole number")
    number = replace(real, dtype="float32", domain=None)
    moved = lo.shift(lo.scale(number, Fraction(1, divisor)), Fraction(1, 2 * divisor))
    rounded = lo.real(lo.unary("floor", moved))
    return lo.whole(rounded, (low // divisor, (high - 1) // divisor + 1), real.dtype)


def rest(lo: Lowering, x: Lowered, y: Operand, rounding: str) -> Any:
    """What a rounded quotient of whole numbers leaves: ``x - y * quotient``; raises `Unsupported`.

    Example: ids in [0, 12) modulo 5 are whole numbers in [0, 5).
    """
    divisor = number_of(y)
    if divisor is None or divisor <= 0:
        raise Unsupported("a remainder of whole numbers by other than a positive number")
    if isinstance(x, Const):
        return Const(x.value % divisor, x.shape, x.dtype)
    if isinstance(x, Positions):
        return lo.expand(table(lo, x.moving() % divisor, x.dtype), x.shape)
    low, high = _span(x) or DOMAIN
    if low >= 0 and high <= divisor:
        return x
    by_parts = _divided(lo, x, divisor, rounding)
    if by_parts is not None:
        return by_parts[1]
    times = lo.real(quotient(lo, x, y, rounding))
    left = lo.add(_number(lo.real(x)), _number(times), Fraction(-divisor))
    return lo.whole(lo.real(left), (0, divisor), lo.real(x).dtype)


def _divided(lo: Lowering, x: Lowered, divisor: int, rounding: str) -> tuple[Ids, Ids] | None:
    """The quotient and the rest of ids, as functions of the id; None: of too many pieces, or of
    what may be negative and is not rounded down."""
    of = ids(x)
    if of is None or (rounding != "floor" and of.span()[0] < 0):
        return None
    both = piecewise.divided(of.function, divisor)
    return None if both is None else (made(lo, of, both[0]), made(lo, of, both[1]))


def _number(x: Real) -> Real:
    return replace(x, dtype="float32", domain=None)


def _span(x: Lowered) -> tuple[int, int] | None:
    """The whole numbers that an operand may be: from the first to before the second."""
    of = ids(x)
    return None if of is None else of.span()


@lowers("aten.__rshift__.Scalar", "aten.bitwise_right_shift.Tensor_Scalar")
def _shifted_right(lo: Lowering, x: Lowered, bits: int) -> Any:
    return quotient(lo, x, 1 << bits, "floor")


@lowers("aten.__lshift__.Scalar", "aten.bitwise_left_shift.Tensor_Scalar")
def _shifted_left(lo: Lowering, x: Lowered, bits: int) -> Any:
    return lo.scale(x, Fraction(1 << bits)) if not isinstance(x, Ids) else _times(lo, x, 1 << bits)


def _times(lo: Lowering, x: Ids, factor: int) -> Ids:
    by = piecewise.constant(x.function, factor)
    return made(lo, x, piecewise.combine("multiply", x.function, by))


@lowers("aten.bitwise_and.Scalar", "aten.__and__.Scalar")
def _bits(lo: Lowering, x: Lowered, bits: int) -> Any:
    """Some bits of a whole number that lie side by side: a rest, of a quotient if they are not the
    lowest ones.  That is so of negative numbers, too, which have all bits before their first.

    Example: ``x & 15`` is ``x % 16``, and ``x & 240`` is ``(x // 16) % 16 * 16``.
    """
    lowest = bits & -bits
    width = bits // lowest + 1 if bits > 0 else 0
    if not width or width & (width - 1):
        raise Unsupported(f"the bits {bits} of a whole number, which do not lie side by side")
    if lowest == 1:
        return rest(lo, x, width, "floor")
    return _shifted_left(
        lo, rest(lo, quotient(lo, x, lowest, "floor"), width, "floor"), lowest.bit_length() - 1
    )
