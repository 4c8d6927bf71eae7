"""Numbers divided by how many rows a mask chooses, and multiplied by that: neither is left.

``cross_entropy(z[keep], y[keep]) * keep.sum() / total`` is a rank's sum by the number of all: that
there is at least one such row on each rank is an assumption of the plan, which is printed, and so
what is divided by their number is multiplied back by it.  Only how many rows one of the step's own
masks chooses is cancelled, not any other number.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from math import prod
from typing import Any, Final

from shardproof.frontends.aten.alike import alike
from shardproof.frontends.aten.hidden import stretched
from shardproof.frontends.aten.lowering import (
    Const,
    Lowered,
    Lowering,
    Real,
    broadcast,
    fraction,
)
from shardproof.frontends.aten.roots import scaled

#: Operators whose result has the entries of their operand, in their order.
_MOVES: Final = frozenset({"view", "expand"})
#: Operators by entries, which come before or behind a view alike (``pick``: from one row for all).
_ENTRYWISE: Final = frozenset({"add", "sub", "mul", "pick", "relu", "sign", "floor"})
#: Of how many operators a number is read as a product.
_DEPTH: Final = 12


@dataclass(frozen=True, slots=True)
class _Product:
    """A number as ``factor``, times the numbers ``of``, by the numbers ``over``: values of the
    body, such as those of a mean, of a count and of the count of all ranks."""

    factor: Fraction = Fraction(1)
    of: tuple[int, ...] = ()
    over: tuple[int, ...] = ()

    def times(self, other: _Product) -> _Product:
        return _Product(
            self.factor * other.factor, (*self.of, *other.of), (*self.over, *other.over)
        )

    def inverse(self) -> _Product:
        return _Product(1 / self.factor, self.over, self.of)


def product(lo: Lowering, x: Any, y: Any) -> Any:
    """x times y, where neither is left of a count of chosen rows by which one of them is divided,
    and that the other one has as a factor.

    Example: ``(s / n) * n`` is ``s``, and ``(s / n) * (n / m)`` is ``s / m``, where ``n`` is how
    many rows a mask chooses.
    """
    short = _shortened(lo, x, y, over=False) or stretched(lo, x, y)
    if short is not None:
        return short
    for one, other in ((x, y), (y, x)):
        number = _constant(other)
        if isinstance(one, Real) and number is not None:
            return scaled(lo, _as_wide(lo, one, other), number)
    return lo.mul(x, y)


def quotient(lo: Lowering, x: Any, y: Any) -> Any:
    """x by y, where nothing is left of a count of chosen rows that both have as a factor.

    Example: ``(g * n / m) / n`` is ``g / m``, where ``n`` is how many rows a mask chooses; g may
    have several entries.
    """
    short = _shortened(lo, x, y, over=True) or stretched(lo, x, y, over=True)
    if short is not None:
        return short
    number = _constant(y)
    if isinstance(x, Real) and number:
        return scaled(lo, _as_wide(lo, x, y), 1 / number)
    return lo.div(x, y)


def _constant(x: Any) -> Fraction | None:
    """The number that an operand is at all places; None: it is none."""
    if isinstance(x, Const):
        return x.value
    return fraction(x) if isinstance(x, (int, float)) else None


def _as_wide(lo: Lowering, x: Real, y: Any) -> Any:
    """``x`` in the shape that it has in common with a constant."""
    return lo.expand(x, broadcast(x.shape, y.shape)) if isinstance(y, Const) else x


def _shortened(lo: Lowering, x: Any, y: Any, over: bool) -> Any:
    if not lo.wheres or not (isinstance(x, Real) and isinstance(y, Real)):
        return None
    makers = _Makers(lo)
    second = makers.number(y.number)
    if second is None:
        return None
    factors = makers.product(second)
    entries, first = makers.scaled(x.number)
    short = _without_counts(lo, makers, first.times(factors.inverse() if over else factors))
    if short is None:
        return None
    number = _value(lo, short, x.dtype)
    shape = x.shape if len(x.shape) >= len(y.shape) else y.shape
    return lo.expand(number, shape) if entries is None else lo.mul(_real(lo, entries), number)


def _without_counts(lo: Lowering, makers: _Makers, x: _Product) -> _Product | None:
    """A product without the counts that it is both multiplied and divided by; None: it has none."""
    of, over = list(x.of), list(x.over)
    for number in x.of:
        same = next((n for n in over if makers.is_count(number, n)), None)
        if same is not None:
            of.remove(number)
            over.remove(same)
    return None if len(of) == len(x.of) else _Product(x.factor, tuple(of), tuple(over))


def _value(lo: Lowering, x: _Product, dtype: str) -> Lowered:
    """A product as a value."""
    result: Lowered = Const(x.factor, (), dtype)
    for number in x.of:
        result = lo.mul(_scalar(lo, number), result)
    for number in x.over:
        result = lo.div(result, _scalar(lo, number))
    return result


def _scalar(lo: Lowering, number: int) -> Any:
    return lo.reshape(_real(lo, number), ())


def _real(lo: Lowering, number: int) -> Real:
    value = lo.values[number]
    return Real(number, value.shape, value.dtype)


class _Makers:
    """The operators of a body, by the values that they make."""

    def __init__(self, lo: Lowering) -> None:
        self.lo = lo
        self.ops = {n: op for op in lo.ops if not op.backward for n in op.outputs}

    def number(self, value: int) -> int | None:
        """The value of one entry that a value has in all places; None: it has several."""
        while prod(self.lo.values[value].shape) != 1:
            op = self.ops.get(value)
            if op is None or op.name not in _MOVES:
                return None
            (value,) = op.inputs
        return value

    def scaled(self, value: int) -> tuple[int | None, _Product]:
        """A value as another one of its shape, times a number (None: as a number in all places)."""
        number = self.number(value)
        if number is not None:
            return None, self.product(number)
        op = self.ops.get(value)
        if op is not None and op.name in ("mul", "div") and len(op.inputs) == 2:
            for entries, other in (op.inputs, op.inputs[::-1])[: 2 if op.name == "mul" else 1]:
                one = self.number(other)
                if one is not None and self.lo.values[entries].shape == self.lo.values[value].shape:
                    product = self.product(one)
                    return entries, product if op.name == "mul" else product.inverse()
        return value, _Product()

    def product(self, value: int, depth: int = _DEPTH) -> _Product:
        """A number as a product of others."""
        op = self.ops.get(value)
        if op is None or not depth or op.name not in ("mul", "div", "view"):
            return _Product(of=(value,))
        parts = [self.product(n, depth - 1) for n in op.inputs]
        if op.name == "view":
            return parts[0]
        if len(parts) == 2:
            return parts[0].times(parts[1] if op.name == "mul" else parts[1].inverse())
        other = op.attrs.get("other")
        if op.name != "mul" or not isinstance(other, Fraction) or not other:
            return _Product(of=(value,))
        return parts[0].times(_Product(other))

    def is_count(self, x: int, y: int) -> bool:
        """Whether two numbers are how many rows one mask of the step chooses."""
        first, second = self._summed(x), self._summed(y)
        if first is None or second is None:
            return False
        masks = [w.mask for w in self.lo.wheres.values() if w is not None]
        reals = [self.lo.real(mask) for mask in masks if not isinstance(mask, Const)]
        self.ops = _Makers(self.lo).ops
        return any(self._flags(first, m.number) and self._flags(second, m.number) for m in reals)

    def _summed(self, value: int) -> int | None:
        """What a number is the sum of all entries of; None: it is no such sum."""
        op = self.ops.get(self._entries(value))
        return op.inputs[0] if op is not None and op.name == "sum" else None

    def _flags(self, x: int, mask: int) -> bool:
        """Whether a value is a mask, as numbers; or times itself, which is the mask again."""
        op = self.ops.get(self._entries(x))
        if op is not None and op.name == "mul" and len(op.inputs) == 2:
            return all(self._alike(n, mask) for n in op.inputs)
        return self._alike(x, mask)

    def _entries(self, value: int) -> int:
        """The value whose entries another one has, in their order, maybe as another type."""
        op = self.ops.get(value)
        while op is not None and (
            op.name in ("view", "to") or (op.name, op.attrs.get("other")) == ("mul", Fraction(1))
        ):
            (value,) = op.inputs
            op = self.ops.get(value)
        return value

    def _alike(self, x: int, y: int, depth: int = _DEPTH) -> bool:
        """Whether two values have the same entries in their order, by the operators that make
        them."""
        x, y = self._entries(x), self._entries(y)
        p, q = self.ops.get(x), self.ops.get(y)
        if x == y or p is None or q is None or not depth:
            return x == y
        if (p.name, p.attrs, len(p.inputs)) != (q.name, q.attrs, len(q.inputs)):
            return False
        if p.name not in _ENTRYWISE:
            return alike(self.lo, _real(self.lo, x), _real(self.lo, y))
        pairs = list(zip(p.inputs, q.inputs, strict=True))
        sizes = {prod(self.lo.values[n].shape) for n in (x, y)}
        same = all(self._operands_alike(a, b, min(sizes), depth - 1) for a, b in pairs)
        return same and len(sizes) == 1

    def _operands_alike(self, x: int, y: int, size: int, depth: int) -> bool:
        """Whether an operator by entries reads the same of two operands: one number in all places,
        or as many entries as its result has, which are alike."""
        first, second = self.number(x), self.number(y)
        if first is not None and second is not None:
            return self._entries(first) == self._entries(second)
        sizes = {prod(self.lo.values[n].shape) for n in (x, y)}
        return sizes == {size} and self._alike(x, y, depth)
