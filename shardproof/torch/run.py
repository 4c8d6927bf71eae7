"""A verdict on two steps of PyTorch: capture, plan, prove."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any, Literal, TypeAlias

from engine import store
from engine.errors import InvalidInput
from engine.findings import Finding
from engine.ir import Plan
from engine.records import PLAN
from engine.wellformed import check as check_plan
from frontends.torch.capture import Limits, capture
from frontends.torch.job import Job
from frontends.torch.plan import (
    CANDIDATE,
    Combination,
    Sides,
    check_names,
    combinations,
    divided,
    notes,
    sides,
)
from frontends.torch.plan import plan as make_plan
from frontends.torch.stated import TensorSpec
from frontends.torch.trace import PARAMETER, Trace
from partition.partition import partition
from shardproof import api, asked, rundir
from shardproof.assume import Assumptions, read
from shardproof.progress import Progress
from shardproof.result import Result
from shardproof.torch.validate import validate

Step: TypeAlias = Callable[[Job], Any]
Combine: TypeAlias = Literal["mean", "sum"] | None


def verify(
    single: Step,
    parallel: Step,
    world_size: int,
    batch: Mapping[str, TensorSpec],
    combine: Combine,
    validated: bool,
    limits: Limits,
    options: api.Options,
    progress: Progress,
) -> Result:
    """Capture both sides and decide; what is wrong with a step is a result too."""
    settings = options.settings()

    def work() -> Result:
        start = time.perf_counter()
        progress.phase("load")
        if options.out is not None:
            rundir.refuse_used(options.out)
        one, many = captured(single, parallel, world_size, batch, limits)
        return answered(one, many, combine, validated, options, progress, start)

    return api.measured(settings, progress, work)


def decide(
    single: Trace,
    parallel: Sequence[Trace],
    combine: Combine,
    validated: bool,
    options: api.Options,
    progress: Progress,
) -> Result:
    """The verdict on traces that were captured before."""
    start = time.perf_counter()
    return api.measured(
        options.settings(),
        progress,
        lambda: answered(single, parallel, combine, validated, options, progress, start),
    )


def answered(
    single: Trace,
    parallel: Sequence[Trace],
    combine: Combine,
    validated: bool,
    options: api.Options,
    progress: Progress,
    start: float,
) -> Result:
    """The verdict, with what is to be said of the translation."""
    found = sides(single, parallel)
    check_names(found)
    too_early = [f for step in found.steps for f in step.findings]
    if too_early:
        return Result("refuted", findings=distinct(too_early), assumptions=notes(found))
    made = make_plan(found, combination=combination(found, combine))
    check_plan(made)
    if not validated:
        return prove(made, options, progress, time.perf_counter() - start)
    ranks = sorted(parallel, key=lambda t: t.rank)
    checked = validate(found, made, [single, *ranks])
    if not checked.agrees:
        reason = f"the translation is not what PyTorch computes: {checked.message}"
        return Result("inconclusive", reason=reason)
    note = (
        f"the translation was replayed: {checked.compared} tensors agree with PyTorch's"
        if checked.replayed
        else f"translation not replayed: {checked.message}"
    )
    made = replace(made, notes=(*made.notes, note))
    return prove(made, options, progress, time.perf_counter() - start)


def distinct(findings: Sequence[Finding]) -> tuple[Finding, ...]:
    """One finding for all ranks at which the same operators meet, in order."""
    ranks: dict[tuple[str, str], list[int]] = {}
    for finding in findings:
        ranks.setdefault((finding.operator, finding.source), []).extend(finding.ranks)
    known: dict[tuple[str, str], Finding] = {}
    for finding in findings:
        place = (finding.operator, finding.source)
        own = tuple(sorted(set(ranks[place])))
        known.setdefault(place, finding._replace(ranks=own, group=1))
    return tuple(known.values())


def captured(
    single: Step,
    parallel: Step,
    world_size: int,
    batch: Mapping[str, TensorSpec],
    limits: Limits,
) -> tuple[Trace, list[Trace]]:
    """The traces of the single side, and of all ranks."""
    try:
        (one,) = capture(single, 1, [0], batch, {}, limits)
    except InvalidInput as error:
        raise error.within("single") from error
    try:
        ranks = range(world_size)
        many = capture(parallel, world_size, ranks, batch, full_parameters(one), limits)
    except InvalidInput as error:
        raise error.within("parallel") from error
    return one, many


def full_parameters(single: Trace) -> dict[str, TensorSpec]:
    """The parameters of the single side, by name: what a rank may ask for in full."""
    found = {}
    for event in single.events:
        if event.name == PARAMETER:
            held = single.tensors[event.outputs[0].number]  # type: ignore[union-attr]
            found[str(event.kwargs["name"])] = TensorSpec(held.shape, held.dtype)
    return found


def combination(found: Sides, combine: Combine) -> Combination:
    """How losses combine: the first way that holds; the first one there is, if none does."""
    ways = combinations(found)
    if not ways:
        return Combination("sum", ())
    if not divided(found):
        return ways[0]
    probe = make_plan(found)
    check_plan(probe)
    held: dict[str, list[bool]] = {}
    for conclusion in partition(probe).conclusions:
        held.setdefault(conclusion.kind, []).append(conclusion.holds)
    allowed = [
        (number, way)
        for number, way in enumerate(ways)
        if combine is None or way.how == combine or (number == 0 and len(ways) == 1)
    ]
    for number, way in allowed:
        rows = held.get(f"{CANDIDATE} {number}", [])
        if rows and all(rows):
            return way
    default = [way for _, way in allowed if combine is not None]
    return default[-1] if default else ways[0]


def prove(made: Plan, options: api.Options, progress: Progress, seconds: float) -> Result:
    """Decide a plan, in a run directory of its own."""
    assumptions = Assumptions() if options.assume is None else read(options.assume)
    out = rundir.create(options.out, made.name, datetime.now())
    question = asked.Asked(
        plan=store.save(made, out / PLAN),
        settings=options.settings(),
        assumptions=assumptions,
        inputs={},
        files=(),
        exhaustive=options.exhaustive,
        use_cache=options.cache,
        cache_dir=None if options.cache_dir is None else str(options.cache_dir.resolve()),
        more=options.shapes,
        proofs=options.proofs,
    )
    asked.write(out, question)
    return api.prove(made, out, question, options.settings(), progress, seconds)
