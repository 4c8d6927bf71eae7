"""What a run was made from, read again to be held against it.

A run directory has a copy of its plan, and whoever can write there can change it; so a check reads
the input files again where they still are, with the assumptions that the run names.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import msgspec

from shardproof.engine.errors import InvalidInput
from shardproof.engine.plan.ir import Plan
from shardproof.engine.plan.unrolled import forms
from shardproof.engine.plan_files import store
from shardproof.engine.records.certificate import read_certificate
from shardproof.engine.storage.tables import read_file
from shardproof.inputs.assume import Assumptions
from shardproof.inputs.load import digests
from shardproof.partition.evidence.rounding import rounded
from shardproof.run import request
from shardproof.run.loaded import loaded

#: Characters of the name of a missing file that are shown.
MOST_SHOWN: Final = 200


@dataclass(frozen=True, slots=True)
class Source:
    """The input of a finished run, as it is now. ``inputs``: SHA-256 of the files by role;
    ``plan``: what they say (None: not read again, and ``note`` says why); ``files``: which these
    are; ``refused``: why files that are there cannot be what the run was made from.

    Example: ``Source({}, None, "the input was not read again: /plans/one.pkl is not there any
    more")``.
    """

    inputs: dict[str, str]
    plan: Plan | None
    note: str = ""
    files: tuple[str, ...] = ()
    refused: str = ""


def read_again(run_dir: Path, files: Sequence[Path]) -> Source:
    """The input of a run: ``files``, or where it was. Raises `InvalidInput` for given files that
    cannot be read.

    Example: a run of a plan in memory has "the input was not read again: the plan was given in
    memory ...".
    """
    question = _question(run_dir)
    paths = list(files) or [Path(p) for p in (question.files if question is not None else ())]
    if not paths:
        why = "the run does not say where it is"
        if question is not None:
            why = "the plan was given in memory (shardproof.save stores one)"
        return Source({}, None, f"the input was not read again: {why}")
    missing = [path for path in paths if not _is_there(path)]
    if missing and not files:
        named = str(missing[0])
        named = named if len(named) <= MOST_SHOWN else f"{named[:MOST_SHOWN]}..."
        return Source({}, None, f"the input was not read again: {named} is not there any more")
    try:
        return _read(run_dir, paths, question)
    except InvalidInput as error:
        if files:
            raise
        return Source({}, None, refused=f"the input is there, and is refused: {error}")


def _is_there(path: Path) -> bool:
    try:
        return path.exists()
    except OSError:  # a name that no file can have
        return False


def _read(run_dir: Path, paths: Sequence[Path], question: request.Request | None) -> Source:
    single, parallel = paths[0], (paths[1] if len(paths) > 1 else None)
    assumptions = question.assumptions if question is not None else Assumptions()
    if len(paths) > 2:
        assumptions = replace(assumptions, relations=str(paths[2].resolve()))
    plan = loaded(single, parallel, assumptions)
    named = tuple(str(path.resolve()) for path in paths)
    return Source(
        digests(single, parallel, assumptions.relations),
        _as_in(run_dir, plan, assumptions),
        files=named,
    )


def _as_in(run_dir: Path, plan: Plan, assumptions: Assumptions) -> Plan:
    """The plan, or where the run has it so, with constants that differ by rounding alone taken as
    equal, which the certificate lists among the assumptions; or with its ranks written out."""
    try:
        stored = read_certificate(run_dir).plan
    except InvalidInput:
        return plan  # the check itself says what is wrong
    for form in (plan, *forms(plan, chosen=assumptions.chosen)):
        if stored == store.digest(form):
            return form
        other = rounded(form)
        if stored == store.digest(other):
            return other
    return plan


def _question(run_dir: Path) -> request.Request | None:
    """What the run was asked; None where that is not on record, or cannot be read."""
    try:
        return request.decode(read_file(run_dir / request.NAME))
    except (InvalidInput, msgspec.MsgspecError, UnicodeDecodeError, RecursionError, ValueError):
        return None
