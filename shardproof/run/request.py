"""What a run was asked, in its directory from its beginning: all that is needed to go on with it.

``run.json`` is written after the plan is stored beside it, whole or not at all; a directory without
it holds a run that had not begun.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any, Final

import msgspec

from shardproof.cluster.settings import Settings
from shardproof.engine.errors import InvalidInput
from shardproof.engine.plan.ir import Plan
from shardproof.engine.plan_files import store
from shardproof.engine.records.run import PLAN
from shardproof.engine.storage.tables import read_file
from shardproof.inputs import rundir
from shardproof.inputs.assume import Assumptions
from shardproof.run.beside import Beside
from shardproof.run.options import Options, Scalar, names, shown

FORMAT: Final = 2
NAME: Final = "run.json"

#: Operators of a plan from which on it is stored by a fork: it takes a tenth of a second then.
LARGE: Final = 10_000


class Request(msgspec.Struct, frozen=True):
    """A run's settings, options and assumptions, the SHA-256 of its plan and of its input files,
    and where these were.

    Example: ``options`` is ``{"executor": "local", "workers": 1}`` of
    ``shardproof verify plan --executor local --workers 1``.

    ``options`` are those of `shardproof.run.options` that are not their defaults; ``settings`` is
    what they came to on the machine where the run began, which verdicts depend on.
    """

    plan: str
    settings: Settings
    assumptions: Assumptions
    inputs: dict[str, str]
    options: dict[str, Scalar] = {}
    files: tuple[str, ...] = ()
    format: int = FORMAT

    def __post_init__(self) -> None:
        for name, value in self.options.items():
            if name not in names():
                raise ValueError(f"unknown option {name!r}")
            wanted = tuple(str if kind is Path else kind for kind in shown(name).kinds)
            if name in ("memory_limit", "memory_budget"):
                wanted = (*wanted, int)
            if type(value) not in wanted:
                kinds = " or ".join(kind.__name__ for kind in wanted)
                raise ValueError(f"option {name}: expected {kinds}, found {value!r}")

    @property
    def chosen(self) -> Options:
        """The options."""
        given: dict[str, Any] = dict(self.options)
        return Options(**given)


def write(out: Path, request: Request) -> None:
    """Store what was asked about the plan that is in ``out``.

    Example: ``run.json``, with ``"format": 2`` and ``"plan": "443ce23c..."``.
    """
    rundir.keep(out, NAME, msgspec.json.format(msgspec.json.encode(request)).decode() + "\n")


@contextmanager
def storing(out: Path, question: Request, plan: Plan) -> Iterator[Callable[[], str]]:
    """Store a plan in ``out``, and after it what was asked about it; what is handed in waits until
    both are there and gives the plan's digest.  A large plan is stored by a fork, beside whatever
    is done meanwhile; at the end of the context it is there, whatever happened.

    Example: after ``with storing(out, question, plan): ...`` there are ``plan/`` and ``run.json``.
    """

    def store_both() -> str:
        digest = store.save(plan, out / PLAN)
        write(out, msgspec.structs.replace(question, plan=digest))
        return digest

    bounded = question.settings.memory_budget_bytes is not None
    operators = sum(len(body.ops) for program in plan.programs for body in program.bodies)
    if bounded or operators < LARGE:
        digest = store_both()
        yield lambda: digest
        return
    with Beside(store_both) as beside:
        saved = cache(beside.outcome)
        try:
            yield saved
        finally:
            saved()


def decode(data: bytes) -> Request:
    """What was asked, from its bytes, of this version or of the one before; raises `InvalidInput`
    for another version, and the errors of msgspec, UnicodeDecodeError, RecursionError and
    ValueError.

    Example: format 1 with ``"use_cache": false`` becomes ``"options": {"cache": false}``.
    """
    document = msgspec.json.decode(data, type=dict[str, Any])
    version = document.get("format")
    if version == 1:
        document = _of_format_1(document)
    elif isinstance(version, int) and version != FORMAT:
        raise InvalidInput(f"expected format {FORMAT}, found {version}", NAME)
    return msgspec.convert(document, Request)


def _of_format_1(document: dict[str, Any]) -> dict[str, Any]:
    """Format 1 had every option that is no setting in a place of its own."""
    places = {"exhaustive": "exhaustive", "use_cache": "cache", "cache_dir": "cache_dir",
              "more": "shapes", "proofs": "proofs"}  # fmt: skip
    given = {option: document[place] for place, option in places.items() if place in document}
    rest = {name: value for name, value in document.items() if name not in places}
    chosen = {option: value for option, value in given.items() if value is not None}
    return {**rest, "options": chosen, "format": FORMAT}


def read(run_dir: Path) -> tuple[Request, Plan]:
    """What was asked in a run directory, and the plan; raises `InvalidInput`.

    Example: a plan that was changed beside ``run.json`` is refused: "expected the plan that
    run.json names, found another".
    """
    if not (run_dir / NAME).is_file():
        there = "one that had not begun" if run_dir.is_dir() else "nothing"
        raise InvalidInput(
            f"expected the directory of a run that can go on (with {NAME}), found {there}",
            str(run_dir),
        )
    try:
        data = read_file(run_dir / NAME)
        try:
            request = decode(data)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, ValueError) as error:
            raise InvalidInput(f"expected what a run was asked, found {error}", NAME) from error
        plan = store.load(run_dir / PLAN)
        if store.digest(plan) != request.plan:
            raise InvalidInput(f"expected the plan that {NAME} names, found another", PLAN)
    except InvalidInput as error:
        raise error.within(str(run_dir)) from error
    return request, plan
