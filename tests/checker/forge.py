"""Run directories that say "proved" of plans that are wrong, made consistent in every file.

``forgeries(right, wrong)`` gives all ways of forging that there are, as `Parts` to be stored: what
inference finds of the wrong plan, called proved; and the record of the right plan's proof, laid
over the wrong one.  Stages, templates, conclusions, counts and digests are those of the forged
plan, so that what rejects a forgery is what the plan means.  For generators of programs, too::

    for way, parts in forgeries(right, wrong):
        parts.store(folder / way)
        assert not check(folder / way).ok
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from shardproof.checker.values.sides import UNCLAIMED, Side, live_instances
from shardproof.engine.errors import ShapeMismatch, Unsupported
from shardproof.engine.obligations.obligation import build
from shardproof.engine.plan.ir import Plan
from shardproof.engine.records.run import StageRecord, TemplateRecord
from shardproof.engine.schedule.unroll import unroll
from shardproof.engine.specification.conclusions import conclude
from shardproof.engine.specification.gradients import derive
from shardproof.solvers import Query
from tests.checker.conftest import Parts, parts_of

STATING = (Unsupported, ShapeMismatch, ValueError, LookupError, ArithmeticError, AssertionError)


def sides(parts: Any) -> list[Side]:
    """Both sides as the checker sees them."""
    plan = parts.plan
    derived = derive(plan, unroll([plan.single], 1))
    parallel = unroll(plan.programs, plan.microbatches)
    single = derived.unrolled
    roots = [derived.loss, *derived.gradients.values(), *(v for _, _, v in single.gradients)]
    ends = [v for _, _, v in (*parallel.losses, *parallel.gradients)]
    return [
        Side(
            "single",
            plan,
            (plan.single,),
            single,
            parts.single,
            1,
            live_instances(single, roots),
            {},
        ),
        Side(
            "parallel",
            plan,
            plan.programs,
            parallel,
            parts.parallel,
            plan.microbatches,
            live_instances(parallel, ends),
            {},
        ),
    ]


def forged(parts: Any) -> Any:
    """A run of the changed parts in which everything fits together."""
    stages: list[StageRecord] = []
    templates: dict[tuple[str, str], int] = {}
    records: list[TemplateRecord] = []
    for side in sides(parts):
        for number, instance in enumerate(side.unrolled.instances):
            live, template = number in side.live, -1
            claim = None if instance.kind in UNCLAIMED else side.claim(instance)
            if claim is not None:
                try:
                    query = Query.of("", build(parts.nodes, claim).goals)
                except STATING:
                    pass
                else:
                    texts = query.linear_text, query.nonlinear_text
                    template = templates.setdefault(texts, len(records))
                    if template == len(records):
                        records.append(TemplateRecord(*texts, side.name, number))
            stages.append(StageRecord(side.name, number, template, live, ""))
    parts.stages[:] = stages
    parts.templates[:] = records
    return parts


def concluded(parts: Any) -> Any:
    """The conclusions that follow from the changed lineages, as the checker will find them."""
    parallel = sides(parts)[1]
    derived = derive(parts.plan, unroll([parts.plan.single], 1))
    parts.conclusions[:] = conclude(
        parts.plan, parts.nodes, derived, parts.single, parallel.unrolled, parts.parallel
    )
    return parts


def forgeries(right: Plan, wrong: Plan) -> Iterator[tuple[str, Parts]]:
    """Runs that say "proved" of ``wrong``, each with how it was forged; ``right``: the plan that it
    is a changed one of.  At least one is given."""
    parts = parts_of(right)
    yield "the right plan's record", replace(parts.copy(), plan=wrong)
    over = replace(parts.copy(), plan=wrong)
    found = unroll(wrong.programs, wrong.microbatches)
    alike = unroll([wrong.single], 1)
    if found.faults or alike.faults:
        return
    if len(found.tensors) == len(over.parallel):
        yield "the right plan's lineages", called_proved(forged(over))
    try:
        own = parts_of(wrong)
    except STATING:
        return
    yield "what is inferred, called proved", called_proved(own)
    yield "what is inferred, stated again", called_proved(forged(concluded(own.copy())))


def called_proved(parts: Parts) -> Parts:
    """The same, with every conclusion and every stage as in a proof."""
    parts.conclusions[:] = [c._replace(holds=True, message="") for c in parts.conclusions]
    parts.stages[:] = [s._replace(problem="") for s in parts.stages]
    return replace(parts, verdict="proved")
