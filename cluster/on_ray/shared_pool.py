"""One pool of workers on a Ray cluster for several runs at once, and one ledger of their verdicts.

The hub is an actor beside the process that began it. Runs, in whatever process on whatever node,
send it their texts and fetch their verdicts; it serves them in turn, by rounds of some seconds
(`cluster.on_ray.fair_share`). What one run had solved the others do not solve again, where that is
wanted; then the verdicts are on record in a ledger of the hub's own, beside the ledgers of the
runs.
"""

from __future__ import annotations

import contextlib
import threading
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from shardproof.cluster.local import Peaks, note_peaks
from shardproof.cluster.memory.model import Needs
from shardproof.cluster.on_ray.assignments import texts_of
from shardproof.cluster.on_ray.executor import RayExecutor
from shardproof.cluster.on_ray.fair_share import FairShare, Round
from shardproof.cluster.on_ray.pool import ClusterError, connect, last_line
from shardproof.cluster.on_ray.worker import queries_in
from shardproof.cluster.settings import POOL, Options, Settings
from shardproof.cluster.verdicts.events import Events
from shardproof.cluster.verdicts.ledger import Ledger, from_batch, to_batch
from shardproof.engine.storage.closing import Closing
from shardproof.solvers import Query, Solved, SolverDisagreement, SolverUnavailable

NAMESPACE = "shardproof"
WAIT_SECONDS = 1.0
ROUND_SECONDS = 8.0
"""Work in one round: as long does a run wait that comes while the pool is busy."""

LEAST_ROUND = 64
SUBMIT_QUERIES = 2000
"""Texts in one message."""

CONCURRENT = 64
"""Runs that the hub listens to at once."""


class Collected(NamedTuple):
    """Verdicts as rows of the ledger, or why there are none: the answers on which solvers disagree
    as a row, the message of a solver that does not start, or that of a pool that cannot work.

    Example: ``Collected(rows)`` with three verdicts;
    ``Collected(no_rows, unavailable="cvc5 does not start")``.
    """

    rows: pa.RecordBatch
    disputed: pa.RecordBatch | None = None
    unavailable: str = ""
    failure: str = ""


class PoolActor:
    """The actor to which runs send texts and from which they fetch verdicts. ``folder``: of its
    ledger and its log; ``shared``: whether runs share verdicts.

    Example: two runs of a sweep with the cache on have a text in common: it is solved once, and
    both get the verdict.
    """

    def __init__(self, settings: Settings, folder: str, shared: bool) -> None:
        self._settings = settings
        self._events = Events(Path(folder))
        self._ledger = Ledger(Path(folder)) if shared else None
        self._fair_share = FairShare()
        self._needs = Needs()
        self._executor: RayExecutor | None = None
        threading.Thread(target=self._work, name="hub", daemon=True).start()

    def ready(self) -> None:
        """Answers once it is there."""

    def submit(self, run: str, options: Options, texts: pa.RecordBatch) -> None:
        """A run waits for these texts."""
        fresh: list[Query] = []
        known: list[tuple[str, Solved]] = []
        for query in queries_in(texts, range(texts.num_rows)):
            solved = None if self._ledger is None else self._ledger.get(query.key, options)
            if solved is None:
                fresh.append(self._named(run, query))
            else:
                known.append((query.key, solved))
        self._fair_share.submit(run, options, fresh)
        self._fair_share.add_known(run, known)

    def collect(self, run: str) -> Collected:
        """What a run's texts came to since it last asked; waits a moment for the first."""
        options = self._settings.options
        nothing = to_batch({}, options, cached=False)
        try:
            verdicts = self._fair_share.collect(run, WAIT_SECONDS)
        except SolverDisagreement as dispute:
            answers = {_key(dispute.key): Solved("unknown", dispute.rung, dispute.answers)}
            return Collected(nothing, to_batch(answers, options, cached=False))
        except SolverUnavailable as error:
            return Collected(nothing, unavailable=str(error))
        except Exception as error:  # noqa: BLE001 - told to whoever waits
            return Collected(nothing, failure=last_line(error))
        return Collected(
            to_batch({_key(name): one for name, one in verdicts}, options, cached=False)
        )

    def leave(self, run: str) -> None:
        """A run waits for nothing any more."""
        self._fair_share.leave(run)

    def close(self) -> None:
        """End the workers, and bring the ledger to the disk."""
        if self._executor is not None:
            self._executor.close_workers()
        if self._ledger is not None:
            self._ledger.close()

    def _named(self, run: str, query: Query) -> Query:
        """A text by its own key where runs share verdicts, else by the run's name too."""
        if self._ledger is not None:
            return query
        return replace(query, key=f"{run}\0{query.key}")

    def _work(self) -> None:
        while True:
            pace = 0.0 if self._executor is None else self._executor.pace
            queries = self._fair_share.take(
                max(LEAST_ROUND, int(ROUND_SECONDS * pace)), WAIT_SECONDS
            )
            if queries is not None:
                self._solve(queries)

    def _solve(self, batch: Round) -> None:
        options = batch.options
        left: dict[str, Query] = {}
        for query in batch.queries:
            # It may have been solved while a run asked for it.
            known = None if self._ledger is None else self._ledger.get(query.key, options)
            if known is None:
                left[query.key] = query
            else:
                self._fair_share.solved(options, query.key, known)

        def record(name: str, solved: Solved) -> None:
            if self._ledger is not None:
                self._ledger.append({name: solved}, options)
            del left[name]
            self._fair_share.solved(options, name, solved)

        try:
            self._under(options).solve(list(left.values()), record)
        except SolverDisagreement as dispute:
            self._fair_share.fail(options, [dispute.key], dispute)
            left.pop(dispute.key, None)
            self._fair_share.give_back(options, left.values())
        except Exception as error:  # noqa: BLE001 - told to whoever waits
            self._fair_share.fail(options, left, error)

    def _under(self, options: Options) -> RayExecutor:
        """The executor with these options; one at a time holds workers."""
        if self._executor is not None and self._executor.options == options:
            return self._executor
        settings = replace(
            self._settings,
            mode=options.mode,
            seed=options.seed,
            timeout=options.timeout,
            memory_limit_bytes=options.memory_limit_bytes or None,
        )
        if settings.options != options:
            raise ClusterError(f"the shared pool has {settings.options}, not {options}")
        if self._executor is not None:
            self._needs = self._executor.needs
            self._executor.close_workers()
        self._executor = RayExecutor(settings, self._needs, self._events)
        return self._executor


def _key(name: str) -> str:
    """The key of a text by the name that it had in the queue."""
    return name.rpartition("\0")[2]


class HubExecutor(Closing):
    """An executor that lets the hub of the cluster work: the one that ``settings.pool`` names.

    Example: with ``SHARDPROOF_POOL=hub-0a1b2c3d4e5f`` in the environment a run starts no worker of
    its own.
    """

    def __init__(self, settings: Settings) -> None:
        self.options = settings.options
        self.peaks: Peaks = {}
        self.events = Events()
        self._settings = settings
        self._name = settings.pool
        self._run = uuid.uuid4().hex
        self._began_ray = False
        self._hub: Any = None

    def open(self) -> None:
        """Find the hub. Raises ClusterError."""
        self._began_ray = connect(self._settings)
        try:
            self._hub = ray.get_actor(self._name, namespace=NAMESPACE)
        except ValueError as error:
            raise ClusterError(f"no shared pool {self._name} in the Ray cluster") from error

    def close(self) -> None:
        """Leave the pool; it goes on for the others."""
        if self._hub is not None:
            with contextlib.suppress(ray.exceptions.RayError):
                ray.get(self._hub.leave.remote(self._run))
        if self._began_ray:
            ray.shutdown()
            self._began_ray = False

    def solve(self, queries: Sequence[Query], on_solved: Callable[[str, Solved], None]) -> None:
        """Report every query's verdict, from this thread, in the order in which they come.

        Raises SolverDisagreement, SolverUnavailable, and ClusterError when the pool is gone or
        cannot work.
        """
        left = {query.key for query in queries}
        try:
            for first in range(0, len(queries), SUBMIT_QUERIES):
                texts = texts_of(queries[first : first + SUBMIT_QUERIES])
                ray.get(self._hub.submit.remote(self._run, self.options, texts))
            while left:
                for key, solved in self._collect():
                    left.discard(key)
                    note_peaks(self.peaks, 0, solved.answers)
                    on_solved(key, solved)
        except ray.exceptions.RayError as error:
            raise ClusterError(f"the shared pool is gone: {last_line(error)}") from error

    def _collect(self) -> Iterator[tuple[str, Solved]]:
        collected: Collected = ray.get(self._hub.collect.remote(self._run))
        if collected.failure:
            raise ClusterError(collected.failure)
        if collected.unavailable:
            raise SolverUnavailable(collected.unavailable)
        if collected.disputed is not None:
            ((key, dispute),) = from_batch(collected.disputed)
            raise SolverDisagreement(key, dispute.rung, dispute.answers)
        yield from from_batch(collected.rows)


class SharedPool(NamedTuple):
    """A pool of workers by its name, and the address of the cluster that it is in.

    Example: ``SharedPool("hub-0a1b2c3d4e5f", "10.0.0.1:6379")``, whose ``variables`` other
    processes get.
    """

    name: str
    address: str

    def used_by(self, settings: Settings) -> Settings:
        """The settings of a run in this process that uses it."""
        return replace(settings, pool=self.name, address=self.address)

    @property
    def variables(self) -> dict[str, str]:
        """What makes other processes use it, in their environment."""
        return {POOL: self.name, "RAY_ADDRESS": self.address}


@contextmanager
def shared_pool(settings: Settings, folder: Path, *, shared: bool) -> Iterator[SharedPool]:
    """While it is open, there is a pool of workers on the cluster of ``settings`` that runs use
    whose settings name it.

    Example: ``shardproof sweep SWEEP.yaml --executor ray --jobs 8`` opens one around its runs.

    ``folder`` gets the hub's log and, if verdicts are ``shared``, its ledger. Raises ClusterError,
    and LedgerError if somebody else writes there.
    """
    if shared:
        Ledger(folder).close()
    began = connect(settings)
    name = f"hub-{uuid.uuid4().hex[:12]}"
    context = ray.get_runtime_context()
    here: Any = NodeAffinitySchedulingStrategy(context.get_node_id(), soft=False)
    kind: Any = ray.remote(PoolActor)
    actor = kind.options(
        num_cpus=0, max_concurrency=CONCURRENT, name=name, namespace=NAMESPACE,
        scheduling_strategy=here,
    ).remote(settings, str(folder.resolve()), shared)  # fmt: skip
    try:
        ray.get(actor.ready.remote())
        yield SharedPool(name, context.gcs_address)
    except ray.exceptions.RayError as error:
        raise ClusterError(f"the shared pool does not start: {last_line(error)}") from error
    finally:
        with contextlib.suppress(ray.exceptions.RayError):
            ray.get(actor.close.remote())
            ray.kill(actor)
        if began:
            ray.shutdown()
