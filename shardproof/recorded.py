"""A verdict on recorded steps: traces of both sides to a plan, how losses combine, and the run.

Nothing here needs the framework that was recorded, but for a replay that is asked for.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any, Final, Literal, TypeAlias

from shardproof import api, derivative, drawing
from shardproof.diagnosis.explain.counterexample import simulated
from shardproof.engine.errors import InvalidInput
from shardproof.engine.findings import Finding
from shardproof.engine.plan.assumption import Assumption, texts
from shardproof.engine.plan.ir import Plan
from shardproof.engine.plan_files import store
from shardproof.engine.plan_files.wellformed import check as check_plan
from shardproof.engine.records.run import PLAN
from shardproof.engine.simulation.simulate import Simulation
from shardproof.frontends.fx.pairing import paired
from shardproof.frontends.graphs import relations
from shardproof.frontends.graphs.relations import Relations
from shardproof.frontends.torch import begun
from shardproof.frontends.torch.communicators import mismatched
from shardproof.frontends.torch.earlier import draws_before
from shardproof.frontends.torch.families import shown
from shardproof.frontends.torch.late import divided_late
from shardproof.frontends.torch.plan import (
    CANDIDATE,
    LOSS,
    Combination,
    check_names,
    combinations,
    notes,
    parts,
    probe,
)
from shardproof.frontends.torch.plan import plan as make_plan
from shardproof.frontends.torch.randomness import assumed as assumed_of_draws
from shardproof.frontends.torch.randomness import compared_too, draws
from shardproof.frontends.torch.sides import Known, Sides, sides
from shardproof.frontends.torch.trace import SUMMED, Trace
from shardproof.inputs import rundir
from shardproof.inputs.assume import Assumptions, read
from shardproof.inputs.traces import alone, is_exported, kept
from shardproof.partition.stages.partition import Partition, partition
from shardproof.run import certificate, request
from shardproof.run.moved import agree_when_moved, unexcused
from shardproof.run.options import Options, path
from shardproof.run.progress import Progress
from shardproof.run.result import Result
from shardproof.run.tables import agree, disagreeing, guarded

Combine: TypeAlias = Literal["mean", "sum"] | None

#: Inputs that ways to combine losses are tried on.
SEEDS: Final = 2
#: Where the single side is not defined on these: positive inputs, and larger ones, too.
SEEDS_UNTIL_DEFINED: Final = 6


def run(
    single: Path,
    parallel: Path,
    options: Options,
    progress: Progress,
    combine: Combine = None,
    validated: bool = False,
) -> Result:
    """Decide about two folders of traces, or an exported program and the traces of a step.

    Example: ``run(Path("one"), Path("many"), Options(), Progress())`` for two folders of
    ``shardproof capture``.
    """

    def work() -> Result:
        start = time.perf_counter()
        progress.phase("load")
        one, ranks = alone(single), kept(parallel)
        if not is_exported(single):
            if options.relations is not None:
                message = "a relations file is about graphs and exported programs"
                raise InvalidInput(message, str(options.relations))
            return answered(one, ranks, combine, validated, options, progress, start)
        relations_file = path(options.relations)
        both = paired(one, ranks, relations.read(relations_file) if relations_file else Relations())
        return answered(
            both.single,
            both.ranks,
            combine,
            validated,
            options,
            progress,
            start,
            assumed=both.assumed,
        )

    return measured(work, options, progress)


# -- verdicts --------------------------------------------------------------------------------------


def measured(work: Callable[[], Result], options: Options, progress: Progress) -> Result:
    """The result with its time and memory; what is wrong with the input is a result too.

    Example: without ``out`` a run that did not fit its budget is kept in
    ``shardproof-runs/TIME-torch``.
    """
    return api.measured(
        options.settings(),
        progress,
        work,
        lambda: rundir.create(path(options.out), "torch", datetime.now()),
    )


def answered(
    single: Trace,
    parallel: Sequence[Trace],
    combine: Combine,
    validated: bool,
    options: Options,
    progress: Progress,
    start: float,
    known: Known | None = None,
    assumed: tuple[Assumption, ...] = (),
) -> Result:
    """The verdict on traces of both sides; ``start``: when the work on them began; ``known``: what
    of them was lowered already; ``assumed``: what was inferred of them.

    Example: an ``add`` that reads the result of an all-reduce before its ``wait`` is "refuted"
    before anything is proved.
    """
    traces = sides(single, parallel, known)
    check_names(traces)
    begun.check(traces.single_step, traces.steps)
    unmet = [f for step in traces.steps for f in step.findings]
    unmet += mismatched([step.trace for step in traces.steps])
    if unmet:
        return Result("refuted", findings=distinct(unmet), assumptions=known_of(traces))
    if traces.families.missing:
        return Result("inconclusive", reason=uncaptured(traces), assumptions=known_of(traces))
    if open_question := unlike_sums(traces) or unread_collective(traces):
        return Result("inconclusive", reason=open_question, assumptions=known_of(traces))
    if draws(traces):
        placed = drawing.placed(traces)
        if placed.findings:
            findings = distinct(placed.findings)
            return Result("refuted", findings=findings, assumptions=known_of(traces))
        # What was drawn before the start may be a parameter's numbers, which constants are not.
        earlier = any(draws_before(step) for step in (traces.single_step, *traces.steps))
        looked = not placed.complete and not earlier
        differs = looked and undrawn_differs(placed.standing, combine)
        traces = placed.standing if differs else placed.sides
        assumed = (*assumed, *assumed_of_draws(placed, differs))
    made = divided_late(make_plan(traces, combination=combination(traces, combine)))
    check_plan(made)
    moved = {name: d for name, (d, _) in traces.single.derived.items()}
    made = unexcused(replace(made, tables=tables_of(traces)), moved)
    made = replace(made, assumed=(*assumed, *made.assumed))
    if validated:
        from shardproof.torch.validate import validate

        checked = validate(traces, made, [single, *sorted(parallel, key=lambda t: t.rank)])
        if not checked.agrees:
            reason = f"the translation is not what PyTorch computes: {checked.message}"
            return Result("inconclusive", reason=reason)
        made = replace(made, notes=(*made.notes, checked.text()))
    return reasoned(prove(made, traces, options, progress, start), traces)


def unlike_sums(sides: Sides) -> str:
    """Why ranks that were recorded one by one are not what they would be together: each read sums
    over ranks of whole numbers as if all had its own; "" where all have.

    Example: DDP's map of used parameters is [1, 0] on rank 0 and [0, 1] on rank 1.
    """
    read = {
        step.trace.rank: [n.removeprefix(SUMMED) for n in step.trace.notes if n.startswith(SUMMED)]
        for step in sides.steps
    }
    first = min(read)
    for rank, own in read.items():
        if own != read[first]:
            return (
                "Python reads sums over ranks of whole numbers, which ranks recorded one by one "
                f"take for those of their own: rank {first} {', '.join(read[first]) or 'none'}, "
                f"rank {rank} {', '.join(own) or 'none'}"
            )
    return ""


def unread_collective(sides: Sides) -> str:
    """Why a collective of some ranks has no meaning, and which they are, though the others' may
    have one: they wait for it all the same; "" where all have one.

    Example: "ranks 1: comm.all_reduce: ..." of memory that rank 1 alone has not written.
    """
    ranks: dict[str, list[int]] = {}
    for side, step in zip(sides.ranks, sides.steps, strict=True):
        for name, reason in side.gaps.items():
            if name.startswith("comm."):
                ranks.setdefault(f"{name}: {reason}", []).append(step.trace.rank)
    return next((f"ranks {shown(tuple(own))}: {reason}" for reason, own in ranks.items()), "")


def undrawn_differs(standing: Sides, combine: Combine) -> bool:
    """Whether sides with constants in place of what they draw differ on numbers: then so they do
    with what is drawn, whichever part of it a rank draws.

    Example: a program that forgets an all-reduce after its dropouts differs with nothing dropped.
    """
    made = make_plan(standing, combination=combination(standing, combine))
    check_plan(made)
    if any(compared_too(side.draws) for side in (standing.single, *standing.ranks)):
        return False  # no one number is what all of it stands for
    result = partition(replace(made, tables=tables_of(standing)))
    result.plan = guarded(result)
    return any(comparison.differs for comparison in simulated(result, SEEDS).comparisons)


def tables_of(sides: Sides) -> dict[str, Any]:
    """Tables of constants of both sides by name.

    Example: the slopes of 4 heads of the single side, and those of 2 that ranks made by themselves.
    """
    tables: dict[str, Any] = {}
    for side in (*sides.ranks, sides.single):
        tables |= side.contents
    return tables


def known_of(sides: Sides) -> tuple[str, ...]:
    """What is assumed and noted of recorded steps, without a plan.

    Example: "no gradients compared: the single side has none".
    """
    return (*texts(parts(sides)), *notes(sides))


def reasoned(result: Result, sides: Sides) -> Result:
    """The result with the reason why an operator was not lowered, in place of "is not declared",
    and its certificate with the same words.

    Example: "operator aten.foo is not declared" is said as "aten.foo is not lowered: ...", with
    what lowering found.
    """
    reasons = {
        f"operator {name} is not declared": f"{name} is not lowered: {reason}"
        for side in (sides.single, *sides.ranks)
        for name, reason in side.gaps.items()
    }

    def text(message: str) -> str:
        for before, after in reasons.items():
            message = message.replace(before, after)
        return message

    if not reasons:
        return result
    if result.run_dir:
        certificate.reworded(Path(result.run_dir), text)
    findings = tuple(f._replace(message=text(f.message)) for f in result.findings)
    return replace(result, reason=text(result.reason), findings=findings)


def uncaptured(sides: Sides) -> str:
    """That some ranks have to be captured before anything can be said, and which.

    Example: "what was captured (ranks 0) does not tell what all ranks run: ranks 1 have to be
    captured too".
    """
    captured = shown(tuple(step.trace.rank for step in sides.steps))
    return (
        f"what was captured (ranks {captured}) does not tell what all ranks run: ranks "
        f"{shown(sides.families.missing)} have to be captured too"
    )


def distinct(findings: Sequence[Finding]) -> tuple[Finding, ...]:
    """One finding for all ranks at which the same operators meet, in order.

    Example: an ``add`` at ``train.py:12`` that reads too early on ranks 0 and 1 is one finding, of
    ranks ``(0, 1)``.
    """
    ranks: dict[tuple[str, str], list[int]] = {}
    for finding in findings:
        ranks.setdefault((finding.operator, finding.source), []).extend(finding.ranks)
    known: dict[tuple[str, str], Finding] = {}
    for finding in findings:
        place = (finding.operator, finding.source)
        own = tuple(sorted(set(ranks[place])))
        known.setdefault(place, finding._replace(ranks=own, group=1))
    return tuple(known.values())


def combination(sides: Sides, combine: Combine) -> Combination:
    """How losses combine: the first way that holds; the first one there is, if none does.

    Example: "mean" where the losses of two replicas averaged are the single side's, "sum" where
    they add up to it.
    """
    ways = combinations(sides)
    if not ways:
        return Combination("sum", ())
    if len(ways) == 1:
        return ways[0]
    allowed = [(n, way) for n, way in enumerate(ways) if combine is None or way.demand == combine]
    if not allowed:
        return ways[0]
    asking = probe(sides)
    check_plan(asking)
    result = partition(asking)
    holding: dict[str, list[bool]] = {}
    for conclusion in result.conclusions:
        holding.setdefault(conclusion.kind, []).append(conclusion.holds)
    for number, way in allowed:
        rows = holding.get(f"{CANDIDATE} {number}", [])
        if rows and all(rows):
            return way
    # None is proved: a way that differs on numbers must not be what a refutation is about.
    simulation = _defined(result)
    differs = {c.demand.kind for c in simulation.comparisons if c.differs}
    left = [way for n, way in allowed if f"{CANDIDATE} {n}" not in differs]
    if len(left) == 1 and not simulation.fewer:
        return left[0]
    # Where axes are smaller, all rows may be alike, an id may name no class, and a program that
    # counts positions counts fewer: one way may hold of the programs as they are, with the tables
    # that they have.
    tables = tables_of(sides)
    moved = {name: by for name, (by, _) in sides.single.derived.items()}
    others = [way for _, way in allowed if way not in left]
    for way in [*left, *others] if simulation.fewer or not left else left:
        made = make_plan(sides, combination=way)
        losses = tuple(row for row in made.expectations if row.kind == LOSS)
        of_losses = replace(made, expectations=losses)
        if moved and agree_when_moved(replace(of_losses, tables=tables), moved):
            return way
        if agree(of_losses, tables):
            return way
    # Too large for every rank to be run by itself: ranks that compute the same are run once.
    apart = disagreeing(replace(result, plan=asking), tables, CANDIDATE)
    if apart is not None:
        left = [way for n, way in allowed if f"{CANDIDATE} {n}" not in apart]
    return left[0] if left else allowed[0][1]


def _defined(result: Partition) -> Simulation:
    """Both sides on few inputs, or on more until the single side is defined on some."""
    simulation = simulated(result, SEEDS)
    if simulation.undefined:
        return simulated(result, SEEDS_UNTIL_DEFINED, until_defined=True)
    return simulation


def prove(made: Plan, sides: Sides, options: Options, progress: Progress, start: float) -> Result:
    """Decide a plan, in a run directory of its own; ``start``: when the work on it began.

    Example: in a directory with ``plan/``, ``run.json`` and, with a custom backward,
    ``derivative/``.
    """
    chosen, assume_file = path(options.out), path(options.assume)
    if chosen is not None:
        rundir.refuse_used(chosen)
    assumptions = Assumptions() if assume_file is None else read(assume_file)
    out = rundir.create(chosen, made.name, datetime.now())
    settings = options.settings()
    made, beside = derivative.answered(made, sides, out, options)
    question = request.Request(
        plan=store.save(made, out / PLAN),
        # A pool is there for as long as what began it: whoever goes on later uses none.
        settings=replace(settings, pool="", address=options.address),
        assumptions=assumptions,
        inputs={},
        files=(),
        options=options.given(),
    )
    request.write(out, question)
    seconds = time.perf_counter() - start
    result = api.prove(made, out, question, settings, progress, seconds)
    return replace(result, findings=(*result.findings, *beside))
