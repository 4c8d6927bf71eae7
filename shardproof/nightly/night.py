"""One night: every plan of a suite, over every seed, on record as ``night.json``."""

from __future__ import annotations

import re
import traceback
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Any, Final

import msgspec

from cluster.execute import shared_pool
from cluster.ledger import FILE as LEDGER
from cluster.ledger import read as read_ledger
from cluster.settings import installed_version
from engine import store
from engine.errors import InvalidInput
from shardproof import api, rundir
from shardproof.nightly.suite import Entry, Suite
from shardproof.result import Result

FORMAT: Final = 1
NAME: Final = "night.json"

#: The verdict of a plan at which we failed, not it.
INTERNAL: Final = "internal error"


class Template(msgspec.Struct, frozen=True):
    verdict: str
    seconds: float


class Point(msgspec.Struct, frozen=True):
    """One plan under one seed. ``templates``: by the beginning of their texts' SHA-256."""

    plan: str
    seed: int
    expect: str
    verdict: str
    reason: str
    seconds: float
    solve_seconds: float
    peak_rss_mib: float
    run_dir: str
    templates: dict[str, Template]


class Night(msgspec.Struct, frozen=True):
    """``began``: local time, which is the name of its folder too; ``versions`` of the solvers."""

    suite: str
    began: str
    versions: dict[str, str]
    points: list[Point]
    format: int = FORMAT


def run(suite: Suite, folder: Path, now: datetime, tell: Callable[[str], None]) -> Night:
    """Verify a suite in a new folder of ``folder``; what goes wrong with one plan stops no other.

    On a cluster all plans use one pool of workers.
    """
    began = f"{now:%Y%m%d-%H%M%S}"
    here = folder / began
    here.mkdir(parents=True)
    points = []
    work = [(entry, seed) for entry in suite.entries for seed in suite.seeds]
    with shared_pool():
        for number, (entry, seed) in enumerate(work, start=1):
            point = _point(suite, entry, seed, here)
            points.append(point)
            tell(f"{number} of {len(work)}: {entry.name}, seed {seed}: {point.verdict}")
    versions = {solver: installed_version(solver) for solver in ("z3", "cvc5")}
    night = Night(suite.name, began, versions, points)
    rundir.keep(here, NAME, msgspec.json.format(msgspec.json.encode(night)).decode() + "\n")
    return night


def previous(folder: Path, suite: str, before: str) -> Night | None:
    """The last whole night of a suite that began earlier; raises `InvalidInput` for a damaged
    record. Nights that did not come to their end have none."""
    for path in sorted(folder.glob(f"*/{NAME}"), reverse=True):
        if path.parent.name < before and re.fullmatch(r"\d{8}-\d{6}", path.parent.name):
            try:
                night = msgspec.json.decode(path.read_bytes(), type=Night)
            except (OSError, msgspec.MsgspecError, UnicodeDecodeError) as error:
                raise InvalidInput(f"is no record of a night: {error}", str(path)) from error
            if night.format == FORMAT and night.suite == suite:
                return night
    return None


def _point(suite: Suite, entry: Entry, seed: int, here: Path) -> Point:
    out = here / "runs" / f"{rundir.slug(entry.name)}-{seed}"
    try:
        result = _verify(suite, entry, seed, here, out)
    except InvalidInput as error:
        result = Result("invalid input", reason=str(error))
    except Exception as error:  # noqa: BLE001 - kept in a file, and the night's exit code says so
        out.mkdir(parents=True, exist_ok=True)
        (out / "internal-error.txt").write_text("".join(traceback.format_exception(error)))
        said = "".join(traceback.format_exception_only(error)).strip()
        return _of(entry, seed, INTERNAL, said, Result("inconclusive", run_dir=str(out)))
    return _of(entry, seed, result.verdict, result.reason, result)


def _verify(suite: Suite, entry: Entry, seed: int, here: Path, out: Path) -> Result:
    single = entry.single
    if single is None:
        from frontends import zoo

        parameters: dict[str, Any] = dict(entry.parameters)
        single = here / "plans" / rundir.slug(entry.name)
        if not single.exists():
            single.parent.mkdir(exist_ok=True)
            store.save(zoo.build(entry.model, **parameters), single)
    chosen: dict[str, Any] = dict(suite.options)
    options = api.Options(out=out, seed=seed, assume=entry.assume, **chosen)
    return api.run(single, entry.parallel, options)


def _of(entry: Entry, seed: int, verdict: str, reason: str, result: Result) -> Point:
    return Point(
        plan=entry.name,
        seed=seed,
        expect=entry.expect,
        verdict=verdict,
        reason=reason,
        seconds=round(result.seconds.total, 3),
        solve_seconds=round(result.seconds.solve, 3),
        peak_rss_mib=round(result.peak_rss_mib, 1),
        run_dir=result.run_dir,
        templates=_templates(Path(result.run_dir)) if result.run_dir else {},
    )


def _templates(run_dir: Path) -> dict[str, Template]:
    if not (run_dir / LEDGER).is_file():
        return {}
    table = read_ledger(run_dir / LEDGER)
    columns = (table.column(name).to_pylist() for name in ("key", "verdict", "seconds"))
    return {
        key[:16]: Template(verdict, round(seconds, 4))
        for key, verdict, seconds in zip(*columns, strict=True)
    }
