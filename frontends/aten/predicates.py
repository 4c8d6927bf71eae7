"""Predicates of ids and of numbers: comparisons, what is made of them, what is chosen by them."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from typing import Any

import numpy as np

from shardproof.engine.errors import Unsupported
from shardproof.frontends.aten.bands import both as windowed
from shardproof.frontends.aten.bits import Bits
from shardproof.frontends.aten.filled import apart
from shardproof.frontends.aten.hidden import as_numbers
from shardproof.frontends.aten.ids import Ids, compared, ids, integral, made, number_of
from shardproof.frontends.aten.ids import inverse as inverse_of_ids
from shardproof.frontends.aten.infinite import finite
from shardproof.frontends.aten.joined import Joined, part_by_part
from shardproof.frontends.aten.lookups import computed_ids
from shardproof.frontends.aten.losses import told_apart
from shardproof.frontends.aten.lowering import Const, Lowered, Lowering, Operand, Real, broadcast
from shardproof.frontends.aten.masks import compared as compared_numbers
from shardproof.frontends.aten.masks import flags, numbers
from shardproof.frontends.aten.masks import inverse as inverse_of
from shardproof.frontends.aten.one_hot import Choices, OneHot, one_hot, one_hot_values
from shardproof.frontends.aten.positions import Compared, Positions, plus, whole
from shardproof.frontends.aten.positive import FINDS_NUMBERS, note_if_none
from shardproof.frontends.aten.rules import lowers
from shardproof.frontends.aten.tables import Array
from shardproof.frontends.builder import piecewise
from shardproof.frontends.builder.piecewise import Function

ONE = Fraction(1)


def _logical(name: str, both: str) -> None:
    @lowers(name)
    def rule(lo: Lowering, x: Lowered, y: Lowered) -> Any:
        for a in (x, y):
            if getattr(a, "dtype", "") != "bool":
                raise Unsupported(f"{name} of integers")
        for a, b in ((x, y), (y, x)):
            if isinstance(a, Const):
                keeps = bool(a.value) == (both == "and")
                return lo.expand(b if keeps else a, broadcast(x.shape, y.shape))
        for hot, mask in ((x, y), (y, x)):
            if both == "and" and isinstance(hot, OneHot) and isinstance(mask, Ids):
                own = hot.restricted(mask)
                if own is not None:
                    return own
        window = _of_two(both, x, y)
        if window is not None:
            return window
        if isinstance(x, Ids) and isinstance(y, Ids) and x.at() == y.at():
            return made(lo, x, piecewise.combine(both, x.function, y.function))
        a, b = as_numbers(lo, x), as_numbers(lo, y)
        if both == "and":
            return flags(lo.real(lo.mul(a, b)))
        neither = lo.mul(inverse_of(lo, a), inverse_of(lo, b))
        return flags(lo.real(inverse_of(lo, neither)))


def _of_two(both: str, x: Lowered, y: Lowered) -> Compared | Bits | None:
    """Where both, or either, of two masks of positions are true; None: that is no window."""
    if not isinstance(x, Compared) or not isinstance(y, Compared):
        return None
    if both == "and":
        return windowed(x, y)
    hidden = windowed(x.inverse(), y.inverse())
    return None if hidden is None else hidden.inverse()


def at_positions(lo: Lowering, x: Operand, y: Operand) -> Real | OneHot | Choices | None:
    """1 where ids [..., 1] are the position along the last dimension, as `one_hot` compares them;
    None: these are no such ids and positions.

    Example: ``F.one_hot(labels, 8)`` compares labels [2, 1] with ``arange(8)``: it is [2, 8], the
    derivative of ``pick`` for ones.
    """
    if not isinstance(y, Positions) or not y.shape or isinstance(x, (int, float, Const, Positions)):
        return None
    size = y.shape[-1]
    along = (*(0 for _ in y.shape[:-1]), 1)
    if y.steps != along or not x.shape or x.shape[-1] != 1 or size == 1 or not integral(x.dtype):
        return None
    if isinstance(x, Ids):
        return one_hot(x.reshape(x.shape[:-1]), y.const, size)
    chosen = _of_a_choice(lo, x) if isinstance(x, Real) and lo.wheres else None
    if chosen is not None:
        return Choices(chosen.reshape(x.shape[:-1]), y.const, size, "bool")
    return one_hot_values(lo, lo.real(lo.reshape(x, x.shape[:-1])), y.const, size)


def _of_a_choice(lo: Lowering, x: Real) -> Ids | None:
    """Ids that differ along a dimension, moved by one view; None: they are none."""
    made = next((op for op in reversed(lo.ops) if x.number in op.outputs), None)
    if made is None or made.name != "view" or made.inputs[0] not in lo.distinct:
        return None
    number = made.inputs[0]
    return ids(Real(number, lo.values[number].shape, x.dtype, x.domain))


def _mask(entries: Array) -> Bits | Const:
    """Known entries: a constant where all are alike."""
    first = bool(entries.flat[0]) if entries.size else False
    alike = bool((entries == first).all())
    return Const(Fraction(first), entries.shape, "bool") if alike else Bits(entries)


def _of_positions(x: Operand, y: Operand) -> Array | None:
    """Where positions, or whole numbers, are equal that depend on no input; None: they are none.

    Example: ``torch.arange(4) == 2`` is [False, False, True, False].
    """
    a, b = whole(x), whole(y)
    if a is None or b is None or (isinstance(x, int) and isinstance(y, int)):
        return None
    gap = plus(a, b, -1)
    return np.broadcast_to(gap.moving() == 0, gap.shape)


def _told_apart(lo: Lowering, x: Operand, y: Operand) -> Real | None:
    number = number_of(y)
    return told_apart(lo, x, number) if isinstance(x, Joined) and number is not None else None


def _equality(name: str) -> None:
    @lowers(f"aten.{name}.Tensor", f"aten.{name}.Scalar")
    def rule(lo: Lowering, x: Lowered, y: Operand) -> Any:
        differ = _told_apart(lo, x, y)
        if differ is not None:
            return flags(differ if name == "ne" else lo.real(inverse_of(lo, differ)))
        parts = part_by_part(lo, rule, x, y)
        if parts is not None:
            return parts
        of_filled = apart(lo, name.upper(), x, y)
        if of_filled is not None:
            return of_filled
        equal = at_positions(lo, x, y) or at_positions(lo, y, x)
        if equal is not None:
            return equal if name == "eq" else flags(lo.real(inverse_of(lo, lo.real(equal))))
        known = _of_positions(x, y)
        if known is not None:
            return _mask(known if name == "eq" else ~known)
        x, y = computed_ids(lo, x), computed_ids(lo, y)
        first, second = ids(x), ids(y)
        if first is not None and second is not None and first.at() != second.at():
            # Of tokens with each other: as the numbers that they are.
            a, b = (replace(lo.real(i), dtype="float32", domain=None) for i in (x, y))
            return compared_numbers(lo, name, a, b)
        of_ids = compared(lo, name.upper(), x, y)
        return of_ids or compared_numbers(lo, name, _placed(lo, x, y), _placed(lo, y, x))


for _name in ("eq", "ne"):
    _equality(_name)


def _placed(lo: Lowering, x: Operand, other: Operand) -> Operand:
    """Positions, as numbers, beside numbers of the input; what is neither is left as it is.

    Example: the number of tokens before this one, in float32, beside ``torch.arange(capacity)``.
    """
    if isinstance(x, Positions) and isinstance(other, Real) and other.dtype != "bool":
        return replace(lo.real(x), dtype="float32", domain=None)
    if isinstance(x, Real) and integral(x.dtype) and isinstance(other, Positions):
        return replace(x, dtype="float32", domain=None)
    return x


for _name, _both in (
    ("aten.bitwise_and.Tensor", "and"),
    ("aten.__and__.Tensor", "and"),
    ("aten.logical_and.default", "and"),
    ("aten.bitwise_or.Tensor", "or"),
    ("aten.__or__.Tensor", "or"),
    ("aten.logical_or.default", "or"),
):
    _logical(_name, _both)


def selected(lo: Lowering, mask: Ids, x: Operand, y: Operand) -> Ids:
    """Whole numbers x where the mask is true, y elsewhere, as a function of the id.

    Example: ``torch.where(ids < 16, ids, 0)`` with ids in [0, 64) is ``id`` on [0, 16) and 0 on
    [16, 64).
    """
    first, second = (_function(mask, value) for value in (x, y))
    return made(lo, mask, piecewise.select(mask.function, first, second))


def _function(mask: Ids, x: Operand) -> Function:
    index, number = ids(x), number_of(x)
    if number is not None:
        return piecewise.constant(mask.function, number)
    if index is None or index.at() != mask.at():
        raise Unsupported("whole numbers that are chosen by ids of other positions")
    return index.function


@lowers("aten.isnan.default")
def _isnan(lo: Lowering, x: Lowered) -> Any:
    """Real numbers are numbers."""
    note_if_none(lo, x, note=FINDS_NUMBERS)
    return Const(Fraction(0), x.shape, "bool")


@lowers("aten.isinf.default")
def _isinf(lo: Lowering, x: Lowered) -> Any:
    """Real numbers are finite; hidden scores are not."""
    finite(lo, x, "isinf")
    note_if_none(lo, x, note=FINDS_NUMBERS)
    return Const(Fraction(0), x.shape, "bool")


@lowers("aten.logical_not.default", "aten.bitwise_not.default")
def _not(lo: Lowering, x: Lowered) -> Any:
    if isinstance(x, (Compared, Bits)):
        return x.inverse()
    if isinstance(x, Ids) and x.dtype == "bool":
        return inverse_of_ids(x)
    if isinstance(x, Const) and x.dtype == "bool":
        return Const(Fraction(1) - x.value, x.shape, x.dtype)
    if isinstance(x, Real) and x.dtype == "bool":
        return flags(lo.real(inverse_of(lo, numbers(lo, x, "float32"))))
    raise Unsupported(f"the inverse of {x.dtype} that depends on the input")
