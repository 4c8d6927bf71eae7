"""Integer tensors that depend on no input: positions, and what is compared with them.

They stay symbolic: an affine function of the indices, and masks that say where one is not negative.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from math import prod
from typing import Any

import numpy as np

from shardproof.engine.errors import Unsupported
from shardproof.engine.plan.ir import whole as whole_input
from shardproof.frontends.aten import ids
from shardproof.frontends.aten.filled import apart
from shardproof.frontends.aten.lookups import computed_ids
from shardproof.frontends.aten.lowering import (
    Const,
    Lowered,
    Lowering,
    Operand,
    Real,
    Shape,
    broadcast,
)
from shardproof.frontends.aten.masks import compared, flags, inverse
from shardproof.frontends.aten.rules import lowers, rule_of
from shardproof.frontends.aten.tables import MOST_SEARCHED, Array, table

#: The largest whole number up to which float32 has all of them.
EXACT = 1 << 24


@dataclass(frozen=True, slots=True)
class Positions:
    """Entry at index i: ``const + sum(steps[d] * i[d])``.

    Example: ``torch.arange(4)`` is ``Positions(0, (1,), (4,), "int64")``; ``arange(4) -
    arange(4)[:, None]`` has the steps (-1, 1).
    """

    const: int
    steps: tuple[int, ...]
    shape: Shape
    dtype: str

    def reshape(self, shape: Shape) -> Positions:
        """Dimensions of size 1 come and go; others are split and joined where steps allow it."""
        flat = [(n, s) for n, s in zip(self.shape, self.steps, strict=True) if n != 1]
        joined: list[tuple[int, int]] = []
        for size, step in flat:
            if joined and joined[-1][1] == step * size:
                joined[-1] = (joined[-1][0] * size, step)
            else:
                joined.append((size, step))
        steps: list[int] = []
        for size in reversed(shape):
            if size == 1:
                steps.append(0)
                continue
            if not joined or joined[-1][0] % size:
                raise Unsupported(f"a view of positions {list(self.shape)} as {list(shape)}")
            rest, step = joined.pop()
            steps.append(step)
            if rest != size:
                joined.append((rest // size, step * size))
        return Positions(self.const, tuple(reversed(steps)), shape, self.dtype)

    def expand(self, shape: Shape) -> Positions:
        """The positions repeated: no step along the new dimensions."""
        lead = len(shape) - len(self.shape)
        steps = tuple(
            0 if i < lead or self.shape[i - lead] != n else self.steps[i - lead]
            for i, n in enumerate(shape)
        )
        return Positions(self.const, steps, shape, self.dtype)

    def permute(self, order: Sequence[int]) -> Positions:
        """The positions with their dimensions in another order."""
        return Positions(
            self.const,
            tuple(self.steps[i] for i in order),
            tuple(self.shape[i] for i in order),
            self.dtype,
        )

    def slice(self, dim: int, start: int, size: int) -> Positions:
        """A part of a dimension: the constant moves by ``start`` steps."""
        shape = (*self.shape[:dim], size, *self.shape[dim + 1 :])
        return Positions(self.const + start * self.steps[dim], self.steps, shape, self.dtype)

    def moving(self) -> Array:
        """The numbers, of size 1 along dimensions without a step; raises `Unsupported` for many.

        Example: ``torch.arange(4).expand(2, 4)`` is [[0, 1, 2, 3]].
        """
        shape = [n if step else 1 for n, step in zip(self.shape, self.steps, strict=True)]
        if prod(shape) > MOST_SEARCHED:
            raise Unsupported("many positions as numbers")
        along = (step * i for step, i in zip(self.steps, np.indices(shape), strict=True))
        return sum(along, np.full(shape, self.const, np.int64))

    def real(self, lo: Lowering) -> Real:
        """As numbers: a table of them; in a graph whose inputs stand for others, a named input, of
        which a proof holds whatever it is, times the step and plus where they begin."""
        if lo.standins is None:
            numbers = self.moving()
            if (np.abs(numbers) > EXACT).any():
                raise Unsupported("positions as numbers that float32 rounds")
            return lo.real(lo.expand(table(lo, numbers.astype(np.float32), "float32"), self.shape))
        moving = [d for d, step in enumerate(self.steps) if step]
        if len(moving) != 1:
            raise Unsupported("positions as numbers")
        size = self.shape[moving[0]]
        name = f"positions 0 to {size - 1}"
        if name not in lo.tables:
            lo.tables[name] = lo.hold(
                replace(whole_input(name, (size,), trainable=False), kind="constant")
            )
        lo.standins.setdefault(name, "are read as any numbers that both sides share")
        wide = tuple(size if d == moving[0] else 1 for d in range(len(self.shape)))
        value = lo.real(lo.scale(lo.tables[name], Fraction(self.steps[moving[0]])))
        if self.const:
            value = lo.emit("add", value, other=Fraction(self.const))
        return lo.real(lo.expand(lo.reshape(value, wide), self.shape))


@dataclass(frozen=True, slots=True)
class Compared:
    """A mask: true where ``of`` is not negative.

    Example: ``torch.ones(4, 4, dtype=torch.bool).triu(1)`` is true where -1 - row + column is not
    negative: ``Positions(-1, (-1, 1), (4, 4), "int64")``.
    """

    of: Positions

    @property
    def shape(self) -> Shape:
        """That of the positions."""
        return self.of.shape

    @property
    def dtype(self) -> str:
        """A mask's: bool."""
        return "bool"

    def reshape(self, shape: Shape) -> Compared:
        """The mask of the same positions in another shape."""
        return Compared(self.of.reshape(shape))

    def expand(self, shape: Shape) -> Compared:
        """The mask repeated along dimensions of size 1 and new leading ones."""
        return Compared(self.of.expand(shape))

    def permute(self, order: Sequence[int]) -> Compared:
        """The mask with its dimensions in another order."""
        return Compared(self.of.permute(order))

    def slice(self, dim: int, start: int, size: int) -> Compared:
        """The mask of ``size`` positions of a dimension, from ``start`` on."""
        return Compared(self.of.slice(dim, start, size))

    def real(self, lo: Lowering) -> Real:
        """Refused: which masks become tables of 0 and 1 is `constants.as_flags`' decision."""
        raise Unsupported("a mask of positions as numbers")

    def inverse(self) -> Compared:
        """True where this is not: minus the positions, minus 1, is not negative."""
        of = self.of
        return Compared(Positions(-of.const - 1, tuple(-s for s in of.steps), of.shape, of.dtype))


def whole(x: Operand) -> Positions | None:
    """An operand as positions, if it is one or a constant integer.

    Example: 3 is ``Positions(3, (), (), "int64")``; True and a constant tensor of 1/2 are None.
    """
    if isinstance(x, bool):
        return None
    if isinstance(x, int):
        return Positions(x, (), (), "int64")
    if isinstance(x, Const) and x.value.denominator == 1:
        return Positions(int(x.value), (0,) * len(x.shape), x.shape, x.dtype)
    return x if isinstance(x, Positions) else None


def plus(x: Positions, y: Positions, factor: int = 1) -> Positions:
    """x + factor * y.

    Example: ``arange(4)`` minus ``arange(4)[:, None]`` has the steps (-1, 1) and the shape (4, 4).
    """
    shape = broadcast(x.shape, y.shape)
    a, b = x.expand(shape), y.expand(shape)
    steps = tuple(s + factor * t for s, t in zip(a.steps, b.steps, strict=True))
    return Positions(a.const + factor * b.const, steps, shape, x.dtype)


def rows_at(lo: Lowering, table: Lowered, at: Positions) -> Any:
    """Rows of a table by positions that are consecutive along one dimension and alike along the
    others.

    Example: rows 2 to 5 of a table [16, 8], for positions [3, 4] that are the same in each row, are
    a slice [4, 8], expanded to [3, 4, 8].
    """
    dim, first, count = consecutive(at, table.shape[0])
    wide = tuple(n if d == dim else 1 for d, n in enumerate(at.shape))
    rows = lo.reshape(lo.slice(table, 0, first, count), (*wide, *table.shape[1:]))
    return lo.expand(rows, (*at.shape, *table.shape[1:]))


def added_at(lo: Lowering, gradient: Lowered, at: Positions, rows: int) -> Any:
    """A table of ``rows`` rows: the sum of the gradient's rows by such positions.

    Example: a gradient [3, 4, 8] by positions 2 to 5 is summed to [4, 8], between 2 and 10 rows of
    zeros for a table of 16.
    """
    dim, first, count = consecutive(at, rows)
    others = tuple(d for d in range(len(at.shape)) if d != dim)
    rest = gradient.shape[len(at.shape) :]
    total = lo.reshape(lo.sum(gradient, others), (count, *rest))
    parts = [Const(Fraction(0), (n, *rest), gradient.dtype) for n in (first, rows - first - count)]
    return lo.concat([x for x in (parts[0], total, parts[1]) if x.shape[0]], 0)


def consecutive(at: Positions, rows: int) -> tuple[int, int, int]:
    """The dimension along which positions rise by 1 (-1: there is one position), where they begin
    and how many there are; raises `Unsupported` for others.

    Example: positions [3, 4] that are 2 to 5 in each row are (1, 2, 4) in a table of 16 rows; 0, 2,
    4, 6 are refused.
    """
    moving = [d for d, (n, s) in enumerate(zip(at.shape, at.steps, strict=True)) if n > 1 and s]
    dim = moving[0] if moving else -1
    count = at.shape[dim] if moving else 1
    inside = at.const >= 0 and at.const + count <= rows
    if len(moving) > 1 or (moving and at.steps[dim] != 1) or not inside:
        raise Unsupported("rows by positions that are not consecutive")
    return dim, at.const, count


@lowers("aten.arange.default", "aten.arange.start", "aten.arange.start_step")
def _arange(lo: Lowering, *numbers: float, **_: Any) -> Any:
    start, step = (numbers[0] if len(numbers) > 1 else 0), (numbers[2] if len(numbers) > 2 else 1)
    if not all(isinstance(n, int) for n in (start, step)):
        raise Unsupported(f"arange of {numbers}")
    ((shape, dtype),) = lo.expected
    if "float" in dtype:
        raise Unsupported(f"arange of {dtype}")
    return Positions(int(start), (int(step),), shape, dtype)


def _by_numbers(lo: Lowering, x: Lowered, y: Operand, less: bool, strict: bool) -> Any:
    """A comparison of numbers of the input with positions: 1 where it holds, 0 elsewhere."""
    gap = lo.sub(lo.real(y), lo.real(x)) if less else lo.sub(lo.real(x), lo.real(y))
    if strict:
        return flags(lo.real(lo.unary("step", gap)))
    over = lo.unary("step", lo.scale(gap, Fraction(-1)))
    return flags(lo.real(inverse(lo, over)))


def _compares(name: str, less: bool, strict: bool) -> None:
    """x < y is y - x - 1 >= 0, and so on."""

    @lowers(f"aten.{name}.Tensor", f"aten.{name}.Scalar")
    def rule(lo: Lowering, x: Lowered, y: Operand) -> Any:
        x, y = computed_ids(lo, x), computed_ids(lo, y)
        of_ids = apart(lo, name.upper(), x, y) or ids.compared(lo, name.upper(), x, y)
        if of_ids is not None:
            return of_ids
        a, b = whole(x), whole(y)
        if not (isinstance(x, Positions) or isinstance(y, Positions)):
            return compared(lo, name, x, y)
        if a is None or b is None:
            return _by_numbers(lo, x, y, less, strict)
        gap = plus(b, a, -1) if less else plus(a, b, -1)
        return Compared(plus(gap, Positions(-1 if strict else 0, (), (), "int64")))


for _name, _less, _strict in (
    ("lt", True, True),
    ("le", True, False),
    ("gt", False, True),
    ("ge", False, False),
):
    _compares(_name, _less, _strict)


def added(x: Operand, y: Operand, factor: Fraction) -> Positions | None:
    """x + factor * y, if one is positions and both are whole numbers that depend on no input.

    Example: ``arange(4) + 3`` begins at 3; ``arange(4)`` plus a float32 input is None.
    """
    if not isinstance(x, Positions) and not isinstance(y, Positions):
        return None
    a, b = whole(x), whole(y)
    if a is None or b is None or factor.denominator != 1:
        return None
    return plus(a, b, int(factor))


def _triangle(name: str, keeps_below: bool) -> None:
    @lowers(f"aten.{name}.default")
    def rule(lo: Lowering, x: Lowered, diagonal: int = 0) -> Any:
        """Rows below and on the diagonal, or on and above it; 0 elsewhere."""
        lead = (0,) * (len(x.shape) - 2)
        steps = (*lead, 1, -1) if keeps_below else (*lead, -1, 1)
        kept = Compared(Positions(diagonal if keeps_below else -diagonal, steps, x.shape, "int64"))
        if isinstance(x, Const) and x.dtype == "bool" and x.value == 1:
            return kept
        return rule_of("aten.masked_fill.Scalar")(lo, x, kept.inverse(), 0)  # type: ignore[misc]


_triangle("tril", True)
_triangle("triu", False)
