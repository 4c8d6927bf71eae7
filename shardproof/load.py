"""From what the user names to one plan: two nnScaler files, or a folder with both sides.

The files are not trusted: each is read and converted in a bounded child, both at the same time,
and comes back as Arrow bytes.  That the two sides are of one model is checked here, before
anything is proved.
"""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from threading import Thread

from engine import store
from engine.errors import InvalidInput
from engine.ir import Plan, Program
from frontends.errors import UnreadablePlan
from frontends.nnscaler.inert import printable
from frontends.nnscaler.read import read_bounded
from shardproof import pairing
from shardproof.assume import Assumptions
from shardproof.rundir import is_run

_SUFFIXES = (".pkl", ".pkl.gz")


def load_plan(single: Path, parallel: Path | None, assumptions: Assumptions) -> Plan:
    """The plan with both sides; raises `InvalidInput`, naming the file and the place in it."""
    if parallel is None:
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


def load_side(path: Path) -> Plan:
    """One nnScaler plan by itself, as the parallel side of a plan without a single-device one."""
    return _side(path, single=False, as_recorded=False)


def plan_name(path: Path) -> str:
    """The name of the plan in ``path``: its file name without what says its format."""
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
    if assumptions.as_recorded:
        raise InvalidInput(
            "groups 'as recorded' is about nnScaler plans, this is a stored plan", str(folder)
        )
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
    reading = _Beside(lambda: _side(parallel, single=False, as_recorded=assumptions.as_recorded))
    try:
        alone = _side(single, single=True, as_recorded=False)
    except BaseException:
        reading.abandon()
        raise
    other = reading.result()
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
            notes=(assumptions.of_groups(), *dict.fromkeys((*alone.notes, *other.notes))),
            recorded=other.recorded,
        ),
        assumptions,
    )


def _combined(plan: Plan, assumptions: Assumptions) -> Plan:
    """``plan`` with the user's word on how losses combine."""
    return plan if assumptions.loss is None else replace(plan, loss=assumptions.loss)


def _expected(plan: Plan, assumptions: Assumptions) -> None:
    known = {shard.name for shard in plan.single.shards if shard.trainable}
    for name in assumptions.expected:
        if name not in known:
            raise InvalidInput(
                f"the gradient of {name} is expected (--assume), but the single-device plan has "
                "no such parameter"
            )


# -- one side, in a child ------------------------------------------------------------------------


def _side(path: Path, *, single: bool, as_recorded: bool) -> Plan:
    data = read_bounded(str(path), "shardproof.load:convert_side", [int(single), int(as_recorded)])
    try:
        return store.from_bytes(data)
    except InvalidInput as error:
        raise error.within(printable(str(path), 400)) from None


def convert_side(path: str, single: int, as_recorded: int) -> bytes:
    """One nnScaler plan as the parallel side of a plan with an empty single-device one, as bytes.

    Made to be called by `read_bounded`, in the child.
    """
    from frontends.nnscaler import cells, convert
    from frontends.nnscaler.read import read_records

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
        notes=made.notes,
        recorded=made.recorded,
    )
    return store.to_bytes(side)


class _Beside:
    """A call in a thread of its own, whose result or error is asked for later."""

    def __init__(self, call: Callable[[], Plan]) -> None:
        self._call = call
        self._plan: Plan | None = None
        self._error: BaseException | None = None
        self._thread = Thread(target=self._run, name="reading PARALLEL", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            self._plan = self._call()
        except BaseException as error:  # noqa: BLE001 - raised where the result is asked for
            self._error = error

    def result(self) -> Plan:
        """Wait for it; whatever stops the waiting ends the child too."""
        try:
            self._thread.join()
        except BaseException:
            self.abandon()
            raise
        if self._error is not None:
            raise self._error
        assert self._plan is not None
        return self._plan

    def abandon(self) -> None:
        """End the reading child, now or once it starts: nobody will ask for its result."""
        while self._thread.is_alive():
            _end_readers()
            self._thread.join(0.02)


def _end_readers() -> None:
    """Kill the reading children of this process."""
    import psutil

    with contextlib.suppress(psutil.Error):
        for child in psutil.Process().children():
            with contextlib.suppress(psutil.Error):
                if "frontends.nnscaler.child" in child.cmdline():
                    child.kill()


def digests(single: Path, parallel: Path | None) -> dict[str, str]:
    """SHA-256 of the input files, by role (a stored plan has its own digest)."""
    if parallel is None:
        return {}
    found = {}
    for role, path in (("single", single), ("parallel", parallel)):
        with path.open("rb") as file:
            found[role] = hashlib.file_digest(file, "sha256").hexdigest()
    return found
