"""Which operator of the single-device program each operator of the parallel side stands for.

Operators are aligned by what they are and where they come from in the model's source, never by
their numbers in the plan.
"""

from __future__ import annotations

from typing import Final

from engine.rows import Row
from partition.partition import Partition

Place = tuple[str, bool, str, str, int, int]

#: Attributes that name ranks or places and are no constants of the model.
PLACES: Final = frozenset({"group", "peer", "claimed", "position", "arity", "wrt"})


def places(rows: list[Row]) -> list[Place | None]:
    """What each row is aligned by: name, direction, module, source, which of its program's and
    microbatch's operators of that kind it is, and how many of them there are (where the sides have
    different numbers of a kind, none of that kind is aligned)."""
    counts: dict[tuple[object, ...], int] = {}
    found: list[tuple[tuple[str, bool, str, str], tuple[object, ...], int] | None] = []
    for row in rows:
        if row.kind != "op" or not (row.source.module or row.source.location):
            found.append(None)
            continue
        key = (row.name, row.backward, row.source.module, row.source.location)
        held = (*key, row.programs, row.microbatch)
        found.append((key, held, counts.get(held, 0)))
        counts[held] = counts.get(held, 0) + 1
    return [None if x is None else (*x[0], x[2], counts[x[1]]) for x in found]


def counterparts(result: Partition) -> list[int]:
    """For each parallel row the aligned row of the single-device side (-1: none)."""
    given = result.single.unrolled.rows[: result.derived.given]
    numbers = {place: number for number, place in enumerate(places(given)) if place is not None}
    return [
        numbers.get(place, -1) if place is not None else -1
        for place in places(result.parallel.unrolled.rows)
    ]
