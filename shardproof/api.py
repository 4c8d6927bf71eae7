"""A run, from what the user names to the result: what the command line and Python share."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import datetime
from functools import partial
from importlib import import_module
from pathlib import Path
from threading import Thread
from typing import TYPE_CHECKING

from shardproof.engine.errors import InvalidInput
from shardproof.engine.storage.garbage import no_collector
from shardproof.inputs import rundir
from shardproof.run.options import Options, path
from shardproof.run.plain import plain
from shardproof.run.progress import Progress, waiting
from shardproof.run.result import Result

if TYPE_CHECKING:
    from shardproof.checker import CheckResult
    from shardproof.cluster.memory.budget import OverBudget
    from shardproof.cluster.settings import Settings
    from shardproof.engine.plan.ir import Plan
    from shardproof.inputs.assume import Assumptions
    from shardproof.partition.stages.single import SingleSide
    from shardproof.run.request import Request

#: The kind of the conclusions about gradients of parameters.
GRADIENT = "gradient"


def run(
    single: Path | Plan,
    parallel: Path | None,
    options: Options,
    progress: Progress | None = None,
    settings: Settings | None = None,
) -> Result:
    """Verify; what is wrong with the input is a result too.  ``settings``: those of the options,
    with more that only this process knows (a shared pool).

    Example: ``run(Path("plans/gpt"), None, Options(out="run"))``; a missing file is "invalid
    input", with the reason.

    Raises ``ValueError`` for options that cannot be; any other error is a fault of ours, or of
    the machine.
    """
    progress = Progress() if progress is None else progress
    settings = options.settings() if settings is None else settings

    def place() -> Path:
        from shardproof.inputs.load import plan_name

        return rundir.create(path(options.out), plan_name(parallel or single), datetime.now())

    work = partial(_run, single, parallel, options, settings, progress)
    return measured(settings, progress, work, place)


def measured(
    settings: Settings, progress: Progress, work: Callable[[], Result], place: Callable[[], Path]
) -> Result:
    """The result of a run with its time and memory, kept in its directory.

    Example: a run whose plan takes 900 MiB of a budget of 1 GiB is "inconclusive", "memory: in
    phase load, the process tree held ...".

    What is wrong with the input, and a budget that was not enough, are results; ``place`` gives the
    directory for that of a budget which was not enough for the run to come to one.
    """
    from shardproof.cluster.memory.budget import OverBudget, bounded
    from shardproof.cluster.verdicts.ledger import LedgerError
    from shardproof.frontends.untrusted.forks import forked_readers

    start = time.perf_counter()
    peak = 0.0
    for line in settings.notes():
        progress.note(line)
    try:
        with bounded(settings.memory_budget_bytes) as sampler, no_collector(), forked_readers():
            progress.memory = lambda: sampler.peak_mib
            result = work()
    except LedgerError as error:
        # Somebody else writes here: this directory is theirs, and nothing is left in it.
        return Result("invalid input", reason=str(error))
    except InvalidInput as error:
        result = Result("invalid input", reason=str(error), run_dir=_place(progress))
    except OverBudget as over:
        peak = over.used_mib
        result = _over(over, progress, place)
    result = replace(
        result,
        seconds=replace(result.seconds, total=time.perf_counter() - start),
        peak_rss_mib=max(result.peak_rss_mib, peak, progress.memory()),
    )
    if result.run_dir:
        rundir.keep(Path(result.run_dir), rundir.RESULT, result.to_json() + "\n")
    return result


def _over(over: OverBudget, progress: Progress, place: Callable[[], Path]) -> Result:
    """The result of a run that would not keep within its budget."""
    reason = f"memory: in phase {progress.current}, {over}"
    try:
        return Result("inconclusive", reason=reason, run_dir=_place(progress) or str(place()))
    except InvalidInput as error:
        return Result("invalid input", reason=str(error))


def _place(progress: Progress) -> str:
    """Where the run keeps its things, if it has a place yet."""
    return "" if progress.run_dir is None else str(progress.run_dir)


@no_collector()
def check(
    run_dir: Path,
    files: Sequence[Path] = (),
    *,
    proofs: bool = False,
    ethos: Path | None = None,
    cpc: Path | None = None,
    cluster: Settings | None = None,
) -> CheckResult:
    """The second eye over a finished run; raises `InvalidInput` if it is none, or for input files
    (as given to ``verify``) that cannot be read.

    Example: of a run whose input file is another one by now, ``ok`` is false, with a problem
    "input".

    ``cluster``: where a proof is checked in parts; stored proofs are checked here all the same.
    """
    if not run_dir.is_dir() or not rundir.is_run(run_dir):
        raise InvalidInput("expected the directory of a run", str(run_dir))
    from shardproof import checker
    from shardproof.cluster.local import limits
    from shardproof.cluster.machine import machine_bytes
    from shardproof.cluster.settings import Settings
    from shardproof.run import check_in_parts as spread_check
    from shardproof.run.recheck import read_again

    source = read_again(run_dir, files)
    if cluster is not None and not proofs and spread_check.can_be_spread(run_dir):
        checked = spread_check.check(run_dir, cluster, inputs=source.inputs, plan=source.plan)
    else:
        checked = checker.check(
            run_dir,
            memory_limits=limits(Settings(), machine_bytes()),
            inputs=source.inputs,
            plan=source.plan,
            proofs=proofs,
            ethos=ethos,
            cpc=cpc,
        )
    if source.note:
        checked = checked._replace(notes=(source.note, *checked.notes))
    if source.refused:
        problem = checker.Problem("input", source.refused)
        checked = checked._replace(ok=False, problems=(*checked.problems, problem))
    return checked._replace(compared=source.files)


def _run(
    single: Path | Plan,
    parallel: Path | None,
    options: Options,
    settings: Settings,
    progress: Progress,
) -> Result:
    from shardproof.inputs import assume
    from shardproof.inputs.load import digests
    from shardproof.run.loaded import loaded

    start = time.perf_counter()
    progress.phase("load")
    chosen, assume_file = path(options.out), path(options.assume)
    named = tuple(p for p in (single, parallel) if isinstance(p, Path))
    settings.require_installed()
    rundir.refuse_nameless(*named, chosen or rundir.DEFAULT, path(options.cache_dir))
    if chosen is not None:
        rundir.refuse_used(chosen)
    assumptions = assume.Assumptions() if assume_file is None else assume.read(assume_file)
    related = path(options.relations)
    if related is not None:
        assumptions = replace(assumptions, relations=str(related.resolve()))
    assumptions = assumptions.with_groups(options.nnscaler_groups)
    # While children read the files this process gets ready, and reads what is there.
    ready = Thread(target=import_module, args=("shardproof.run.pipeline",), daemon=True)
    ready.start()
    with waiting(progress, _read(named)):
        from shardproof.run.beforehand import ReadAhead

        ahead = ReadAhead()
        plan = loaded(single, parallel, assumptions, ahead.begin)
        ready.join()
    out = rundir.create(chosen, plan.name, datetime.now())
    progress.run_dir = out
    seconds = time.perf_counter() - start

    from shardproof.run import request

    question = request.Request(
        plan="",
        # A pool is there for as long as what began it: whoever goes on later uses none.
        settings=replace(settings, pool="", address=options.address),
        assumptions=assumptions,
        inputs=digests(single, parallel, assumptions.relations),
        files=tuple(str(p.resolve()) for p in (*named, *([related] if related else []))),
        options=options.given(),
    )
    with request.storing(out, question, plan) as saved:
        return prove(plan, out, question, settings, progress, seconds, saved, ahead.take)


def _read(paths: Sequence[Path]) -> str:
    """What is being read, for whoever waits: ``reading one.pkl and many.pkl, 48 MiB``."""
    size = sum(path.stat().st_size for path in paths if path.is_file()) >> 20
    names = " and ".join(plain(path.name) for path in paths)
    return f"reading {names}{f', {size} MiB' if size else ''}" if paths else ""


def prove(
    plan: Plan,
    out: Path,
    question: Request,
    settings: Settings,
    progress: Progress,
    load_seconds: float,
    saved: Callable[[], str] | None = None,
    ahead: Callable[[], SingleSide | None] = lambda: None,
) -> Result:
    """Answer what was asked of a plan, in the run directory ``out``; others can see how it goes.

    Example: for a GPT, ``status.json`` goes through the phases "partition", "solve", "compose" and
    "done".

    ``saved``: what waits until the plan is in ``out`` and gives its digest, where that is under way
    (`request.storing`); else it is there, with the digest that ``question`` names.  ``ahead``: see
    `shardproof.run.pipeline.run`.
    """
    from shardproof.run import status
    from shardproof.run.pipeline import run as pipeline

    progress.run_dir = out
    with status.kept_status(out, progress):
        result = pipeline(
            plan,
            options=question.chosen,
            settings=settings,
            out=out,
            assumptions=question.assumptions,
            load_seconds=load_seconds,
            progress=progress,
            inputs=question.inputs,
            otherwise=partial(_as_recorded, question, plan),
            saved=saved or (lambda: question.plan),
            ahead=ahead,
        )
        progress.phase(Progress.DONE)
    return _held_to(replace(result, run_dir=str(out)), question.assumptions)


def _as_recorded(question: Request, plan: Plan) -> Plan | None:
    """The same files with groups in the order that the parallel plan records; None if that is how
    they were read, or they are not there as they were.  They are read again only if the reader of
    ``plan`` does not know what is different."""
    from shardproof.inputs.load import digests, load_plan, otherwise

    if len(question.files) != 2 or question.assumptions.as_recorded:
        return None
    single, parallel = map(Path, question.files)
    if plan.otherwise is not None:
        return otherwise(plan, question.assumptions)
    try:
        if dict(digests(single, parallel, question.assumptions.relations)) != dict(question.inputs):
            return None
        return load_plan(single, parallel, replace(question.assumptions, groups="as recorded"))
    except (InvalidInput, OSError):
        return None


def _held_to(result: Result, assumptions: Assumptions) -> Result:
    """A proof that lacks an expected conclusion is none."""
    gradients = (c.name for c in result.conclusions if c.kind == GRADIENT and c.holds)
    unmet = assumptions.unmet(gradients)
    if result.verdict != "proved" or not unmet:
        return result
    named = ", ".join(unmet)
    return replace(
        result,
        verdict="inconclusive",
        reason=f"not among the conclusions, though expected (--assume): the gradient of {named}",
    )
