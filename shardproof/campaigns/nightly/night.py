"""One night: every plan of a suite, over every seed, on record as ``night.json``."""

from __future__ import annotations

import re
import traceback
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import AbstractContextManager, nullcontext
from datetime import datetime
from multiprocessing import get_context
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec

from shardproof import api
from shardproof.campaigns.nightly.suite import Entry, Suite
from shardproof.cluster.settings import installed_version
from shardproof.cluster.verdicts.ledger import FILE as LEDGER
from shardproof.cluster.verdicts.ledger import read as read_ledger
from shardproof.engine.errors import InvalidInput
from shardproof.engine.plan_files import store
from shardproof.engine.storage import files
from shardproof.engine.storage.files import unwritable
from shardproof.inputs import rundir
from shardproof.run.options import Options
from shardproof.run.result import Result

if TYPE_CHECKING:
    from shardproof.cluster.on_ray.shared_pool import SharedPool

FORMAT: Final = 1
NAME: Final = "night.json"

#: The folder of the pool that the plans of a suite share.
POOL: Final = "pool"

#: The verdict of a plan at which we failed, not it.
INTERNAL: Final = "internal error"


class Template(msgspec.Struct, frozen=True):
    """What one template came to: its verdict and seconds.

    Example: ``Template("unsat", 0.0131)``.
    """

    verdict: str
    seconds: float


class Point(msgspec.Struct, frozen=True):
    """One plan under one seed. ``templates``: by the beginning of their texts' SHA-256.

    Example: ``Point("llama3-8b dp=2", 1, "proved", "proved", "", 9.8, 1.2, 310.5,
    "runs/llama3-8b-dp-2-1", {...})``.
    """

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
    """What a night came to. ``began``: local time, which is the name of its folder too;
    ``versions`` of the solvers.

    Example: ``Night("zoo", "20260314-030000", {"z3": "5.4.0.0", "cvc5": "1.4.2"}, [point, ...])``.
    """

    suite: str
    began: str
    versions: dict[str, str]
    points: list[Point]
    format: int = FORMAT


def run(
    suite: Suite, folder: Path, now: datetime, tell: Callable[[str], None], jobs: int = 1
) -> Night:
    """Verify a suite in a new folder of ``folder``; what goes wrong with one plan stops no other.

    Example: two plans over the seeds 1 and 2 are four points, and four run directories in
    ``20260314-030000/runs``.

    ``jobs``: plans at once. On a cluster all of them use one pool of workers, in turn.
    """
    began = f"{now:%Y%m%d-%H%M%S}"
    here = folder / began
    try:
        here.mkdir(parents=True)
    except OSError as error:
        raise unwritable(error, here) from error
    work = [(entry, seed) for entry in suite.entries for seed in suite.seeds]
    verified: dict[int, Point] = {}
    with _pool(suite, here) as pool:
        for number, point in _points(suite, work, here, jobs, pool):
            verified[number] = point
            tell(
                f"{len(verified)} of {len(work)}: {point.plan}, seed {point.seed}: {point.verdict}"
            )
    points = [verified[number] for number in range(len(work))]
    versions = {solver: installed_version(solver) for solver in ("z3", "cvc5")}
    night = Night(suite.name, began, versions, points)
    rundir.keep(here, NAME, msgspec.json.format(msgspec.json.encode(night)).decode() + "\n")
    return night


def previous(folder: Path, suite: str, before: str) -> Night | None:
    """The last whole night of a suite that began earlier; raises `InvalidInput` for a damaged
    record. Nights that did not come to their end have none.

    Example: before ``20260314-030000``, the record in ``20260313-030000/night.json``, if it is of
    the same suite.
    """
    for path in sorted(folder.glob(f"*/{NAME}"), reverse=True):
        if path.parent.name < before and re.fullmatch(r"\d{8}-\d{6}", path.parent.name):
            try:
                night = msgspec.json.decode(files.contents(path), type=Night)
            except (OSError, msgspec.MsgspecError, UnicodeDecodeError) as error:
                raise InvalidInput(f"is no record of a night: {error}", str(path)) from error
            if night.format == FORMAT and night.suite == suite:
                return night
    return None


def _pool(suite: Suite, here: Path) -> AbstractContextManager[SharedPool | None]:
    """What the plans of a suite share: on a cluster a pool of workers, and with the cache on the
    verdicts too. Raises `InvalidInput` for settings that cannot be."""
    chosen: dict[str, Any] = dict(suite.options)
    try:
        settings = Options(**chosen).settings()
    except ValueError as error:
        raise InvalidInput(str(error), f"suite {suite.name}, verify") from error
    if not settings.on_cluster:
        return nullcontext()
    from shardproof.cluster.on_ray.shared_pool import shared_pool

    (here / POOL).mkdir()
    return shared_pool(settings, here / POOL, shared=bool(suite.options.get("cache", True)))


def _points(
    suite: Suite,
    work: Sequence[tuple[Entry, int]],
    here: Path,
    jobs: int,
    shared: SharedPool | None,
) -> Iterator[tuple[int, Point]]:
    """Points by the number of their work, as they come, ``jobs`` at a time."""
    if jobs == 1:
        for number, (entry, seed) in enumerate(work):
            yield number, _point(suite, entry, seed, here, shared)
        return
    # Each in a process of its own, whose memory is its own too.
    with ProcessPoolExecutor(jobs, get_context("spawn"), max_tasks_per_child=1) as pool:
        begun = {pool.submit(_point, suite, *one, here, shared): n for n, one in enumerate(work)}
        for done in as_completed(begun):
            yield begun[done], done.result()


def _point(suite: Suite, entry: Entry, seed: int, here: Path, shared: SharedPool | None) -> Point:
    out = here / "runs" / f"{rundir.slug(entry.name)}-{seed}"
    try:
        result = _verify(suite, entry, seed, here, out, shared)
    except InvalidInput as error:
        result = Result("invalid input", reason=str(error))
    except Exception as error:  # noqa: BLE001 - kept in a file, and the night's exit code says so
        out.mkdir(parents=True, exist_ok=True)
        (out / "internal-error.txt").write_text("".join(traceback.format_exception(error)))
        text = "".join(traceback.format_exception_only(error)).strip()
        return _of(entry, seed, INTERNAL, text, Result("inconclusive", run_dir=str(out)))
    return _of(entry, seed, result.verdict, result.reason, result)


def _verify(
    suite: Suite, entry: Entry, seed: int, here: Path, out: Path, shared: SharedPool | None
) -> Result:
    single = entry.single
    if single is None:
        from shardproof.frontends import zoo

        parameters: dict[str, Any] = dict(entry.parameters)
        single = here / "plans" / f"{rundir.slug(entry.name)}-{seed}"
        single.parent.mkdir(exist_ok=True)
        store.save(zoo.build(entry.model, **parameters), single)
    chosen: dict[str, Any] = dict(suite.options)
    options = Options(out=out, seed=seed, assume=entry.assume, **chosen)
    settings = None if shared is None else shared.used_by(options.settings())
    return api.run(single, entry.parallel, options, settings=settings)


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
