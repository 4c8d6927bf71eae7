"""What integers leave when they are divided by a number, as a step by how many are accumulated.

XLA writes the remainder by a power of two as bits: of what is not negative ``and(x, 3)`` is that of
``x`` by 4.  Both are a function of the id where that has few pieces, and otherwise a number,
``x - 4 floor(x / 4)``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction

from shardproof.engine.errors import Unsupported
from shardproof.frontends.builder import piecewise
from shardproof.frontends.graphs.graph import Node
from shardproof.frontends.hlo import elementwise, functions
from shardproof.frontends.hlo.functions import Number
from shardproof.frontends.hlo.items import Ids, Item, Tensor
from shardproof.frontends.hlo.known import Known
from shardproof.frontends.hlo.positive import nonnegative
from shardproof.frontends.hlo.state import Lowering, integral


def remainder(low: Lowering, node: Node, xs: Sequence[Item]) -> Item:
    """What a division leaves, with the sign of the dividend; of integers where that is not
    negative, and the divisor a positive number.

    Example: of ids in [0, 8) by 4 it is the id in [0, 4), and the id less 4 in [4, 8).
    """
    if not integral(low.dtype(node)):
        return functions.remainder(low, node, xs)
    divisor = _number(xs[1])
    if divisor is None or divisor <= 0:
        raise Unsupported("a remainder of integers by what is no positive number")
    return _left(low, xs[0], divisor)


def conjunction(low: Lowering, node: Node, xs: Sequence[Item]) -> Item:
    """ "And" of predicates (`elementwise.logical`), or the lowest bits of integers.

    Example: ``and(x, 3)`` is the remainder of ``x`` by 4; ``and(x, 5)`` is refused.
    """
    for x, other in (xs, xs[::-1]) if integral(low.dtype(node)) else ():
        bits = _number(other)
        if bits is not None and bits > 0 and not bits & (bits + 1):
            return _left(low, x, bits + 1)
    return elementwise.logical(low, node, xs)


def _number(x: Item) -> int | None:
    number = x.number() if isinstance(x, Known | Ids) else None
    return None if number is None else int(number)


def _left(low: Lowering, x: Item, divisor: int) -> Item:
    if isinstance(x, Ids):
        pieces = [piece for f in x.functions for piece in f]
        if any(min(p.at(p.low), p.at(p.high - 1)) < 0 for p in pieces):
            raise Unsupported("a remainder of integers that may be negative")
        parts = [piecewise.divided(f, divisor) for f in x.functions]
        if None not in parts:
            return replace(x, functions=tuple(part[1] for part in parts if part))
    value = low.tensor(x)
    if not isinstance(x, Ids) and not nonnegative(low.recorder, value):
        raise Unsupported("a remainder of integers that may be negative")
    number = Number(low, value)
    whole = (number * Fraction(1, divisor)).of("floor")
    return Tensor((number - whole * divisor).value)
