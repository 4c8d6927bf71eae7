"""Products with predicates of ids: 0 or 1 for each row, or each entry, of a value."""

from __future__ import annotations

from dataclasses import replace
from math import isfinite
from typing import Any

from shardproof.frontends.aten.ids import Ids, inverse
from shardproof.frontends.aten.lookups import Lookup, restricted, written
from shardproof.frontends.aten.lowering import (
    Const,
    Lowering,
    Operand,
    Real,
    floating,
    fraction,
)
from shardproof.frontends.aten.one_hot import OneHot
from shardproof.frontends.builder import piecewise


def times(lo: Lowering, x: Operand, y: Operand) -> Any:
    """A product with a predicate of ids, as what it leaves is zero elsewhere; None: it is none.

    Example: ``rows * (ids < 16).unsqueeze(-1)`` is ``rows.masked_fill(ids >= 16, 0)``; 0.9 times
    ``(ids < 16).float()`` is that number, filled with zeros alike.
    """
    for value, mask in ((x, y), (y, x)):
        if not isinstance(mask, Ids) or any(
            p.slope or p.offset not in (0, 1) for p in mask.function
        ):
            continue
        whole = replace(mask, dtype="bool")
        if isinstance(value, OneHot):
            return value.restricted(whole)
        if isinstance(value, Lookup):
            own = whole.reshape(value.ids.shape) if mask.shape == (*value.ids.shape, 1) else whole
            if own.at() == value.ids.at() and floating(value.dtype):
                return restricted(value, own, True)
            continue
        if isinstance(value, float):
            if not isfinite(value) or piecewise.value(mask.function) is not None:
                continue
            value = Const(fraction(value), mask.shape, mask.dtype)
        if not isinstance(value, (Real, Const)) or not floating(value.dtype):
            continue
        by_rows = isinstance(value, Real) and mask.shape == (*value.shape[:-1], 1)
        if mask.shape == value.shape or by_rows:
            return written(lo, value, inverse(whole), 0.0)
    return None
