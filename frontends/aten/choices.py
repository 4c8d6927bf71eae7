"""Entries by ids along a dimension: gather and scatter, the largest entries, and where they are."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from math import prod
from typing import Any

import numpy as np

from shardproof.engine.errors import Unsupported
from shardproof.frontends.aten import ids, lookups, stretched
from shardproof.frontends.aten.constants import numbered
from shardproof.frontends.aten.flat import Flat
from shardproof.frontends.aten.hidden import opened
from shardproof.frontends.aten.known import added_by, entries_of, few, rows_by
from shardproof.frontends.aten.log_probabilities import taken_apart
from shardproof.frontends.aten.lowering import (
    Const,
    Lowered,
    Lowering,
    Operand,
    Real,
    Shape,
    Unviewed,
    dimensions,
    floating,
    fraction,
    reduced,
)
from shardproof.frontends.aten.masks import inverse
from shardproof.frontends.aten.movement import spaced
from shardproof.frontends.aten.placed import placed, written_over
from shardproof.frontends.aten.positions import Positions
from shardproof.frontends.aten.rules import lowers, written_as
from shardproof.frontends.aten.scores import Hidden
from shardproof.frontends.aten.tables import Array, is_part
from shardproof.frontends.aten.windows import matrix
from shardproof.frontends.builder import piecewise

ONE = Fraction(1)

#: Entries of a table that chooses rows.
MOST_CHOSEN = 1 << 18


def _last(x: Lowered, dim: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The order in which a dimension is the last one, and the order back."""
    rank = len(x.shape)
    order = (*(d for d in range(rank) if d != dim), dim)
    return order, tuple(order.index(d) for d in range(rank))


def _turned(lo: Lowering, x: Lowered, order: Sequence[int]) -> Any:
    return x if tuple(order) == tuple(range(len(order))) else lo.permute(x, order)


def _ends(lo: Lowering, x: Lowered, dim: int, shape: Shape) -> Any:
    """``x``, as long as ``shape`` in every dimension but ``dim``."""
    for d, n in enumerate(shape):
        if d != dim and x.shape[d] != n:
            if x.shape[d] < n:
                raise Unsupported(f"{list(shape)} ids along {list(x.shape)}")
            x = lo.slice(x, d, 0, n)
    return x


@lowers("aten.gather.default")
def _gather(lo: Lowering, x: Lowered, dim: int, index: Lowered, sparse_grad: bool = False) -> Any:
    """[..., n] by ids [..., k] to [..., k]."""
    if not x.shape:
        raise Unsupported("gather of a number")
    if isinstance(x, Const):
        return Const(x.value, index.shape, x.dtype)  # of entries that are all one number
    x = opened(lo, x)
    if isinstance(x, Hidden) and x.where is not None:
        # As a loss reads its labels: the logarithm of what is kept there is 0, or minus infinity.
        picked = _gather(lo, lo.real(x.scores), dim, index)
        known = piecewise.reach(index.function) if isinstance(index, ids.Ids) else None
        domain = index.domain if isinstance(index, Real) else known
        if dimensions(x.shape, dim) == (len(x.shape) - 1,) and not x.may_hide(domain):
            return picked
        return lo.add(picked, lo.unary("log", _gather(lo, lo.real(x.kept), dim, index)))
    (at,) = dimensions(x.shape, dim)
    rows_of = _ends(lo, x, at, index.shape)
    along = _consecutive(index, at)
    if along is not None:
        return _index_select(lo, rows_of, at, along)
    order, back = _last(rows_of, at)
    index = lookups.computed_ids(lo, index)
    rows, chosen = _turned(lo, rows_of, order), _turned(lo, index, order)
    *lead, count = chosen.shape
    if isinstance(chosen, ids.Ids) and count == 1 and not isinstance(rows, ids.Ids):
        return _looked_up(lo, rows, chosen, tuple(lead), back)
    gathered: Any = _turned(lo, _picked(lo, lo.real(rows), lo.real(chosen)), back)
    every = isinstance(index, Real) and lo.distinct.get(index.number) == at
    if every and index.shape == x.shape and isinstance(gathered, Real):
        lo.reordered[gathered.number] = x, at
    return gathered


def _consecutive(index: Lowered, dim: int) -> Positions | None:
    """Known ids of which each is the one before and 1, along ``dim``, alike elsewhere; None: they
    are not known to be."""
    if not isinstance(index, Positions) or index.steps[dim] != 1:
        return None
    if any(step for d, step in enumerate(index.steps) if d != dim and index.shape[d] != 1):
        return None
    return Positions(index.const, (1,), (index.shape[dim],), index.dtype)


def _looked_up(
    lo: Lowering, rows: Lowered, chosen: ids.Ids, lead: Shape, back: Sequence[int]
) -> Any:
    """An entry of each row by one computed id: known as soon as it is known which ids count."""
    total = prod(lead)
    table = lo.reshape(lo.real(rows), (total, rows.shape[-1]))
    entries = lookups.entries_of(lo, table, chosen.reshape((total,)), wraps=False)
    shape = tuple((*lead, 1)[d] for d in back)
    if any(d != i for i, d in enumerate(back) if shape[i] != 1):
        raise Unsupported("computed ids along a dimension that is not the last")
    return entries.reshape(shape)


def _picked(lo: Lowering, rows: Real, chosen: Real) -> Any:
    """rows [..., n] by ids [..., k]."""
    *lead, count = chosen.shape
    if (logs := taken_apart(lo, rows)) is not None:
        entries = _picked(lo, logs[0], chosen)
        return lo.sub(entries, lo.reshape(logs[1], (*lead, 1)))
    lo.picked.append(rows)
    if count == 1:
        picked = lo.emit("pick", rows, lo.real(lo.reshape(chosen, tuple(lead))))
        return lo.reshape(lookups.entries_like(lo, picked, rows), (*lead, 1))
    wide = lo.reshape(rows, (*lead, 1, rows.shape[-1]))
    wide = lo.real(lo.expand(wide, (*lead, count, rows.shape[-1])))
    return lookups.entries_like(lo, lo.emit("pick", wide, chosen), rows)


def _chosen(lo: Lowering, index: Real, size: int) -> Any:
    """ids [..., k] to [..., k, size]: 1 where the place is the id."""
    ones = lo.real(Const(ONE, index.shape, "float32"))
    zero = lo.real(Const(Fraction(0), (*index.shape, size), "float32"))
    return lo.derivative("pick", [zero, index], ones)


def _spread(lo: Lowering, values: Lowered, index: Real, shape: Shape) -> Any:
    """Values [..., k] by ids [..., k], added up in [..., n] = ``shape``."""
    *lead, count = index.shape
    real = lo.real(values)
    zero = lo.real(Const(Fraction(0), (*lead, count, shape[-1]), real.dtype))
    summed = lo.derivative("pick", [zero, index], real)
    added = lo.real(lo.sum(summed, (len(lead),)))
    if count == 1:
        flat = [lo.real(lo.reshape(v, tuple(lead))) for v in (index, real)]
        lo.spread[added.number] = (flat[0], flat[1], None)
    return added


def _along(lo: Lowering, x: Lowered, dim: int, *others: Lowered) -> Any:
    """Operands with ``dim`` last, of which ids are as many as ``x`` elsewhere, and the way back."""
    (at,) = dimensions(x.shape, dim)
    order, back = _last(x, at)
    given = [lo.real(o) if isinstance(o, lookups.Lookup) else o for o in (x, *others)]
    turned = [_turned(lo, o, order) for o in given]
    for own, last in zip(others, turned[1:], strict=True):
        if isinstance(own, Real) and lo.distinct.get(own.number) == at:
            lo.distinct[lo.real(last).number] = len(order) - 1
    if any(o.shape[:-1] != turned[0].shape[:-1] for o in turned[1:]):
        raise Unsupported("a scatter of ids that are fewer than the rows")
    return turned, back


@lowers("aten.scatter_add.default")
def _scatter_add(lo: Lowering, x: Lowered, dim: int, index: Lowered, source: Lowered) -> Any:
    (target, chosen, values), back = _along(lo, x, dim, index, source)
    added = placed(lo, chosen, values, target.shape[-1])
    if added is None:
        added = _spread(lo, values, lo.real(chosen), target.shape)
    return _turned(lo, lo.add(target, added), back)


@lowers("aten.scatter.src")
def _scatter(lo: Lowering, x: Lowered, dim: int, index: Lowered, source: Lowered) -> Any:
    """Written over; ids of one row have to differ, or nothing says which value is the last."""
    (target, chosen, values), back = _along(lo, x, dim, index, source)
    known = written_over(lo, target, chosen, values)
    if known is not None:
        return _turned(lo, known, back)
    place = lo.real(chosen)
    if place.shape[-1] != 1 and lo.distinct.get(place.number) != len(place.shape) - 1:
        raise Unsupported("values that are written by ids of which some may be equal")
    added = _spread(lo, values, place, target.shape)
    if isinstance(target, Const) and target.value == 0:
        return _turned(lo, added, back)
    kept = inverse(lo, lo.sum(_chosen(lo, place, target.shape[-1]), (len(place.shape) - 1,)))
    return _turned(lo, lo.add(lo.mul(target, kept), added), back)


# -- rows ----------------------------------------------------------------------------------------


@lowers("aten.index_select.default")
def _index_select(lo: Lowering, x: Lowered, dim: int, index: Lowered) -> Any:
    """Places of a dimension by ids [k]."""
    (at,) = dimensions(x.shape, dim)
    if isinstance(index, Positions) and _rising(index, x.shape[at]):
        return spaced(lo, x, at, index.const, index.shape[0], index.steps[0])
    order = (at, *(d for d in range(len(x.shape)) if d != at))
    back = tuple(order.index(d) for d in range(len(order)))
    rest = tuple(x.shape[d] for d in order[1:])
    table = lo.reshape(_turned(lo, x, order), (x.shape[at], prod(rest)))
    if isinstance(index, Flat) and index.span()[1] == x.shape[at]:
        wide = lo.reshape(table, (index.rows, index.width, prod(rest)))
        rows = _gather(lo, wide, 1, index.along(lo, prod(rest)))
        return _turned(lo, lo.reshape(rows, (*index.shape, *rest)), back)
    known = entries_of(lo, index)
    chosen = _choosing(lo, known, x.shape[at]) if floating(x.dtype) else None
    joined = None
    if chosen is not None:
        joined = lo.emit("matmul", matrix(lo, chosen), lo.real(table))
    elif known is not None:
        joined = rows_by(lo, table, known)
    if joined is not None:
        return _turned(lo, lo.reshape(joined, (*index.shape, *rest)), back)
    real = numbered(lo, index) if isinstance(index, Positions) else lo.real(index)
    entries = lo.real(table)
    rows = lo.emits("embedding", [real, entries], {}, table.dtype)[0]
    rows = lookups.entries_like(lo, rows, entries)
    return _turned(lo, lo.reshape(rows, (*index.shape, *rest)), back)


def _choosing(lo: Lowering, ids: Array | None, rows: int) -> Array | None:
    """The table [k, rows] of zeros and ones that chooses rows by ids [k]; None: these are not
    known, there is no such row, the table is large, or the rows are joined of few runs.

    A product with it, and with it turned over for gradients, has as many rows as the ids are among;
    an embedding's gradient has rows without an end, of which a view takes no part.  A rank's part
    of ids that the single side has a table of is such a part of that table, of however few runs.
    """
    if ids is None or not ids.size or ids.min() < 0 or ids.max() >= rows:
        return None
    if ids.size * rows > MOST_CHOSEN:
        return None
    ones: Array = np.eye(rows, dtype=np.float32)[ids.reshape(-1)]
    rises = (np.diff(ids.reshape(-1)) == 1).all()
    return None if few(ids, rows) and (rises or not is_part(lo, ones)) else ones


def _rising(index: Positions, size: int) -> bool:
    """Whether known positions of a dimension are each larger than the one before."""
    (count,), (step,) = index.shape, index.steps
    inside = index.const >= 0 and index.const + (count - 1) * step < size
    return count > 0 and inside and (step > 0 or count == 1)


@lowers("aten.index_add.default")
def _index_add(
    lo: Lowering, x: Lowered, dim: int, index: Lowered, source: Lowered, alpha: float = 1
) -> Any:
    (at,) = dimensions(x.shape, dim)
    order = (at, *(d for d in range(len(x.shape)) if d != at))
    back = tuple(order.index(d) for d in range(len(order)))
    rest = tuple(x.shape[d] for d in order[1:])
    if isinstance(index, Flat) and index.span()[1] == x.shape[at]:
        columns = index.along(lo, prod(rest))
        values = lo.reshape(_turned(lo, source, order), columns.shape)
        zero = Const(Fraction(0), (index.rows, index.width, prod(rest)), source.dtype)
        spread = lo.reshape(_scatter_add(lo, zero, 1, columns, values), (x.shape[at], *rest))
        return lo.add(x, _turned(lo, spread, back), fraction(alpha))
    real = numbered(lo, index) if isinstance(index, Positions) else lo.real(index)
    rows = lo.real(lo.reshape(_turned(lo, source, order), (*index.shape, prod(rest))))
    known = entries_of(lo, real)
    chosen = _choosing(lo, known, x.shape[at]) if floating(source.dtype) else None
    added = None
    if chosen is not None:
        added = lo.emit("matmul", matrix(lo, chosen, transposed=True), rows)
    elif known is not None:
        added = added_by(lo, rows, known, x.shape[at])
    if added is None:
        table = lo.real(Const(Fraction(0), (x.shape[at], prod(rest)), rows.dtype))
        added = lo.derivative("embedding", [real, table], rows, 1)
    whole = _turned(lo, lo.reshape(added, (x.shape[at], *rest)), back)
    return lo.add(x, whole, fraction(alpha))


# -- the largest ---------------------------------------------------------------------------------


def _ranked(lo: Lowering, x: Lowered, least: bool = False) -> Real:
    """Numbers that are in the order of ``x``, equal where it is: of masked scores, what is kept of
    their exponentials, which is 0 where a score is minus infinity and positive elsewhere."""
    if isinstance(x, Hidden) and not least:
        return lo.real(lo.mul(lo.unary("exp", lo.real(x.scores)), x.kept))
    return lo.real(x)


def largest(lo: Lowering, x: Lowered, count: int, dim: int, least: bool = False) -> Any:
    """The ``count`` largest entries along a dimension, in falling order, and where they are.

    Example: the 2 largest of scores [2, 4, 4] along -1 are values [2, 4, 2] and places [2, 4, 2],
    which are int64 ids of [0, 4), no two of a row alike.
    """
    if not x.shape:
        raise Unsupported("the largest of a number")
    x = opened(lo, x)
    (at,) = dimensions(x.shape, dim)
    if x.shape[at] == 1 == count:
        return x, Const(Fraction(0), x.shape, "int64")
    attrs = {"topk": count, "dim": at, "largest": not least}
    ranked = _ranked(lo, x, least)
    values, index = lo.emits("topk", [ranked], attrs)
    values = lookups.entries_like(lo, values, ranked)
    place = lo.whole(index, (0, x.shape[at]), "int64")
    lo.distinct[place.number] = at
    return _at_places(lo, x, at, place) if isinstance(x, Hidden) else values, place


def _at_places(lo: Lowering, x: Hidden, dim: int, place: Real) -> Hidden:
    """The masked scores at places along a dimension."""
    order, back = _last(x, dim)
    turned = lo.real(_turned(lo, place, order))
    scores, kept = (
        _turned(lo, _picked(lo, lo.real(_turned(lo, part, order)), turned), back)
        for part in (x.scores, x.kept)
    )
    return Hidden(lo, scores, kept, x.dtype)


@lowers("aten.topk.default")
def _topk(
    lo: Lowering, x: Lowered, k: int, dim: int = -1, largest_: bool = True, sorted_: bool = True
) -> Any:
    return largest(lo, x, k, dim, not largest_)


@lowers("aten.sort.default")
def _sort(lo: Lowering, x: Lowered, dim: int = -1, descending: bool = False) -> Any:
    return _stable(lo, x, True, dim, descending)


@lowers("aten.sort.stable")
def _stable(
    lo: Lowering, x: Lowered, stable: bool | None, dim: int = -1, descending: bool = False
) -> Any:
    (at,) = dimensions(x.shape, dim)
    return largest(lo, x, x.shape[at], dim, not descending)


@dataclass(frozen=True, slots=True)
class Place(Unviewed):
    """Where the largest entry along a dimension is: a value as soon as something reads it.

    Example: ``x.argmax(-1)`` of logits [2, 8] is ``Place(x, 1, False, (2,))``; read as ids, it is
    the ``topk`` of one entry, ids of [0, 8).
    """

    about = "places of maxima"

    of: Real
    dim: int
    least: bool
    shape: Shape
    dtype: str = "int64"
    #: The values that were made of them, by shape: what is compared with two numbers is one value.
    known: dict[Shape, Real] = field(default_factory=dict, compare=False)

    def real(self, lo: Lowering) -> Real:
        """The places as ids below the size of the dimension; raises `Unsupported` without a unique
        maximum."""
        if self.shape not in self.known:
            _, index = largest(lo, self.of, 1, self.dim, self.least)
            ids = lo.real(lo.reshape(index, self.shape))
            self.known[self.shape] = lo.whole(ids, (0, self.of.shape[self.dim]), "int64")
        return self.known[self.shape]

    def reshape(self, shape: Shape) -> Any:
        """The same places in another shape."""
        return replace(self, shape=shape)


def _placed(name: str, least: bool) -> None:
    @lowers(f"aten.{name}.default")
    def rule(lo: Lowering, x: Lowered, dim: int | None = None, keepdim: bool = False) -> Any:
        if dim is None:
            x, dim = lo.reshape(x, (prod(x.shape),)), 0
        (at,) = dimensions(x.shape, dim)
        shape, _ = lo.expected[0]
        return Place(_ranked(lo, x, least), at, least, shape)


_placed("argmax", False)
_placed("argmin", True)


def _extreme(lo: Lowering, x: Lowered, dim: int, keepdim: bool, least: bool) -> Any:
    """The maximum or minimum over a dimension, and where it is."""
    (at,) = dimensions(x.shape, dim)
    if x.shape[at] == 1:
        shape = reduced(x.shape, (at,), keepdim)
        return lo.reshape(x, shape), Const(Fraction(0), shape, "int64")
    real = _ranked(lo, x, least)
    if isinstance(x, Hidden):
        _, place = largest(lo, real, 1, at)
        most = _at_places(lo, x, at, place).reshape(reduced(x.shape, (at,), keepdim))
        known = at in x.shown  # Something of every line is kept, and so is the largest.
        return most.scores if known else most, Place(real, at, least, most.shape)
    ranked = lo.real(lo.scale(real, -ONE)) if least else real
    value = stretched.largest(lo, ranked, (at,), keepdim)
    return lo.scale(value, -ONE) if least else value, Place(real, at, least, value.shape)


@lowers("aten.max.dim")
def _max(lo: Lowering, x: Lowered, dim: int, keepdim: bool = False) -> Any:
    return _extreme(lo, x, dim, keepdim, False)


@lowers("aten.min.dim")
def _min(lo: Lowering, x: Lowered, dim: int, keepdim: bool = False) -> Any:
    return _extreme(lo, x, dim, keepdim, True)


@lowers("aten.amin.default")
def _amin(lo: Lowering, x: Lowered, dim: object = None, keepdim: bool = False) -> Any:
    dims = dimensions(x.shape, dim)
    most = lo.emit("amax", lo.real(lo.scale(lo.real(x), -ONE)), dim=dims, keepdim=keepdim)
    return lo.scale(most, -ONE)


@lowers("aten.max.default")
def _max_all(lo: Lowering, x: Lowered) -> Any:
    every = tuple(range(len(x.shape)))
    return lo.emit("amax", lo.real(x), dim=every, keepdim=False) if every else x


@lowers("aten.min.default")
def _min_all(lo: Lowering, x: Lowered) -> Any:
    return lo.scale(_max_all(lo, lo.real(lo.scale(lo.real(x), -ONE))), -ONE)


@lowers("aten.cumsum.default")
def _cumsum(lo: Lowering, x: Lowered, dim: int, dtype: str = "") -> Any:
    """Sums up to each place: times the triangle of ones."""
    if not x.shape:
        return x
    (at,) = dimensions(x.shape, dim)
    size = x.shape[at]
    order, back = _last(x, at)
    turned = _turned(lo, lo.real(x), order)
    ones = lo.real(Const(ONE, (1, size, size), turned.dtype))
    lower = lo.reshape(lo.emit("tril", ones), (size, size))
    rows = lo.real(lo.reshape(turned, (prod(turned.shape[:-1]), size)))
    total = lo.emit("matmul", rows, lo.real(lo.transpose(lower, 0, 1)))
    if (bounds := ids.bounds(x)) is not None:
        low, high = min(bounds[0], bounds[0] * size), max(bounds[1] - 1, (bounds[1] - 1) * size)
        total = lo.whole(total, (low, high + 1), lo.expected[0][1])
    return _turned(lo, lo.reshape(total, turned.shape), back)


@lowers("aten.select_scatter.default")
def _select_scatter(lo: Lowering, x: Lowered, source: Lowered, dim: int, index: int) -> Any:
    """``x`` with ``source`` written over one place of a dimension."""
    (at,) = dimensions(x.shape, dim)
    size = x.shape[at]
    place = index % size
    row = lo.reshape(written_as(lo, source, x.dtype), (*x.shape[:at], 1, *x.shape[at + 1 :]))
    before = [lo.slice(x, at, 0, place)] if place else []
    after = [lo.slice(x, at, place + 1, size - place - 1)] if place + 1 < size else []
    return lo.concat([*before, row, *after], at)


@lowers("aten.outer.default")
def _outer(lo: Lowering, x: Operand, y: Operand) -> Any:
    a, b = lo.real(x), lo.real(y)
    return lo.mul(lo.reshape(a, (*a.shape, 1)), lo.reshape(b, (1, *b.shape)))
