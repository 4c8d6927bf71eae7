"""From a plan in memory to a result: partition, solve, compose, confirm, write down."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from pathlib import Path

from cluster import stating
from cluster.budget import batch_instances
from cluster.cache import VerdictCache
from cluster.execute import joined
from cluster.ledger import Ledger
from cluster.settings import Settings
from engine import liveness, rounding
from engine.assumed import stated_orders
from engine.assumption import texts
from engine.definedness import doubtful
from engine.errors import Unsupported
from engine.findings import Finding
from engine.ir import Plan
from engine.mesh import on_one_mesh
from engine.simulate import Simulation
from engine.whole import kept_whole
from partition.exhaustive import Audit, audit
from partition.memo import Memo
from partition.metadata import metadata
from partition.partition import Partition, partition
from partition.precision import precision
from shardproof import certificate
from shardproof.assume import Assumptions
from shardproof.counterexample import simulated
from shardproof.diagnosis import diagnosed
from shardproof.optional import optional
from shardproof.options import Options, path
from shardproof.progress import Progress
from shardproof.proofs import Proof, produce
from shardproof.result import Conclusion, Counts, Result, Seconds
from shardproof.rounding import without_rounding
from shardproof.solve import Answers, Solving
from shardproof.verdict import Decision, decide, is_proved, name_stage, strictly, unproved

#: How many inputs are tried before a failed conclusion counts as unconfirmed.
SEEDS = 4

#: The instances of an exhaustive run, in its directory.
INSTANCES = "instances.arrow"


def run(
    plan: Plan,
    *,
    options: Options,
    settings: Settings,
    out: Path,
    assumptions: Assumptions,
    load_seconds: float,
    progress: Progress,
    inputs: Mapping[str, str] | None = None,
    otherwise: Callable[[], Plan | None] | None = None,
    memo: Memo | None = None,
    saved: str = "",
) -> Result:
    """Verify a plan; everything that the verdict rests on is written to ``out``.

    ``settings``: those of the options, or others to go on with.  ``inputs``: SHA-256 of the files
    that the plan was read from, by name, for the certificate.  ``otherwise``: the plan as it is if
    groups are in the order that it records, which a refutation for another order is tried with.
    ``memo``: what is known from other plans of the same model.  ``saved``: the digest of ``plan``
    if it is in ``out`` already.

    Raises `engine.errors.InvalidInput` if the two sides are not of one model, and the errors of
    `cluster.execute.execute`.
    """
    start = time.perf_counter()
    plan = on_one_mesh(plan)
    progress.phase("partition")
    told = (*assumptions.describe(plan), *stated_orders(plan))
    try:
        result = without_rounding(partition(plan, options.shapes, memo))
    except Unsupported as error:
        # The single-device side has no meaning here: there is nothing to hold the plan against.
        seconds = time.perf_counter() - start
        return Result(
            verdict="inconclusive",
            reason=f"single-device plan: {error}",
            counts=Counts(ranks=plan.ranks),
            seconds=Seconds(load=load_seconds, partition=seconds, total=load_seconds + seconds),
            assumptions=texts(told),
            assumption_details=told,
            run_dir=str(out),
        )
    told = (*told, *liveness.statement(result.plan), *rounding.statement(result.plan))
    if not result.faults:
        result.findings += [*precision(result), *metadata(result)]
    with joined(settings), Ledger(out) as ledger:
        stated = stating.texts(result, settings, progress.update)
        partitioned = time.perf_counter()
        progress.phase("solve")
        cache = VerdictCache(path(options.cache_dir)) if options.cache else None
        solving = Solving(settings, ledger, cache, progress.update)
        answers = solving.run(stated)
        if options.exhaustive:
            batch = batch_instances(settings.memory_budget_bytes)
            _audit(result, solving, audit(result, out / INSTANCES, batch, progress.update))
    solved = time.perf_counter()
    progress.phase("compose")
    decision = _decide(result, answers, otherwise)
    beside = optional(result, answers) if result.conclusions else []
    if options.strict:
        decision = strictly(decision, told)
    composed = time.perf_counter()
    found = counts(result, answers)
    proofs: list[Proof] = []
    if options.proofs:
        progress.phase("prove")
        proofs = produce(answers, settings, progress.update)
    there = saved if result.plan is plan else ""
    certificate.write(
        out, result, answers, decision, told, found, settings, inputs or {}, proofs, there
    )
    return Result(
        verdict=decision.verdict,
        reason=decision.reason,
        counts=found,
        seconds=Seconds(
            load=load_seconds,
            partition=partitioned - start,
            solve=solved - partitioned,
            compose=composed - solved,
            total=load_seconds + time.perf_counter() - start,
        ),
        assumptions=texts(told),
        assumption_details=told,
        kept_whole=kept_whole(result.nodes),
        conclusions=tuple(
            Conclusion(c.kind, c.name, c.ranks, c.holds, c.message) for c in result.conclusions
        ),
        findings=(*decision.findings, *beside, *_of_cache(cache)),
        run_dir=str(out),
    )


def counts(result: Partition, answers: Answers) -> Counts:
    """What there was, and how much of it was distinct."""
    return Counts(
        single_operators=result.single.unrolled.instances,
        parallel_operators=result.parallel.unrolled.instances,
        ranks=result.plan.ranks,
        stages=len(result.stages),
        obligations=sum(1 for s in result.stages if s.template >= 0 or s.problem),
        templates=len(answers.texts),
        cached=answers.cached,
    )


def _decide(
    result: Partition, answers: Answers, otherwise: Callable[[], Plan | None] | None
) -> Decision:
    open_stages = unproved(result, answers)
    simulation: Simulation | None = None
    found: tuple[Finding, ...] = ()
    if not is_proved(result, open_stages):
        if not result.faults:
            simulation = simulated(
                result, SEEDS if any(not c.holds for c in result.conclusions) else 1
            )
        if result.faults or (simulation is not None and simulation.differs):
            found = diagnosed(result, simulation, otherwise)
    elif doubtful(result.nodes, result.reference_size):
        simulation = simulated(result, SEEDS, until_defined=True)
    return decide(result, open_stages, found, simulation)


def _of_cache(cache: VerdictCache | None) -> tuple[Finding, ...]:
    """What is wrong with the cache; no verdict rests on it."""
    return () if cache is None else tuple(Finding("cache", m) for m in cache.problems())


def _audit(result: Partition, solving: Solving, found: Audit) -> None:
    """Instances that no template states are solved beside them; what cannot be stated is said."""
    strange = [name_stage(result, result.stages[n]) for n in found.open]
    if not solving.hold(found.more):
        strange.append("an instance")
    for name in strange:
        result.unsupported.append(
            Finding("symmetry", f"{name}: not what the family that it was taken to belong to is")
        )
