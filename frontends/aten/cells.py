"""Masks of attention whose rows show several intervals of columns, as keys in the order of the
ranks that they are gathered of (zigzag): cells of rows and columns, each of which is part of a
causal mask.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from shardproof.engine.errors import Unsupported
from shardproof.frontends.aten.lowering import Lowering
from shardproof.frontends.aten.tables import TABLES

#: Cells that a mask is divided into, and how many entries there are of it for each at least.
MOST_CELLS: Final = 64
_ENTRIES: Final = 4


class Cell(NamedTuple):
    """Rows and columns of a mask, in which row i hides column j where ``j - i > last`` (both from
    the cell's first on).

    Example: of a causal mask of 4 positions, the rows 2 and 3 and the columns 0 and 1 are ``Cell(2,
    4, 0, 2, 1)``: none is hidden.
    """

    start: int
    stop: int
    left: int
    right: int
    last: int


def cells(lo: Lowering, hidden: NDArray[np.bool_]) -> list[list[Cell]]:
    """The cells of a rank's mask [rows, columns] from top to bottom, each from left to right;
    raises `Unsupported` on the single side, beside one that has a mask of as many columns as a
    table, where a row shows no column, for many cells, and where one is no part of a causal mask.

    Example: of queries 0 and 3, and keys in the order 0, 3, 1, 2: query 0 alone, for which keys 3,
    1 and 2 are hidden, and query 3, for which none is.
    """
    if lo.shared is None or _has_table(lo, hidden.shape[1]):
        raise Unsupported("a mask of minus infinity that is a table of the single side")
    if hidden.all(axis=1).any():
        raise Unsupported("a row of a mask that shows no column")
    columns = _stretches(hidden)
    bands: list[list[Cell]] = []
    start, rows = 0, hidden.shape[0]
    while start < rows:
        band, size = _band(hidden, columns, start, 1), 1
        while start + size < rows and None not in (
            longer := _band(hidden, columns, start, size + 1)
        ):
            band, size = longer, size + 1
        kept = [part for cell in band if cell is not None for part in _around_diagonal(cell)]
        many = (len(bands) + 1) * len(columns) > min(MOST_CELLS, hidden.size // _ENTRIES)
        if many or None in band:
            raise Unsupported("a mask of minus infinity that is not made of a few causal ones")
        bands.append(kept)
        start += size
    return bands


def _has_table(lo: Lowering, columns: int) -> bool:
    """Whether the single side has a table of ones and zeros with so many columns."""
    every = [array for name, array in (lo.shared or {}).items() if name.startswith(TABLES)]
    masks = (array for array in every if array.ndim > 1 and array.shape[-1] == columns)
    return any(bool(((array == 0) | (array == 1)).all()) for array in masks)


def _stretches(hidden: NDArray[np.bool_]) -> list[tuple[int, int]]:
    """Columns that are beside each other as in a causal mask: none is shown to a row that the one
    before is hidden from, and it is hidden from one row more at most."""
    before, behind = hidden[:, :-1], hidden[:, 1:]
    begins = (before & ~behind).any(axis=0) | ((~before & behind).sum(axis=0) > 1)
    return list(pairwise([0, *(int(i) + 1 for i in np.flatnonzero(begins)), hidden.shape[1]]))


def _band(
    hidden: NDArray[np.bool_], columns: list[tuple[int, int]], start: int, rows: int
) -> list[Cell | None]:
    """A cell for each stretch of columns of some rows; None: it is no part of a causal mask."""
    return [_cell(hidden[start : start + rows, left:right], start, left) for left, right in columns]


def _cell(hidden: NDArray[Any], start: int, left: int) -> Cell | None:
    rows, columns = hidden.shape
    apart = np.arange(columns) - np.arange(rows)[:, None]
    last = int(apart[~hidden].max(initial=-rows))
    alike = bool((hidden == (apart > last)).all())
    return Cell(start, start + rows, left, left + columns, last) if alike else None


def _around_diagonal(cell: Cell) -> list[Cell]:
    """The columns of a cell before its diagonal, along it, and behind it."""
    rows, columns = cell.stop - cell.start, cell.right - cell.left
    ends = sorted({0, *(min(max(n, 0), columns) for n in (cell.last, cell.last + rows)), columns})
    return [
        cell._replace(left=cell.left + a, right=cell.left + b, last=cell.last - a)
        for a, b in pairwise(ends)
    ]
