"""Casts that the single-device program does not make: findings beside a verdict over the reals."""

from __future__ import annotations

from shardproof.engine.findings import Finding
from shardproof.partition.evidence.alignment import counterparts
from shardproof.partition.stages.partition import Partition

#: Operators that change the element type.
CASTS = frozenset({"float", "to"})


def precision(result: Partition) -> list[Finding]:
    """Casts of the parallel side to another type than their counterpart's, or without one.

    Example: "float in layers.0 on ranks [0, 1] casts to bfloat16, the single-device program has no
    such cast".
    """
    aligned = counterparts(result)
    findings: dict[tuple[str, ...], Finding] = {}
    for number, instance in enumerate(result.parallel.unrolled.instances):
        if instance.kind != "op" or instance.name not in CASTS or instance.backward:
            continue
        mine = str(instance.attrs.get("dtype", "float32"))
        other = aligned[number]
        theirs = (
            ""
            if other < 0
            else str(result.single.unrolled.instances[other].attrs.get("dtype", "float32"))
        )
        if mine == theirs:
            continue
        ranks = tuple(result.parallel.programs[p].base for p in instance.programs)
        place = instance.source.location or instance.source.cell
        key = (instance.name, instance.source.module, place, mine, theirs)
        finding = findings.get(key)
        ranks = tuple(sorted({*ranks, *(finding.ranks if finding is not None else ())}))
        layer = f" in {instance.source.module}" if instance.source.module else ""
        findings[key] = Finding(
            "precision",
            f"{instance.name}{layer} on ranks {list(ranks)} casts to {mine}, "
            f"the single-device program " + (f"to {theirs}" if theirs else "has no such cast"),
            instance.name,
            instance.source.module,
            place,
            ranks,
            expected=theirs,
            actual=mine,
        )
    return list(findings.values())
