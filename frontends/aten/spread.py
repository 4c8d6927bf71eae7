"""One number, or rows one after the other, written where ids or a mask say.

Source: PyTorch's documentation of `scatter` and `masked_scatter`.
"""

from __future__ import annotations

from dataclasses import replace
from math import inf, prod
from typing import Any

from shardproof.engine.errors import Unsupported
from shardproof.frontends.aten import ids, lookups
from shardproof.frontends.aten.choices import _along, _chosen, _cumsum, _turned
from shardproof.frontends.aten.hidden import as_numbers, keep, masked, opened, shown_at
from shardproof.frontends.aten.infinite import may_be_infinite
from shardproof.frontends.aten.lowering import (
    Const,
    Lowered,
    Lowering,
    Real,
    broadcast,
    dimensions,
    fraction,
)
from shardproof.frontends.aten.masks import chosen as chosen_by
from shardproof.frontends.aten.masks import flags, inverse
from shardproof.frontends.aten.roots import maker
from shardproof.frontends.aten.rules import lowers, written_as


@lowers("aten.scatter.value")
def _scatter_value(lo: Lowering, x: Lowered, dim: int, index: Lowered, value: float) -> Any:
    """One number by ids: whichever of equal ids is the last; of masks and whole numbers, a 1 among
    zeros or a 0 among ones."""
    hidden = masked(lo, opened(lo, x))
    x = x if hidden is None else hidden
    (target, chosen), back = _along(lo, x, dim, index)
    place = lo.real(chosen)
    hot = _chosen(lo, place, target.shape[-1])
    at = len(place.shape) - 1
    if place.shape[-1] == 1 or lo.distinct.get(place.number) == at:
        mask: Any = lo.sum(hot, (at,))
    else:
        missed: Any = inverse(lo, lo.slice(hot, at, 0, 1))
        for i in range(1, place.shape[-1]):
            missed = lo.mul(missed, inverse(lo, lo.slice(hot, at, i, 1)))
        mask = lo.reshape(inverse(lo, missed), target.shape)
    mask = lo.real(mask)
    if value == -inf:
        left = place.shape[-1] < target.shape[-1] and not may_be_infinite(lo, x)
        lines = frozenset(dimensions(x.shape, dim) if left else ())  # Some of each is not hidden.
        return replace(keep(lo, x, inverse(lo, _turned(lo, mask, back))), shown=lines)
    if hidden is not None:
        return shown_at(lo, hidden, _turned(lo, mask, back), value, dimensions(x.shape, dim))
    dtype = lo.expected[0][1]
    if dtype == "bool" or "int" in dtype:
        if not isinstance(target, Const) or {target.value, value} != {0, 1}:
            raise Unsupported(f"{value} written into {dtype}")
        written = _turned(lo, mask if value else inverse(lo, mask), back)
        return flags(written) if dtype == "bool" else lo.whole(written, (0, 2), dtype)
    if isinstance(target, Const) and target.value == 0:
        written = _turned(lo, lo.scale(mask, fraction(value)), back)
        if value == 1:
            lo.hot.add(written.number)
        return written
    return _turned(lo, lookups.chosen(lo, mask, fraction(value), target), back)


@lowers("aten.masked_scatter.default")
def _masked_scatter(lo: Lowering, x: Lowered, mask: Lowered, source: Lowered) -> Any:
    """Numbers of ``source``, one after the other, where the mask is true: at each of these as many
    places from the first as there are true ones before it."""
    shape = broadcast(x.shape, mask.shape)
    mask, width = _by_rows(lo, lo.expand(mask, shape))
    count, size = prod(mask.shape), prod(source.shape) // width
    if not size or prod(source.shape) % width:
        raise Unsupported(f"{list(source.shape)} numbers written in rows of {width}")
    holds = lo.reshape(as_numbers(lo, mask), (count,))
    before = lo.real(lo.sub(_cumsum(lo, lo.real(holds), 0), holds))
    places = lo.whole(before, (0, count), "int64")
    hot = lo.slice(_chosen(lo, places, max(count, size)), 1, 0, size)
    table = lo.reshape(lo.real(written_as(lo, source, x.dtype)), (size, width))
    rows = lo.emit("matmul", lo.real(hot), lo.real(table))
    over = flags(lo.real(lo.reshape(holds, (count, 1))))
    lo.expected = [((count, width), x.dtype)]
    written = chosen_by(lo, over, rows, lo.reshape(lo.expand(x, shape), (count, width)))
    return lo.reshape(written, shape)


def _by_rows(lo: Lowering, mask: Lowered) -> tuple[Any, int]:
    """A mask without its last dimension, if that repeats what is before it, and its size; the mask
    and 1, if it does not."""
    if not mask.shape or isinstance(mask, Const):
        return mask, 1
    one = lo.slice(mask, len(mask.shape) - 1, 0, 1)
    repeats = isinstance(mask, ids.Ids) and mask.at() == one.expand(mask.shape).at()
    if isinstance(mask, Real):
        op = maker(lo, mask.number)
        of = lo.values[op.inputs[0]].shape if op is not None and op.name == "expand" else ()
        repeats = len(of) == len(mask.shape) and of[-1] == 1
    return (one, mask.shape[-1]) if repeats else (mask, 1)
