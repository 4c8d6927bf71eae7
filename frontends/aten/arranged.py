"""Rows in the order that sorts ids: read as they are before, until an order has to be known.

A layer of experts sorts (token, expert) pairs by expert, takes the rows of the tokens in that
order, multiplies each expert's group of rows with its weights, and puts the results back.  Which
order that is the data say.  A function of each row commutes with it, a sum over all rows does not
depend on it, and rows that are put back lie as they did.  So what is in such an order is carried as
the tensor without it (`Arranged`), and only a reader of which nothing of this is true gets rows
that are chosen by the order's own places.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from math import prod
from typing import Any, Final

import numpy as np

from shardproof.engine.errors import Unsupported
from shardproof.frontends.aten.alike import alike
from shardproof.frontends.aten.choices import Place, largest
from shardproof.frontends.aten.ids import Ids, bounds
from shardproof.frontends.aten.lowering import (
    Const,
    Lowered,
    Lowering,
    Real,
    Shape,
    Unviewed,
)
from shardproof.frontends.aten.one_hot import Choices, Turned
from shardproof.frontends.aten.rules import Rule, rule_of, typed
from shardproof.frontends.aten.tables import table

#: What gives the result of an operator, or None: its own rule has to do it.
ORDERED: Final[dict[str, Rule]] = {}


def reads(*names: str) -> Callable[[Rule], Rule]:
    """Decorator: how operators read rows in an order, and what is counted of ids.

    Example: ``@reads("aten.bmm.default")`` above ``def _batches(lo, x, y)``.
    """

    def register(rule: Rule) -> Rule:
        ORDERED.update((name, rule) for name in names)
        return rule

    return register


@dataclass(slots=True, eq=False)
class Order:
    """The order that sorts ``ids`` [n]; its places are computed where somebody reads them.

    Example: of the ids [2, 0, 1] it is [1, 2, 0], the numbers of the pairs with expert 0, 1 and 2.
    """

    ids: Lowered
    descending: bool
    _places: tuple[Any, Real] | None = field(default=None)

    def sorted(self, lo: Lowering) -> tuple[Any, Real]:
        """The ids in the order, and which they are, as values."""
        if self._places is None:
            self._places = largest(lo, self.ids, self.ids.shape[0], 0, not self.descending)
        return self._places


@dataclass(frozen=True, slots=True)
class Numbers:
    """The number of each row along dimension ``at``, divided by ``by`` and rounded down.

    Example: with ``by`` 2, the tokens [0, 0, 1, 1] of four pairs, two for each token.
    """

    by: int
    at: int
    shape: Shape
    dtype: str

    def reshape(self, shape: Shape) -> Numbers:
        """The numbers in another shape that keeps the rows apart."""
        return replace(self, at=_place(self.shape, self.at, shape), shape=shape)

    def expand(self, shape: Shape) -> Numbers:
        """The numbers repeated along other dimensions."""
        at = self.at + len(shape) - len(self.shape)
        if shape[at] != self.shape[self.at]:
            raise Unsupported("numbers of rows that are repeated")
        return replace(self, at=at, shape=shape)

    def permute(self, order: Sequence[int]) -> Numbers:
        """The numbers with their dimensions in another order."""
        shape = tuple(self.shape[d] for d in order)
        return replace(self, at=list(order).index(self.at), shape=shape)

    def slice(self, dim: int, start: int, size: int) -> Numbers:
        """A part of another dimension."""
        if dim == self.at:
            raise Unsupported("some of the numbers of rows")
        return replace(self, shape=(*self.shape[:dim], size, *self.shape[dim + 1 :]))

    def real(self, lo: Lowering) -> Real:
        """A table of them."""
        count = self.shape[self.at]
        wide = tuple(count if d == self.at else 1 for d in range(len(self.shape)))
        numbers = (np.arange(count) // self.by).reshape(wide).astype(np.float32)
        real = lo.real(lo.expand(table(lo, numbers, "float32"), self.shape))
        return lo.whole(real, (0, (count - 1) // self.by + 1), self.dtype)


@dataclass(frozen=True, slots=True)
class Arranged:
    """``base`` with its rows, along dimension ``at``, in an order.

    Example: the rows of the tokens of all pairs, of one expert after the other, whose ``base`` is
    each token's row for each of its pairs.
    """

    lo: Lowering
    base: Any
    order: Order
    at: int = 0

    @property
    def shape(self) -> Shape:
        """That of the rows before."""
        return self.base.shape  # type: ignore[no-any-return]

    @property
    def dtype(self) -> str:
        """That of the rows before."""
        return self.base.dtype  # type: ignore[no-any-return]

    def reshape(self, shape: Shape) -> Arranged:
        """The rows in another shape each."""
        at = _place(self.shape, self.at, shape)
        return replace(self, base=self.lo.reshape(self.base, shape), at=at)

    def expand(self, shape: Shape) -> Arranged:
        """The rows repeated along other dimensions."""
        at = self.at + len(shape) - len(self.shape)
        if shape[at] != self.shape[self.at]:
            raise Unsupported("rows in an order that are repeated")
        return replace(self, base=self.lo.expand(self.base, shape), at=at)

    def permute(self, order: Sequence[int]) -> Arranged:
        """The rows with their dimensions in another order."""
        at = list(order).index(self.at)
        return replace(self, base=self.lo.permute(self.base, order), at=at)

    def slice(self, dim: int, start: int, size: int) -> Arranged:
        """A part of each row."""
        if dim == self.at:
            raise Unsupported("some rows of an order")
        return replace(self, base=self.lo.slice(self.base, dim, start, size))

    def real(self, lo: Lowering) -> Real:
        """The rows that the order's places choose."""
        values, places = self.order.sorted(lo)
        if isinstance(self.base, Numbers) and self.base.by == 1:
            wide = tuple(n if d == self.at else 1 for d, n in enumerate(self.shape))
            return lo.real(lo.expand(lo.reshape(places, wide), self.shape))
        if self.base is self.order.ids:
            return lo.real(values)
        return lo.real(called(lo, "aten.index_select.default", lo.real(self.base), self.at, places))

    def beside(self, other: Any) -> bool:
        """Whether another tensor is in the same order, along the same dimension."""
        return isinstance(other, Arranged) and other.order is self.order and other.at == self.at

    @property
    def is_order(self) -> bool:
        """Whether it is the order itself, [n]: of the numbers of all rows."""
        return isinstance(self.base, Numbers) and self.base.by == 1 and len(self.shape) == 1


@dataclass(frozen=True, slots=True, eq=False)
class Inverse(Unviewed):
    """Where each row lies in an order [n].

    Example: of the order [1, 2, 0] it is [2, 0, 1].
    """

    about = "the inverse of an order"

    order: Order
    shape: Shape
    dtype: str

    def real(self, lo: Lowering) -> Real:
        """What sorts the order's places."""
        _, places = self.order.sorted(lo)
        return largest(lo, places, self.shape[0], 0, True)[1]  # type: ignore[no-any-return]


@dataclass(frozen=True, slots=True, eq=False)
class Tally(Unviewed):
    """What is counted of ids: ``kind`` "flags", [..., experts]: 1 at the places of the ids of a
    row, which differ; "counts", [experts]: how many ids are each; "ends": sums of these up to each.

    Example: of the ids [[0, 2], [2, 1]] flags [[1, 0, 1], [0, 1, 1]], counts [1, 1, 2], ends [1, 2,
    4].
    """

    about = "numbers of ids"

    kind: str
    value: Real
    ids: Real

    @property
    def shape(self) -> Shape:
        """That of the value."""
        return self.value.shape

    @property
    def dtype(self) -> str:
        """That of the value."""
        return self.value.dtype

    def slice(self, dim: int, start: int, size: int) -> Any:
        """Where the last kind ends: all ids, whatever they are, if they are of these kinds."""
        last = self.kind == "ends" and size == 1 and start == self.shape[0] - 1
        if not last or not 0 < counted(self.ids) <= self.shape[0]:
            return Unviewed.slice(self, dim, start, size)
        return Const(Fraction(prod(self.ids.shape)), (1,), self.dtype)

    def real(self, lo: Lowering) -> Real:
        """The value."""
        return self.value


def called(lo: Lowering, name: str, *args: Any, **kwargs: Any) -> Any:
    """The result of another operator's rule.

    Example: ``called(lo, "aten.sum.dim_IntList", x, [0])`` is the sum over the first dimension.
    """
    rule = rule_of(name)
    if rule is None:
        raise Unsupported(f"operator {name} has no lowering")
    return rule(lo, *args, **kwargs)


def settled(lo: Lowering, x: Any) -> Any:
    """An operand, or a list of them, without what only the rules of orders know.

    Example: rows in an order are a value then, chosen by the order's places.
    """
    if isinstance(x, (list, tuple)):
        return [settled(lo, item) for item in x]
    orders = (Arranged, Inverse, Tally, Numbers, Choices, Turned)
    return x.real(lo) if isinstance(x, orders) else x


def sorts(lo: Lowering, x: Any, dim: int, descending: bool) -> Any:
    """Ids [n] in their order, and the order; None: it is something else that is sorted.

    Example: of an order itself, all numbers, and its inverse.
    """
    if isinstance(x, Arranged):
        if not x.is_order or descending:
            return None
        return x.base, Inverse(x.order, x.shape, "int64")
    x = x.real(lo) if isinstance(x, Place) else x
    integral = isinstance(x, (Real, Ids)) and x.dtype.startswith("int")
    if not integral or len(x.shape) != 1 or x.shape[0] < 2:
        return None
    order = next((o for o in lo.orders if _same(lo, o, x, descending)), None)
    if order is None:
        order = Order(x, descending)
        lo.orders.append(order)
    x = order.ids
    numbers = Numbers(1, 0, x.shape, "int64")
    return Arranged(lo, x, order), Arranged(lo, numbers, order)


def _same(lo: Lowering, order: Order, x: Any, descending: bool) -> bool:
    """Whether an order is that of ids: which of equal ones is first is a function of all ids."""
    if order.descending != descending or order.ids.shape != x.shape:
        return False
    own, other = source(lo, order.ids), source(lo, x)
    return own is not None and other is not None and alike(lo, own, other)


def source(lo: Lowering, x: Any) -> Real | None:
    """The ids whose entries, in their order, an operand has; None: it is no value of ids.

    Example: of ids [4, 2] that are viewed as [8], these.
    """
    x = x.real(lo) if isinstance(x, Place) else x
    if isinstance(x, Ids) and not x.moves and len(x.function) == 1:
        if x.function[0][2:] != (1, 0):
            return None
        x = x.origin
    if not isinstance(x, Real) or not x.dtype.startswith("int"):
        return None
    makers = {n: op for op in lo.ops for n in op.outputs}
    number = x.number
    while number in makers and makers[number].name == "view":
        (number,) = makers[number].inputs
    return replace(x, number=number, shape=lo.values[number].shape)


def counted(x: Any) -> int:
    """Below which number ids are that are not negative; 0: nobody knows.

    Example: of the places of the largest of 8 scores it is 8.
    """
    span = bounds(x)
    return span[1] if span is not None and span[0] >= 0 else 0


def entries_each(lo: Lowering, x: Lowered, times: int) -> Any:
    """Each row ``times`` times.

    Example: a token's row for each of its two pairs.
    """
    return x if times == 1 else called(lo, "aten.repeat_interleave.self_int", x, times, 0)


def added_up(lo: Lowering, x: Lowered, times: int) -> Any:
    """The sum of each ``times`` rows, one after the other.

    Example: of what two experts make of each token.
    """
    count, *rest = x.shape
    return lo.sum(lo.reshape(x, (count // times, times, *rest)), (1,))


def _place(before: Shape, at: int, after: Shape) -> int:
    """The dimension of another shape that has the rows; raises `Unsupported` where none has."""
    lead, count = prod(before[:at]), before[at]
    for d, n in enumerate(after):
        if n == count and prod(after[:d]) == lead:
            return d
    raise Unsupported("rows in an order that are joined or cut")


def again(lo: Lowering, base: Any, like: Arranged, at: int) -> Arranged:
    """A result, of the type that PyTorch gives it, in the order of an operand.

    Example: ``again(lo, product, rows, 0)`` for the product of rows in an order with a matrix.
    """
    if lo.expected:
        base = typed(lo, base, lo.expected[0][1])
    return Arranged(lo, base, like.order, at % len(base.shape))
