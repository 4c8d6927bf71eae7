"""How many ids are each, and rows that are multiplied in groups of as many.

Source: PyTorch's documentation; ``torch._grouped_mm`` multiplies the rows up to each end with the
matrix of that number, or sums up their products with other rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction
from math import prod
from typing import Any

from shardproof.frontends.aten.alike import alike
from shardproof.frontends.aten.arranged import (
    Arranged,
    Numbers,
    Order,
    Tally,
    again,
    called,
    counted,
    reads,
    settled,
    source,
)
from shardproof.frontends.aten.lowering import Const, Lowered, Lowering, Real, dimensions
from shardproof.frontends.aten.positions import Positions
from shardproof.frontends.aten.rules import typed


@reads("aten.scatter.value")
def _flagged(lo: Lowering, x: Any, dim: int, index: Any, value: Any) -> Any:
    """1 at the places of the ids of each row."""
    ids = source(lo, index)
    if ids is None or not isinstance(x, Const) or x.value != 0 or value not in (1, True):
        return None
    last = len(x.shape) - 1
    differ = index.shape[-1] == 1 or lo.distinct.get(lo.real(index).number) == last
    alike = index.shape[:-1] == x.shape[:-1] and dimensions(x.shape, dim) == (last,)
    if not differ or not alike:
        return None
    flags = called(lo, "aten.scatter.value", x, dim, index, value)
    return Tally("flags", flags, ids) if isinstance(flags, Real) else None


@reads("aten.eq.Tensor")
def _hot(lo: Lowering, x: Any, y: Any) -> Any:
    """1 at the id's place, of ids in a column beside all places: `one_hot`."""
    ids = source(lo, x)
    if ids is None or not isinstance(y, Positions) or x.shape[-1:] != (1,):
        return None
    if (y.const, y.steps) != (0, (1,)):
        return None
    flags = called(lo, "aten.eq.Tensor", x, y)
    return Tally("flags", flags, ids) if isinstance(flags, Real) else flags


@reads("aten.histc.default")
def _histogram(lo: Lowering, x: Any, bins: int = 100, min: float = 0, max: float = 0) -> Any:
    """How many ids are each, in any order."""
    base = x.base if isinstance(x, Arranged) else x
    if isinstance(base, Numbers):
        return None
    ids = source(lo, _whole_of(base))
    counts = called(lo, "aten.histc.default", base, bins, min, max)
    counts = typed(lo, counts, lo.expected[0][1])
    if ids is None or (min, max) != (0, bins - 1) or not 0 < counted(ids) <= bins:
        return counts
    return Tally("counts", counts, ids) if isinstance(counts, Real) else counts


def _whole_of(x: Any) -> Any:
    """Whole numbers that were cast to floats, as ids."""
    whole = isinstance(x, Real) and x.domain is not None
    return replace(x, dtype="int64") if whole else x


@reads("aten.cumsum.default")
def _ends(lo: Lowering, x: Any, dim: int, dtype: str = "") -> Any:
    """Where the ids of each kind end."""
    if not isinstance(x, Tally) or x.kind != "counts":
        return None
    most = prod(x.ids.shape)
    counts = replace(x.value, dtype="int64", domain=(0, most + 1))
    total = typed(lo, called(lo, "aten.cumsum.default", counts, dim), lo.expected[0][1])
    return Tally("ends", total, x.ids) if isinstance(total, Real) else None


def counts(lo: Lowering, x: Tally, dim: Any, keepdim: bool) -> Any:
    """How many ids are each: what each row has, added up; None: something else is added up.

    Example: of flags [[1, 0], [1, 0], [0, 1]] the counts [2, 1].
    """
    whole = sorted(dimensions(x.shape, dim)) == list(range(len(x.shape) - 1))
    if x.kind != "flags" or not whole or keepdim:
        return None
    total = called(lo, "aten.sum.dim_IntList", x.value, dim)
    total = typed(lo, total, lo.expected[0][1])
    return Tally("counts", total, x.ids) if isinstance(total, Real) else None


def more_kinds(lo: Lowering, x: Tally, others: Sequence[Any]) -> Any:
    """Counts beside zeros: there are kinds that no id is of; None: something else is beside.

    Example: of counts [2, 1] and a zero, counts [2, 1, 0] of the same ids.
    """
    if x.kind != "counts" or not all(isinstance(y, Const) and not y.value for y in others):
        return None
    joined = lo.concat([x.value, *others], 0)
    return replace(x, value=joined) if isinstance(joined, Real) else None


@reads("aten._to_copy.default", "aten.to.dtype", "move.cast")
def _cast(lo: Lowering, x: Any, *args: Any, **kwargs: Any) -> Any:
    """Numbers of ids in another type of numbers are these; rows, row by row."""
    dtype = lo.expected[0][1]
    if isinstance(x, Tally) and dtype in ("int32", "int64", "float32", "float64"):
        value = typed(lo, called(lo, "move.cast", x.value, dtype), dtype)
        return replace(x, value=value) if isinstance(value, Real) else None
    if isinstance(x, Arranged) and not isinstance(x.base, Numbers):
        return again(lo, called(lo, "move.cast", x.base, dtype), x, x.at)
    if isinstance(x, Arranged) and dtype in ("int32", "int64"):
        return replace(x, base=replace(x.base, dtype=dtype))
    return None


@reads("aten._grouped_mm.default")
def _experts(
    lo: Lowering, x: Any, y: Any, ends: Any = None, bias: Any = None, dtype: str = ""
) -> Any:
    """Each group of rows times the matrix of its id; or, of each group, the sum of products of its
    rows with others."""
    if bias is not None or not isinstance(x, Arranged) or not isinstance(ends, Tally):
        return None
    if ends.kind != "ends":
        return None
    ids = _group_ids(lo, x.order, ends)
    if ids is None:
        return None
    if isinstance(y, Arranged):
        if y.order is not x.order or (x.at, y.at) != (1, 0) or len(y.shape) != 2:
            return None
        return _summed(lo, x.base, y.base, ids, ends.shape[0])
    if x.at != 0 or len(x.shape) != 2 or len(y.shape) != 3 or y.shape[0] != ends.shape[0]:
        return None
    return again(lo, _multiplied(lo, x.base, settled(lo, y), ids), x, 0)


def _group_ids(lo: Lowering, order: Order, tally: Tally) -> Any:
    """The ids [n] of rows that lie in groups of as many, each in [0, groups); None: the order is of
    other ids."""
    own = source(lo, order.ids)
    same = own is not None and alike(lo, own, tally.ids) and not order.descending
    return order.ids if same and 0 < counted(order.ids) <= tally.shape[0] else None


@reads("aten.repeat_interleave.Tensor")
def _each_as_often(lo: Lowering, times: Any, *, output_size: int | None = None) -> Any:
    """The number of each group as often as it has rows: the ids in the order that sorts them."""
    if not isinstance(times, Tally) or times.kind != "counts":
        return None
    for order in reversed(lo.orders):
        ids = _group_ids(lo, order, times)
        if ids is not None:
            return Arranged(lo, ids, order)
    return None


def _multiplied(lo: Lowering, x: Lowered, weights: Lowered, ids: Any) -> Any:
    """Rows [n, d], each times the matrix of its id, of [e, d, f]."""
    (count, inner), outer = x.shape, weights.shape[2]
    own = called(lo, "aten.index.Tensor", weights, [ids])
    made = called(lo, "aten.bmm.default", lo.reshape(x, (count, 1, inner)), lo.real(own))
    return lo.reshape(made, (count, outer))


def _summed(lo: Lowering, x: Lowered, y: Lowered, ids: Any, groups: int) -> Any:
    """Of [d, n] and [n, f] the sums [e, d, f] of the products of rows of each id."""
    (inner, count), outer = x.shape, y.shape[1]
    column = lo.reshape(lo.permute(x, (1, 0)), (count, inner, 1))
    each = lo.mul(
        lo.expand(column, (count, inner, outer)),
        lo.expand(lo.reshape(y, (count, 1, outer)), (count, inner, outer)),
    )
    zeros = Const(Fraction(0), (groups, inner, outer), each.dtype)
    return called(lo, "aten.index_put.default", zeros, [ids], each, True)
