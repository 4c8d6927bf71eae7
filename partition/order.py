"""Operators that the two sides have in another order: alignment by order against alignment by name
and place in the model."""

from __future__ import annotations

from engine.findings import Finding
from partition.alignment import counterparts
from partition.partition import Partition


def order(result: Partition, kind: str) -> list[Finding]:
    """Operators that come in another order than the single-device program's do, by their names and
    places in the model: where order and evidence disagree, it is the evidence that was followed."""
    if not any(body.claims for program in result.plan.programs for body in program.bodies):
        return []
    aligned = counterparts(result)
    last: dict[tuple[tuple[int, ...], int, bool], int] = {}
    found: dict[tuple[str, str, str], Finding] = {}
    rows, theirs = result.parallel.unrolled.rows, result.single.unrolled.rows
    for number, row in enumerate(rows):
        counterpart = aligned[number]
        if counterpart < 0:
            continue
        key = (row.programs, row.microbatch, row.backward)
        before = last.get(key, -1)
        if counterpart > before:
            last[key] = counterpart
            continue
        ranks = tuple(result.parallel.programs[p].base for p in row.programs)
        name = f"backward of {row.name}" if row.backward else row.name
        place = row.source.location or row.source.cell
        known = found.get((name, row.source.module, place))
        if known is not None:
            ranks = tuple(sorted({*known.ranks, *ranks}))
        other = theirs[before]
        found[name, row.source.module, place] = Finding(
            kind,
            f"{name} in {row.source.module} on rank {ranks[0]} comes after {other.name} in "
            f"{other.source.module}; the single-device program has them the other way round",
            name,
            row.source.module,
            place,
            ranks,
        )
    return list(found.values())
