"""The check of a finished run, from the stored plan to the verdict."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

from shardproof.checker.obligations.defined import Defined
from shardproof.checker.obligations.restate import Rebuilder, single_values
from shardproof.checker.proofs.check import Alone, check_proofs
from shardproof.checker.proofs.ethos import Ethos
from shardproof.checker.proofs.ethos import find as find_ethos
from shardproof.checker.record.certificate import check_assumptions, check_counts
from shardproof.checker.record.files import check_leftovers
from shardproof.checker.record.rounding import check_rounding
from shardproof.checker.result import CheckResult, Problems
from shardproof.checker.runtime import rank_by_rank, refuted
from shardproof.checker.solving import Solver
from shardproof.checker.values.assumptions import Assumptions, Inputs
from shardproof.checker.values.definitions import DefinitionChecker
from shardproof.checker.values.operands import check_operands
from shardproof.checker.values.sides import Side, check_stages, check_structure, live_instances
from shardproof.checker.values.views import check_lineages
from shardproof.engine.errors import InvalidInput, Unsupported
from shardproof.engine.lineage.sums import root_kinds
from shardproof.engine.plan.constants import restored
from shardproof.engine.plan.ir import MICROBATCH, Plan
from shardproof.engine.plan_files import store
from shardproof.engine.records.certificate import MOST_SHAPES, SHAPES
from shardproof.engine.records.run import PARALLEL, SINGLE, Run, StageRecord, read_run
from shardproof.engine.schedule.instances import Unrolled
from shardproof.engine.schedule.unroll import unroll
from shardproof.engine.specification.conclusions import Conclusion, conclude
from shardproof.engine.specification.demands import demands, roots
from shardproof.engine.specification.gradients import Derived, derive
from shardproof.solvers import Mode

Progress = Callable[[str, int, int], None]


@dataclass
class _Check:
    """The state of one check."""

    run: Run
    thorough: bool
    solver: Solver
    problems: Problems
    seconds: dict[str, float] = field(default_factory=dict)
    counts: dict[str, int] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    part: tuple[int, int] = (0, 1)
    sides: tuple[Unrolled, Unrolled] | None = None

    @contextmanager
    def timed(self, what: str) -> Iterator[None]:
        start = time.perf_counter()
        yield
        self.seconds[what] = time.perf_counter() - start


def check(
    run_dir: str | Path,
    *,
    inputs: Mapping[str, str] | None = None,
    plan: Plan | None = None,
    thorough: bool = False,
    parallel: int = 2,
    mode: Mode = "portfolio",
    timeout: float = 30.0,
    memory_limits: Sequence[int] = (2 << 30,),
    seed: int = 1,
    progress: Progress | None = None,
    proofs: bool = False,
    ethos: str | Path | None = None,
    cpc: str | Path | None = None,
    part: tuple[int, int] = (0, 1),
) -> CheckResult:
    """Whether the verdict of a finished run stands.

    Example: of the run of a Llama with one layer on four ranks, ``ok`` with the verdict "proved";
    after one changed bit in ``atoms.arrow`` "file: ... was changed: it has
    another SHA-256 than in the certificate".

    ``inputs``: SHA-256 of the input files by name, and ``plan``: the plan as read from them again,
    if the caller has them; both are held against the certificate.  ``thorough``: rebuild every
    operator's obligation, also those that are others up to names.  ``proofs``: check the stored
    proofs too, and ask each solver by itself; ``ethos``: the external checker of proofs, with the
    calculus in ``cpc`` (`checker.proofs.ethos`).  ``part``: (k, n) states again and solves the
    templates whose number is k modulo n only, everything else is checked whole: a proof holds if
    all n parts of it do (`checker.record.parts`).  ``memory_limits``: the bytes that a solver has,
    then those that a text which did not fit is tried with again, alone.  The rest are settings of
    the solvers. Raises `InvalidInput` if ethos is not where it is said to be, ValueError for a part
    of what is no proof.
    """
    external = find_ethos(*(None if p is None else Path(p) for p in (ethos, cpc)))
    problems = Problems()
    start = time.perf_counter()
    report = progress if progress is not None else _silent

    def solved(done: int, total: int) -> None:
        report("solve", done, total)

    try:
        run = read_run(run_dir)
    except InvalidInput as error:
        problems.add("file", str(error))
        return CheckResult(False, "", problems.all(), {"read": time.perf_counter() - start}, {})

    if part != (0, 1) and (run.certificate.verdict != "proved" or proofs):
        raise ValueError("only a proof is checked in parts, and without the stored proofs")

    def solver(chosen: Mode) -> Solver:
        return Solver(parallel, chosen, timeout, memory_limits, seed, solved)

    work = _Check(run, thorough, solver(mode), problems, part=part)
    work.seconds["read"] = time.perf_counter() - start
    named = check_rounding(run, problems)
    _check_inputs(work, inputs, plan if named else None)
    report("argument", 0, 1)
    _check_argument(work)
    report("argument", 1, 1)
    if not problems:
        _look(work)
    elif run.certificate.verdict == "refuted" and not problems.doubtful():
        _confirm(work)
    if named:
        check_assumptions(run, problems)
    check_leftovers(run, problems)
    if proofs and not problems.doubtful():
        with work.timed("proofs"):
            _check_proofs(work, external, solver)
    ok = _check_verdict(run, problems)
    work.notes += _not_looked_at(run, problems)
    work.seconds["total"] = time.perf_counter() - start
    return CheckResult(
        ok, run.certificate.verdict, problems.all(), work.seconds, work.counts, tuple(work.notes)
    )


def _look(work: _Check) -> None:
    """What the argument does not rest on: operators that nothing depends on, and whether ranks that
    are run one by one end with what was concluded."""
    with work.timed("runtime"):
        check_operands(work.run.plan, work.problems)
        if work.part[0] == 0 and not work.problems:
            work.notes += rank_by_rank.look(work.run.plan, work.problems)


def _confirm(work: _Check) -> None:
    """Whether a plan that is called refuted is wrong, unless it contradicts itself."""
    if all(problem.kind != "plan" for problem in work.problems.all()):
        with work.timed("runtime"):
            work.notes += refuted.confirm(work.run.plan, work.problems, work.sides)


def _silent(phase: str, done: int, total: int) -> None:
    """Progress that nobody watches."""


def _check_inputs(work: _Check, inputs: Mapping[str, str] | None, plan: Plan | None) -> None:
    stored = work.run.certificate
    if inputs or (inputs is not None and plan is not None):
        for name in sorted(inputs.keys() | stored.inputs.keys()):
            if stored.inputs.get(name) != inputs.get(name):
                work.problems.add("input", f"{name} is not the file that the run was made from")
    if plan is None:
        return
    # Constants that the run takes as equal stand in its plan as the single device has them; and it
    # says of tables for what they are taken, where a difference refutes nothing.
    read, stored_plan = (_without_tables(p, plan.tables) for p in (plan, restored(work.run.plan)))
    if store.digest(read) != store.digest(stored_plan):
        work.problems.add("input", f"the plan {plan.name} is not the one of the run")


def _without_tables(plan: Plan, tables: Collection[str]) -> Plan:
    """The plan without its stand-ins for tables of numbers."""
    kept = (a for a in plan.assumed if a.kind != "stand-in" or a.about not in tables)
    return replace(plan, assumed=tuple(kept))


def _check_proofs(work: _Check, ethos: tuple[Ethos | None, str], alone: Alone) -> None:
    needed = sorted({s.template for s in work.run.stages if s.live and s.template >= 0})
    try:
        proofs = check_proofs(work.run, needed, ethos, alone, work.problems)
    except InvalidInput as error:
        work.problems.add("file", str(error))
        return
    work.counts.update(proofs.counts)
    work.notes += proofs.notes


def _more(run: Run, problems: Problems) -> int:
    """How many positions beyond the fewest stand for every piece of an axis."""
    more = run.certificate.settings.get(SHAPES, 0)
    if isinstance(more, int) and not isinstance(more, bool) and 0 <= more <= MOST_SHAPES:
        return more
    problems.add("obligation", f"the certificate says that the sizes are +{more}")
    return 0


def _check_verdict(run: Run, problems: Problems) -> bool:
    """Whether the verdict is the one that was found, or a weaker one that says why it is weaker."""
    verdict = run.certificate.verdict
    if verdict == "proved":
        return not problems
    if not problems and (verdict == "refuted" or not run.certificate.reasons):
        why = "" if verdict == "refuted" else " and gives no reason"
        problems.add("verdict", f"the certificate says {verdict}{why}, but everything is proved")
    return not problems.doubtful()


def _not_looked_at(run: Run, problems: Problems) -> tuple[str, ...]:
    """What a check of a run that is inconclusive leaves open, in words."""
    if run.certificate.verdict != "inconclusive" or problems.doubtful():
        return ()
    if problems:
        return (
            "of an inconclusive run it is checked that its own argument is sound as far as it goes "
            "and where it ends; neither another argument nor a difference was looked for",
        )
    return (
        "everything in the run is proved; it is inconclusive for a reason that this check does not "
        f"look at: {'; '.join(run.certificate.reasons)[:500]}",
    )


def _check_argument(work: _Check) -> None:
    """Everything between the plan and the verdict."""
    run, problems = work.run, work.problems
    with work.timed("unroll"):
        single = unroll([run.plan.single], 1)
        parallel = unroll(run.plan.programs, run.plan.microbatches)
        work.sides = (single, parallel)
        for finding in single.faults:
            # Nothing can be held against it: neither proved nor refuted.
            problems.add("verdict", f"the single-device program: {finding.message}")
        for finding in parallel.faults:
            problems.add("plan", finding.message)
        for finding in (*single.unsupported, *parallel.unsupported):
            problems.add("unproved", finding.message)
        if problems:
            return
        try:
            derived = derive(run.plan, single)
        except Unsupported as error:
            problems.add("unproved", f"the single-device program has no derivative: {error}")
            return
    with work.timed("structure"):
        check_counts(run, derived.unrolled, parallel, problems)
        sides = _sides(work, derived, parallel)
        for side in sides:
            check_structure(side, problems)
        inputs = Inputs(sides[0], problems)
        DefinitionChecker(run.nodes, inputs, _mesh(run.plan)).check(problems)
        for side in sides:
            check_lineages(side, run.nodes, problems)
        if problems.doubtful():
            return
        _check_conclusions(work, derived, parallel)
        for side in sides:
            Assumptions(side, inputs, run.nodes, problems).check()
            check_stages(side, [s for s in run.stages if s.side == side.name], problems)
        _check_templates(work, sides)
        if problems.doubtful():
            return
    with work.timed("rebuild"):
        more = _more(run, problems)
        rebuilder = Rebuilder(
            run.nodes,
            run.templates,
            problems,
            thorough=work.thorough,
            more=more,
            part=work.part,
        )
        rebuilder.side(sides[0], None)
        values = single_values(sides[0], run.nodes)
        rebuilder.side(sides[1], Defined(run.nodes, values, sides[0]))
        rebuilder.finish()
    work.counts.update(
        rows=sum(len(side.unrolled.instances) for side in sides),
        rebuilt=rebuilder.rebuilt,
        unforeseen=rebuilder.unforeseen,
        templates=len(run.templates),
        members=len(rebuilder.extra),
        conclusions=len(run.conclusions),
    )
    if not problems:
        with work.timed("solve"):
            _solve(work, rebuilder)


def _mesh(plan: Plan) -> dict[str, int]:
    """The least extent of every coordinate over the programs that have it."""
    mesh = {MICROBATCH: plan.microbatches}
    for program in plan.programs:
        for axis, extent in program.extents.items():
            mesh[axis] = min(extent, mesh.get(axis, extent))
    return mesh


def _sides(work: _Check, derived: Derived, parallel: Unrolled) -> tuple[Side, Side]:
    """Both sides, each with the rows that the conclusions depend on."""
    run = work.run
    single = derived.unrolled
    needed, ends = roots(run.plan, derived, parallel)
    return (
        Side(
            SINGLE,
            run.plan,
            (run.plan.single,),
            single,
            run.single,
            1,
            live_instances(single, needed),
            _by_row(run, SINGLE, single),
        ),
        Side(
            PARALLEL,
            run.plan,
            run.plan.programs,
            parallel,
            run.parallel,
            run.plan.microbatches,
            live_instances(parallel, ends),
            _by_row(run, PARALLEL, parallel),
        ),
    )


def _by_row(run: Run, side: str, unrolled: Unrolled) -> dict[int, StageRecord]:
    """The stages of a side by row, of rows that there are."""
    return {s.row: s for s in run.stages if s.side == side and 0 <= s.row < len(unrolled.instances)}


def _check_templates(work: _Check, sides: Sequence[Side]) -> None:
    """Every template is some stage's, first of all its example's."""
    by_name = {side.name: side for side in sides}
    for number, template in enumerate(work.run.templates):
        side = by_name.get(template.side)
        stage = side.stages.get(template.row) if side is not None else None
        if stage is None or stage.template != number:
            work.problems.add(
                "stage",
                f"template {number} is not the claim of row {template.row} of the "
                f"{template.side} side",
            )


def _check_conclusions(work: _Check, derived: Derived, parallel: Unrolled) -> None:
    run, problems = work.run, work.problems
    concluded = conclude(run.plan, run.nodes, derived, run.single, parallel, run.parallel)
    for demand in demands(run.plan, derived, parallel):
        several = len(demand.sums) > 1 or any(
            len(term.tensors) > 1 or term.over or term.batched for term in demand.sums
        )
        values = [v for term in demand.sums for v in term.tensors]
        if several and any(_is_maximum(run, v) for v in values):
            problems.add("unproved", f"{demand.kind} {demand.name}: a sum of maxima")
    for conclusion in concluded:
        if not conclusion.holds:
            problems.add("unproved", conclusion.message)
    stored = set(run.conclusions)
    for conclusion in concluded:
        if conclusion not in stored:
            problems.add("conclusion", f"{_name(conclusion)} is missing from the run, or another")
    for conclusion in sorted(stored - set(concluded)):
        problems.add("conclusion", f"{_name(conclusion)} is not a conclusion of this plan")
    if len(stored) == len(concluded) != len(run.conclusions):
        problems.add("conclusion", "a conclusion is listed twice")


def _is_maximum(run: Run, value: int) -> bool:
    """Whether a value is a maximum over a part of an axis: it is no part of a sum."""
    lineage = run.parallel[value]
    addends = lineage.addends if lineage is not None else ()
    return any("max" in root_kinds(run.nodes, addend.partials) for addend in addends)


def _name(conclusion: Conclusion) -> str:
    where = f" on rank {conclusion.ranks[0]}" if conclusion.ranks else ""
    return f"{conclusion.kind} {conclusion.name}{where}"


def _solve(work: _Check, rebuilder: Rebuilder) -> None:
    """Solve again what live rows rest on, and what the run did not say about them."""
    texts = rebuilder.texts
    solver = work.solver
    solver.solve(
        [
            *(texts[number] for number in rebuilder.needed),
            *rebuilder.extra,
            *(t for same in rebuilder.partial for t in same),
        ]
    )
    work.counts["solved"] = len(solver.verdicts)
    for number, where in sorted(rebuilder.needed.items()):
        if not solver.unsat(texts[number]):
            work.problems.add(
                "solver", f"{where}: template {number} is {solver.verdicts[texts[number]]}"
            )
    for extra, where in rebuilder.extra.items():
        if not solver.unsat(extra):
            work.problems.add("solver", f"{where}: its obligation is {solver.verdicts[extra]}")
    for same, message in rebuilder.partial.items():
        if not any(solver.unsat(t) for t in same):
            work.problems.add("definedness", message)
