"""Rows of a table by ids that are known, entry by entry: runs of rows, joined.

``where(lo <= i < hi, i - lo, 0)`` of positions that are divided over ranks is [0, 0, 0, 1]: a run
of equal ids, and one in which each id is the one before and 1.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from shardproof.frontends.aten.bits import along_one
from shardproof.frontends.aten.lowering import Lowered, Lowering, Real
from shardproof.frontends.aten.windows import zeros_around

Array = NDArray[Any]

#: Runs that rows are joined of.
MOST_RUNS = 32


class Run(NamedTuple):
    """``count`` ids from ``first`` on, each the one before plus ``step``, which is 0 or 1."""

    first: int
    step: int
    count: int


def entries_of(lo: Lowering, ids: Lowered) -> Array | None:
    """The entries of ids that are a table of whole numbers; None: they are not known.

    Example: of the constant [0, 0, 0, 1] they are that; of a batch of tokens, None.
    """
    return lo.whole_tables.get(ids.number) if isinstance(ids, Real) else None


def runs(line: Array, rows: int) -> list[Run] | None:
    """Ids in their order as runs; None: there are more than `MOST_RUNS`, or ids of no row.

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
        if len(parts) > MOST_RUNS:
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
        lo.slice(table, 0, run.first, run.count)
        if run.step
        else lo.expand(lo.slice(table, 0, run.first, 1), (run.count, *rest))
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
        part: Any = lo.slice(flat, 0, start, run.count)
        start += run.count
        part = zeros_around(lo, part if run.step else lo.sum(part, (0,), True), 0, run.first, rows)
        total = part if total is None else lo.add(total, part)
    return total
