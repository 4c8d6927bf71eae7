"""One-hot rows of ids that are computed: 1 at the place that a function of the id gives."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any, NamedTuple

from shardproof.engine.errors import Unsupported
from shardproof.engine.plan.ir import Op
from shardproof.frontends.aten.ids import Ids
from shardproof.frontends.aten.lowering import (
    Const,
    Lowered,
    Lowering,
    Real,
    Shape,
    Unviewed,
    floating,
)
from shardproof.frontends.aten.masks import flags
from shardproof.frontends.aten.roots import maker, value
from shardproof.frontends.aten.scattered import Scattered, outside
from shardproof.frontends.builder import piecewise
from shardproof.frontends.builder.piecewise import Function


@dataclass(frozen=True, slots=True)
class OneHot(Unviewed):
    """[..., size]: 1 where the id's function, less ``first``, is the place along the last
    dimension; zeros in all of a row where ``live`` is 0.

    Example: ``F.one_hot(torch.where(own, labels - 16, 0), 16)`` of labels in [0, 64) and ``own``
    those in [16, 32): place 0 for all others too, until a product with ``own`` says that these do
    not count.
    """

    about = "one-hot rows of computed ids"

    ids: Ids
    first: int
    size: int
    live: Function
    dtype: str

    @property
    def shape(self) -> Shape:
        """That of the ids, and one place for each class."""
        return (*self.ids.shape, self.size)

    def restricted(self, mask: Ids) -> OneHot | None:
        """Zeros in the rows where the mask is 0; None: the mask is of other ids.

        Example: times ``own[..., None]`` the rows of labels in [16, 32) are left.
        """
        if mask.shape != (*self.ids.shape, 1):
            return None
        own = mask.reshape(self.ids.shape)
        if own.at() != self.ids.at():
            return None
        return replace(self, live=piecewise.combine("and", self.live, own.function))

    def real(self, lo: Lowering) -> Real:
        """The rows as a value: of ids that choose no place of the row, zeros."""
        f = self.ids.function
        places = piecewise.combine("add", f, piecewise.constant(f, -self.first))
        astray = outside(places, self.size)
        # An id without a place is no place of somebody else's: the comparison is false there.
        inside = piecewise.select(astray, piecewise.constant(f, 0), places)
        live = piecewise.combine("and", self.live, piecewise.negated(astray))
        chosen = Scattered(replace(self.ids, function=inside), live, self.size, "float32")
        rows: Any = lo.real(chosen.entries(lo, Fraction(1)))
        if self.dtype == "bool":
            return flags(rows)
        whole = self.dtype.startswith(("int", "uint"))
        return lo.whole(rows, (0, 2), self.dtype) if whole else replace(rows, dtype=self.dtype)


@dataclass(frozen=True, slots=True)
class Choices(Unviewed):
    """[..., size]: 1 where an id that a step chose itself, as `topk` gives them, is the place along
    the last dimension, from ``first`` on.

    Example: ``chosen[..., None] == torch.arange(8)``, of which a loop reads ``[..., 3]``: the
    tokens of expert 3.
    """

    about = OneHot.about

    ids: Ids
    first: int
    size: int
    dtype: str

    @property
    def shape(self) -> Shape:
        """That of the ids, and one place for each class."""
        return (*self.ids.shape, self.size)

    def permute(self, order: Sequence[int]) -> Turned:
        """The rows with their dimensions in another order."""
        return Turned(self, tuple(order))

    def slice(self, dim: int, start: int, size: int) -> Ids:
        """Whether ids choose one place; raises `Unsupported` for several."""
        if dim != len(self.ids.shape) or size != 1 or floating(self.dtype):
            raise Unsupported("some of the places that ids choose")
        f = self.ids.function
        here = piecewise.compare("EQ", f, piecewise.constant(f, self.first + start))
        made = replace(self.ids, function=here, dtype=self.dtype)
        return made.reshape((*self.ids.shape, 1))

    def real(self, lo: Lowering) -> Real:
        """The rows as a value: the derivative of picking."""
        made = one_hot_values(lo, lo.real(self.ids), self.first, self.size)
        if self.dtype == "bool":
            return made
        whole = self.dtype.startswith(("int", "uint"))
        return lo.whole(made, (0, 2), self.dtype) if whole else replace(made, dtype=self.dtype)


class Spread(NamedTuple):
    """``each`` at every row's id, and ``other`` at all places.

    Example: ``one_hot(ids, 8) * 0.9 + 0.1 / 8`` has 0.9 at the ids and 0.1 / 8 at every place.
    """

    ids: Real
    each: Lowered
    other: Lowered | None


def spread_by(lo: Lowering, x: Lowered) -> Spread | None:
    """What the one-hot rows [..., n] of ids that are known to lie among these places are scaled by,
    each row by a number of its own, and what is added at every place; None of any other value.

    Example: ``one_hot(ids, 8) * weights[:, None]`` is ``weights`` at each row's id. Where an id may
    lie elsewhere (an ignored label) a row may be all zeros, and it is None.
    """
    if not isinstance(x, Real) or not x.shape:
        return None
    number, scale, rows = x.number, Fraction(1), list[Real]()
    shifts: list[tuple[Fraction, int]] = []  # What is added, and how many of ``rows`` multiply it.
    while (op := maker(lo, number)) is not None and lo.values[number].shape[-1:] == x.shape[-1:]:
        if op.name == "pick" and op.backward:
            return _spread(lo, x, op, scale, shifts, rows)
        one, other = op.inputs[0], op.attrs.get("other")
        if len(op.inputs) == 1 and op.name in ("mul", "add") and isinstance(other, Fraction | int):
            if op.name == "add":
                shifts.append((scale * other, len(rows)))
            else:
                scale *= other
        elif len(op.inputs) == 2 and op.name == "mul":
            each = [n for n in op.inputs if _is_of_rows(lo, n)]
            one = next((n for n in op.inputs if n not in each), number)
            wide = lo.values[one].shape
            own = lo.values[each[0]].shape if len(each) == 1 else ()
            if wide != lo.values[number].shape or own not in (wide, (*wide[:-1], 1)):
                return None
            rows.append(lo.slice(value(lo, each[0]), len(wide) - 1, 0, 1))
        elif op.name not in ("view", "to"):
            return None
        number = one
    return None


def _is_of_rows(lo: Lowering, number: int) -> bool:
    """Whether a value is one number for every row, repeated along the last dimension, if that is
    longer."""
    op = maker(lo, number)
    of = op.inputs[0] if op is not None and op.name == "expand" else number
    return lo.values[of].shape[-1:] == (1,)


def _spread(
    lo: Lowering,
    x: Real,
    op: Op,
    scale: Fraction,
    shifts: Sequence[tuple[Fraction, int]],
    rows: Sequence[Real],
) -> Spread | None:
    _, index, given = op.inputs
    shard = lo.origins.get(index)
    low, high = (0, 0) if shard is None else lo.shards[shard].domain or (0, 0)
    if not 0 <= low < high <= x.shape[-1] or op.attrs.get("start", 0):
        return None
    each: Any = lo.scale(lo.reshape(value(lo, given), x.shape[:-1]), scale)
    for row in rows:
        each = lo.mul(each, lo.reshape(row, x.shape[:-1]))
    ids = lo.real(lo.reshape(replace(value(lo, index), domain=(low, high)), x.shape[:-1]))
    other: Any = None
    for shift, count in shifts:
        term: Any = Const(shift, x.shape, x.dtype)
        for row in rows[:count]:
            term = lo.mul(lo.reshape(row, (*x.shape[:-1], 1)), term)
        other = term if other is None else lo.add(other, term)
    return Spread(ids, each, other)


def one_hot_values(lo: Lowering, index: Real, first: int, size: int) -> Real:
    """1 where ids [...] are the place along one more dimension.

    Example: of ids [2, 3] and 8 places it is [2, 3, 8].
    """
    ones = lo.real(Const(Fraction(1), index.shape, "float32"))
    zero = lo.real(Const(Fraction(0), (*index.shape, size), "float32"))
    return flags(lo.derivative("pick", [zero, index], ones, 0, start=first))


@dataclass(frozen=True, slots=True)
class Turned(Unviewed):
    """One-hot rows with their dimensions in another ``order``.

    Example: ``(ids[..., None] == torch.arange(16)).permute(2, 0, 1)``, of which a loop over experts
    reads one after the other.
    """

    about = OneHot.about

    hot: Choices
    order: tuple[int, ...]

    @property
    def shape(self) -> Shape:
        """That of the rows, in the other order."""
        return tuple(self.hot.shape[d] for d in self.order)

    @property
    def dtype(self) -> str:
        """That of the rows."""
        return self.hot.dtype

    def permute(self, order: Sequence[int]) -> Turned:
        """The rows with their dimensions in another order still."""
        return Turned(self.hot, tuple(self.order[d] for d in order))

    def slice(self, dim: int, start: int, size: int) -> Ids:
        """Whether ids choose one place; raises `Unsupported` for several."""
        return self.hot.slice(self.order[dim], start, size).permute(self.order)

    def real(self, lo: Lowering) -> Real:
        """The rows as a value."""
        return lo.real(lo.permute(self.hot.real(lo), self.order))


def one_hot(index: Ids, first: int, size: int) -> OneHot:
    """Where ids [...] are the numbers from ``first`` on, of which there are ``size``.

    Example: ``ids[..., None] == torch.arange(16)`` is the one-hot rows of 16 places, from 0 on.
    """
    return OneHot(index, first, size, piecewise.constant(index.function, 1), "bool")
