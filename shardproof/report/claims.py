"""What was claimed in a run, as text: for each template the claim that it was stated for, with the
definitions that the claim names, and its obligation."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

from shardproof.checker.values.sides import Side
from shardproof.engine.claims.text import claim_text
from shardproof.engine.errors import InvalidInput, ShapeMismatch, Unsupported
from shardproof.engine.obligations.obligation import Claim, build
from shardproof.engine.obligations.text import obligation_text
from shardproof.engine.plan.ir import Plan
from shardproof.engine.records.run import PARALLEL, SINGLE, Run, read_run
from shardproof.engine.schedule.unroll import unroll
from shardproof.engine.specification.gradients import derive


def claims(folder: Path) -> Iterator[str]:
    """A text for each template of the run in ``folder``; raises `InvalidInput` naming the file.

    Example: "template 0: single device: embedding in wte (row 37)", then the claim,
    ``n39: [16, 32, *] = onehot(n37)`` and the other definitions, and the obligation.
    """
    run = read_run(folder)
    sides = _sides(run.plan, run)
    for number, template in enumerate(run.templates):
        side = sides.get(template.side)
        instances = side.unrolled.instances if side is not None else ()
        if side is None or not 0 <= template.row < len(instances):
            raise InvalidInput(f"template {number} is of no row of the plan", str(folder))
        claim = side.claim(instances[template.row])
        if claim is None:
            raise InvalidInput(f"a tensor of template {number} has no lineage", str(folder))
        head = f"template {number}: {side.where(template.row)}\n"
        yield head + claim_text(run.nodes, claim) + _indented(_obligation(run, claim))


def _sides(plan: Plan, run: Run) -> Mapping[str, Side]:
    single = derive(plan, unroll([plan.single], 1)).unrolled
    parallel = unroll(plan.programs, plan.microbatches)
    of = (
        (SINGLE, (plan.single,), single, run.single, 1),
        (PARALLEL, plan.programs, parallel, run.parallel, plan.microbatches),
    )
    return {
        name: Side(name, plan, programs, unrolled, lineages, microbatches, frozenset(), {})
        for name, programs, unrolled, lineages, microbatches in of
        if len(lineages) == len(unrolled.tensors)
    }


def _obligation(run: Run, claim: Claim) -> str:
    try:
        return obligation_text(build(run.nodes, claim))
    except (Unsupported, ShapeMismatch) as error:
        return f"it cannot be stated: {error}\n"


def _indented(text: str) -> str:
    return "".join(f"    {line}\n" for line in text.splitlines())
