"""The executor on Ray: a fixed pool of actors per node, each with solver children of its own.

Texts lie in the object store and batches name them; a batch is sized for seconds of work and comes
back after that time with what is done, so that a slow query never holds up the others it was sent
with. At most :data:`WINDOW` batches are at a worker. Workers reserve what the memory model predicts
(`cluster.memory.model`); a query that did not fit is tried again alone, with the next larger
reservation (`cluster.on_ray.placement`), and is "memory" once the largest did not do.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from typing import Any

import ray

from shardproof.cluster.local import Peaks, note_peaks
from shardproof.cluster.memory.model import Needs, Shape, learned, predicted, shape_of
from shardproof.cluster.memory.retry import with_figures
from shardproof.cluster.on_ray.assignments import DEATHS_ALONE, Work
from shardproof.cluster.on_ray.metrics import Meters
from shardproof.cluster.on_ray.placement import (
    LEAST_BYTES,
    level_for,
    levels,
    places,
    reservation,
    widest,
)
from shardproof.cluster.on_ray.pool import (
    DEATHS,
    MIB,
    ClusterError,
    Pool,
    Worker,
    connect,
    last_line,
    nodes,
    nodes_that_work,
)
from shardproof.cluster.settings import Settings, installed_version
from shardproof.cluster.verdicts.events import Events
from shardproof.cluster.verdicts.ledger import from_batch
from shardproof.engine.storage.closing import Closing
from shardproof.solvers import Answer, Query, Solved, SolverDisagreement, SolverUnavailable
from shardproof.solvers.answers import SolverName

BATCH_QUERIES = 4096
FIRST_BATCH = 4
"""Queries in a batch while nothing is known about how long they take."""

BATCH_SECONDS = (1.0, 10.0)
"""The least and the most work in a batch."""

BATCHES_LEFT = 8
"""Batches that a worker should still get from now on, as long as they are not too small."""

WINDOW = 2
LOOK_SECONDS = 5.0
"""Between two looks for nodes that joined meanwhile."""


Report = Callable[[str, Solved], None]


class RayExecutor(Closing):
    """A pool of actors on the cluster of ``settings.address``, of RAY_ADDRESS, or started here.

    Example: on two nodes of 8 CPUs, 16 workers; a query that ran out of 512 MiB goes alone to a
    pool whose children have 1 GiB.

    A Ray that this process already uses is used as it is, and :meth:`close` ends only what was
    begun here. ``peaks`` is what solver children needed so far. For one caller at a time.
    """

    def __init__(
        self, settings: Settings, needs: Needs | None = None, events: Events | None = None
    ) -> None:
        self.peaks: Peaks = {}
        self.options = settings.options
        self.needs = Needs() if needs is None else needs
        self._settings = settings
        self.events = Events() if events is None else events
        self._meters: Meters | None = None
        self._pool = Pool(self.options, settings.solvers_per_worker, self.events.run)
        self._began_ray = False
        self._seconds_per_query = BATCH_SECONDS[0] / FIRST_BATCH

    def close(self) -> None:
        """End the workers, and the use of Ray if it began here."""
        self.close_workers()
        if self._began_ray:
            ray.shutdown()
            self._began_ray = False

    def close_workers(self) -> None:
        """End the workers; the next :meth:`solve` begins others."""
        self._pool.close()

    def solve(self, queries: Sequence[Query], on_solved: Report) -> None:
        """Report every query's verdict, from this thread, in the order in which they come.

        Raises SolverDisagreement and SolverUnavailable as a worker does, ClusterError when the
        pool cannot work, and what ``on_solved`` does; the pool is then ended.
        """
        if not queries:
            return
        with ExitStack() as undo:
            undo.callback(self.close_workers)
            self.open()
            _Ladder(self, queries, on_solved).climb()
            undo.pop_all()

    @property
    def level(self) -> int:
        """The bytes that a solver child of the present pool has; 0 without one."""
        return self._pool.level if self._pool.workers else 0

    @property
    def pace(self) -> float:
        """Queries per second that the present pool gets through, about; 0 without one."""
        return len(self._pool.workers) / self._seconds_per_query

    def ladder(self) -> tuple[int, ...]:
        """The levels of memory per child on this cluster. Raises ClusterError for none."""
        there = nodes_that_work()
        children = self._settings.solvers_per_worker
        room = max(node.memory_bytes for node in there)
        limit = self._settings.memory_limit_bytes
        rising = levels(limit, room, children)
        if not rising:
            least = reservation(min(LEAST_BYTES, limit or LEAST_BYTES), children)
            raise ClusterError(
                f"no node of the Ray cluster has room for a worker: each reserves 1 CPU and at "
                f"least {least / MIB:.0f} MiB ({children} solver(s)), and of {len(there)} node(s) "
                f"none offers more than {room / MIB:.0f} MiB"
            )
        return rising

    def run(self, work: Work, level: int, last: bool, heard: Report) -> None:
        """One pool's work, on workers of one level; verdicts as they come."""
        self._staff(level, last)
        tables: dict[int, Any] = {}
        looked = time.perf_counter()
        while work.left:
            if work.waiting and time.perf_counter() - looked > LOOK_SECONDS:
                self._pool.grow(self._where(level))
                looked = time.perf_counter()
            self._hand_out(work, tables)
            if self._meters is not None:
                self._meters.queue(work.waiting)
            worker = self._pool.next_to_speak()
            if worker is not None:
                for key, solved in self._hear(worker, work, tables):
                    note_peaks(self.peaks, worker.number, solved.answers)
                    heard(key, solved)

    def measured(self, shape: Shape, solved: Solved, level: int) -> None:
        """Learn what a query took; one that did not fit took its whole level, and more."""
        peak = max(a.rss_mib for a in solved.answers)
        if any(a.verdict == "memory" for a in solved.answers):
            peak = max(peak, level / MIB)
        if self._meters is not None:
            self._meters.solved(solved, predicted(self.needs, shape))
        if peak > 0:
            self.needs = learned(self.needs, shape, peak)

    def retried(self, cause: str, keys: list[str], **more: int) -> None:
        """Say that templates go back into the queue."""
        self.events.say("retry", keys, cause=cause, **more)
        if self._meters is not None:
            self._meters.retried(cause, len(keys))

    def open(self) -> None:
        """Connect to the cluster, or start one."""
        self._began_ray = connect(self._settings) or self._began_ray
        if self._meters is None:
            self._meters = Meters(self.events.run)

    def _staff(self, level: int, last: bool) -> None:
        """See to it that the pool is one of this level, with all workers that there is room for."""
        nodes_that_work()
        where = self._where(level)
        if not where:
            raise ClusterError(
                f"no node of the Ray cluster has room left for a worker of {level / MIB:.0f} MiB"
            )
        pool = self._pool
        if pool.level != level or len(pool.workers) < len(where):
            pool.start(level, last, where)
            self.events.say(
                "pool", workers=len(where), nodes=len(set(where)), level_mib=level // MIB
            )

    def _where(self, level: int) -> list[str]:
        """The node of each worker that there is room for now."""
        each = reservation(level, self._settings.solvers_per_worker)
        return places(nodes(), each, self._settings.workers)

    def _hand_out(self, work: Work, tables: dict[int, Any]) -> None:
        """Fill the windows of the workers that are there, emptiest first."""
        ready = [worker for worker in self._pool.workers if worker.ready]
        if not ready:
            return
        least, most = BATCH_SECONDS
        rest = work.waiting * self._seconds_per_query / len(ready)
        seconds = min(most, max(least, rest / BATCHES_LEFT))
        size = max(1, min(BATCH_QUERIES, int(seconds / self._seconds_per_query)))
        for depth in range(WINDOW):
            for worker in ready:
                if len(worker.sent) <= depth:
                    batch = work.take(size, shares=WINDOW * len(ready))
                    if batch is None:
                        return
                    if batch.table not in tables:
                        tables[batch.table] = ray.put(work.table(batch.table))
                    reply = worker.actor.solve.remote(tables[batch.table], batch.rows, seconds)
                    worker.sent[reply] = batch

    def _hear(
        self, worker: Worker, work: Work, tables: dict[int, Any]
    ) -> Iterator[tuple[str, Solved]]:
        """What a worker's word settles: its batch's verdicts, or what its death leaves."""
        try:
            reply = ray.get(worker.awaited)
        except DEATHS as death:
            yield from self._bury(worker, work, tables, death)
            return
        except ray.exceptions.RayError as error:
            raise ClusterError(f"worker {worker.number} failed: {last_line(error)}") from error
        if not worker.ready:
            self._pool.greet(worker, reply)
            return
        batch = worker.sent.pop(worker.awaited)
        solved = dict(from_batch(reply.rows))
        work.returned(batch, solved)
        if work.finished(batch.table):
            tables.pop(batch.table, None)
        if solved:
            mean = reply.seconds / len(solved)
            self._seconds_per_query = max(1e-4, (self._seconds_per_query + mean) / 2)
        yield from solved.items()
        if reply.unavailable:
            raise SolverUnavailable(reply.unavailable)
        if reply.disputed is not None:
            ((key, dispute),) = from_batch(reply.disputed)
            raise SolverDisagreement(key, dispute.rung, dispute.answers)

    def _bury(
        self, worker: Worker, work: Work, tables: dict[int, Any], death: Exception
    ) -> Iterator[tuple[str, Solved]]:
        """Replace a dead worker; the verdicts on what it died of once too often."""
        batches = list(worker.sent.values())
        keys = [work.key(n) for batch in batches for n in batch.numbers]
        given_up = work.lost(batches)
        # A table may have gone with its node: whoever needs it next gets it again.
        for batch in batches:
            tables.pop(batch.table, None)
        self.events.say("worker died", worker=worker.number, why=last_line(death))
        self.retried("death", keys)
        self._pool.replace(worker, death)
        for query in given_up:
            yield query.key, self._crashed(worker, death)

    def _crashed(self, worker: Worker, death: Exception) -> Solved:
        solver: SolverName = "cvc5" if self.options.mode == "cvc5" else "z3"
        reason = (
            f"{DEATHS_ALONE} workers died of it; the last, worker {worker.number}: "
            f"{last_line(death)}"
        )
        answer = Answer("crashed", solver, installed_version(solver), 0.0, 0.0, reason=reason)
        return Solved("crashed", "linear", (answer,))


class _Ladder:
    """One call of :meth:`RayExecutor.solve`: from the lowest level needed to the highest."""

    def __init__(self, executor: RayExecutor, queries: Sequence[Query], report: Report) -> None:
        self._executor = executor
        self._report = report
        self._shapes = {query.key: shape_of(query) for query in queries}
        self._queries = {query.key: query for query in queries}
        self._levels = executor.ladder()
        self._tried: dict[str, list[int]] = {}
        self._at: dict[int, list[str]] = {level: [] for level in self._levels}
        children = executor._settings.solvers_per_worker
        wide = widest(self._levels, nodes(), children, executor._settings.workers)
        wanted = {
            key: level_for(self._levels, predicted(executor.needs, shape))
            for key, shape in self._shapes.items()
        }
        # Levels that cost no worker are one, and the pool that is there is kept if it can be.
        shared = min(wide, max(executor.level, *wanted.values()))
        for key, level in wanted.items():
            self._at[max(level, shared)].append(key)

    def climb(self) -> None:
        """Solve level by level; what did not fit has gone up meanwhile."""
        for level in self._levels:
            if self._at[level]:
                queries = [self._queries[key] for key in self._at[level]]
                work = Work(queries, alone=self._tried)
                last = level == self._levels[-1]

                def heard(key: str, solved: Solved, level: int = level) -> None:
                    self._heard(key, solved, level)

                self._executor.run(work, level, last, heard)

    def _heard(self, key: str, solved: Solved, level: int) -> None:
        self._executor.measured(self._shapes[key], solved, level)
        if not solved.short_of_memory:
            self._report(key, solved)
            return
        self._tried.setdefault(key, []).append(level)
        higher = [x for x in self._levels if x > level]
        if higher:
            # Among queries that were predicted to fit there, it is still sent alone.
            self._at[higher[0]].append(key)
            self._executor.retried("memory", [key], level_mib=higher[0] // MIB)
        else:
            self._report(key, with_figures(solved, self._tried[key]))
