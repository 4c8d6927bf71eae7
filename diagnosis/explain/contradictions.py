"""What a plan that contradicts itself is told: its faults with every rank that has them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from shardproof.diagnosis.locate.divergences import Divergence
from shardproof.diagnosis.locate.sentences import between
from shardproof.diagnosis.repair.edits import peer
from shardproof.diagnosis.repair.structure import omitted, unwritten
from shardproof.engine.findings import Finding
from shardproof.partition.stages.partition import Partition


def faults(state: Partition) -> Iterator[Finding]:
    """The contradictions of a plan that cannot be unrolled: calls that are missing first.

    Example: "rank 0: the backward segment 269 is not called for microbatch 1, though its forward
    was: the gradients lack that microbatch".
    """
    plan = state.plan
    for gap in omitted(plan):
        program = plan.programs[gap.program]
        body = program.bodies[gap.body]
        layers = list(dict.fromkeys(op.source.module for op in body.ops if op.source.module))
        calls = sum(call.body == body.forward_body for call in program.calls)
        yield Finding(
            "missing call",
            f"rank {program.base}: the backward {body.name} is not called for microbatch "
            f"{gap.microbatch}, though its forward was: the gradients lack that microbatch",
            body.name,
            f"{layers[0]} to {layers[-1]}" if layers else "",
            body.name,
            (program.base,),
            (gap.microbatch,),
            f"{calls} calls, as many as of its forward",
            f"{gap.microbatch} of them",
            cause="missing call",
            agreeing_ranks=_whole(state, gap.program),
            agreeing_microbatches=tuple(range(gap.microbatch)),
        )
    for fault in state.faults:
        yield _with_ranks(state, fault) if fault.kind == "read before write" else fault


def _whole(state: Partition, program: int) -> tuple[int, ...]:
    """The other ranks that call all their backward segments."""
    lacking = {gap.program for gap in omitted(state.plan)} | {program}
    return tuple(p.base for n, p in enumerate(state.plan.programs) if n not in lacking)


def _with_ranks(state: Partition, fault: Finding) -> Finding:
    """A value that nobody writes, on every rank that reads it."""
    plan = state.plan
    gaps = unwritten(plan)
    for gap in gaps:
        base = plan.programs[gap.site.program].base
        name = plan.programs[gap.site.program].bodies[gap.site.body].values[gap.value].name
        if base not in fault.ranks or f"reads {name}," not in fault.message:
            continue
        alike = [g for g in gaps if peer(plan, gap.site, g.site.program) == g.site]
        ranks = tuple(sorted({plan.programs[g.site.program].base for g in alike}))
        if len(ranks) < 2:
            return fault
        message = fault.message.replace(f"rank {base}:", f"ranks {list(ranks)}:", 1)
        return fault._replace(ranks=ranks, message=message)
    return fault


def misfits(state: Partition, divergences: Sequence[Divergence]) -> tuple[Finding, ...]:
    """Operators whose operands do not fit, those of a divergence: one for the same operator on
    several ranks, with where in the model it is.

    Example: an ``add`` of shapes [4, 32] and [4, 64] on ranks 0 and 1, from one line of the model,
    is one finding for "ranks [0, 1]".
    """
    alike: dict[tuple[str, str, str], Finding] = {}
    for fault in state.faults:
        key = (fault.kind, fault.operator, fault.source)
        finding = alike.setdefault(key, fault)
        if finding is not fault:
            ranks = tuple(sorted({*finding.ranks, *fault.ranks}))
            alike[key] = finding._replace(ranks=ranks)
    instances = state.parallel.unrolled.instances
    findings = []
    for (_, _, source), fault in alike.items():
        here = [
            instances[n]
            for c in divergences
            for n in c.instances
            if source == (instances[n].source.location or instances[n].source.cell)
        ]
        if not here:
            continue
        message = fault.message
        if len(fault.ranks) > 1:
            message = f"ranks {list(fault.ranks)}:{message.partition(':')[2]}"
        layer = fault.layer or between(state, here)
        findings.append(fault._replace(layer=layer, message=message))
    return tuple(findings)
