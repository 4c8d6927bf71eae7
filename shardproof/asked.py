"""What a run was asked, in its directory from its beginning: all that is needed to go on with it.

``run.json`` is written after the plan is stored beside it, whole or not at all; a directory without
it holds a run that had not begun.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

import msgspec

from cluster.settings import Settings
from engine import store
from engine.errors import InvalidInput
from engine.ir import Plan
from engine.records import PLAN
from engine.tables import read_file
from shardproof import rundir
from shardproof.assume import Assumptions

FORMAT: Final = 1
NAME: Final = "run.json"


class Asked(msgspec.Struct, frozen=True):
    """A run's settings and assumptions, the SHA-256 of its plan and of its input files, and where
    these were.

    ``use_cache``, ``cache_dir`` (absolute), ``more``, ``proofs`` and ``strict`` as in
    `shardproof.pipeline.run`.
    """

    plan: str
    settings: Settings
    assumptions: Assumptions
    inputs: dict[str, str]
    exhaustive: bool
    use_cache: bool
    cache_dir: str | None
    files: tuple[str, ...] = ()
    more: int = 0
    proofs: bool = False
    strict: bool = False
    format: int = FORMAT


def write(out: Path, asked: Asked) -> None:
    """Store what was asked about the plan that is in ``out``."""
    rundir.keep(out, NAME, msgspec.json.format(msgspec.json.encode(asked)).decode() + "\n")


def read(run_dir: Path) -> tuple[Asked, Plan]:
    """What was asked in a run directory, and the plan; raises `InvalidInput`."""
    if not (run_dir / NAME).is_file():
        found = "one that had not begun" if run_dir.is_dir() else "nothing"
        raise InvalidInput(
            f"expected the directory of a run that can go on (with {NAME}), found {found}",
            str(run_dir),
        )
    try:
        data = read_file(run_dir / NAME)
        try:
            asked = msgspec.json.decode(data, type=Asked)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, ValueError) as error:
            raise InvalidInput(f"expected what a run was asked, found {error}", NAME) from error
        if asked.format != FORMAT:
            raise InvalidInput(f"expected format {FORMAT}, found {asked.format}", NAME)
        plan = store.load(run_dir / PLAN)
        if store.digest(plan) != asked.plan:
            raise InvalidInput(f"expected the plan that {NAME} names, found another", PLAN)
    except InvalidInput as error:
        raise error.within(str(run_dir)) from error
    return asked, plan
