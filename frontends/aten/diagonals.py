"""Diagonals of matrices, and windows over a dimension, as copies."""

from __future__ import annotations

from typing import Any

import numpy as np

from shardproof.frontends.aten.lowering import Lowered, Lowering, Shape, dimensions
from shardproof.frontends.aten.pointwise import _padded
from shardproof.frontends.aten.rules import lowers
from shardproof.frontends.aten.tables import table


def _one_hot(lo: Lowering, rows: int, columns: int, offset: int, dtype: str) -> Any:
    """1 on a diagonal of a matrix."""
    return table(lo, np.eye(rows, columns, offset, dtype=np.float32), dtype)


def _length(rows: int, columns: int, offset: int) -> tuple[int, int]:
    """Where a diagonal begins in the rows, and how many entries it has."""
    first = max(0, -offset)
    return first, max(0, min(rows - first, columns - first - offset))


def _last_two(lo: Lowering, x: Lowered, dim1: int, dim2: int) -> Any:
    (a,), (b,) = dimensions(x.shape, dim1), dimensions(x.shape, dim2)
    rest = tuple(d for d in range(len(x.shape)) if d not in (a, b))
    return lo.permute(lo.real(x), (*rest, a, b)), (*rest, a, b)


@lowers("aten.diagonal_copy.default")
def _diagonal(lo: Lowering, x: Lowered, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Any:
    """[..., n] of [..., n, m], the two dimensions anywhere."""
    turned, _ = _last_two(lo, x, dim1, dim2)
    *lead, rows, columns = turned.shape
    first, count = _length(rows, columns, offset)
    square = lo.slice(turned, len(lead), first, count)
    square = lo.slice(square, len(lead) + 1, first + offset, count)
    ones = _one_hot(lo, count, count, 0, turned.dtype)
    return lo.sum(lo.mul(square, ones), (len(lead) + 1,))


def _placed(lo: Lowering, x: Any, rows: int, columns: int, offset: int) -> Any:
    """[..., rows, columns] with the entries [..., n] on a diagonal."""
    *lead, count = x.shape
    first, _ = _length(rows, columns, offset)
    square = lo.mul(lo.reshape(x, (*lead, count, 1)), _one_hot(lo, count, count, 0, x.dtype))
    tall = _padded(lo, square, len(lead), first, rows - first - count, 0.0)
    before = first + offset
    return _padded(lo, tall, len(lead) + 1, before, columns - before - count, 0.0)


def _back(lo: Lowering, x: Any, order: tuple[int, ...]) -> Any:
    return lo.permute(x, tuple(order.index(d) for d in range(len(order))))


@lowers("aten.diag_embed.default")
def _diag_embed(lo: Lowering, x: Lowered, offset: int = 0, dim1: int = -2, dim2: int = -1) -> Any:
    rank, size = len(x.shape) + 1, x.shape[-1] + abs(offset)
    a, b = dim1 % rank, dim2 % rank
    rest = tuple(d for d in range(rank) if d not in (a, b))
    return _back(lo, _placed(lo, lo.real(x), size, size, offset), (*rest, a, b))


# -- windows ---------------------------------------------------------------------------------------


@lowers("aten.unfold_copy.default")
def _windows(lo: Lowering, x: Lowered, dimension: int, size: int, step: int) -> Any:
    """[..., n, ...] as [..., windows, ..., size]."""
    (at,) = dimensions(x.shape, dimension)
    count = (x.shape[at] - size) // step + 1
    last = len(x.shape)
    parts = []
    for i in range(size):
        rows = [lo.slice(x, at, i + w * step, 1) for w in range(count)]
        parts.append(lo.reshape(lo.concat(rows, at), (*shape_with(x.shape, at, count), 1)))
    return lo.concat(parts, last)


def shape_with(shape: Shape, dim: int, count: int) -> Shape:
    """A shape with another number of positions along a dimension.

    Example: (2, 8) with 3 along 1 is (2, 3).
    """
    return (*shape[:dim], count, *shape[dim + 1 :])


@lowers("aten.diag.default")
def _diag(lo: Lowering, x: Lowered, diagonal: int = 0) -> Any:
    """A matrix of a vector on its diagonal; of a matrix the diagonal."""
    if len(x.shape) == 1:
        return _diag_embed(lo, x, diagonal, 0, 1)
    return _diagonal(lo, x, diagonal)


@lowers("aten.trace.default")
def _trace(lo: Lowering, x: Lowered) -> Any:
    return lo.sum(_diagonal(lo, x), (0,))
