"""Operators that the two sides have in another order: alignment by order against alignment by name
and place in the model."""

from __future__ import annotations

from shardproof.engine.findings import Finding
from shardproof.partition.evidence.alignment import counterparts
from shardproof.partition.stages.partition import Partition


def order(result: Partition, kind: str) -> list[Finding]:
    """Operators that come in another order than the single-device program's do, by their names and
    places in the model: where order and evidence disagree, it is the evidence that was followed.

    Example: "linear in layers.0.attention.wq on rank 0 comes after linear in layers.0.attention.wk;
    the single-device program has them the other way round".
    """
    if not any(body.claims for program in result.plan.programs for body in program.bodies):
        return []
    aligned = counterparts(result)
    last: dict[tuple[tuple[int, ...], int, bool], int] = {}
    findings: dict[tuple[str, str, str], Finding] = {}
    instances, theirs = result.parallel.unrolled.instances, result.single.unrolled.instances
    for number, instance in enumerate(instances):
        counterpart = aligned[number]
        if counterpart < 0:
            continue
        key = (instance.programs, instance.microbatch, instance.backward)
        before = last.get(key, -1)
        if counterpart > before:
            last[key] = counterpart
            continue
        ranks = tuple(result.parallel.programs[p].base for p in instance.programs)
        name = f"backward of {instance.name}" if instance.backward else instance.name
        place = instance.source.location or instance.source.cell
        finding = findings.get((name, instance.source.module, place))
        if finding is not None:
            ranks = tuple(sorted({*finding.ranks, *ranks}))
        other = theirs[before]
        findings[name, instance.source.module, place] = Finding(
            kind,
            f"{name} in {instance.source.module} on rank {ranks[0]} comes after {other.name} in "
            f"{other.source.module}; the single-device program has them the other way round",
            name,
            instance.source.module,
            place,
            ranks,
        )
    return list(findings.values())
