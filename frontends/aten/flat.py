"""Ids of the entries of a matrix that lies flat: a row's number times the width, plus a column."""

from __future__ import annotations

from dataclasses import dataclass, replace
from fractions import Fraction
from math import prod
from typing import Any

from shardproof.frontends.aten.ids import bounds
from shardproof.frontends.aten.lowering import (
    Lowered,
    Lowering,
    Operand,
    Real,
    Shape,
    Unviewed,
    broadcast,
)
from shardproof.frontends.aten.positions import Positions


@dataclass(frozen=True, slots=True, eq=False)
class Flat(Unviewed):
    """Of each of ``rows`` rows, the places of some columns, ids [rows, k] below ``width``, in a
    matrix [rows, width] of which all entries are in one row.

    Example: ``arange(4)[:, None] * 8 + ids`` with ids [4, 2] in [0, 8) is that of a matrix [4, 8]
    which is read as ``x.view(-1)[...]``.
    """

    about = "places in a flat matrix"

    columns: Lowered
    positions: Positions
    width: int
    shape: Shape
    dtype: str

    @property
    def rows(self) -> int:
        """How many rows the matrix has."""
        return self.columns.shape[0]

    def reshape(self, shape: Shape) -> Flat:
        """The same places, in their order, in another shape."""
        return replace(self, shape=shape)

    def real(self, lo: Lowering) -> Real:
        """The places as whole numbers."""
        columns = replace(lo.real(self.columns), dtype="float32", domain=None)
        places = lo.real(lo.add(columns, lo.real(self.positions)))
        return lo.whole(lo.real(lo.reshape(places, self.shape)), self.span(), self.dtype)

    def along(self, lo: Lowering, count: int) -> Any:
        """The columns, ids [rows, k], for each of ``count`` entries that lie at every place.

        Example: for rows of 6 numbers, ids [4, 2] are ids [4, 2, 6], the same for all six.
        """
        sized = self.columns.shape
        return lo.expand(lo.reshape(self.columns, (*sized, 1)), (*sized, count))

    def span(self) -> tuple[int, int]:
        """Between which whole numbers the places are.

        Example: of a matrix [4, 8] they are in (0, 32).
        """
        return 0, self.rows * self.width


def flat(lo: Lowering, x: Operand, y: Operand, factor: Fraction) -> Flat | None:
    """x + factor * y, where one is the number of its row times a width, and the other are ids below
    that width; None: they are something else.

    Example: ``arange(4)[:, None] * 8 + ids`` with ids [4, 2] in [0, 8); with ids in [0, 9) an id
    may be one of the next row's, and it is None.
    """
    if factor != 1:
        return None
    if isinstance(y, Positions):
        x, y = y, x
    known = bounds(y)
    if not isinstance(x, Positions) or not isinstance(y, Real) or known is None or x.const:
        return None
    shape = broadcast(x.shape, y.shape)
    positions = x.expand(shape)
    moving = [d for d, (n, s) in enumerate(zip(shape, positions.steps, strict=True)) if s and n > 1]
    if not moving:
        return None
    last = moving[-1]
    width = positions.steps[last]
    lead = shape[: last + 1]
    strides = [width * prod(lead[d + 1 :]) for d in range(len(lead))]
    aligned = all(n == 1 or positions.steps[d] == strides[d] for d, n in enumerate(lead))
    if not aligned or width <= 0 or known[0] < 0 or known[1] > width:
        return None
    rows = prod(lead)
    sized = (rows, prod(shape) // rows)
    columns = lo.whole(lo.real(lo.reshape(lo.expand(y, shape), sized)), known, y.dtype)
    wide = Positions(0, (width, 0), sized, x.dtype)
    return Flat(columns, wide, width, shape, lo.expected[0][1])
