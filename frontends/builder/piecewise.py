"""Functions of one integer, by intervals: what index arithmetic computes of an id, exactly.

``where(id < 0, id + 64, id)`` over ids in [0, 64) is ``id``; ``min(max(id, 16), 31) - 16`` is 0,
then ``id - 16``, then 15.  Comparisons give 0 or 1.  Nothing is assumed of the id but its domain.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

from shardproof.engine.errors import Unsupported


class Overflow(Unsupported):
    """What index arithmetic makes of an id does not fit into 32 bits.

    Example: ``6 * id`` of ids of which nothing is known, below 2^30.
    """


class Piece(NamedTuple):
    """On ids in [low, high): ``slope * id + offset``.

    Example: ``Piece(0, 32, 1, -8)`` is id - 8 of ids in [0, 32).
    """

    low: int
    high: int
    slope: int
    offset: int

    def at(self, x: int) -> int:
        """The value at an id of the piece."""
        return self.slope * x + self.offset


#: Pieces in order, which together are the domain.
Function = tuple[Piece, ...]

MOST_PIECES = 64
#: Pieces of a quotient of ids by a number: parts of a vocabulary, by which of them an id is in.
MOST_DIVIDED = 16
_LARGEST = 1 << 31


def identity(low: int, high: int) -> Function:
    """The function that every id in [low, high) is itself.

    Example: ``identity(0, 8)`` is one piece with slope 1 and offset 0 on [0, 8).
    """
    return (Piece(low, high, 1, 0),)


def constant(like: Function, number: int) -> Function:
    """One number for all ids on which ``like`` is defined.

    Example: 7 beside ids in [-9, 9) is ``Piece(-9, 9, 0, 7)``.
    """
    return (Piece(like[0].low, like[-1].high, 0, number),)


def vary(functions: Iterable[Function]) -> bool:
    """Whether some of the functions, of as many ranks, is not one number for all ids.

    Example: ``identity(0, 8)`` is not; 7 for all ids is.
    """
    return any(value(f) is None for f in functions)


def reach(f: Function) -> tuple[int, int]:
    """From which number on, and below which one, ``f`` lies.

    Example: (0, 16) of ``id - 16`` on [16, 32), elsewhere 0.
    """
    ends = [piece.at(x) for piece in f for x in (piece.low, piece.high - 1)]
    return min(ends), max(ends) + 1


def value(f: Function) -> int | None:
    """The one number that ``f`` is; None if there is none.

    Example: 7 of the constant 7; None of the id itself.
    """
    numbers = {p.offset for p in f} if all(p.slope == 0 or p.high - p.low == 1 for p in f) else None
    if numbers is None or any(p.slope for p in f):
        return None
    return numbers.pop() if len(numbers) == 1 else None


def simplified(pieces: list[Piece]) -> Function:
    """Neighbours of one rule joined.

    Example: the id on [0, 4) and the id on [4, 9) are the id on [0, 9).
    """
    joined: list[Piece] = []
    for p in pieces:
        if p.high <= p.low:
            continue
        if p.high - p.low == 1 and p.slope:
            p = _as_neighbour(joined, p)
        if joined and joined[-1][2:] == p[2:] and joined[-1].high == p.low:
            joined[-1] = joined[-1]._replace(high=p.high)
        else:
            joined.append(p)
    if len(joined) > MOST_PIECES:
        raise Unsupported(f"index arithmetic of more than {MOST_PIECES} cases")
    for p in joined:
        if not all(-_LARGEST <= p.at(x) < _LARGEST for x in (p.low, p.high - 1)):
            raise Overflow("index arithmetic that overflows 32 bits")
    return tuple(joined)


def _as_neighbour(pieces: list[Piece], p: Piece) -> Piece:
    if pieces and pieces[-1].at(p.low) == p.at(p.low):
        return Piece(p.low, p.high, pieces[-1].slope, pieces[-1].offset)
    return p


def _pairs(f: Function, g: Function) -> list[tuple[int, int, Piece, Piece]]:
    cuts = sorted({p.low for p in (*f, *g)} | {f[-1].high})
    pairs = []
    for low, high in itertools.pairwise(cuts):
        pieces = [next(p for p in h if p.low <= low < p.high) for h in (f, g)]
        pairs.append((low, high, pieces[0], pieces[1]))
    return pairs


def combine(opcode: str, f: Function, g: Function) -> Function:
    """``f`` and ``g``, of the same id, combined pointwise; raises `Unsupported`.

    Example: "add" of ``identity(0, 8)`` and the constant 2 is one piece with slope 1 and offset 2.
    """
    if opcode in ("maximum", "minimum"):
        chosen = compare("GE" if opcode == "maximum" else "LE", f, g)
        return select(chosen, f, g)
    rule = _RULES.get(opcode)
    if rule is None:
        raise Unsupported(f"{opcode} of indices")
    return simplified([Piece(low, high, *rule(p, q)) for low, high, p, q in _pairs(f, g)])


def _times(p: Piece, q: Piece) -> tuple[int, int]:
    if p.slope and q.slope:
        raise Unsupported("a product of indices")
    slope = p.slope * q.offset + q.slope * p.offset
    return slope, p.offset * q.offset


def _logical(p: Piece, q: Piece, both: bool) -> tuple[int, int]:
    if p.slope or q.slope or {p.offset, q.offset} - {0, 1}:
        raise Unsupported("bits of indices")
    return 0, min(p.offset, q.offset) if both else max(p.offset, q.offset)


_RULES: dict[str, Callable[[Piece, Piece], tuple[int, int]]] = {
    "add": lambda p, q: (p.slope + q.slope, p.offset + q.offset),
    "subtract": lambda p, q: (p.slope - q.slope, p.offset - q.offset),
    "multiply": _times,
    "and": lambda p, q: _logical(p, q, True),
    "or": lambda p, q: _logical(p, q, False),
}


def negated(f: Function) -> Function:
    """1 where ``f``, a predicate, is 0.

    Example: of ``id < 0`` in [-9, 9), 0 on [-9, 0) and 1 on [0, 9).
    """
    return combine("subtract", constant(f, 1), f)


def compare(direction: str, f: Function, g: Function) -> Function:
    """1 where the comparison holds, else 0.

    Example: "LT" of ``identity(0, 8)`` and the constant 3 is 1 on [0, 3) and 0 on [3, 8).
    """
    pieces = []
    for low, high, p, q in _pairs(f, g):
        slope, offset = p.slope - q.slope, p.offset - q.offset
        cuts = {low, high}
        if slope:
            # The difference changes its sign at -offset / slope.
            root = -offset // slope if slope > 0 else offset // -slope
            cuts |= {c for c in (root, root + 1) if low < c < high}
        ordered = sorted(cuts)
        for a, b in itertools.pairwise(ordered):
            values = {_holds(direction, slope * x + offset) for x in (a, b - 1)}
            if len(values) > 1:
                raise AssertionError("a comparison changes inside a piece")
            pieces.append(Piece(a, b, 0, int(values.pop())))
    return simplified(pieces)


def _holds(direction: str, difference: int) -> bool:
    return {
        "EQ": difference == 0,
        "NE": difference != 0,
        "LT": difference < 0,
        "LE": difference <= 0,
        "GT": difference > 0,
        "GE": difference >= 0,
    }[direction]


def divided(f: Function, divisor: int) -> tuple[Function, Function] | None:
    """``f // divisor`` and ``f % divisor``, rounded down; None: they have more than `MOST_DIVIDED`
    pieces, or ``f`` is another function than the id plus a number, or a number.

    Example: of ids in [0, 12) by 6: 0 and ``id`` on [0, 6), 1 and ``id - 6`` on [6, 12).
    """
    if any(p.slope not in (0, 1) for p in f):
        return None
    cuts = [abs(p.at(p.high - 1) // divisor - p.at(p.low) // divisor) + 1 for p in f]
    if sum(cuts) > MOST_DIVIDED:
        return None
    quotients, rests = [], []
    for p in f:
        low = p.low
        while low < p.high:
            number = p.at(low) // divisor
            high = min(p.high, (number + 1) * divisor - p.offset) if p.slope else p.high
            quotients.append(Piece(low, high, 0, number))
            rests.append(Piece(low, high, p.slope, p.offset - number * divisor))
            low = high
    return simplified(quotients), simplified(rests)


def select(p: Function, f: Function, g: Function) -> Function:
    """``f`` where ``p``, else ``g``.

    Example: ``where(id < 0, id + 9, id)`` is id + 9 on [-9, 0) and id on [0, 9).
    """
    pieces = []
    cuts = sorted({x.low for x in (*p, *f, *g)} | {p[-1].high})
    for low, high in itertools.pairwise(cuts):
        chosen = next(x for x in p if x.low <= low < x.high)
        if chosen.slope:
            raise Unsupported("a choice by what is no predicate")
        rule = next(x for x in (f if chosen.offset else g) if x.low <= low < x.high)
        pieces.append(Piece(low, high, rule.slope, rule.offset))
    return simplified(pieces)


def span(f: Function) -> tuple[int, int] | None:
    """The interval of ids for which a predicate holds; None: it is no predicate, or holds in
    several intervals or nowhere.

    Example: (-9, 0) for ``id < 0`` of ids in [-9, 9).
    """
    if any(p.slope or p.offset not in (0, 1) for p in f):
        return None
    intervals = [(p.low, p.high) for p in simplified(list(f)) if p.offset]
    return intervals[0] if len(intervals) == 1 else None


# -- rows that are chosen -------------------------------------------------------------------------


class Rows(NamedTuple):
    """Ids from ``id`` on choose rows from ``row`` on, ``size`` of them.

    Example: ``Rows(8, 0, 8)``: ids 8 to 15 choose rows 0 to 7, as on the second rank of a
    vocabulary that is divided.
    """

    id: int
    row: int
    size: int


def counted(f: Function, live: Function) -> Iterator[tuple[int, int, Piece]]:
    """Intervals of ids for which ``live`` is not 0, each with what ``f`` is there.

    Example: id - 8 of ids in [0, 32), live where it lies in [0, 8): (8, 16,
    ``Piece(0, 32, 1, -8)``).
    """
    cuts = sorted({p.low for p in (*f, *live)} | {f[-1].high})
    for low, high in itertools.pairwise(cuts):
        if next(p for p in live if p.low <= low < p.high).offset:
            yield low, high, next(p for p in f if p.low <= low < p.high)


def chosen_rows(f: Function, live: Function, rows: int) -> list[Rows] | None:
    """Which ids choose which rows; None: some choose rows that are none, or one row by many ids.

    Example: id - 8 of ids in [0, 32), live where it lies in [0, 8), of eight rows:
    ``[Rows(8, 0, 8)]``; live everywhere: None.
    """
    chosen: list[Rows] = []
    for low, high, rule in counted(f, live):
        if rule.slope != 1 and high - low > 1:
            return None
        if not (rule.at(low) >= 0 and rule.at(high - 1) < rows):
            return None
        joined = chosen and chosen[-1].id + chosen[-1].size == low
        if joined and chosen[-1].row + chosen[-1].size == rule.at(low):
            chosen[-1] = Rows(chosen[-1].id, chosen[-1].row, chosen[-1].size + high - low)
        else:
            chosen.append(Rows(low, rule.at(low), high - low))
    return [_widened(chosen[0], f, rows)] if len(chosen) == 1 else chosen


def _widened(own: Rows, f: Function, rows: int) -> Rows:
    """As many rows as can be: an id outside of its domain chooses nothing."""
    before = own.row if own.id == f[0].low else 0
    after = rows - own.row - own.size if own.id + own.size == f[-1].high else 0
    return Rows(own.id - before, own.row - before, own.size + before + after)
