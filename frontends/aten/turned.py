"""Positions moved on around the end, in falling order, or as copies one after the other."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np

from shardproof.frontends.aten.lowering import Lowered, Lowering, Real, dimensions
from shardproof.frontends.aten.rules import lowers
from shardproof.frontends.aten.windows import matrix, through


@lowers("aten.roll.default")
def _roll(lo: Lowering, x: Lowered, shifts: Sequence[int], dims: Sequence[int] = ()) -> Any:
    if not dims:
        (shift,) = shifts if isinstance(shifts, (list, tuple)) else (shifts,)
        flat = lo.reshape(x, (prod(x.shape),))
        return lo.reshape(_roll(lo, flat, [shift], [0]), x.shape)
    by: dict[int, int] = {}
    for shift, dim in zip(shifts, dimensions(x.shape, list(dims)), strict=True):
        by[dim] = (by.get(dim, 0) + shift) % max(x.shape[dim], 1)
    along = {dim: shift for dim, shift in by.items() if shift}
    if len(along) > 1 and isinstance(x, Real) and "float" in x.dtype:
        for dim, shift in along.items():
            x = through(lo, x, dim, _turning(lo, x.shape[dim], shift))
        return x
    for dim, shift in along.items():
        last = lo.slice(x, dim, x.shape[dim] - shift, shift)
        x = lo.concat([last, lo.slice(x, dim, 0, x.shape[dim] - shift)], dim)
    return x


def _turning(lo: Lowering, size: int, shift: int) -> Real:
    """The table that moves positions on by ``shift``; that of the way back is the same one, with
    its dimensions exchanged.

    Images are turned so along two dimensions (windows of attention that are shifted), and each
    rank turns whole ones: a product with a table is one value, where four parts side by side would
    be read apart in everything that is made of them.
    """
    back = 2 * shift > size
    ones = np.roll(np.eye(size, dtype=np.float32), size - shift if back else shift, axis=1)
    return matrix(lo, ones, transposed=back)


@lowers("aten.flip.default")
def flip(lo: Lowering, x: Lowered, dims: Sequence[int]) -> Any:
    """Positions of dimensions in falling order.

    Example: ``flip(lo, x, [0])`` of [3, 4] is its rows 2, 1 and 0.
    """
    for dim in dimensions(x.shape, list(dims)) if dims else ():
        parts = [lo.slice(x, dim, i, 1) for i in reversed(range(x.shape[dim]))]
        x = lo.concat(parts, dim)
    return x


@lowers("aten.repeat.default")
def repeat(lo: Lowering, x: Lowered, repeats: Sequence[int]) -> Any:
    """Copies one after the other: a new dimension before each, expanded.

    Example: ``repeat(lo, x, [2, 1])`` of [3, 4] is [6, 4], all of its rows twice.
    """
    lead = len(repeats) - len(x.shape)
    shape = (*(1 for _ in range(lead)), *x.shape)
    split = tuple(n for size in shape for n in (1, size))
    wide = tuple(n for r, size in zip(repeats, shape, strict=True) for n in (r, size))
    whole = tuple(r * n for r, n in zip(repeats, shape, strict=True))
    return lo.reshape(lo.expand(lo.reshape(x, split), wide), whole)
