"""The executor on Ray: a fixed pool of actors, each with solver children of its own.

A batch is sized for about :data:`BATCH_SECONDS` of work and comes back after that time with what
is done, so that a slow query never holds up the others it was sent with; at most :data:`WINDOW`
batches are at a worker. When a worker dies, the queries it was at work on become suspects: they
are tried again one by one, and one that ends a second worker is "crashed".
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import logging
import os
import socket
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Self
from urllib.parse import urlsplit

import ray

from cluster.ledger import from_batch
from cluster.local import Peaks, note_peaks
from cluster.ray_worker import BATCH_SECONDS, SolverActor, to_queries_batch
from cluster.settings import Settings, installed_version
from solvers import Answer, Query, Solved, SolverDisagreement, SolverUnavailable
from solvers.answers import SolverName

BATCH_QUERIES = 256
BATCH_BYTES = 8 << 20
FIRST_BATCH = 4
"""Queries in a batch while nothing is known about how long they take."""

WINDOW = 2
START_SECONDS = 120.0
"""How long to wait for the first worker of a pool."""

KNOCK_SECONDS = 10.0
"""How long to wait for somebody to answer at an address."""

OBJECT_STORE_BYTES = 256 << 20
"""Of a Ray that is started here: batches are small and short-lived."""

MIB = 1 << 20

DEATHS = (
    ray.exceptions.RayActorError,
    ray.exceptions.WorkerCrashedError,
    ray.exceptions.OutOfMemoryError,
    ray.exceptions.NodeDiedError,
    ray.exceptions.ObjectLostError,
)
"""How Ray says that a worker, or what it had answered, is gone."""


class ClusterError(RuntimeError):
    """The cluster cannot be reached, or cannot do this work."""


class _Work:
    """The queries without a verdict yet: those to send in batches, and suspects to send alone."""

    def __init__(self, queries: Sequence[Query]) -> None:
        self.left = len(queries)
        self._plain = deque(queries)
        self._suspects: deque[Query] = deque()
        self._suspected: set[str] = set()

    def take(self, queries: int, shares: int) -> list[Query]:
        """The next batch: so many queries at most, and no more than a fair share of the rest."""
        if not self._plain:
            return [self._suspects.popleft()] if self._suspects else []
        batch: list[Query] = []
        length = 0
        most = min(queries, -(-len(self._plain) // shares))
        while self._plain and len(batch) < most and length < BATCH_BYTES:
            query = self._plain.popleft()
            length += len(query.linear_text) + len(query.nonlinear_text)
            batch.append(query)
        return batch

    def returned(self, batch: Sequence[Query], done: Mapping[str, Solved]) -> None:
        """Take back what a worker had no time for."""
        self._plain.extendleft(query for query in reversed(batch) if query.key not in done)
        self.left -= len(done)

    def lost(self, batches: Sequence[Sequence[Query]]) -> list[Query]:
        """Take back what a dead worker had, its current batch first; returns what is given up."""
        given_up: list[Query] = []
        for at_work, batch in zip((True, *(False for _ in batches)), batches, strict=False):
            for query in batch:
                if at_work and query.key in self._suspected:
                    given_up.append(query)
                elif at_work or query.key in self._suspected:
                    self._suspected.add(query.key)
                    self._suspects.append(query)
                else:
                    self._plain.append(query)
        self.left -= len(given_up)
        return given_up


@dataclass(eq=False)
class _Worker:
    """One actor as the driver sees it; ``sent`` is what it has not answered, oldest first."""

    number: int
    actor: Any
    greeting: Any
    began: float
    ready: bool = False
    sent: dict[Any, list[Query]] = field(default_factory=dict)

    @property
    def awaited(self) -> Any:
        """The reference of its next word, None if nothing is expected."""
        return next(iter(self.sent), None) if self.ready else self.greeting


class RayExecutor:
    """A pool of actors on the cluster of ``settings.address``, of RAY_ADDRESS, or started here.

    A Ray that this process already uses is used as it is, and :meth:`close` ends only what was
    begun here. ``peaks`` is what solver children needed so far. For one caller at a time.
    """

    def __init__(self, settings: Settings) -> None:
        self.peaks: Peaks = {}
        self._settings = settings
        self.options = settings.options
        self._workers: list[_Worker] = []
        self._numbers = itertools.count()
        self._failed_starts = 0
        self._began_ray = False
        self._seconds_per_query = BATCH_SECONDS / FIRST_BATCH

    def __enter__(self) -> Self:
        try:
            self._open()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """End the workers, and the use of Ray if it began here."""
        self.close_workers()
        if self._began_ray:
            ray.shutdown()
            self._began_ray = False

    def solve(self, queries: Sequence[Query], on_solved: Callable[[str, Solved], None]) -> None:
        """Report every query's verdict, from this thread, in the order in which they come.

        Raises SolverDisagreement and SolverUnavailable as a worker does, ClusterError when the
        pool cannot work, and what ``on_solved`` does; the pool is then ended.
        """
        work = _Work(queries)
        try:
            self._open()
            while work.left:
                self._hand_out(work)
                worker = self._next_to_speak()
                if worker is not None:
                    for key, solved in self._hear(worker, work):
                        note_peaks(self.peaks, worker.number, solved.answers)
                        on_solved(key, solved)
        except BaseException:
            self.close_workers()
            raise

    def _open(self) -> None:
        if not self._workers:
            self._connect()
            self._workers = [self._new_worker() for _ in range(self._pool_size())]

    def _connect(self) -> None:
        if ray.is_initialized():
            return
        address = self._settings.address or os.environ.get("RAY_ADDRESS") or "local"
        init = functools.partial(
            ray.init, address, logging_level=logging.ERROR, log_to_driver=False
        )
        try:
            if address == "local":
                with _environment_of_nodes():
                    init(
                        num_cpus=self._settings.local_workers(),
                        include_dashboard=False,
                        object_store_memory=OBJECT_STORE_BYTES,
                    )
            else:
                _knock(address)
                init()
        except (OSError, RuntimeError, ValueError) as error:
            raise ClusterError(f"Ray cannot be used at {address!r}: {error}") from error
        self._began_ray = True

    def _pool_size(self) -> int:
        """As many workers as wanted and as there is room for. Raises ClusterError for none."""
        alive = [node for node in ray.nodes() if node["Alive"]]  # type: ignore[no-untyped-call]
        nodes = [node["Resources"] for node in alive]
        share = self._reservation
        fit = sum(int(min(n.get("CPU", 0), n.get("memory", 0) // share)) for n in nodes)
        if not fit:
            roomiest = max((int(n.get("memory", 0)) for n in nodes), default=0) / MIB
            raise ClusterError(
                f"no node of the Ray cluster has room for a worker: each reserves 1 CPU and "
                f"{share / MIB:.0f} MiB ({self._settings.solvers_per_worker} solver(s) under a "
                f"limit of {self._settings.memory_limit_bytes / MIB:.0f} MiB), and of "
                f"{len(nodes)} node(s) none offers more than {roomiest:.0f} MiB; lower the "
                "memory limit"
            )
        return min(fit, self._settings.workers or fit)

    @property
    def _reservation(self) -> int:
        return self._settings.memory_limit_bytes * self._settings.solvers_per_worker

    def _new_worker(self) -> _Worker:
        remote = ray.remote(
            num_cpus=1, memory=self._reservation, max_restarts=0, max_task_retries=0
        )(SolverActor)
        actor: Any = remote.remote(self.options)
        greeting = actor.versions.remote()
        return _Worker(next(self._numbers), actor, greeting, time.perf_counter())

    def close_workers(self) -> None:
        """End the workers; the next :meth:`solve` begins others."""
        while self._workers:
            _kill(self._workers.pop())

    def _hand_out(self, work: _Work) -> None:
        """Fill the windows of the workers that are there, emptiest first."""
        ready = [worker for worker in self._workers if worker.ready]
        size = max(1, min(BATCH_QUERIES, int(BATCH_SECONDS / self._seconds_per_query)))
        for depth in range(WINDOW):
            for worker in ready:
                if len(worker.sent) <= depth:
                    batch = work.take(size, shares=WINDOW * len(ready))
                    if batch:
                        worker.sent[worker.actor.solve.remote(to_queries_batch(batch))] = batch

    def _next_to_speak(self) -> _Worker | None:
        """A worker with something to say, None after a pause without one."""
        waiting = {w.awaited: w for w in self._workers if w.awaited is not None}
        spoken, _ = ray.wait(list(waiting), num_returns=1, timeout=1.0)
        if spoken:
            return waiting[spoken[0]]
        since = time.perf_counter() - START_SECONDS
        if all(not worker.ready and worker.began < since for worker in self._workers):
            free = ray.available_resources()  # type: ignore[no-untyped-call]
            raise ClusterError(
                f"none of {len(self._workers)} workers, of 1 CPU and "
                f"{self._reservation / MIB:.0f} MiB each, started in {START_SECONDS:g} s; "
                f"free in the Ray cluster: {free}"
            )
        return None

    def _hear(self, worker: _Worker, work: _Work) -> Iterator[tuple[str, Solved]]:
        """What a worker's word settles: its batch's verdicts, or what its death leaves."""
        try:
            said = ray.get(worker.awaited)
        except DEATHS as death:
            given_up = work.lost(list(worker.sent.values()))
            self._replace(worker, death)
            for query in given_up:
                yield query.key, self._crashed(worker, death)
            return
        except ray.exceptions.RayError as error:
            raise ClusterError(f"worker {worker.number} failed: {_last_line(error)}") from error
        if not worker.ready:
            self._greet(worker, said)
            return
        batch = worker.sent.pop(worker.awaited)
        solved = dict(from_batch(said.rows))
        work.returned(batch, solved)
        if solved:
            mean = said.seconds / len(solved)
            self._seconds_per_query = max(1e-4, (self._seconds_per_query + mean) / 2)
        yield from solved.items()
        if said.unavailable:
            raise SolverUnavailable(said.unavailable)
        if said.disputed is not None:
            ((key, dispute),) = from_batch(said.disputed)
            raise SolverDisagreement(key, dispute.rung, dispute.answers)

    def _greet(self, worker: _Worker, versions: tuple[str, str]) -> None:
        """Let a worker that has come up take part. Raises ClusterError for other solvers there."""
        here = (installed_version("z3"), installed_version("cvc5"))
        if versions != here:
            raise ClusterError(
                f"worker {worker.number} has Z3 and cvc5 in versions {versions}, this process in "
                f"{here}: verdicts would not be comparable; install the same ones"
            )
        worker.ready = True
        self._failed_starts = 0

    def _replace(self, worker: _Worker, death: Exception) -> None:
        """Put a fresh actor in the place of a dead one. Raises ClusterError if none comes up."""
        self._failed_starts += not worker.ready
        if self._failed_starts > len(self._workers) + 2:
            raise ClusterError(
                f"the workers of the Ray cluster end before they are ready: {_last_line(death)}"
            ) from death
        _kill(worker)
        self._workers[self._workers.index(worker)] = self._new_worker()

    def _crashed(self, worker: _Worker, death: Exception) -> Solved:
        solver: SolverName = "cvc5" if self.options.mode == "cvc5" else "z3"
        reason = f"two workers died of it; the last, worker {worker.number}: {_last_line(death)}"
        answer = Answer("crashed", solver, installed_version(solver), 0.0, 0.0, reason=reason)
        return Solved("crashed", "linear", (answer,))


@contextlib.contextmanager
def _environment_of_nodes() -> Iterator[None]:
    """What a Ray started meanwhile hands on to its workers: where this code is."""
    before = os.environ.get("PYTHONPATH")
    root = str(Path(__file__).resolve().parent.parent)
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (root, before)))
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    try:
        yield
    finally:
        if before is None:
            del os.environ["PYTHONPATH"]
        else:
            os.environ["PYTHONPATH"] = before


def _knock(address: str) -> None:
    """Raise OSError if nobody listens at host:port; Ray itself takes minutes to say so."""
    place = urlsplit(address if "://" in address else f"//{address}")
    if place.hostname and place.port:
        socket.create_connection((place.hostname, place.port), KNOCK_SECONDS).close()


def _last_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[-1].strip()


def _kill(worker: _Worker) -> None:
    """End an actor; harmless when it is dead, or Ray gone."""
    with contextlib.suppress(ray.exceptions.RayError, ValueError, RuntimeError):
        ray.kill(worker.actor)
