"""Rows that ids choose where ranks differ in how, or where many ids choose one row."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from shardproof.engine.errors import Unsupported
from shardproof.frontends.builder import piecewise
from shardproof.frontends.builder.piecewise import Function, Rows, chosen_rows, counted

#: Intervals of ids of which rows are added up.
MOST_PARTS = 16


class Part(NamedTuple):
    """``size`` ids from ``ids[rank]`` on choose rows from ``row`` on, one each; or, if ``one`` is
    True, all of them row ``row``; ``every``: these are all ids that there are, on ranks that do not
    lack them.

    Example: ``Part((12, 24), 11, 3, True)``: ids 12 to 14 on the first rank, and 24 to 26 on the
    second one, choose row 11.
    """

    ids: tuple[int, ...]
    row: int
    size: int
    one: bool
    every: bool = False

    def there(self) -> list[int]:
        """Of all ids that there are: 1 for ranks that have them, 0 for those that lack them.

        Example: of ids in [0, 8) that begin at 0 and, behind the last one, at 8: [1, 0].
        """
        return [int(first == min(self.ids)) for first in self.ids]


def parts(functions: Sequence[Function], live: Sequence[Function], rows: int) -> list[Part]:
    """Intervals of ids, in other places on each rank, that together choose what the functions say;
    a rank that lacks one has it behind its last id, where none is. Raises `Unsupported`.

    Example: of 24 ids, min(id, 11) where id <= 12 on the first rank and id - 12 on the second one,
    live from 12 on, of twelve rows: ``Part((0, 12), 0, 12, False)`` and ``Part((12, 24), 11, 1,
    False)``.
    """
    each = [_intervals(f, own, rows) for f, own in zip(functions, live, strict=True)]
    result = []
    for row, size, one in sorted({key for own in each for key in own}):
        places = [own.get((row, size, one), []) for own in each]
        for n in range(max(len(p) for p in places)):
            ids = (
                p[n] if n < len(p) else f[-1].high for p, f in zip(places, functions, strict=True)
            )
            every = one and size == functions[0][-1].high - functions[0][0].low
            result.append(Part(tuple(ids), row, size, one, every))
    if len(result) > MOST_PARTS:
        raise Unsupported(f"rows that ids choose in {len(result)} ways")
    return result


def inside(f: Function, count: int) -> Function:
    """For which ids a row is one of ``count``.

    Example: of id - 4, of four, 1 on [4, 8) and 0 elsewhere.
    """
    return piecewise.combine(
        "and",
        piecewise.compare("GE", f, piecewise.constant(f, 0)),
        piecewise.compare("LT", f, piecewise.constant(f, count)),
    )


def _intervals(f: Function, live: Function, rows: int) -> dict[tuple[int, int, bool], list[int]]:
    """First ids by the rows that they choose, how many ids, and whether they choose one row."""
    whole = chosen_rows(f, live, rows)
    runs = _runs(f, live, rows) if whole is None else [(own, False) for own in whole]
    first: dict[tuple[int, int, bool], list[int]] = {}
    for own, one in runs:
        first.setdefault((own.row, own.size, one and own.size > 1), []).append(own.id)
    return first


def _runs(f: Function, live: Function, rows: int) -> list[tuple[Rows, bool]]:
    """Neighbours that choose neighbours, or (True) one row; as many of the first as there can be.

    Example: of min(id, 11) for 14 ids, ids 0 to 11 choose the rows of their number, and ids 12 and
    13 both row 11.
    """
    runs: list[tuple[Rows, bool]] = []
    for low, high, rule in counted(f, live):
        if rule.slope not in (0, 1) and high - low > 1:
            raise Unsupported(f"rows that are chosen by {rule.slope} times an id")
        if not (rule.at(low) >= 0 and rule.at(high - 1) < rows):
            raise Unsupported(f"ids may choose other rows than the {rows}")
        own, one = Rows(low, rule.at(low), high - low), rule.slope == 0 and high - low > 1
        last, repeated = runs[-1] if runs else (None, False)
        beside = last is not None and last.id + last.size == low
        if last is not None and beside and repeated and not one and last.row + 1 == own.row:
            # The last id of one row is the first one of the run.
            runs[-1] = last._replace(size=last.size - 1), last.size > 2
            own = Rows(own.id - 1, own.row - 1, own.size + 1)
        elif last is not None and beside and not repeated and last.row + last.size == own.row:
            kept = 1 if one else own.size
            runs[-1] = last._replace(size=last.size + kept), False
            own = own._replace(id=own.id + kept, size=own.size - kept)
            one = one and own.size > 1
        if own.size:
            runs.append((own, one))
    return runs
