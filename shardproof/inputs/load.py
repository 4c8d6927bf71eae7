"""From what the user names to one plan: two nnScaler files, or a folder with both sides.

The files are not trusted: each is read and converted in a bounded child, both at the same time,
and comes back as Arrow bytes.  That the two sides are of one model is checked here, before
anything is proved.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from shardproof.engine.errors import InvalidInput
from shardproof.engine.plan import same_model as pairing
from shardproof.engine.plan.ir import Plan, Program
from shardproof.engine.plan.mesh import on_one_mesh
from shardproof.engine.plan_files import store
from shardproof.frontends.errors import UnreadablePlan
from shardproof.frontends.nnscaler.read import reading
from shardproof.frontends.untrusted.inert import printable
from shardproof.inputs.assume import Assumptions
from shardproof.inputs.rundir import is_run

_SUFFIXES = (".pkl", ".pkl.gz")


def load_plan(single: Path | Plan, parallel: Path | None, assumptions: Assumptions) -> Plan:
    """The plan with both sides; raises `InvalidInput`, naming the file and the place in it."""
    if isinstance(single, Plan):
        where = printable(single.name, 400)
        plan = _in_memory(single, assumptions)
    elif parallel is None:
        where = printable(str(single), 400)
        plan = _stored(single, assumptions)
    else:
        where = printable(str(parallel), 400)
        plan = _paired(single, parallel, assumptions)
    try:
        pairing.check(plan)
        _expected(plan, assumptions)
    except InvalidInput as error:
        raise error.within(where) from None
    return plan


def _in_memory(plan: Plan, assumptions: Assumptions) -> Plan:
    """A plan that somebody has made, held to what a stored one is held to."""
    where = printable(plan.name, 400)
    _refuse_orders(assumptions, where)
    try:
        return _combined(store.copied(plan), assumptions)
    except InvalidInput as error:
        raise error.within(where) from None


def _refuse_orders(assumptions: Assumptions, where: str) -> None:
    """A plan of our own records no order of groups."""
    if assumptions.as_recorded:
        raise InvalidInput(
            "groups 'as recorded' is about nnScaler plans, this is a stored plan", where
        )


def load_side(path: Path) -> Plan:
    """One nnScaler plan by itself, as the parallel side of a plan without a single-device one."""
    with _side(path, single=False, as_recorded=False) as side:
        return side()


def plan_name(path: Path | Plan) -> str:
    """The name of a plan, or of that in ``path``: its file name without what says its format."""
    if isinstance(path, Plan):
        return path.name
    name = path.resolve().name
    return next((name[: -len(s)] for s in reversed(_SUFFIXES) if name.endswith(s)), name)


def _stored(folder: Path, assumptions: Assumptions) -> Plan:
    """The plan in a folder of ours."""
    if not folder.exists():
        raise InvalidInput("expected a plan folder, found nothing", str(folder))
    if not folder.is_dir():
        raise InvalidInput(
            "expected a folder with both sides of a plan, found a file; "
            "to verify nnScaler plans give two: SINGLE PARALLEL",
            str(folder),
        )
    if not (folder / f"programs{store.SUFFIX}").exists():
        what = "the directory of a run" if is_run(folder) else "another one"
        raise InvalidInput(f"expected a plan folder, found {what}", str(folder))
    _refuse_orders(assumptions, str(folder))
    return _combined(store.load(folder), assumptions)


def _paired(single: Path, parallel: Path, assumptions: Assumptions) -> Plan:
    """The plan of two nnScaler files, read at the same time."""
    for path in (single, parallel):
        if path.is_dir():
            raise InvalidInput(
                "expected an nnScaler plan (.pkl, .pkl.gz) beside the other one, found a folder; "
                "a plan folder holds both sides and is given alone",
                str(path),
            )
    with (
        _side(parallel, single=False, as_recorded=assumptions.as_recorded) as parallel_side,
        _side(single, single=True, as_recorded=False) as single_side,
    ):
        alone = single_side()
        other = parallel_side()
    if alone.microbatches > 1:
        raise InvalidInput(
            f"expected a single-device plan that reads its batch at once, found "
            f"{alone.microbatches} microbatches",
            str(single),
        )
    return _combined(
        Plan(
            name=plan_name(parallel),
            single=alone.programs[0],
            programs=other.programs,
            microbatches=other.microbatches,
            replica_axes=other.replica_axes,
            loss=alone.loss,
            recorded=other.recorded,
            assumed=(assumptions.of_groups(), *dict.fromkeys((*alone.assumed, *other.assumed))),
        ),
        assumptions,
    )


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


# -- one side, in a child ------------------------------------------------------------------------


@contextmanager
def _side(path: Path, *, single: bool, as_recorded: bool) -> Iterator[Callable[[], Plan]]:
    """While it is open, a child reads the plan; what is handed in waits for it."""
    arguments = [int(single), int(as_recorded)]
    with reading(str(path), "shardproof.inputs.load:convert_side", arguments) as data:

        def result() -> Plan:
            try:
                return store.from_bytes(data())
            except InvalidInput as error:
                name = printable(str(path), 400)
                raise (error if error.where.startswith(name) else error.within(name)) from None

        yield result


def convert_side(path: str, single: int, as_recorded: int) -> bytes:
    """One nnScaler plan as the parallel side of a plan with an empty single-device one, as bytes.

    Made to be called by `reading`, in the child.
    """
    from shardproof.frontends.nnscaler import cells, convert
    from shardproof.frontends.nnscaler.read import read_records

    try:
        made = convert.convert(
            cells.plan(read_records(path)), single=bool(single), as_recorded=bool(as_recorded)
        )
    except UnreadablePlan as error:
        name = printable(path, 400)
        raise (error if error.where.startswith(name) else error.within(name)) from None
    side = Plan(
        name=plan_name(Path(path)),
        single=Program("none", (), ()),
        programs=made.programs,
        microbatches=made.microbatches,
        replica_axes=(convert.REPLICA,),
        loss=made.loss,
        assumed=made.assumed,
        recorded=made.recorded,
    )
    return store.to_bytes(side)


def digests(single: Path | Plan, parallel: Path | None) -> dict[str, str]:
    """SHA-256 of the input files, by role (a plan of our own has its own digest)."""
    if parallel is None or isinstance(single, Plan):
        return {}
    found = {}
    for role, path in (("single", single), ("parallel", parallel)):
        with path.open("rb") as file:
            found[role] = hashlib.file_digest(file, "sha256").hexdigest()
    return found
