"""Views whose rows are made of other rows: scores [t, l] as [l, t], of which rows are cut off.

Relative positions are aligned so (Transformer-XL, XLNet, conformers): in memory each row of the
result begins one entry later in a row of what is viewed.  Such a view stays symbolic while it is
only moved; then it is the parts of rows that it has, joined.  For example, of a row [a, b, c] and
one [d, e, f] the view [3, 2] without its first row is [c, d] and [e, f].
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from math import prod
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from shardproof.engine.errors import Unsupported
from shardproof.frontends.aten.lowering import Lowering, Real, Shape

#: Parts of rows of which a view is put together.
MOST_PARTS: Final = 256


@dataclass(frozen=True, slots=True, eq=False)
class Refolded:
    """Entries of ``base``, whose first ``lead`` dimensions stay as they are: ``at`` has the places
    of the others, counted in memory.

    Example: of scores [2, 4, 7] as [2, 7, 4], ``at`` is the numbers 0 to 27 in seven rows.
    """

    base: Real
    lead: int
    at: NDArray[np.int64]

    @property
    def shape(self) -> Shape:
        """That of the view."""
        return (*self.base.shape[: self.lead], *self.at.shape)

    @property
    def dtype(self) -> str:
        """That of the base."""
        return self.base.dtype

    def reshape(self, shape: Shape) -> Refolded:
        """The same entries, in their order, in another shape of the same first dimensions."""
        first = self.base.shape[: self.lead]
        if shape[: self.lead] != first:
            raise Unsupported("a view across rows that are made of other rows")
        return replace(self, at=self.at.reshape(shape[self.lead :]))

    def expand(self, shape: Shape) -> Any:
        """Refused: the entries are put together first."""
        raise Unsupported("rows that are made of other rows, repeated")

    def permute(self, order: Sequence[int]) -> Refolded:
        """The dimensions of a row's entries in another order."""
        if list(order[: self.lead]) != list(range(self.lead)):
            raise Unsupported("rows that are made of other rows, permuted")
        return replace(self, at=self.at.transpose([d - self.lead for d in order[self.lead :]]))

    def slice(self, dim: int, start: int, size: int) -> Refolded:
        """Some rows, or a part of each."""
        if dim < self.lead:
            raise Unsupported("a part of rows that are made of other rows")
        places = [slice(None)] * (dim - self.lead) + [slice(start, start + size)]
        return replace(self, at=self.at[tuple(places)])

    def real(self, lo: Lowering) -> Real:
        """The parts of the base's rows, joined."""
        first, length = self.base.shape[: self.lead], self.base.shape[-1]
        flat = self.at.reshape(-1, self.at.shape[-1] if self.at.ndim else 1)
        rows = lo.reshape(self.base, (*first, prod(self.base.shape[self.lead : -1]), length))
        made: list[Any] = []
        for row in flat:
            parts = list(_parts(row, length))
            if len(made) + len(parts) > MOST_PARTS:
                raise Unsupported(f"a view of more than {MOST_PARTS} parts of rows")
            cut = [
                lo.slice(lo.slice(rows, self.lead, at // length, 1), self.lead + 1, at % length, n)
                for at, n in parts
            ]
            made.append(cut[0] if len(cut) == 1 else lo.concat(cut, self.lead + 1))
        whole = made[0] if len(made) == 1 else lo.concat(made, self.lead)
        return lo.real(lo.reshape(whole, self.shape))


def _parts(row: NDArray[np.int64], length: int) -> Iterator[tuple[int, int]]:
    """Where parts of rows of the base begin that a row is made of, and how long they are."""
    new = (np.diff(row) != 1) | (row[1:] % length == 0)
    for begin, end in pairwise([0, *(np.flatnonzero(new) + 1).tolist(), len(row)]):
        yield int(row[begin]), end - begin


def refolded(x: Real, shape: Shape) -> Refolded | None:
    """The view of a value in another shape, if its rows are made of other rows; None: dimensions
    are parts or products of the value's.

    Example: [2, 4, 7] as [2, 7, 4] is; [4, 8] as [8, 4] is not, whose rows are halves of rows.
    """
    if not prod(shape) or _is_chain({*_inner(x.shape), *_inner(shape)}):
        return None
    lead = 0
    while x.shape[lead] == shape[lead]:
        lead += 1
    return Refolded(x, lead, np.arange(prod(shape[lead:])).reshape(shape[lead:]))


def _inner(shape: Shape) -> list[int]:
    """How many entries lie behind each dimension."""
    return [prod(shape[d:]) for d in range(len(shape) + 1)]


def _is_chain(sizes: set[int]) -> bool:
    return all(large % small == 0 for small, large in pairwise(sorted(sizes)))
