"""Rows of a dimension that are written by ids, and entries of a tensor by their flat places."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from math import prod
from typing import Any

import numpy as np

from shardproof.engine.errors import Unsupported
from shardproof.frontends.aten.choices import _index_add, _index_select
from shardproof.frontends.aten.ids import ids, placed_at
from shardproof.frontends.aten.lowering import (
    Const,
    Lowered,
    Lowering,
    Real,
    dimensions,
    fraction,
)
from shardproof.frontends.aten.masks import inverse, step
from shardproof.frontends.aten.positions import Positions
from shardproof.frontends.aten.rules import lowers, number_as, written_as

ZERO, ONE = Fraction(0), Fraction(1)


def _from_the_front(index: Lowered, size: int) -> Any:
    """Ids of ``size`` places, where negative ones count from the end, as these operators read them;
    raises `Unsupported` where it is not known whether one is negative.

    Example: of four rows, -1 is 3; of ids in [0, 4) every one is itself.
    """
    if isinstance(index, Positions):
        moved = sum(s * (n - 1) for s, n in zip(index.steps, index.shape, strict=True) if s < 0)
        highest = index.const + sum(
            s * (n - 1) for s, n in zip(index.steps, index.shape, strict=True) if s > 0
        )
        if index.const + moved >= 0:
            return index
        if highest >= 0:
            raise Unsupported("places of which some count from the end")
        return replace(index, const=index.const + size)
    if isinstance(index, Const):
        return index if index.value >= 0 else replace(index, value=index.value + size)
    known = ids(index)
    if known is None or known.span()[0] >= 0:
        return index
    return placed_at(known, size)


def _counts(lo: Lowering, x: Lowered, at: int, index: Lowered) -> Any:
    """How many of the ids choose each row of a dimension, with size 1 along the others."""
    rank = len(x.shape)
    wide, own = (
        tuple(n if d == at else 1 for d in range(rank)) for n in (x.shape[at], prod(index.shape))
    )
    dtype = x.dtype
    index = _from_the_front(index, x.shape[at])
    zeros, ones = Const(ZERO, wide, dtype), Const(ONE, own, dtype)
    return _index_add(lo, zeros, at, lo.reshape(index, (prod(index.shape),)), ones)


def _differ(lo: Lowering, index: Lowered) -> bool:
    """Whether no two of the ids are equal."""
    if prod(index.shape) == 1:
        return True
    if isinstance(index, Positions):
        entries = index.const + np.indices(index.shape).T @ np.asarray(index.steps)
        return len(np.unique(entries)) == prod(index.shape)
    if isinstance(index, Real):
        name = lo.shards[lo.origins[index.number]].name if index.number in lo.origins else ""
        known = lo.contents.get(name)
        if known is not None and np.shape(known) == (prod(index.shape),):
            return len(np.unique(known)) == prod(index.shape)
        return len(index.shape) == 1 and index.number in lo.distinct
    return False


@lowers("aten.index_fill.int_Scalar")
def _index_fill(lo: Lowering, x: Lowered, dim: int, index: Lowered, value: float) -> Any:
    (at,) = dimensions(x.shape, dim)
    chosen = step(lo, _counts(lo, x, at, index))
    kept = lo.mul(x, inverse(lo, chosen))
    number = fraction(number_as(value, x.dtype))
    return lo.add(kept, lo.scale(chosen, number)) if number else kept


@lowers("aten.index_fill.int_Tensor")
def _index_fill_tensor(lo: Lowering, x: Lowered, dim: int, index: Lowered, value: Lowered) -> Any:
    (at,) = dimensions(x.shape, dim)
    chosen = step(lo, _counts(lo, x, at, index))
    return lo.add(lo.mul(x, inverse(lo, chosen)), lo.mul(chosen, written_as(lo, value, x.dtype)))


@lowers("aten.index_copy.default")
def _index_copy(lo: Lowering, x: Lowered, dim: int, index: Lowered, source: Lowered) -> Any:
    """Ids have to differ, or nothing says which row is the last."""
    if not _differ(lo, index):
        raise Unsupported("rows that are written by ids of which some may be equal")
    (at,) = dimensions(x.shape, dim)
    kept = lo.mul(x, inverse(lo, _counts(lo, x, at, index)))
    return _index_add(lo, kept, at, lo.reshape(index, (prod(index.shape),)), source)


@lowers("aten.take.default")
def _take(lo: Lowering, x: Lowered, index: Lowered) -> Any:
    flat = lo.reshape(x, (prod(x.shape),))
    places = _from_the_front(lo.reshape(index, (prod(index.shape),)), prod(x.shape))
    return lo.reshape(_index_select(lo, flat, 0, places), index.shape)


@lowers("aten.put.default")
def _put(
    lo: Lowering, x: Lowered, index: Lowered, source: Lowered, accumulate: bool = False
) -> Any:
    flat = lo.reshape(x, (prod(x.shape),))
    places, given = (lo.reshape(y, (prod(y.shape),)) for y in (index, source))
    places = _from_the_front(places, prod(x.shape))
    write = _index_add if accumulate else _index_copy
    return lo.reshape(write(lo, flat, 0, places, given), x.shape)
