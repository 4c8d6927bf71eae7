"""Tables of known values: named inputs of both sides, called by their contents."""

from __future__ import annotations

import hashlib
from itertools import combinations
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shardproof.engine.algebra.affine import ZERO
from shardproof.engine.plan.ir import Shard
from shardproof.frontends.aten.lowering import Lowering, Real

Array = NDArray[Any]

#: Entries of a table of the single side in which a rank's part is looked for.
MOST_SEARCHED = 1 << 14
#: What names of tables begin with, and those of known entries that are none (`note_level`).
TABLES, LEVELS = "constant ", "level "
#: Runs of rows of such a table that a rank has beside each other.
MOST_RUNS = 8


def table(lo: Lowering, array: Array, dtype: str) -> Any:
    """An input by its contents: what does not vary along a dimension, or repeats in it, is one
    table, expanded; a rank's part of a table of the single side is a slice of that; any other one
    is an input of which nothing is known on the single side.

    Example: [[1, 2], [1, 2]] is one input of shape (2,) that is called "constant" and the first 32
    digits of a hash of its entries, viewed as [1, 2] and expanded to [2, 2]; so is [1, 2, 1, 2].

    Features, the last of several dimensions, are left as they are where ranks have fewer rows of a
    parameter than one period: rotary tables have every angle twice, and heads in two halves could
    not be cut in as many parts as heads (`Lowering.cuts`).
    """
    periods = [_period(array, d) for d in range(array.ndim)]
    varied = [d for d, n in enumerate(array.shape) if n > 1]
    if len(varied) > 1 and _is_cut(lo, array.shape[varied[-1]], periods[varied[-1]]):
        periods[varied[-1]] = array.shape[varied[-1]]
    least = array[tuple(slice(0, period) for period in periods)]
    made = least.reshape(tuple(n for n in least.shape if n != 1))
    digest = hashlib.sha256(made.tobytes() + repr((made.shape, dtype)).encode()).hexdigest()[:32]
    name = f"{TABLES}{digest}"
    part = None
    if lo.shared is not None and name not in lo.shared:
        part = _part(lo, made, dtype)
    if part is None:
        part = named_input(lo, name, made, dtype)
    once = tuple(n for period in periods for n in (1, period))
    times = tuple(
        n for size, p in zip(array.shape, periods, strict=True) for n in (size // p if p else 1, p)
    )
    value = lo.reshape(lo.expand(lo.reshape(part, once), times), array.shape)
    if array.dtype.kind == "i" and isinstance(value, Real):
        lo.whole_tables[value.number] = array
    return value


def _is_cut(lo: Lowering, size: int, period: int) -> bool:
    """Whether a rank has a part of one of several periods of a head of ``size`` features."""
    return 1 < period < size and any(rows < period and full % size == 0 for full, rows in lo.cuts)


def _period(array: Array, dim: int) -> int:
    """After how many positions of a dimension a table is the same again, up to its end."""
    size = int(array.shape[dim])
    for period in (n for n in range(1, size // 2 + 1) if size % n == 0):
        rest = array.take(range(period, size), dim)
        if (rest == array.take(range(size - period), dim)).all():
            return period
    return size


def named_input(lo: Lowering, name: str, table: Array, dtype: str) -> Any:
    """A table as a named input of its shape.

    Example: [1, 2] that is called "constant 0f..." is an input of shape (2,).
    """
    shape = table.shape
    if name not in lo.tables:
        domain = (int(table.min()), int(table.max()) + 1) if table.dtype.kind == "i" else None
        shard = Shard(
            name, shape, shape, (ZERO,) * len(shape), dtype, False, kind="constant", domain=domain
        )
        lo.tables[name] = lo.hold(shard)
        lo.contents[name] = table
    return lo.tables[name]


def _part(lo: Lowering, table: Array, dtype: str) -> Any:
    """A part of a table that the single side has; None: it is none."""
    for name, whole in _shared(lo, TABLES):
        box = _box(whole, table)
        if box is not None:
            value = named_input(lo, name, whole, dtype)
            for dim, (at, size) in enumerate(box):
                value = lo.slice(value, dim, at, size)
            return value
    return _dealt(lo, table, dtype)


def note_level(lo: Lowering, array: Array) -> None:
    """Note known entries that are written as no table, so that ranks write theirs so, too.

    Example: [0, 0, 1, 1], which is two zeros and two ones.
    """
    lo.contents[f"{LEVELS}{len(lo.contents)}"] = array


def is_part(lo: Lowering, array: Array) -> bool:
    """Whether the single side has known entries as part of a table, and of nothing that it writes
    without one.

    Example: [0, 1] of a rank, beside the table [0, 1, 2, 3].
    """
    least = array.reshape(tuple(n for n in array.shape if n != 1))
    within = (
        any(_box(whole.squeeze(), least) for _, whole in known)
        for known in (_shared(lo, LEVELS), _shared(lo, TABLES))
    )
    return not next(within) and next(within)


def _shared(lo: Lowering, kind: str) -> list[tuple[str, Array]]:
    """What the single side has of known entries, by name."""
    every = (lo.shared or {}).items()
    return [(name, whole) for name, whole in every if name.startswith(kind)]


def _box(whole: Array, table: Array) -> list[tuple[int, int]] | None:
    """Where a table lies in another one: start and size of each dimension; None: nowhere."""
    if whole.dtype != table.dtype or whole.size > MOST_SEARCHED:
        return None
    for one in combinations(range(whole.ndim), max(0, whole.ndim - table.ndim)):
        part = np.expand_dims(table, one)
        start = _place(whole, part)
        if start is not None:
            return list(zip(start, part.shape, strict=True))
    return None


def _dealt(lo: Lowering, table: Array, dtype: str) -> Any:
    """Rows of a table that the single side has, in a few runs; None: they are none.

    Example: of a mask of 8 rows, in which each sees all but itself, the rows 0, 1, 4 and 5.
    """
    for name, whole in _shared(lo, TABLES):
        alike = whole.dtype == table.dtype and whole.shape[1:] == table.shape[1:]
        if not alike or not table.ndim or whole.size > MOST_SEARCHED:
            continue
        runs = _runs(whole, table)
        if runs:
            value = named_input(lo, name, whole, dtype)
            return lo.concat([lo.slice(value, 0, at, size) for at, size in runs], 0)
    return None


def _runs(whole: Array, table: Array) -> list[tuple[int, int]]:
    """Where rows are in a table whose rows are all unlike: as few runs as there are (at most
    `MOST_RUNS`); empty: some are not there."""
    places = {row.tobytes(): i for i, row in enumerate(whole)}
    rows = [places.get(row.tobytes(), -1) for row in np.ascontiguousarray(table)]
    if len(places) < len(whole) or -1 in rows:
        return []
    runs: list[tuple[int, int]] = []
    for row in rows:
        if runs and row == sum(runs[-1]):
            runs[-1] = runs[-1][0], runs[-1][1] + 1
        else:
            runs.append((row, 1))
    return runs if len(runs) <= MOST_RUNS else []


def _place(whole: Array, part: Array) -> tuple[int, ...] | None:
    """Where a table begins that is a box of another one; None: it is none."""
    if whole.ndim != part.ndim or any(n > m for n, m in zip(part.shape, whole.shape, strict=True)):
        return None
    windows = np.lib.stride_tricks.sliding_window_view(whole, part.shape)
    alike = (windows == part).all(axis=tuple(range(part.ndim, 2 * part.ndim)))
    places = np.argwhere(alike)
    return tuple(int(n) for n in places[0]) if len(places) else None
