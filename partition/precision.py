"""Casts that the single-device program does not make: findings beside a verdict over the reals."""

from __future__ import annotations

from engine.findings import Finding
from partition.alignment import counterparts
from partition.partition import Partition

#: Operators that change the element type.
CASTS = frozenset({"float", "to"})


def precision(result: Partition) -> list[Finding]:
    """Casts of the parallel side to another type than their counterpart's, or without one."""
    aligned = counterparts(result)
    found: dict[tuple[str, ...], Finding] = {}
    for number, row in enumerate(result.parallel.unrolled.rows):
        if row.kind != "op" or row.name not in CASTS or row.backward:
            continue
        mine = str(row.attrs.get("dtype", "float32"))
        other = aligned[number]
        theirs = (
            ""
            if other < 0
            else str(result.single.unrolled.rows[other].attrs.get("dtype", "float32"))
        )
        if mine == theirs:
            continue
        ranks = tuple(result.parallel.programs[p].base for p in row.programs)
        place = row.source.location or row.source.cell
        key = (row.name, row.source.module, place, mine, theirs)
        known = found.get(key)
        ranks = tuple(sorted({*ranks, *(known.ranks if known is not None else ())}))
        layer = f" in {row.source.module}" if row.source.module else ""
        found[key] = Finding(
            "precision",
            f"{row.name}{layer} on ranks {list(ranks)} casts to {mine}, the single-device program "
            + (f"to {theirs}" if theirs else "has no such cast"),
            row.name,
            row.source.module,
            place,
            ranks,
            expected=theirs,
            actual=mine,
        )
    return list(found.values())
