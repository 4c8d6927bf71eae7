"""The order of positions: one where a key does not come after a query, zero elsewhere."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from fractions import Fraction
from itertools import pairwise
from typing import Final, NamedTuple

import numpy as np

from shardproof.frontends.graphs.graph import Shape
from shardproof.frontends.graphs.recorder import Recorder
from shardproof.frontends.hlo import origins
from shardproof.frontends.hlo.known import Known, compact
from shardproof.frontends.hlo.module import Array

#: Marks of positions that differ by rank are written one by one up to so many stretches.
MOST_STRETCHES: Final = 64


def is_causal(mask: Known) -> bool:
    """Whether a predicate is true exactly where the key (the last dimension) does not come after
    the query (the one before), on every rank.

    Example: the lower triangle of ``pred[4,4]``, repeated for heads or not; the upper one is not.
    """
    if len(mask.shape) < 2 or mask.shape[-1] != mask.shape[-2]:
        return False
    count = mask.shape[-1]
    below = np.tril(np.ones((count, count), dtype=bool))
    for array in mask.arrays:
        core = compact(array)
        if core.shape[-2:] != (count, count) or not np.array_equal(
            core, np.broadcast_to(below, core.shape)
        ):
            return False
    return True


class Triangle(NamedTuple):
    """Ones where a column is at most ``behind`` (0, or -1: before) the row; ``upper``: with rows
    for columns.

    Example: what lies below the diagonal of 4 by 4 is ``Triangle(4, -1)``.
    """

    size: int
    behind: int
    upper: bool = False


def triangle_of(table: Array) -> Triangle | None:
    """The triangle that a table is, with its diagonal or without; None: it is none.

    Example: of ``[[0, 0], [1, 0]]``, ``Triangle(2, -1)``.
    """
    if table.ndim != 2 or table.shape[0] != table.shape[1] or table.shape[0] < 2:
        return None
    count = table.shape[0]
    for behind in (0, -1):
        below = np.tril(np.ones((count, count)), behind)
        for upper in (False, True):
            if np.array_equal(table, below.T if upper else below):
                return Triangle(count, behind, upper)
    return None


def is_divided(single: Recorder, ranks: Recorder) -> bool:
    """Whether ranks have a triangle that is a block on the diagonal of a larger one of the single
    device, and do not say that it begins elsewhere there on each rank.

    Example: running sums of 16 positions, of which every rank has four: triangles of 16 by 16 and
    of 4 by 4.
    """
    whole, own = (
        {
            made.size
            for constant in recorder.constants
            for array in constant.arrays
            if not constant.drawn and len(set(constant.begins)) < 2
            if (made := triangle_of(array)) is not None
        }
        for recorder in (single, ranks)
    )
    return any(n < full and full % n == 0 for n in own for full in whole)


def ordered(
    recorder: Recorder,
    arrays: Sequence[Array],
    by_rank: Callable[[Sequence[object], Shape], int],
    triangles: bool,
    tables: Sequence[Array],
) -> int | None:
    """Known numbers as a block of the order of positions (where ``triangles`` are such), or as
    stretches of zeros and ones that differ by rank and that none of the other side's ``tables``
    has; None: they are neither.  ``by_rank``: a tensor of one number on each rank.

    Example: of [1, 0] on rank 1 and [0, 0] on rank 0, two stretches of one position.
    """
    own = triangle_of(arrays[0]) if triangles else None
    if own is not None and all(np.array_equal(a, arrays[0]) for a in arrays):
        return written(recorder, own)
    line = arrays[0].shape
    if not triangles and (origins.lie(arrays, line, tables) or origins.row(arrays, line, tables)):
        return None
    if (parts := stretches(arrays)) is None:
        return None
    made = [by_rank([int(a[start]) for a in arrays], (size,)) for start, size in parts]
    return recorder.op("concat", *made, dim=0) if len(made) > 1 else made[0]


def written(recorder: Recorder, made: Triangle) -> int:
    """A triangle as a block of the order of positions.

    Example: what lies below the diagonal of 4 by 4 is the order of 5 positions without the last
    row and the first column.
    """
    whole = triangle(recorder, made.size - made.behind)
    if made.behind:
        rows = recorder.op("slice", whole, dim=0, start=0, size=made.size)
        whole = recorder.op("slice", rows, dim=1, start=-made.behind, size=made.size)
    return recorder.op("permute", whole, dims=(1, 0)) if made.upper else whole


def stretches(arrays: Sequence[Array]) -> list[tuple[int, int]] | None:
    """Where marks along one dimension change on any rank: start and size of what lies between;
    None: they are the same on all ranks, no marks, of several dimensions, or change too often.

    Example: of [0, 0, 0] and [1, 1, 0], (0, 2) and (2, 1).
    """
    if len(arrays) < 2 or any(a.ndim != 1 or not np.isin(a, (0, 1)).all() for a in arrays):
        return None
    together = np.stack(arrays)
    changes = np.flatnonzero((together[:, 1:] != together[:, :-1]).any(axis=0)) + 1
    if len(changes) >= MOST_STRETCHES:
        return None
    edges = [0, *map(int, changes), together.shape[1]]
    return [(a, b - a) for a, b in pairwise(edges)]


def triangle(recorder: Recorder, count: int) -> int:
    """The order of so many positions, as a matrix: queries, then keys.

    Example: of 2 positions [[1, 0], [1, 1]].
    """
    ones = recorder.op("full", size=(1, count, count), value=Fraction(1))
    lower = recorder.op("tril", ones)
    dtype = recorder.values[lower].dtype
    return recorder.op("view", lower, size=(count, count), dtype=dtype)
