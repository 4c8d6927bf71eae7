"""Where, in the sources, a value of the parallel side is made."""

from __future__ import annotations

from collections.abc import Sequence

from shardproof.engine.schedule.instances import Row


def made_at(rows: Sequence[Row], value: int) -> str:
    """The place of the operator that makes ``value``, or of the nearest one before it that has a
    place; empty if there is none.

    A gradient that an accumulation gives, which no line says, is made where its last term is.
    """
    makers = {v: row for row in rows for v in row.outputs}
    waiting, seen = [value], {-1}
    for number in waiting:
        row = makers.get(number)
        if row is None or number in seen:
            continue
        seen.add(number)
        if place := row.source.location or row.source.cell:
            return place
        waiting += reversed(row.inputs)
    return ""
