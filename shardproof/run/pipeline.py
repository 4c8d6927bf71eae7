"""From a plan in memory to a result: partition, solve, compose, confirm, write down."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import NamedTuple

from shardproof.cluster import lower_claims as stating
from shardproof.cluster.execute import joined
from shardproof.cluster.memory.budget import batch_instances
from shardproof.cluster.settings import Settings
from shardproof.cluster.verdicts.cache import VerdictCache
from shardproof.cluster.verdicts.ledger import Ledger
from shardproof.diagnosis.explain.counterexample import simulated
from shardproof.diagnosis.search import Diagnosis, recorded_otherwise
from shardproof.engine.errors import Unsupported
from shardproof.engine.findings import Finding
from shardproof.engine.ops.listing import foreign
from shardproof.engine.plan import constants as rounding
from shardproof.engine.plan.assumption import Assumption, texts
from shardproof.engine.plan.assumptions import stated_orders
from shardproof.engine.plan.ir import Plan
from shardproof.engine.plan.mesh import described, on_one_mesh
from shardproof.engine.plan.unrolled import forms, moving
from shardproof.engine.schedule import liveness
from shardproof.engine.simulation.simulate import Simulation
from shardproof.engine.small_model.kept_whole import kept_whole
from shardproof.engine.specification.definedness import doubtful
from shardproof.engine.storage.closing import Closing
from shardproof.inputs.assume import Assumptions
from shardproof.partition.audit.exhaustive import Audit, audit
from shardproof.partition.evidence.precision import precision
from shardproof.partition.evidence.recorded import metadata
from shardproof.partition.evidence.rounding import without_rounding
from shardproof.partition.stages.partition import Partition
from shardproof.partition.stages.single import SingleSide
from shardproof.partition.stages.worded import partition_in_words
from shardproof.partition.templates.memo import Memo
from shardproof.run import certificate
from shardproof.run.beside import BesideOneByOne
from shardproof.run.early import EarlySimulation
from shardproof.run.explained import explained
from shardproof.run.optional import optional
from shardproof.run.options import Options, path
from shardproof.run.progress import Progress
from shardproof.run.proofs import Proof, produce
from shardproof.run.result import Counts, Result, Seconds
from shardproof.run.solve import Answers, Solving
from shardproof.run.tables import guarded
from shardproof.run.verdict import (
    Decision,
    decide,
    is_proved,
    name_stage,
    strictly,
    told_of,
    unproved,
)

#: How many inputs are tried before a failed conclusion counts as unconfirmed.
SEEDS = 6

#: How many of them before a form of the plan with its ranks written out is tried: nearly every
#: fault shows on the first.
FIRST_DRAWS = 2

#: Operators on all ranks up to which both programs are run before such a form is tried: to read
#: that is less than to run more.
MOST_RUN_FIRST = 20_000

#: Instances of both sides from which on claims are stated in two processes: there are enough of
#: them then, and they are large enough, to be worth a fork.
MANY = 10_000

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
    saved: Callable[[], str] = str,
    ahead: Callable[[], SingleSide | None] = lambda: None,
) -> Result:
    """Verify a plan; everything that the verdict rests on is written to ``out``.

    Example: the GPT of examples/gpt.py: "proved" with 539 stages and 114 templates, and
    ``certificate.json`` in ``out``.

    ``settings``: those of the options, or others to go on with.  ``inputs``: SHA-256 of the files
    that the plan was read from, by name, for the certificate.  ``otherwise``: the plan as it is if
    groups are in the order that it records, which a refutation for another order is tried with.
    ``memo``: what is known from other plans of the same model.  ``saved`` gives the digest of
    ``plan`` if it is in ``out`` by then.  ``ahead`` gives, once, the single-device side if it was
    read before the other one was there.

    Raises `engine.errors.InvalidInput` if the two sides are not of one model, and the errors of
    `cluster.execute.execute`.
    """
    start = time.perf_counter()
    plan = on_one_mesh(plan)
    assumed = _assumed(assumptions, plan)
    work = _Work(options, settings, out, progress, memo, ahead)
    try:
        attempt = work.on(plan, otherwise, assumptions.chosen)
    except Unsupported as error:
        # The single-device side has no meaning here: there is nothing to hold the plan against.
        seconds = time.perf_counter() - start
        return Result(
            verdict="inconclusive",
            reason=f"single-device plan: {error}",
            counts=Counts(ranks=plan.ranks),
            seconds=Seconds(load=load_seconds, partition=seconds, total=load_seconds + seconds),
            assumptions=texts(assumed),
            assumption_details=assumed,
            run_dir=str(out),
            mesh=described(plan),
        )
    cache, partitioned, solved = attempt.cache, attempt.partitioned, attempt.solved
    result, answers, decision = attempt.result, attempt.answers, attempt.decision
    assumed = _assumed(assumptions, result.plan)
    sends = liveness.statement(result.plan, result.parallel.unrolled.waits)
    assumed = (*assumed, *sends, *rounding.statement(result.plan))
    beside = optional(result, answers) if result.conclusions else []
    if options.strict:
        decision = strictly(decision, assumed)
    composed = time.perf_counter()
    counted = counts(result, answers)
    proofs: list[Proof] = []
    if options.proofs:
        progress.phase("prove")
        proofs = produce(answers, settings, progress.update)
    there = saved() if result.plan is plan else ""
    certificate.write(
        out,
        result,
        answers,
        decision,
        assumed,
        counted,
        settings,
        inputs or {},
        proofs,
        there,
        attempt.written,
    )
    return Result(
        verdict=decision.verdict,
        reason=decision.reason,
        counts=counted,
        seconds=Seconds(
            load=load_seconds,
            partition=partitioned - start,
            solve=solved - partitioned,
            compose=composed - solved,
            total=load_seconds + time.perf_counter() - start,
        ),
        assumptions=texts(assumed),
        assumption_details=assumed,
        kept_whole=kept_whole(result.nodes),
        conclusions=tuple(told_of(c, decision) for c in result.conclusions),
        findings=(*decision.findings, *beside, *_of_cache(cache)),
        run_dir=str(out),
        mesh=described(plan),
    )


def _nobody(_texts: stating.Texts) -> None:
    """Texts that are solved later."""


class _Attempt(NamedTuple):
    """What came out for a plan; ``partitioned``, ``solved``: when; ``written``: the digests of the
    tables, if they were written; ``search``: for what is wrong with it, if nothing was run."""

    result: Partition
    answers: Answers
    decision: Decision
    cache: VerdictCache | None
    partitioned: float
    solved: float
    written: Mapping[str, str] | None
    search: Diagnosis | None


def _assumed(assumptions: Assumptions, plan: Plan) -> tuple[Assumption, ...]:
    """What a verdict on a plan rests on."""
    return (*assumptions.describe(plan), *stated_orders(plan), *foreign(plan))


class _Work(NamedTuple):
    """How a plan is decided."""

    options: Options
    settings: Settings
    out: Path
    progress: Progress
    memo: Memo | None
    ahead: Callable[[], SingleSide | None]

    def on(self, plan: Plan, otherwise: Callable[[], Plan | None] | None, chosen: bool) -> _Attempt:
        """Partition, solve and decide; raises `Unsupported` where the single-device side has no
        meaning.

        What is not decided at once is tried in other forms before it is read whole, or on more
        inputs, for these take longer: ranks of a family may hold different values, and then each is
        read by itself.  ``chosen``: as `engine.plan.unrolled.forms` has it.
        """
        whole = self.options.exhaustive
        with self._early(plan, whole=whole) as early:
            attempt = self._with(early, plan, otherwise, whole, FIRST_DRAWS)
        if attempt.decision.verdict != "inconclusive" and (
            not attempt.result.unread or _is_explained(attempt.decision)
        ):
            return attempt
        failed = {(c.kind, c.name) for c in attempt.result.conclusions if not c.holds}
        others = partial(forms, plan, moving(plan, failed), chosen=chosen)
        if attempt.decision.verdict == "inconclusive":
            proved = self._first_proved(others(), whole=False)
            if proved is not None:
                return proved
            # The tables of the forms are where its own were.
            attempt = attempt._replace(written=None)
        if not attempt.result.unread:
            return attempt._replace(decision=self._on_more_inputs(attempt, otherwise))
        with self._early(plan, whole=True) as early:
            attempt = self._with(early, plan, otherwise, whole, None)
        if attempt.decision.verdict == "inconclusive":
            attempt = self._first_proved(others(), whole=True) or attempt._replace(written=None)
        return attempt

    def _early(self, plan: Plan, *, whole: bool) -> EarlySimulation:
        alone = self.settings.memory_budget_bytes is not None
        return EarlySimulation(plan, alone=alone, whole=whole)

    def _first_proved(self, plans: Iterator[Plan], *, whole: bool) -> _Attempt | None:
        """The attempt on the first one of some plans that is proved; None: none is."""
        for plan in plans:
            with self._early(plan, whole=whole) as early:
                attempt = self._with(early, plan, None, False, 0)
            if attempt.decision.verdict == "proved":
                if self.options.exhaustive:
                    with self._early(plan, whole=True) as early:
                        return self._with(early, plan, None, True, 0)
                return attempt
        return None

    def _on_more_inputs(
        self, attempt: _Attempt, otherwise: Callable[[], Plan | None] | None
    ) -> Decision:
        """What is decided when both programs are run on all inputs that are to be tried."""
        result = attempt.result
        if result.faults:
            return attempt.decision
        search = attempt.search or _search(result, _ahead(result, otherwise), self.progress)
        simulation = _run(result, self.progress, None)
        return explained(result, unproved(result, attempt.answers), simulation, search)

    def _with(
        self,
        early: EarlySimulation,
        plan: Plan,
        otherwise: Callable[[], Plan | None] | None,
        exhaustive: bool,
        draws: int | None,
    ) -> _Attempt:
        """``draws``: on how many inputs both sides are run at most, if they are not proved to
        agree; None: on as many as are tried; 0: nothing but a proof is of use."""
        options, settings, progress = self.options, self.settings, self.progress
        progress.phase("partition")
        tell_rows = partial(progress.update, detail="rows")
        result = without_rounding(
            partition_in_words(
                plan, options.shapes, self.memo, tell_rows, early.begin, self.ahead()
            )
        )
        result.plan = guarded(result)
        if not result.faults and draws != 0:
            early.go_on(result)
        second = self._second(result)
        with second or nullcontext(), joined(settings), Ledger(self.out) as ledger:
            if not result.faults and second is None:
                early.compare(partial(_evidence, result), result)
            cache = VerdictCache(path(options.cache_dir)) if options.cache else None
            solving = Solving(settings, ledger, cache, progress.update)
            with solving.ahead() as give:
                tell = partial(progress.update, detail="templates stated")
                # Two processes that state, and solvers beside them, would be four on most machines,
                # and all of their memory at one time.
                meanwhile, ahead = (second.statements, _nobody) if second else (tuple, give)
                lowered = stating.texts(result, settings, tell, ahead, meanwhile)
                if second:
                    result.findings += second.evidence()
                    second.close()
                    for both in lowered:
                        give(both)
            partitioned = time.perf_counter()
            progress.phase("solve")
            tables: dict[str, str] = {}
            answers = solving.run(lowered, lambda them: tables.update(self._tables(result, them)))
            if exhaustive:
                batch = batch_instances(settings.memory_budget_bytes)
                audited = audit(result, self.out / INSTANCES, batch, progress.update)
                _audit(result, solving, audited)
        solved = time.perf_counter()
        progress.phase("compose")
        early.write(partial(self._tables, result, answers), result)
        decision, search = _decide(result, answers, otherwise, progress, early, draws)
        written = early.written()
        if tables and decision.verdict == "proved":
            # Of what is not proved another form may be tried, which writes its own.
            written = tables
        return _Attempt(result, answers, decision, cache, partitioned, solved, written, search)

    def _tables(self, result: Partition, answers: Answers) -> dict[str, str]:
        """Write the tables of the run, which no verdict changes."""
        return certificate.tables(self.out, result, answers)

    def _second(self, result: Partition) -> _Second | None:
        """A second process that states claims: of a large plan, where memory is not bounded and no
        cluster does it."""
        settings = self.settings
        bounded = settings.memory_budget_bytes is not None or settings.own_cluster
        if bounded or result.guessed or not result.templates or len(result.stages) < MANY:
            return None
        return _Second(result)


class _Second(Closing):
    """A fork that looks for what is beside the verdict, and then states claims, the last one
    first."""

    def __init__(self, result: Partition) -> None:
        self._result = result
        self._fork = BesideOneByOne(partial(_of_second, result))
        self._findings: list[list[Finding]] = []

    def open(self) -> None:
        """Begin."""
        self._fork.open()

    def statements(self) -> Iterator[tuple[int, stating.Statement]]:
        """What it has stated since this was asked last."""
        for one in self._fork.arrived():
            if isinstance(one, list):
                self._findings.append(one)
            else:
                yield one

    def evidence(self) -> list[Finding]:
        """What it has found beside the verdict; looked for here if it has told nothing yet."""
        for _ in self.statements():
            pass
        return self._findings[0] if self._findings else _evidence(self._result)

    def close(self) -> None:
        """End it, wherever it is."""
        self._fork.close()


def _of_second(result: Partition) -> Iterator[list[Finding] | tuple[int, stating.Statement]]:
    yield _evidence(result)
    yield from stating.from_the_end(result)


def _evidence(result: Partition) -> list[Finding]:
    """What is found beside the verdict."""
    return [*precision(result), *metadata(result)]


def counts(result: Partition, answers: Answers) -> Counts:
    """What there was, and how much of it was distinct.

    Example: ``Counts(single_operators=132, parallel_operators=1392, ranks=4, stages=539,
    obligations=462, templates=114, cached=0)``.
    """
    return Counts(
        single_operators=result.single.unrolled.total,
        parallel_operators=result.parallel.unrolled.total,
        ranks=result.plan.ranks,
        stages=len(result.stages),
        obligations=sum(1 for s in result.stages if s.template >= 0 or s.problem),
        templates=len(answers.texts),
        cached=answers.cached,
    )


def _decide(
    result: Partition,
    answers: Answers,
    otherwise: Callable[[], Plan | None] | None,
    progress: Progress,
    early: EarlySimulation,
    draws: int | None,
) -> tuple[Decision, Diagnosis | None]:
    """What is decided, and the search for what is wrong that whoever runs both sides goes on with:
    one that no values have told anything."""
    open_stages = unproved(result, answers)
    if is_proved(result, open_stages):
        doubted = doubtful(result.nodes, result.reference_size)
        simulation = _run(result, progress, None, until_defined=True) if doubted else None
        return decide(result, open_stages, (), simulation), None
    search = _search(result, _ahead(result, otherwise), progress)
    if early.is_under_way(result) and draws != 0:
        if early.is_of_records(result):
            search.as_recorded()
            early.finish(result)
        search.ahead()
    early.finish(result)
    simulation = None
    if not result.faults and draws != 0:
        simulation = early.simulation(result)
        late = draws is not None and result.parallel.unrolled.total > MOST_RUN_FIRST
        if simulation is None and (early.is_of_records(result) or not (late or result.unread)):
            simulation = _run(result, progress, draws)
    decision = explained(result, open_stages, simulation, search)
    return decision, None if simulation else search


def _search(
    result: Partition, otherwise: Callable[[], Plan | None] | None, progress: Progress
) -> Diagnosis:
    return Diagnosis(result, otherwise, partial(progress.update, detail="repairs tried"))


def _run(
    result: Partition, progress: Progress, most: int | None, *, until_defined: bool = False
) -> Simulation:
    """Both programs run; a plan all of whose rows are concluded on few inputs, for its claims are
    what is open."""
    tell = partial(progress.update, detail="inputs tried")
    seeds = SEEDS if until_defined or any(not c.holds for c in result.conclusions) else 1
    return simulated(result, seeds, until_defined=until_defined, most=most, tell=tell)


def _is_explained(decision: Decision) -> bool:
    """Whether a plan is refuted, and holds with a repair, as with its groups as its records have
    them: what is made of strays would tell nothing more."""
    return decision.verdict == "refuted" and any(f.repair for f in decision.findings[:1])


def _ahead(
    result: Partition, otherwise: Callable[[], Plan | None] | None
) -> Callable[[], Plan | None] | None:
    """The plan as its records have it, read while the simulation runs, where it will be asked
    for."""
    if otherwise is None or not recorded_otherwise(result):
        return otherwise
    reader = ThreadPoolExecutor(1, "as-recorded")
    read = reader.submit(otherwise)
    reader.shutdown(wait=False)
    return read.result


def _of_cache(cache: VerdictCache | None) -> tuple[Finding, ...]:
    """What is wrong with the cache; no verdict rests on it."""
    return () if cache is None else tuple(Finding("cache", m) for m in cache.problems())


def _audit(result: Partition, solving: Solving, audit: Audit) -> None:
    """Instances that no template states are solved beside them; what cannot be stated is said."""
    strange = [name_stage(result, result.stages[n]) for n in audit.open]
    if not solving.hold(audit.more):
        strange.append("an instance")
    for name in strange:
        result.unsupported.append(
            Finding("symmetry", f"{name}: not what the family that it was taken to belong to is")
        )
