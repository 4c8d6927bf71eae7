"""Padding of ATen by what is there, and where gradients of parts, diagonals and windows go."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from math import prod
from typing import Any

import numpy as np

from shardproof.engine.errors import ShapeMismatch
from shardproof.frontends.aten.lowering import Const, Lowered, Lowering, dimensions
from shardproof.frontends.aten.movement import bounds
from shardproof.frontends.aten.rules import lowers
from shardproof.frontends.aten.tables import table
from shardproof.frontends.aten.turned import flip
from shardproof.frontends.aten.windows import zeros_around

# -- padding ---------------------------------------------------------------------------------------


def _end(lo: Lowering, x: Lowered, dim: int, count: int, last: bool, mirrored: bool) -> Any:
    """``count`` entries that continue a dimension at one end: those beside the end in reverse, or
    copies of it."""
    size = x.shape[dim]
    if mirrored:
        return flip(lo, lo.slice(x, dim, size - 1 - count if last else 1, count), (dim,))
    wide = (*x.shape[:dim], count, *x.shape[dim + 1 :])
    return lo.expand(lo.slice(x, dim, size - 1 if last else 0, 1), wide)


def _from_end(lo: Lowering, part: Lowered, dim: int, size: int, last: bool, mirrored: bool) -> Any:
    """The transpose of `_end`: where the entries of ``part`` came from, of ``size``."""
    if mirrored:
        start = size - 1 - part.shape[dim] if last else 1
        return zeros_around(lo, flip(lo, part, (dim,)), dim, start, size)
    return zeros_around(lo, lo.sum(part, (dim,), True), dim, size - 1 if last else 0, size)


def _padding(name: str, rank: int, mirrored: bool) -> None:
    @lowers(f"aten.{name}{rank}d.default")
    def rule(lo: Lowering, x: Lowered, padding: Sequence[int]) -> Any:
        """Dimension by dimension; a negative number cuts positions off."""
        for i in range(rank):
            dim = len(x.shape) - 1 - i
            before, after = padding[2 * i : 2 * i + 2]
            parts: list[Any] = [x]
            if before > 0:
                parts.insert(0, _end(lo, x, dim, before, False, mirrored))
            if after > 0:
                parts.append(_end(lo, x, dim, after, True, mirrored))
            wide = lo.concat(parts, dim)
            cut = max(0, -before)
            x = lo.slice(wide, dim, cut, wide.shape[dim] - cut - max(0, -after))
        return x

    @lowers(f"aten.{name}{rank}d_backward.default")
    def backward(lo: Lowering, gradient: Lowered, x: Lowered, padding: Sequence[int]) -> Any:
        for i in reversed(range(rank)):
            dim = len(x.shape) - 1 - i
            before, after = (max(0, n) for n in padding[2 * i : 2 * i + 2])
            cut, size = max(0, -padding[2 * i]), x.shape[dim]
            gradient = zeros_around(lo, gradient, dim, cut, before + size + after)
            total: Any = lo.slice(gradient, dim, before, size)
            for start, count, last in ((0, before, False), (before + size, after, True)):
                if count:
                    part = lo.slice(gradient, dim, start, count)
                    total = lo.add(total, _from_end(lo, part, dim, size, last, mirrored))
            gradient = total
        return gradient


for _rank in (1, 2, 3):
    _padding("reflection_pad", _rank, True)
    _padding("replication_pad", _rank, False)


# -- parts -----------------------------------------------------------------------------------------


def _apart(lo: Lowering, x: Lowered, dim: int, start: int, step: int, size: int) -> Any:
    """The entries of a dimension ``step`` apart from ``start`` on, of ``size``; zero between.

    Blocks of ``step`` begin at multiples of it, as those of the same dimension do in every rank.
    """
    count = x.shape[dim]
    if step == 1 or count == 1:
        return zeros_around(lo, x, dim, start, size)
    lead, rest = x.shape[:dim], x.shape[dim + 1 :]
    block, place = divmod(start, step)
    rows = lo.reshape(x, (*lead, count, 1, *rest))
    rows = lo.reshape(zeros_around(lo, rows, dim + 1, place, step), (*lead, count * step, *rest))
    rows = lo.slice(rows, dim, 0, min(count * step, size - block * step))
    return zeros_around(lo, rows, dim, block * step, size)


@lowers("aten.slice_backward.default")
def _slice_backward(
    lo: Lowering,
    gradient: Lowered,
    sizes: Sequence[int],
    dim: int,
    start: int,
    stop: int,
    step: int,
) -> Any:
    (at,) = dimensions(tuple(sizes), dim)
    if not prod(gradient.shape):
        return Const(Fraction(0), tuple(sizes), gradient.dtype)
    first, _ = bounds(sizes[at], start, stop)
    return _apart(lo, gradient, at, first, step, sizes[at])


@lowers("aten.unfold_backward.default")
def _unfold_backward(
    lo: Lowering, gradient: Lowered, sizes: Sequence[int], dim: int, size: int, step: int
) -> Any:
    """The sum of what each place of the windows got, where it lies in the dimension."""
    if not sizes:
        return lo.reshape(gradient, ())
    (at,) = dimensions(tuple(sizes), dim)
    last = len(gradient.shape) - 1
    if step == size:  # Windows beside each other.
        beside = lo.permute(gradient, (*range(at + 1), last, *range(at + 1, last)))
        flat = (*sizes[:at], gradient.shape[at] * size, *sizes[at + 1 :])
        return zeros_around(lo, lo.reshape(beside, flat), at, 0, sizes[at])
    total: Any = Const(Fraction(0), tuple(sizes), gradient.dtype)
    for place in range(size):
        part = lo.reshape(lo.slice(gradient, last, place, 1), gradient.shape[:-1])
        own = _apart(lo, part, at, place, step, sizes[at])
        total = lo.add(total, own) if place else own
    return total


@lowers("aten.diagonal_backward.default")
def _diagonal_backward(
    lo: Lowering, gradient: Lowered, sizes: Sequence[int], offset: int, dim1: int, dim2: int
) -> Any:
    """Every entry in its row, times a table that has 1 on the diagonal."""
    (row,), (column,) = dimensions(tuple(sizes), dim1), dimensions(tuple(sizes), dim2)
    if row == column:
        raise ShapeMismatch(f"the diagonal of dimension {row} and itself")
    if not prod(gradient.shape):
        return Const(Fraction(0), tuple(sizes), gradient.dtype)
    rows, columns = sizes[row], sizes[column]
    last = len(gradient.shape) - 1
    wide = zeros_around(lo, gradient, last, max(0, -offset), rows)
    order = [d for d in range(len(sizes)) if d not in (row, column)]
    order += [row, column]
    wide = lo.expand(lo.reshape(wide, (*wide.shape, 1)), tuple(sizes[d] for d in order))
    on = np.eye(rows, columns, offset, dtype=np.float32)
    marked = lo.mul(wide, lo.expand(table(lo, on, "float32"), wide.shape))
    return lo.permute(marked, tuple(order.index(d) for d in range(len(sizes))))


@lowers("aten.rot90.default")
def _rot90(lo: Lowering, x: Lowered, k: int = 1, dims: Sequence[int] = (0, 1)) -> Any:
    first, second = dimensions(x.shape, list(dims))
    turns = k % 4
    if turns == 2:
        return flip(lo, x, (first, second))
    if turns == 1:
        return lo.transpose(flip(lo, x, (second,)), first, second)
    return flip(lo, lo.transpose(x, first, second), (second,)) if turns == 3 else x
