"""Rows of a table by ids that are known, entry by entry: runs of rows, joined.

``where(lo <= i < hi, i - lo, 0)`` of positions that are divided over ranks is [0, 0, 0, 1]: a run
of equal ids, and one in which each id is the one before and 1.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from shardproof.frontends.aten.bits import along_one
from shardproof.frontends.aten.lowering import Const, Lowered, Lowering, Real, Shape
from shardproof.frontends.aten.positions import Positions
from shardproof.frontends.aten.windows import zeros_around

Array = NDArray[Any]

#: Runs that rows are joined of; of rows that are read again later fewer: a row that is added up of
#: several is a sum of so many parts in all that is made of it, a product with a table is one value.
MOST_RUNS, MOST_AGAIN = 32, 8


class Run(NamedTuple):
    """``size`` ids from ``first`` on, each the one before plus ``step``, which is 0 or 1.

    Example: 2, 3, 4 is ``Run(2, 1, 3)``.
    """

    first: int
    step: int
    size: int


def entries_of(lo: Lowering, ids: Lowered) -> Array | None:
    """The entries of ids that are a table of whole numbers; None: they are not known.

    Example: of the constant [0, 0, 0, 1] they are that; of a batch of tokens, None.
    """
    return lo.whole_tables.get(ids.number) if isinstance(ids, Real) else None


def few(ids: Array, rows: int) -> bool:
    """Whether rows of floats by known ids are joined of their runs, rather than a product with a
    table.

    Example: differences of all pairs of positions of a window, 4, 3, 1, 0, 5, 4, 2, 1, ..., are
    not: they are more than `MOST_AGAIN` runs, and most come again.
    """
    line = along_one(ids)
    if line is None:
        return False
    again = len(np.unique(line.entries)) <= np.count_nonzero(np.diff(line.entries))
    return runs(line.entries, rows, MOST_AGAIN if again else MOST_RUNS) is not None


def runs(line: Array, rows: int, most: int = MOST_RUNS) -> list[Run] | None:
    """Ids in their order as runs; None: there are more than ``most``, or ids of no row.

    Example: 0, 0, 0, 1 is ``Run(0, 0, 2)`` and ``Run(0, 1, 2)``: a rise is as long as it can be.
    """
    if not line.size or line.min() < 0 or line.max() >= rows:
        return None
    step = np.diff(line)
    parts: list[Run] = []
    start = 0
    while start < line.size:
        rest = step[start:]
        kind = int(len(rest) > 0 and rest[0] == 1)
        others = np.flatnonzero(rest != kind)
        count = int(others[0]) + 1 if len(others) else len(rest) + 1
        if not kind and count > 1 and start + count < line.size and rest[count - 1] == 1:
            count -= 1
        parts.append(Run(int(line[start]), kind, count))
        if len(parts) > most:
            return None
        start += count
    return parts


def rows_by(lo: Lowering, table: Lowered, ids: Array) -> Any:
    """Rows of a table [rows, ...] by known ids; None: these vary along more than one dimension, are
    of many runs, or of no row.

    Example: rows [0, 0, 0, 1] of a table [2, 8] are row 0 twice, then rows 0 and 1: [4, 8].
    """
    line = along_one(ids)
    parts = None if line is None else runs(line.entries, table.shape[0])
    if line is None or parts is None:
        return None
    rest = table.shape[1:]
    pieces = [
        lo.slice(table, 0, run.first, run.size)
        if run.step
        else lo.expand(lo.slice(table, 0, run.first, 1), (run.size, *rest))
        for run in parts
    ]
    wide = tuple(n if d == line.dim else 1 for d, n in enumerate(ids.shape))
    return lo.expand(lo.reshape(lo.concat(pieces, 0), (*wide, *rest)), (*ids.shape, *rest))


def added_by(lo: Lowering, gradient: Lowered, ids: Array, rows: int) -> Any:
    """A table of ``rows`` rows: what the gradient [ids..., ...] has of each, added up; None: as of
    `rows_by`.

    Example: of a gradient [4, 8] by ids [0, 0, 0, 1] row 0 is the sum of its first three rows.
    """
    line = along_one(ids)
    parts = None if line is None else runs(line.entries, rows)
    if line is None or parts is None:
        return None
    rest = gradient.shape[ids.ndim :]
    others = tuple(d for d in range(ids.ndim) if d != line.dim)
    flat = lo.reshape(lo.sum(gradient, others), (len(line.entries), *rest))
    total: Any = None
    start = 0
    for run in parts:
        part: Any = lo.slice(flat, 0, start, run.size)
        start += run.size
        part = zeros_around(lo, part if run.step else lo.sum(part, (0,), True), 0, run.first, rows)
        total = part if total is None else lo.add(total, part)
    return total


class Joined(NamedTuple):
    """Known indices of ``dims`` dimensions from ``first`` on, as ids of one dimension in their
    place.

    Example: of x [2, 3, 3] by rows [0, 0, 1] and columns [1, 2, 2] of its last two dimensions,
    ``Joined(1, 2, [1, 2, 5])``.
    """

    first: int
    dims: int
    ids: Array


def joined(lo: Lowering, shape: Shape, indices: Sequence[Lowered | None]) -> Joined | None:
    """Indices of dimensions side by side, whose entries are known, as one; None: they are others,
    or of no entry.

    Example: ``x[:, triu[0], triu[1]]``, with tables of the pairs above a diagonal.
    """
    own = [(dim, index) for dim, index in enumerate(indices) if index is not None]
    dims = [dim for dim, _ in own]
    if len(own) < 2 or dims != list(range(dims[0], dims[0] + len(own))) or dims[-1] >= len(shape):
        return None
    entries = [_numbers(lo, index) for _, index in own]
    arrays = [array for array in entries if array is not None]
    sizes = shape[dims[0] : dims[-1] + 1]
    if len(arrays) < len(own) or any(
        not array.size or array.min() < -size or array.max() >= size
        for array, size in zip(arrays, sizes, strict=True)
    ):
        return None
    front = [array % size for array, size in zip(arrays, sizes, strict=True)]
    return Joined(dims[0], len(own), np.ravel_multi_index(np.broadcast_arrays(*front), sizes))


def _numbers(lo: Lowering, index: Lowered) -> Array | None:
    """The entries of an index; None: they are not known."""
    if isinstance(index, Positions):
        return np.broadcast_to(index.moving(), index.shape)
    if isinstance(index, Const) and index.dtype != "bool" and index.value.denominator == 1:
        return np.full(index.shape, int(index.value))
    return entries_of(lo, index)


def places_by(lo: Lowering, x: Lowered, at: Joined) -> Any:
    """Entries of a tensor [a..., n, m, b...] by joined indices [k...], [a..., k..., b...]; None:
    they are in many runs.

    Example: of x [2, 3, 3] by ``Joined(1, 2, [1, 2, 5])`` three numbers of each of two, [2, 3].
    """
    lead, rest = x.shape[: at.first], x.shape[at.first + at.dims :]
    first, last = len(lead), len(rest)
    flat = lo.reshape(x, (*lead, _size(x.shape, at), *rest))
    rows = rows_by(lo, lo.permute(flat, _to_front(first, 1, last)), at.ids)
    return None if rows is None else lo.permute(rows, _to_back(first, at.ids.ndim, last))


def added_places(lo: Lowering, gradient: Lowered, at: Joined, shape: Shape) -> Any:
    """A tensor of a shape: what a gradient has of each of its entries by joined indices, added up;
    None: they are in many runs.

    Example: of a gradient [2, 3] by ``Joined(1, 2, [1, 2, 5])`` the three numbers of each of two at
    their places in [2, 3, 3], zeros elsewhere.
    """
    lead, rest = shape[: at.first], shape[at.first + at.dims :]
    first, last = len(lead), len(rest)
    front = lo.permute(gradient, _to_front(first, at.ids.ndim, last))
    rows = added_by(lo, front, at.ids, _size(shape, at))
    return None if rows is None else lo.reshape(lo.permute(rows, _to_back(first, 1, last)), shape)


def _size(shape: Shape, at: Joined) -> int:
    return prod(shape[at.first : at.first + at.dims])


def _to_front(first: int, count: int, last: int) -> tuple[int, ...]:
    """The order that brings ``count`` dimensions behind ``first`` others to the front."""
    middle = range(first, first + count)
    return (*middle, *range(first), *range(first + count, first + count + last))


def _to_back(first: int, count: int, last: int) -> tuple[int, ...]:
    """The order that undoes `_to_front`."""
    end = first + count
    return (*range(count, end), *range(count), *range(end, end + last))
