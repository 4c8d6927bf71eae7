"""Integers that are divided by a number: how often they have it, and what that leaves, as a step by
how many are accumulated, or the place of a beam's word by the words that there are.

XLA writes both by a power of two as bits: of what is not negative ``and(x, 3)`` is the remainder of
``x`` by 4, and ``shift-right-logical(x, 2)`` the quotient.  They are functions of the id where
these have few pieces, and otherwise numbers, ``floor(x / 4)`` and ``x - 4 floor(x / 4)``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction

import numpy as np

from shardproof.engine.errors import Unsupported
from shardproof.frontends.builder import piecewise
from shardproof.frontends.graphs.graph import Node
from shardproof.frontends.hlo import elementwise, functions, indices, overflow
from shardproof.frontends.hlo.functions import Number
from shardproof.frontends.hlo.items import Ids, Item, Tensor
from shardproof.frontends.hlo.known import Known, constant
from shardproof.frontends.hlo.positive import nonnegative
from shardproof.frontends.hlo.state import Lowering, integral


def remainder(low: Lowering, node: Node, xs: Sequence[Item]) -> Item:
    """What a division leaves, with the sign of the dividend; of integers where that is not
    negative, and the divisor a positive number.

    Example: of ids in [0, 8) by 4 it is the id in [0, 4), and the id less 4 in [4, 8).
    """
    if not integral(low.dtype(node)):
        return functions.remainder(low, node, xs)
    return _parts(low, xs[0], _positive(xs[1], "remainder"), "remainder")[1]


def quotient(low: Lowering, node: Node, xs: Sequence[Item]) -> Item:
    """A quotient; of integers rounded towards zero, where the dividend is not negative, and the
    divisor a positive number.

    Example: of ids in [0, 8) by 4 it is 0 in [0, 4), and 1 in [4, 8).
    """
    if not integral(low.dtype(node)):
        return elementwise.divide(low, node, xs)
    return _parts(low, xs[0], _positive(xs[1], "quotient"), "quotient")[0]


def shifted(low: Lowering, node: Node, xs: Sequence[Item]) -> Item:
    """Bits to the right by a known number, of what is not negative: a quotient by a power of two.

    ``shift-right-arithmetic`` takes the first bit of a type without negative numbers for a sign,
    too, so there it is read of numbers without that bit alone.  By as many places as the type has
    bits nothing is left.

    Example: ``shift-right-logical(x, 2)`` is the quotient of ``x`` by 4.
    """
    dtype = low.dtype(node)
    bits, width = _number(xs[1]), overflow.bits(dtype)
    if bits is not None and bits >= width and node.target == "shift-right-logical":
        return constant(np.zeros(low.shape(node), dtype), low.type(node))
    if bits is None or not 0 <= bits < width - 1:
        raise Unsupported("a shift by what is no number of bits")
    if node.target == "shift-right-arithmetic" and dtype.startswith("uint"):
        _without_sign(xs[0], width)
    return _parts(low, xs[0], 1 << bits, "shift")[0]


def raised(low: Lowering, node: Node, xs: Sequence[Item]) -> Item:
    """Bits to the left by a known number: a product with a power of two, where none is lost.  By as
    many places as the type has bits nothing is left.

    Example: ``shift-left(x, 2)`` is ``4 x``; that it does not overflow is an assumption.
    """
    places, width = _number(xs[1]), overflow.bits(low.dtype(node))
    if places is not None and places >= width:
        return constant(np.zeros(low.shape(node), low.dtype(node)), low.type(node))
    if places is None or not 0 <= places < width - 1:
        raise Unsupported("a shift by what is no number of bits")
    factor = constant(np.full(low.shape(node), 1 << places, low.dtype(node)), low.type(node))
    return elementwise.multiply(low, node, [xs[0], factor])


def conjunction(low: Lowering, node: Node, xs: Sequence[Item]) -> Item:
    """ "And" of predicates (`elementwise.logical`), or the lowest bits of integers.

    Example: ``and(x, 3)`` is the remainder of ``x`` by 4; ``and(x, 5)`` is refused.
    """
    for x, other in (xs, xs[::-1]) if integral(low.dtype(node)) else ():
        bits = _number(other)
        if bits is not None and bits > 0 and not bits & (bits + 1):
            return _parts(low, x, bits + 1, "remainder")[1]
    return elementwise.logical(low, node, xs)


def _without_sign(x: Item, width: int) -> None:
    """Raises `Unsupported` for what may have the first bit of its type."""
    pieces = [piece for f in x.functions for piece in f] if isinstance(x, Ids) else []
    ends = [end for p in pieces for end in (p.at(p.low), p.at(p.high - 1))]
    if not ends or max(ends) >= 1 << width - 1:
        raise Unsupported("an arithmetic shift of integers that may have the bit of a sign")


def _positive(x: Item, what: str) -> int:
    number = _number(x)
    if number is None or number <= 0:
        raise Unsupported(f"a {what} of integers by what is no positive number")
    return number


def _number(x: Item) -> int | None:
    number = x.number() if isinstance(x, Known | Ids) else None
    return None if number is None else int(number)


def _parts(low: Lowering, x: Item, divisor: int, what: str) -> tuple[Item, Item]:
    """How often a number that is not negative has the divisor, and what that leaves."""
    if isinstance(x, Ids):
        pieces = [piece for f in x.functions for piece in f]
        if any(min(p.at(p.low), p.at(p.high - 1)) < 0 for p in pieces):
            raise Unsupported(f"a {what} of integers that may be negative")
        parts = [part for f in x.functions if (part := piecewise.divided(f, divisor)) is not None]
        if len(parts) == len(x.functions):
            often, rest = zip(*parts, strict=True)
            return replace(x, functions=often), replace(x, functions=rest)
    value = low.tensor(x)
    if not isinstance(x, Ids) and not nonnegative(low.recorder, value):
        raise Unsupported(f"a {what} of integers that may be negative")
    count, left = _divided(low, value, divisor)
    return _often(low, x, count, divisor), ids_of(low, left, divisor)


def _divided(low: Lowering, value: int, divisor: int) -> tuple[int, int]:
    """Quotient and remainder as values, which are emitted once."""
    keys = ("quotient", value, divisor), ("remainder", value, divisor)
    count, left = (low.recorder.known(key) for key in keys)
    if count is None or left is None:
        number = Number(low, value)
        whole = (number * Fraction(1, divisor)).of("floor")
        count = low.recorder.once(keys[0], whole.value)
        left = low.recorder.once(keys[1], (number - whole * divisor).value)
    return count, left


def _often(low: Lowering, x: Item, value: int, divisor: int) -> Item:
    """How often a number has the divisor, which is ``value``: of ids from where to where is known.
    Rows that it chooses say how large ids are (`Lowering.quotients`)."""
    if not isinstance(x, Ids):
        return Tensor(value)
    if len(x.functions) == 1 and [p.slope for p in x.functions[0]] == [1]:
        low.quotients[value] = x.origin, divisor, x.functions[0][0].offset
    most = max(max(p.at(p.low), p.at(p.high - 1)) for f in x.functions for p in f)
    return ids_of(low, value, most // divisor + 1)


def ids_of(low: Lowering, value: int, count: int) -> Ids:
    """Whole numbers from 0 on and below ``count`` that are computed, as ids of their own: rows that
    they choose, and positions that they are compared with, are those of any ids.

    Example: what ``position - 4 floor(position / 4)`` leaves, by 4: the slot of a cache of four.
    """
    shape = low.recorder.shape(value)
    return Ids(value, indices.own_axes(shape), shape, (piecewise.identity(0, count),))
