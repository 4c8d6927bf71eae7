"""Where, in the sources, a value of the parallel side is made."""

from __future__ import annotations

from collections.abc import Sequence

from shardproof.engine.schedule.instances import Instance


def made_at(instances: Sequence[Instance], value: int) -> str:
    """The place of the operator that makes ``value``, or of the nearest one before it that has a
    place; empty if there is none.

    Example: "examples/gpt.py:85" for the result of a projection; for its gradient, added up over
    microbatches, the line of the backward that gives the last addend.

    A gradient that an accumulation gives, which no line says, is made where its last term is.
    """
    makers = {v: instance for instance in instances for v in instance.outputs}
    waiting, seen = [value], {-1}
    for number in waiting:
        instance = makers.get(number)
        if instance is None or number in seen:
            continue
        seen.add(number)
        if place := instance.source.location or instance.source.cell:
            return place
        waiting += reversed(instance.inputs)
    return ""
