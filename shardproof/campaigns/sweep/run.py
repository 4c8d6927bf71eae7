"""Runs sweeps: what is in the table already is not run again; tables, plots and page follow.

Runs are made one by one, so that their times are their own, unless more are wanted at once
(`shardproof.campaigns.sweep.many`).
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from shardproof.campaigns.sweep import compare, many, table
from shardproof.campaigns.sweep.growth import Growth, growth
from shardproof.campaigns.sweep.measure import INTERNAL, VERDICTS, Run
from shardproof.campaigns.sweep.spec import Point, Sweep
from shardproof.engine.errors import InvalidInput
from shardproof.engine.storage.files import unwritable
from shardproof.engine.system import portable

if TYPE_CHECKING:
    from shardproof.cluster.settings import Settings

#: The folder of the pool that the runs of a sweep share.
POOL = "pool"

#: The folder of the pages of runs.
REPORTS = "reports"

#: Told (what, done of, total) after each run.
Tell = Callable[[str, int, int], None]


@dataclass(frozen=True, slots=True)
class Swept:
    """What sweeps gave: their rows and growth, by sweep, in the order in which they were given.

    Example: one sweep of 8 points, of which one was refuted: ``verdict`` "refuted", ``exit_code``
    1.
    """

    sweeps: tuple[Sweep, ...]
    rows: tuple[tuple[table.Row, ...], ...]
    growth: tuple[tuple[Growth, ...], ...]
    folder: Path

    @property
    def verdict(self) -> str:
        """The worst of all points."""
        return table.worst(row for rows in self.rows for row in rows)

    @property
    def exit_code(self) -> int:
        """That of the worst verdict."""
        return VERDICTS[self.verdict]

    def to_dict(self) -> dict[str, Any]:
        """Rows and growth of all sweeps as plain data."""
        return {
            "verdict": self.verdict,
            "folder": str(self.folder),
            "sweeps": [
                {
                    "name": sweep.name,
                    "points": list(rows),
                    "growth": [one.to_dict() for one in grown],
                }
                for sweep, rows, grown in zip(self.sweeps, self.rows, self.growth, strict=True)
            ],
        }


class _Wanted(NamedTuple):
    """One run that is to be made."""

    sweep: Sweep
    point: Point
    key: str


def run(
    sweeps: Sequence[Sweep],
    folder: Path,
    figures: Sequence[compare.Figure],
    tell: Tell,
    *,
    jobs: int = 1,
    cluster: Settings | None = None,
) -> Swept:
    """Run what ``folder`` does not have yet, and write its tables; raises `InvalidInput`.

    Example: of 8 points with ``repeat`` 3 a killed sweep had made 10 runs; the next call makes the
    other 14.

    Repetitions go round by round, so that the load of a machine that changes slowly is shared by
    all points.  ``figures``: somebody else's, to be put beside ours.  ``jobs``: runs at once;
    with more than one they are made on the nodes of ``cluster`` and share its workers, where it is
    given.  Raises `cluster.on_ray.pool.ClusterError` too.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise unwritable(error, folder) from error
    keys = [[point.key(sweep.options) for point in sweep.points] for sweep in sweeps]
    with _alone(folder):
        # What ended without a result may have met a fault of the machine: it is run again.
        runs = [r for r in table.read_runs(folder) if r.verdict != INTERNAL]
        wanted = list(missing(sweeps, keys, runs))
        made = _made(wanted, folder, jobs, cluster)
        for done, (number, measured) in enumerate(made, start=1):
            runs.append(measured)
            table.write_runs(folder, runs)
            sweep, point, _ = wanted[number]
            tell(f"{sweep.name}: {point}: {summary(measured)}", done, len(wanted))
        rows = [
            table.point_rows(sweep, mine, runs) for sweep, mine in zip(sweeps, keys, strict=True)
        ]
        for sweep, mine, own in zip(sweeps, keys, rows, strict=True):
            _compare(sweep, mine, own, figures)
        table.write_points(folder, [row for own in rows for row in own])
    return Swept(
        tuple(sweeps),
        tuple(map(tuple, rows)),
        tuple(
            tuple(growth(sweep, own, mine))
            for sweep, own, mine in zip(sweeps, rows, keys, strict=True)
        ),
        folder,
    )


def _made(
    wanted: Sequence[_Wanted], folder: Path, jobs: int, cluster: Settings | None
) -> Iterator[tuple[int, Run]]:
    """The wanted runs by number, as they come."""
    tasks = [many.Task(key, point, sweep.options) for sweep, point, key in wanted]
    if cluster is None or jobs == 1 or not tasks:
        yield from many.here(tasks, jobs, folder / "work", folder / REPORTS)
        return
    from shardproof.cluster.on_ray.shared_pool import shared_pool

    # With the cache off a run's time is to be its own: nobody solves anything for it.
    shared = all(sweep.options.get("cache", False) for sweep, _, _ in wanted)
    (folder / POOL).mkdir(exist_ok=True)
    with shared_pool(cluster, folder / POOL, shared=shared) as pool:
        yield from many.on_cluster(tasks, jobs, pool.variables)


def missing(
    sweeps: Sequence[Sweep], keys: Sequence[Sequence[str]], runs: Sequence[Run]
) -> Iterator[_Wanted]:
    """The runs that are not there yet, round by round; equal points of two sweeps are one.

    Example: two points that should run twice, of which one ran once, are run in this order: the
    other one, then both.
    """
    there: dict[str, int] = {}
    for one in runs:
        there[one.key] = there.get(one.key, 0) + 1
    for repetition in range(max(sweep.repeat for sweep in sweeps)):
        for sweep, mine in zip(sweeps, keys, strict=True):
            for point, key in zip(sweep.points, mine, strict=True):
                if repetition < sweep.repeat and there.get(key, 0) <= repetition:
                    there[key] = there.get(key, 0) + 1
                    yield _Wanted(sweep, point, key)


def summary(measured: Run) -> str:
    """A run in a few words.

    Example: "proved, 3.9 s, 83 MiB, 114 templates".
    """
    if not measured.total:
        return f"{measured.verdict}: {measured.reason}"
    took = f"{measured.total:.1f} s, {measured.peak_mib:.0f} MiB, {measured.templates} templates"
    return f"{measured.verdict}, {took}"


def _compare(
    sweep: Sweep,
    keys: Sequence[str],
    rows: Sequence[table.Row],
    figures: Sequence[compare.Figure],
) -> None:
    by_key = dict(zip(keys, sweep.points, strict=True))
    if figures:
        for row in rows:
            row["compared"] = compare.matching(figures, by_key[row["key"]].parameters)


@contextlib.contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """One sweep at a time in a folder; the kernel lets go of the lock when the process ends."""
    lock = os.open(folder / ".lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
    try:
        if not portable.lock(lock):
            raise InvalidInput("another sweep is at work in this folder", str(folder))
        yield
    finally:
        os.close(lock)
