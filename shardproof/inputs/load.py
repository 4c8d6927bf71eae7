"""From what the user names to one plan: two files of one format, or one path with both sides.

Which format it is, its frontend recognises by content (`frontends.frontend`).  The files are not
trusted: a frontend reads them in bounded children, and what comes back are Arrow bytes.  That the
two sides are of one model is checked here, before anything is proved.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from shardproof.engine.errors import InvalidInput
from shardproof.engine.plan import same_model as pairing
from shardproof.engine.plan.ir import Plan, Program
from shardproof.engine.plan.mesh import on_one_mesh
from shardproof.engine.plan_files import store
from shardproof.frontends.frontend import (
    Frontend,
    HoldsTables,
    ReadsAhead,
    foreign,
    frontends,
    of,
    of_pair,
)
from shardproof.frontends.untrusted.inert import printable
from shardproof.inputs.assume import Assumptions
from shardproof.inputs.rundir import is_run

#: The kind of inputs that stand for numbers of the files.
CONSTANT: Final = "constant"


def load_plan(
    single: Path | Plan,
    parallel: Path | None,
    assumptions: Assumptions,
    ahead: Callable[[Program, str], None] = lambda program, loss: None,
) -> Plan:
    """The plan with both sides; raises `InvalidInput`, naming the file and the place in it.

    Example: two files of a planner are one plan; a folder of ``shardproof plan`` is given alone,
    and with a second file is refused.

    ``ahead``: given the single-device side where it is there while the other one is still read.
    """
    if isinstance(single, Plan):
        where = printable(single.name, 400)
        plan = _in_memory(single, assumptions)
    elif parallel is None:
        where = printable(str(single), 400)
        plan = _whole(single, assumptions)
    else:
        where = printable(str(parallel), 400)
        plan = _paired(single, parallel, assumptions, ahead)
    try:
        pairing.check(plan)
        _expected(plan, assumptions)
    except InvalidInput as error:
        raise error.within(where) from None
    return plan


def tables(
    single: Path | Plan, parallel: Path | None, plan: Plan, assumptions: Assumptions
) -> Mapping[str, Any]:
    """The numbers that two files have for what their plan takes for any numbers.

    Example: the cosines of rotary embeddings that an HLO module has as a constant, by the name of
    the input that stands for them.
    """
    if isinstance(single, Plan) or parallel is None:
        return {}
    if not any(shard.kind == CONSTANT for shard in plan.single.shards):
        return {}
    frontend = of_pair(single, parallel)
    if not isinstance(frontend, HoldsTables):
        return {}
    return frontend.tables(single, parallel, assumptions.of_frontends())


def _in_memory(plan: Plan, assumptions: Assumptions) -> Plan:
    """A plan that somebody has made, held to what a stored one is held to."""
    where = printable(plan.name, 400)
    _refuse_orders(assumptions, where)
    try:
        copied = replace(store.copied(plan), tables=plan.tables, numbers=plan.numbers)
        return _combined(copied, assumptions)
    except InvalidInput as error:
        raise error.within(where) from None


def _refuse_orders(assumptions: Assumptions, where: str) -> None:
    """A plan of our own records no order of groups."""
    if assumptions.as_recorded:
        names = " or ".join(f.name for f in frontends() if "groups" in f.options)
        raise InvalidInput(
            f"groups {assumptions.groups!r} is about {names} plans, this is a stored plan", where
        )


def load_side(path: Path) -> Plan:
    """One file by itself, as the parallel side of a plan without a single-device one.

    Example: for ``shardproof inspect parallel.pkl``.
    """
    return replace(of(path).read_side(path), name=plan_name(path))


def plan_name(path: Path | Plan) -> str:
    """The name of a plan, or of that in ``path``: its file name without what says its format.

    Example: ``examples/plans/gpt`` is "gpt", ``plans/two.plan.txt`` "two".
    """
    if isinstance(path, Plan):
        return path.name
    name = path.resolve().name
    known = sorted({s for f in frontends() for s in f.suffixes}, key=len, reverse=True)
    known += [] if any(name.endswith(s) for s in known) else of(path).suffixes
    return next((name[: -len(s)] for s in known if name.endswith(s)), name)


def _whole(path: Path, assumptions: Assumptions) -> Plan:
    """The plan in a path that holds both sides."""
    if not path.exists():
        raise InvalidInput("expected a plan folder, found nothing", str(path))
    frontend = of(path)
    if frontend.sides != 1 and not path.is_dir():
        raise InvalidInput(
            "expected a folder with both sides of a plan, found a file; "
            "to verify two files of one format give both: SINGLE PARALLEL",
            str(path),
        )
    if frontend.sides != 1:
        what = "the directory of a run" if is_run(path) else "another one"
        raise InvalidInput(f"expected a plan folder, found {what}", str(path))
    if assumptions.relations:
        raise InvalidInput("relations are about graphs, this is a stored plan", str(path))
    _refuse_orders(assumptions, str(path))
    return _combined(_checked_plan(frontend, frontend.read_side(path), str(path)), assumptions)


def _paired(
    single: Path,
    parallel: Path,
    assumptions: Assumptions,
    ahead: Callable[[Program, str], None],
) -> Plan:
    """The plan of two files of one format."""
    for path in (single, parallel):
        if of(path).sides == 1:
            files = of(path).files
            raise InvalidInput(f"{files} holds both sides of a plan and is given alone", str(path))
    frontend = of_pair(single, parallel)
    for path in (single, parallel):
        if path.is_dir() and not frontend.accepts(path, b""):
            raise InvalidInput(
                f"expected {frontend.files} beside the other one, found a folder; "
                "a plan folder holds both sides and is given alone",
                str(path),
            )
    options = assumptions.of_frontends()
    for key in sorted(options.keys() - frontend.options.keys()):
        raise InvalidInput(f"{key} {options[key]!r} says nothing of {frontend.name}", str(parallel))
    if isinstance(frontend, ReadsAhead):
        both = frontend.read_pair_ahead(single, parallel, options, ahead)
    else:
        both = frontend.read_pair(single, parallel, options)
    plan = _checked_plan(frontend, both, str(parallel))
    assumed = (*frontend.assumed(options), *plan.assumed)
    return _combined(replace(plan, name=plan_name(parallel), assumed=assumed), assumptions)


def otherwise(plan: Plan, assumptions: Assumptions) -> Plan | None:
    """The plan as its records have it, without reading it again (what is assumed of it stays what
    was); None where its reader does not know it.

    Example: of a plan whose chunks are recorded from other positions than their ranks' place in the
    group says, the plan with those slices, as ``--nnscaler-groups as-recorded`` reads it.
    """
    if plan.otherwise is None:
        return None
    other = replace(plan, programs=plan.otherwise(), otherwise=None)
    return _combined(other, replace(assumptions, groups="as recorded"))


def _checked_plan(frontend: Frontend, plan: Plan, where: str) -> Plan:
    """What a frontend of an installed package makes is held to what a stored plan is held to, and
    that its reading is believed is said."""
    if not (believed := foreign(frontend)):
        return plan
    try:
        return replace(store.copied(plan), assumed=(*believed, *plan.assumed))
    except InvalidInput as error:
        raise error.within(where) from None


def _combined(plan: Plan, assumptions: Assumptions) -> Plan:
    """``plan`` with the user's word on how losses combine, its programs on one mesh."""
    chosen = plan if assumptions.loss is None else replace(plan, loss=assumptions.loss)
    return on_one_mesh(chosen)


def _expected(plan: Plan, assumptions: Assumptions) -> None:
    known = {shard.name for shard in plan.single.shards if shard.trainable}
    for name in assumptions.expected:
        if name not in known:
            raise InvalidInput(
                f"the gradient of {name} is expected (--assume), but the single-device plan has "
                "no such parameter"
            )


def digests(single: Path | Plan, parallel: Path | None, relations: str = "") -> dict[str, str]:
    """SHA-256 of the input files, by role (a plan of our own has its own digest); of a folder, that
    of its files, each with its name.

    Example: ``{"single": "9f2c...", "parallel": "04ab..."}``, and none for a plan in memory.
    """
    if parallel is None or isinstance(single, Plan):
        return {}
    result = {"single": _digest(single), "parallel": _digest(parallel)}
    if relations:
        result["relations"] = _digest(Path(relations))
    return result


def _digest(path: Path) -> str:
    if not path.is_dir():
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    every = hashlib.sha256()
    for inner in sorted(p for p in path.iterdir() if p.is_file()):
        every.update(f"{_digest(inner)} {inner.name}\n".encode())
    return every.hexdigest()
