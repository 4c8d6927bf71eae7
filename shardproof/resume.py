"""Going on with a run that was killed: the same question, its verdicts on record, one certificate.

The partition is computed again from the stored plan; what the ledger holds is not solved again. The
tables and the certificate are those of a run that nobody killed.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from shardproof import api
from shardproof.checker.record.files import check_claims, check_leftovers
from shardproof.checker.result import Problems
from shardproof.engine.errors import InvalidInput
from shardproof.engine.records.run import read_run
from shardproof.engine.storage import files
from shardproof.inputs import rundir
from shardproof.run import request
from shardproof.run.progress import Progress
from shardproof.run.result import Result


def resume(run_dir: Path, progress: Progress | None = None, **where: Any) -> Result:
    """The result of a run, found by finishing it if need be.

    Example: a run that was killed with 80 of 114 verdicts on record solves the other 34.

    ``where``: ``executor``, ``address``, ``workers`` to go on with, where they are not None; no
    verdict depends on them. Verdicts by solvers of other versions than those here are not used.
    Raises `InvalidInput` for what is no run, and for a run that somebody is at work on.
    """
    from shardproof.cluster.verdicts.ledger import Ledger, LedgerError

    progress = Progress() if progress is None else progress
    question, plan = request.read(run_dir)
    chosen = {name: value for name, value in where.items() if value is not None}
    if chosen.get("executor") == "local":
        # An address that the run began with is not one that it goes on with here.
        chosen.setdefault("address", None)
    try:
        settings = replace(question.settings, **chosen)
    except ValueError as error:
        raise InvalidInput(str(error), str(run_dir)) from error
    done = finished(run_dir)
    if done is not None:
        return done
    out = run_dir.resolve()
    try:
        # Nobody else may be at work here, and the verdicts must be readable.
        Ledger(out).close()
    except LedgerError as error:
        raise InvalidInput(str(error), str(run_dir)) from error
    return api.measured(
        settings,
        progress,
        lambda: api.prove(plan, out, question, settings, progress, 0.0),
        lambda: out,
    )


def finished(run_dir: Path) -> Result | None:
    """The result of a run that came to its end; None of one that did not, and of one whose files do
    not bear its result out: that one is found again.

    Example: None where ``result.json`` says "proved" and ``verdicts.arrows`` lacks the verdict on a
    template.
    """
    try:
        run = read_run(run_dir)
        result = Result.from_json(files.contents(run_dir / rundir.RESULT))
    except (InvalidInput, OSError, ValueError):
        return None
    if run.certificate.verdict != result.verdict:
        return None
    problems = Problems()
    check_leftovers(run, problems)
    if result.verdict == "proved":
        check_claims(run, problems)
    return None if problems else result
