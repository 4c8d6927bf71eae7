"""What is added to the rows of a table, or to an entry of each row, that ids choose.

A vocabulary that is divided over ranks has gradients of its own rows alone: `Scattered` says which
ids count, and gives the table that they make, with zeros in the rows that nobody chooses.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any

from shardproof.frontends.aten.ids import Ids, Narrow
from shardproof.frontends.aten.lowering import Const, Lowered, Lowering, Shape, Undefined
from shardproof.frontends.builder import piecewise
from shardproof.frontends.builder.piecewise import Function, Piece, Rows


def outside(f: Function, rows: int) -> Function:
    """1 where a row is chosen that is none of ``rows``.

    Example: of ``identity(0, 8)`` and 6 rows it is 1 on [6, 8).
    """
    below = piecewise.compare("LT", f, piecewise.constant(f, 0))
    beyond = piecewise.compare("GE", f, piecewise.constant(f, rows))
    return piecewise.combine("or", below, beyond)


def interval(like: Function, low: int, high: int) -> Function:
    """1 on [low, high), 0 elsewhere, for all ids on which ``like`` is defined.

    Example: low 2 and high 5 with ids in [0, 8) is 0 on [0, 2), 1 on [2, 5) and 0 on [5, 8).
    """
    pieces = [Piece(like[0].low, low, 0, 0), Piece(low, high, 0, 1)]
    return piecewise.simplified([*pieces, Piece(high, like[-1].high, 0, 0)])


@dataclass(frozen=True, slots=True)
class Scattered:
    """Where the ids count (``live``), they choose one of ``rows`` rows.

    Example: a rank with 16 rows of a vocabulary of 64: ids in [0, 64), ``id`` on [0, 16) and 0
    elsewhere, ``live`` 1 on [0, 16), ``rows`` 16.
    """

    ids: Ids
    live: Function
    rows: int
    dtype: str

    def astray(self, lo: Lowering) -> bool:
        """Whether an id chooses a row that is none: what is written there lies in memory that is
        somebody else's.  Raises `Narrow` where the side's ids may yet be known to be others."""
        if not any(p.offset for p in outside(self.ids.function, self.rows)):
            return False
        if lo.unwritten is None:
            raise Narrow(self.ids.origin.number, self.rows)
        return True

    def parts(self) -> Iterator[tuple[Rows, Function | None]]:
        """Ids that choose one row each (None); and one row that is chosen by several ids, with
        where the ids are those."""
        f = self.ids.function
        joined = piecewise.chosen_rows(f, self.live, self.rows)
        if joined is not None:
            yield from ((part, None) for part in joined)
            return
        for low, high, rule in piecewise.counted(f, self.live):
            if rule.slope == 1:
                yield Rows(low, rule.at(low), high - low), None
            elif rule.slope == 0:
                yield Rows(low, rule.offset, 1), interval(f, low, high)
            else:
                raise Narrow(self.ids.origin.number, self.rows)

    def table(self, lo: Lowering, gradient: Lowered) -> Any:
        """A table: the sum of the gradient's rows [..., h] by the row that is chosen."""
        width = gradient.shape[-1]
        if self.astray(lo):
            return lo.real(Undefined((self.rows, width), self.dtype))
        given, total = lo.real(gradient), None
        for part, among in self.parts():
            if among is None:
                table = lo.real(Const(Fraction(0), (part.size, width), self.dtype))
                inputs = [self.ids.moved_input(lo), table]
                added: Any = lo.derivative("embedding", inputs, given, 1, start=part.id)
            else:
                counts = replace(self.ids, function=among).indicated(lo)
                counted = lo.mul(given, lo.reshape(counts, (*counts.shape, 1)))
                added = lo.reshape(lo.sum(counted, range(len(counts.shape))), (1, width))
            placed = self._placed(lo, added, part, 0, (self.rows, width))
            total = placed if total is None else lo.add(total, placed)
        return Const(Fraction(0), (self.rows, width), self.dtype) if total is None else total

    def entries(self, lo: Lowering, number: Fraction) -> Any:
        """``number`` at the chosen entry of each row, zero at others: [n, rows]."""
        whole, total = (*self.ids.shape, self.rows), None
        if self.astray(lo):
            return lo.real(Undefined(whole, self.dtype))
        for part, among in self.parts():
            if among is None:
                zero = lo.real(Const(Fraction(0), (*self.ids.shape, part.size), self.dtype))
                ones = lo.real(Const(Fraction(1), self.ids.shape, self.dtype))
                inputs = [zero, self.ids.moved_input(lo)]
                written: Any = lo.derivative("pick", inputs, ones, 0, start=part.id)
            else:
                counts = replace(self.ids, function=among).indicated(lo)
                written = lo.reshape(counts, (*self.ids.shape, 1))
            placed = self._placed(lo, written, part, len(self.ids.shape), whole)
            total = placed if total is None else lo.add(total, placed)
        if total is None:
            return Const(Fraction(0), whole, self.dtype)
        return lo.scale(total, number)

    def _placed(self, lo: Lowering, x: Any, part: Rows, dim: int, whole: Shape) -> Any:
        """The part in its rows, with zeros in the others."""
        sizes = (part.row, self.rows - part.row - part.size)
        before, after = (
            Const(Fraction(0), (*whole[:dim], n, *whole[dim + 1 :]), self.dtype) for n in sizes
        )
        return lo.concat([before, x, after], dim)
