"""Masks of known entries that compare no two positions: windows, documents, rows dealt to ranks.

Where every row shows one interval of columns, the rows fall into runs in which its ends stand still
or move with the row: each run is a mask that compares positions, or two of them.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from shardproof.engine.errors import Unsupported
from shardproof.frontends.aten.lowering import Lowering, Real, Shape
from shardproof.frontends.aten.positions import Compared, Positions

#: Entries of a mask that is read row by row, and runs of rows that one is divided into.
MOST_ENTRIES, MOST_RUNS = 1 << 26, 64
#: Entries of a mask that compares positions, as they are written out.
MOST_WRITTEN = 1 << 20


@dataclass(frozen=True, slots=True, eq=False)
class Bits:
    """A mask by its entries.

    Example: the mask of a window of two keys, ``(j <= i) & (i - j < 2)``.
    """

    array: NDArray[np.bool_]

    @property
    def shape(self) -> Shape:
        """That of the entries."""
        return self.array.shape

    @property
    def dtype(self) -> str:
        """A mask's: bool."""
        return "bool"

    def reshape(self, shape: Shape) -> Bits:
        """The same entries, in their order, in another shape."""
        return Bits(self.array.reshape(shape))

    def expand(self, shape: Shape) -> Bits:
        """The mask repeated along dimensions of size 1 and new leading ones."""
        return Bits(np.broadcast_to(self.array, shape))

    def permute(self, order: Sequence[int]) -> Bits:
        """The mask with its dimensions in another order."""
        return Bits(self.array.transpose(order))

    def slice(self, dim: int, start: int, size: int) -> Bits:
        """The mask of ``size`` positions of a dimension, from ``start`` on."""
        index = (slice(None),) * dim
        return Bits(self.array[(*index, slice(start, start + size))])

    def inverse(self) -> Bits:
        """True where this is not."""
        return Bits(~self.array)

    def real(self, lo: Lowering) -> Real:
        """Refused: which masks become tables of 0 and 1 is `constants.as_flags`' decision."""
        raise Unsupported("a mask of constants as numbers")


@dataclass(frozen=True, slots=True, eq=False)
class Additive:
    """What is added to scores: minus infinity where ``where`` is true, elsewhere ``numbers``, which
    are 0 where it is (None: 0 everywhere).

    Example: ``torch.full((4, 4), -inf).triu(1)``, the causal mask of scores; that and the slopes of
    ALiBi have the slopes as numbers.
    """

    where: Compared | Bits
    dtype: str
    numbers: NDArray[Any] | None = None

    @property
    def shape(self) -> Shape:
        """That of the mask."""
        return self.where.shape

    def _both(
        self, where: Compared | Bits, move: Callable[[NDArray[Any]], NDArray[Any]]
    ) -> Additive:
        return Additive(where, self.dtype, None if self.numbers is None else move(self.numbers))

    def reshape(self, shape: Shape) -> Additive:
        """The same mask in another shape."""
        return self._both(self.where.reshape(shape), lambda n: n.reshape(shape))

    def expand(self, shape: Shape) -> Additive:
        """The mask repeated along dimensions of size 1 and new leading ones."""
        return self._both(self.where.expand(shape), lambda n: np.broadcast_to(n, shape))

    def permute(self, order: Sequence[int]) -> Additive:
        """The mask with its dimensions in another order."""
        return self._both(self.where.permute(order), lambda n: n.transpose(order))

    def slice(self, dim: int, start: int, size: int) -> Additive:
        """The mask of ``size`` positions of a dimension, from ``start`` on."""
        index = (*(slice(None) for _ in range(dim)), slice(start, start + size))
        return self._both(self.where.slice(dim, start, size), lambda n: n[index])

    def real(self, lo: Lowering) -> Real:
        """Refused: minus infinity is no number; a softmax reads it as a mask."""
        raise Unsupported("a mask of minus infinity as numbers")


class Run(NamedTuple):
    """``rows`` of a mask from ``start`` on, which hides columns j of its row i where j > i + last
    and where j < i + least (None: none on that side).

    Example: of a causal window of two keys over 4 rows, ``Run(0, 4, 0, -1)``.
    """

    start: int
    rows: int
    last: int | None
    least: int | None


def plane(mask: Compared | Bits, shape: Shape) -> Compared | Bits:
    """A mask that is the same for all leading indices, of the last two; raises `Unsupported`.

    Example: of a mask ``[1, 1, 4, 4]`` for scores ``[2, 8, 4, 4]``, one of 4 rows and 4 columns.
    """
    if len(shape) < 2:
        raise Unsupported("a mask without rows and columns")
    wide = mask.expand(shape)
    if isinstance(wide, Compared):
        of = wide.of
        if any(of.steps[:-2]):
            raise Unsupported("a mask that differs along more than two dimensions")
        return Compared(Positions(of.const, of.steps[-2:], shape[-2:], of.dtype))
    # What is repeated along leading dimensions is looked at once.
    once = wide.array[tuple(slice(None) if s else slice(1) for s in wide.array.strides[:-2])]
    if once.size > MOST_ENTRIES:
        raise Unsupported("a large mask of constants")
    array = once.reshape(-1, *shape[-2:])
    if not (array == array[:1]).all():
        raise Unsupported("a mask that differs along more than two dimensions")
    return Bits(array[0])


def entries(mask: Compared | Bits) -> NDArray[Any]:
    """What a mask of rows and columns is, entry by entry; raises `Unsupported` for a large one.

    Example: of the positions ``j - i - 1`` of 2 rows and 2 columns, ``[[False, True], [False,
    False]]``.
    """
    if prod(mask.shape) > (MOST_ENTRIES if isinstance(mask, Bits) else MOST_WRITTEN):
        raise Unsupported("a large mask of constants")
    if isinstance(mask, Bits):
        return mask.array
    i, j = np.indices(mask.shape)
    of = mask.of
    return np.asarray(of.const + of.steps[0] * i + of.steps[1] * j >= 0)


def everywhere(mask: Compared | Bits) -> bool | None:
    """What a mask is, where all of its entries are alike; None where some are true and some not.

    Example: the keys of a block that come after all of its queries are hidden everywhere: True.
    """
    if isinstance(mask, Bits):
        some, every = bool(mask.array.any()), bool(mask.array.all())
    else:
        ends = [step * (size - 1) for step, size in zip(mask.of.steps, mask.shape, strict=True)]
        some = mask.of.const + sum(max(0, end) for end in ends) >= 0
        every = mask.of.const + sum(min(0, end) for end in ends) >= 0
    return every if some == every else None


class Line(NamedTuple):
    """The ``entries`` of a tensor along ``dim``, the one dimension along which it varies.

    Example: of [[0, 1], [0, 1]] it is ``Line(1, [0, 1])``.
    """

    dim: int
    entries: NDArray[Any]


def along_one(array: NDArray[Any]) -> Line | None:
    """The one dimension along which entries vary; None: they vary along others too, or along none.

    Example: of [[0, 1], [0, 1]] it is ``Line(1, [0, 1])``.
    """
    if not array.size:
        return None
    moving = [d for d in range(array.ndim) if (array != array.take([0], d)).any()]
    if len(moving) != 1:
        return None
    (dim,) = moving
    return Line(dim, array[tuple(slice(None) if d == dim else 0 for d in range(array.ndim))])


def mask_along_one(mask: Compared | Bits) -> Line | None:
    """The one dimension along which a mask varies, as `along_one`; None for a large one.

    Example: of ``torch.arange(4) < 3`` expanded to [2, 4] it is ``Line(1, [True, True, True,
    False])``.
    """
    if isinstance(mask, Bits):
        return along_one(mask.array) if mask.array.size <= MOST_ENTRIES else None
    of = mask.of
    moving = [d for d, step in enumerate(of.steps) if step and of.shape[d] > 1]
    if len(moving) != 1 or of.shape[moving[0]] > MOST_ENTRIES:
        return None
    (dim,) = moving
    return Line(dim, of.const + of.steps[dim] * np.arange(of.shape[dim]) >= 0)


def stretches(line: NDArray[Any]) -> list[tuple[int, int]]:
    """Where entries of a line that are equal and neighbours begin and end.

    Example: of [True, True, False] they are (0, 2) and (2, 3).
    """
    cuts = [0, *(int(i) + 1 for i in np.flatnonzero(line[1:] != line[:-1])), len(line)]
    return list(itertools.pairwise(cuts))


def shown_columns(hidden: NDArray[Any]) -> tuple[int, int]:
    """Where the columns begin and end that a mask [rows, columns] shows to any row, if it falls
    into fewer runs of rows without the others; all columns if it does not.  Raises as `runs`.

    Example: a window over the keys of a rank behind two keys that its first rank has of nobody
    shows the columns from 2 on.
    """
    columns = hidden.shape[1]
    shown = np.flatnonzero(~hidden.all(axis=0))
    start, stop = (int(shown[0]), int(shown[-1]) + 1) if len(shown) else (0, columns)
    if stop - start == columns or len(runs(hidden)) <= len(runs(hidden[:, start:stop])):
        return 0, columns
    return start, stop


def runs(hidden: NDArray[Any]) -> list[Run]:
    """The runs of rows that a mask [rows, columns] is made of; raises `Unsupported` where a row
    shows no column, or other than an interval.

    Example: rows that show keys 0, 0 to 1, 2, 2 to 3 (two documents) are three runs.
    """
    shown = ~hidden
    rows, columns = shown.shape
    first = shown.argmax(axis=1)
    end = columns - shown[:, ::-1].argmax(axis=1)
    if not shown.any(axis=1).all() or (shown.sum(axis=1) != end - first).any():
        raise Unsupported("a mask of minus infinity that shows other than one interval of a row")
    alike: list[Run] = []
    start = 0
    while start < rows:
        size = 1
        best = _run(first, end, columns, start, size)
        while start + size < rows:
            longer = _run(first, end, columns, start, size + 1)
            if longer is None:
                break
            best, size = longer, size + 1
        if best is None or len(alike) == MOST_RUNS:
            raise Unsupported("a mask of minus infinity of very many kinds of rows")
        alike.append(best)
        start += size
    return alike


def _run(first: NDArray[Any], end: NDArray[Any], columns: int, start: int, size: int) -> Run | None:
    """The run of some rows; None: its ends do not move with the row."""
    row = np.arange(size)
    least, most = first[start : start + size], end[start : start + size]
    last = begin = None
    (below,) = np.nonzero(most < columns)
    if len(below):
        last = int(most[below[0]] - below[0]) - 1
        if last < 0 or (most != np.minimum(columns, last + 1 + row)).any():
            return None
    (after,) = np.nonzero(least > 0)
    if len(after):
        begin = int(least[after[-1]] - after[-1])
        if (least != np.maximum(0, begin + row)).any():
            return None
    return Run(start, size, last, begin)
