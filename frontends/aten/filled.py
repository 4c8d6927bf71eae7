"""Whole numbers of which a mask chooses some, and one number in the place of the rest: labels that
a mask of the batch leaves out, ``labels.masked_fill(mask == 0, -100)``.

What is written over is no function of an id, so both are kept apart, and each reader takes what it
needs: a loss that ignores the number multiplies by the mask.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any

from shardproof.engine.errors import Unsupported
from shardproof.frontends.aten.ids import Ids, compared, ids, integral, number_of
from shardproof.frontends.aten.ids import cast as ids_cast
from shardproof.frontends.aten.lowering import (
    Const,
    Lowered,
    Lowering,
    Operand,
    Real,
    Shape,
    floating,
)
from shardproof.frontends.aten.masks import flags, inverse, numbers
from shardproof.frontends.builder import piecewise

#: What a comparison says of two whole numbers.
_HOLDS: dict[str, Callable[[int, int], bool]] = {
    "EQ": lambda a, b: a == b,
    "NE": lambda a, b: a != b,
    "LT": lambda a, b: a < b,
    "LE": lambda a, b: a <= b,
    "GT": lambda a, b: a > b,
    "GE": lambda a, b: a >= b,
}


@dataclass(frozen=True, slots=True)
class Filled:
    """``kept`` where ``live`` (0 or 1, of the same shape) is 1, ``number`` elsewhere.

    Example: ``labels.masked_fill(~mask, -100)`` keeps the labels where the mask is true; the number
    is -100.

    ``mask``: a predicate of whole numbers that holds wherever ``live`` is 1.
    """

    kept: Ids
    live: Lowered
    number: int
    lo: Lowering
    mask: Ids | None = None

    @property
    def shape(self) -> Shape:
        """The shape of both."""
        return self.kept.shape

    @property
    def dtype(self) -> str:
        """The element type of the numbers."""
        return self.kept.dtype

    def _both(self, name: str, *given: Any) -> Filled:
        kept = getattr(self.kept, name)(*given)
        mask = None if self.mask is None else getattr(self.mask, name)(*given)
        return replace(self, kept=kept, live=getattr(self.lo, name)(self.live, *given), mask=mask)

    def reshape(self, shape: Shape) -> Filled:
        """The same numbers, in their order, in another shape."""
        return self._both("reshape", shape)

    def expand(self, shape: Shape) -> Filled:
        """The numbers repeated along dimensions of size 1 and new leading ones."""
        return self._both("expand", shape)

    def permute(self, order: Sequence[int]) -> Filled:
        """The numbers with their dimensions in another order."""
        return self._both("permute", order)

    def slice(self, dim: int, start: int, size: int) -> Filled:
        """``size`` positions of a dimension, from ``start`` on."""
        return self._both("slice", dim, start, size)

    def real(self, lo: Lowering) -> Real:
        """The numbers as one value; raises `Unsupported` where some may be negative, which no
        reader is to take for a row."""
        low, high = self.kept.span()
        low, high = min(low, self.number), max(high, self.number + 1)
        if low < 0:
            raise Unsupported(f"whole numbers that a mask replaces by {self.number}, as numbers")
        return lo.whole(self.as_float(lo), (low, high), self.dtype)

    def as_float(self, lo: Lowering) -> Real:
        """The numbers as floats, of either sign: no reader takes these for rows."""
        kept = replace(lo.real(self.kept), dtype="float32", domain=None)
        written = lo.scale(inverse(lo, self.live), Fraction(self.number))
        return lo.real(lo.add(lo.mul(kept, self.live), written))


def filled(
    lo: Lowering, x: Operand, live: Lowered, value: Operand, mask: Ids | None = None
) -> Filled:
    """Whole numbers, with ``value`` where ``live`` is 0 (``mask``: see `Filled`); raises
    `Unsupported` for what are none, and for two such numbers.

    Example: labels that are -100 where one mask is 0 may be -100 by another mask as well; 5 in
    places of such labels is refused.
    """
    shape, _ = lo.expected[0]
    number = number_of(value)
    if number is None:
        raise Unsupported("a choice between whole numbers and other ones")
    live = lo.expand(live, shape)
    if isinstance(x, Filled):
        if x.number != number:
            raise Unsupported(f"whole numbers that masks replace by {x.number} and by {number}")
        x = x.expand(shape)
        return replace(x, live=lo.mul(x.live, live))
    kept = ids(x)
    if kept is None:
        raise Unsupported("a choice between values of whole numbers that are no ids")
    return Filled(kept.expand(shape), live, number, lo, mask and mask.expand(shape))


def fills(x: Operand, mask: Operand, value: Operand) -> bool:
    """Whether one number is written over whole numbers by a mask that is no function of them.

    Example: ``labels.masked_fill(mask, -100)`` is so; ``ids.masked_fill(ids >= 16, 0)`` is a
    function of the id.
    """
    if isinstance(x, (int, float, Const)) or not integral(x.dtype) or number_of(value) is None:
        return False
    own = ids(x)
    if own is None:
        return isinstance(x, Filled)
    alike = isinstance(mask, Ids) and mask.at() == own.at()
    return not alike and not isinstance(mask, Const)


def cast(lo: Lowering, x: Ids | Filled, dtype: str) -> Any:
    """Ids, and those that are filled, as another type; raises `Unsupported` for one that does not
    fit them.

    Example: labels of int32 that a mask fills by -100 are the same as int64.
    """
    if isinstance(x, Ids):
        return ids_cast(x, dtype)
    if floating(dtype):
        return replace(x.as_float(lo), dtype=dtype)
    if not integral(dtype):
        raise Unsupported(f"a cast of whole numbers that a mask replaces to {dtype}")
    return replace(x, kept=ids_cast(x.kept, dtype))


def apart(lo: Lowering, name: str, x: Operand, y: Operand) -> Real | None:
    """A comparison of such numbers with one number; None: it is another comparison.

    Example: labels that are -100 where a mask is 0 are "NE" -100 where it is 1 and the label is
    none itself.
    """
    number = number_of(y)
    if not isinstance(x, Filled) or number is None:
        return None
    of_kept = compared(lo, name, x.kept, number)
    assert of_kept is not None, "ids are compared with a number"
    return flags(lo.real(_where(lo, x, of_kept, int(_HOLDS[name](x.number, number)))))


def flags_of(lo: Lowering, predicate: Ids) -> Lowered:
    """A predicate of ids as 0 and 1: one number, where it is the same of every id.

    Example: that ids below 9 are not -100 is 1.
    """
    number = piecewise.value(predicate.function)
    if number is not None:
        return Const(Fraction(number), predicate.shape, "float32")
    counts: Lowered = numbers(lo, lo.real(predicate), "float32")
    return counts


def _where(lo: Lowering, x: Filled, of_kept: Ids, elsewhere: int) -> Any:
    """A predicate of what is kept where it is kept, ``elsewhere`` in the other places."""
    kept = lo.mul(flags_of(lo, of_kept), x.live)
    return lo.add(kept, inverse(lo, x.live)) if elsewhere else kept


def in_column(lo: Lowering, values: Lowered, column: int, columns: int) -> Any:
    """Zeros [n, columns] with ``values`` [n] in one column.

    Example: values [6] in column 2 of 4 are between two columns of zeros and one.
    """
    (count,) = values.shape
    sizes = (column, columns - column - 1)
    before, after = (Const(Fraction(0), (count, n), values.dtype) for n in sizes)
    return lo.concat([before, lo.reshape(values, (count, 1)), after], 1)
