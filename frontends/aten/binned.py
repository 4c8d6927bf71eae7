"""Where numbers lie between bounds, and how many of them: `bucketize`, `searchsorted`, `histc`.

A number lies behind as many bounds as are less than it (of equal ones, as the call says), since
bounds are sorted.  So its place is a sum of comparisons, each 0 or 1.

Source: PyTorch's documentation of the three; the numbers of a histogram's bins are those of the CPU
kernel, whose last bin has its upper bound, too.
"""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from itertools import pairwise
from math import floor, prod
from typing import Any

from shardproof.engine.errors import Unsupported
from shardproof.frontends.aten.ids import bounds, ids
from shardproof.frontends.aten.lowering import (
    Const,
    Lowered,
    Lowering,
    Operand,
    Real,
    floating,
    fraction,
)
from shardproof.frontends.aten.masks import inverse, step
from shardproof.frontends.aten.rules import lowers, rule_of

#: Bins of a histogram of which each is a comparison by itself.
MOST_BINS = 1 << 12


def _number(lo: Lowering, x: Operand) -> Any:
    """A tensor as numbers that can be compared; whole numbers are those."""
    if isinstance(x, (int, float, Const)):
        return Const(fraction(x), (), "float32") if isinstance(x, (int, float)) else x
    real = lo.real(x)
    if real.dtype == "bool":
        raise Unsupported("truth values between bounds")
    return real if floating(real.dtype) else replace(real, dtype="float32", domain=None)


def _behind(lo: Lowering, bounds: Any, values: Any, right: bool) -> Any:
    """How many bounds [..., n] are less than values [..., m]; with ``right`` not greater."""
    lead, count, size = values.shape[:-1], values.shape[-1], bounds.shape[-1]
    one = lo.reshape(values, (*lead, count, 1))
    other = lo.reshape(bounds, (*bounds.shape[:-1], 1, size))
    gap = lo.sub(lo.expand(one, (*lead, count, size)), lo.expand(other, (*lead, count, size)))
    after = inverse(lo, step(lo, lo.scale(gap, Fraction(-1)))) if right else step(lo, gap)
    total = lo.real(lo.sum(lo.real(after), (len(lead) + 1,)))
    return lo.whole(total, (0, size + 1), lo.expected[0][1])


def _rightmost(side: str | None, right: bool) -> bool:
    return side == "right" if side is not None else right


@lowers("aten.bucketize.Tensor", "aten.bucketize.Scalar")
def _bucketize(
    lo: Lowering, x: Operand, bounds: Lowered, *, out_int32: bool = False, right: bool = False
) -> Any:
    """Between which bounds [n] each number lies."""
    values = _number(lo, x)
    flat = lo.reshape(values, (prod(values.shape),))
    places = _behind(lo, _number(lo, bounds), flat, right)
    return lo.reshape(places, values.shape)


@lowers("aten.searchsorted.Tensor", "aten.searchsorted.Scalar")
def _searchsorted(
    lo: Lowering,
    bounds: Lowered,
    x: Operand,
    *,
    out_int32: bool = False,
    right: bool = False,
    side: str | None = None,
    sorter: Lowered | None = None,
) -> Any:
    """Between which bounds each number lies: of its row, or of the one row that there is."""
    if sorter is not None:
        raise Unsupported("bounds in an order of their own")
    values, rows = _number(lo, x), _number(lo, bounds)
    if len(rows.shape) == 1:
        flat = lo.reshape(values, (prod(values.shape),))
    else:
        flat = lo.reshape(values, values.shape or (1,))
    places = _behind(lo, rows, flat, _rightmost(side, right))
    return lo.reshape(places, values.shape)


@lowers("aten.histc.default")
def _histogram(lo: Lowering, x: Lowered, bins: int = 100, min: float = 0, max: float = 0) -> Any:
    """How many numbers lie in each of ``bins`` intervals from ``min`` to ``max``."""
    low, high = fraction(min), fraction(max)
    if low >= high:
        raise Unsupported("a histogram between the least and the largest of its numbers")
    if bins > MOST_BINS:
        raise Unsupported(f"a histogram of {bins} bins")
    dtype = lo.expected[0][1]
    counted = _counted(lo, x, bins, low, high, dtype)
    if counted is not None:
        return counted
    values = lo.real(_number(lo, x))
    count = prod(values.shape)
    column = lo.reshape(values, (count, 1))
    edges = [low + (high - low) * i / bins for i in range(bins + 1)]
    reached = [inverse(lo, step(lo, lo.shift(lo.scale(column, Fraction(-1)), e))) for e in edges]
    reached[-1] = step(lo, lo.shift(column, -high))
    each = [lo.sub(a, b) for a, b in pairwise(reached)]
    return lo.sum(lo.real(lo.concat(each, 1)), (0,))


def _counted(lo: Lowering, x: Lowered, bins: int, low: Fraction, high: Fraction, dtype: str) -> Any:
    """A histogram of ids in [0, n): for each bin the sum of the one-hots of its ids; None: it is
    another one."""
    whole = x if isinstance(x, Real) else ids(x)
    domain = whole.domain if isinstance(whole, Real) else None if whole is None else whole.span()
    if whole is None or domain is None or domain[0] != 0 or domain[1] > MOST_BINS:
        return None
    numbers = replace(whole, dtype="int64")
    count, size = prod(numbers.shape), domain[1]
    lo.expected = [((count, size), "int64")]
    hot = rule_of("aten.one_hot.default")(lo, lo.reshape(numbers, (count,)), size)  # type: ignore[misc]
    counts = lo.real(lo.sum(rule_of("aten.to.dtype")(lo, hot, dtype), (0,)))  # type: ignore[misc]
    lo.expected = [((bins,), dtype)]
    place = [
        floor((c - low) * bins / (high - low)) if low <= c <= high else -1 for c in range(size)
    ]
    place = [min(at, bins - 1) for at in place]
    each = [[c for c, at in enumerate(place) if at == i] for i in range(bins)]
    if each == [[c] for c in range(size)]:
        return counts
    parts = [
        lo.sum(lo.slice(counts, 0, own[0], len(own)), (0,), True)
        if own
        else Const(Fraction(0), (1,), dtype)
        for own in each
    ]
    return lo.concat(parts, 0)


@lowers("aten.bincount.default")
def _bincount(lo: Lowering, x: Lowered, weights: Lowered | None = None, minlength: int = 0) -> Any:
    """How many ids are each; there may be no larger ones, of which the result would be longer."""
    if weights is not None:
        raise Unsupported("ids that are counted with weights")
    domain = bounds(x)
    if domain is None or domain[0] < 0 or domain[1] > minlength:
        raise Unsupported("counts of ids that may be above them all")
    return _histogram(lo, x, minlength, 0, minlength - 1)
