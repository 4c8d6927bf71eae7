"""Ray as the executor uses it: joining a cluster, and the workers that are in it."""

from __future__ import annotations

import contextlib
import functools
import itertools
import logging
import os
import socket
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from shardproof.cluster.on_ray.assignments import Batch
from shardproof.cluster.on_ray.placement import Node, reservation
from shardproof.cluster.on_ray.worker import SolverActor
from shardproof.cluster.settings import Options, Settings, installed_version
from shardproof.engine.errors import InvalidInput
from shardproof.engine.storage.sources import python_path

START_SECONDS = 120.0
"""How long to wait for the first worker of a pool."""

KNOCK_SECONDS = 10.0
"""How long to wait for somebody to answer at an address."""

OBJECT_STORE_BYTES = 100 << 20
"""Of a Ray that is started here: tables are small and short-lived."""

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


class NoClusterThere(InvalidInput, ClusterError):
    """There is no Ray cluster at the address that the user gave."""


def connect(settings: Settings) -> bool:
    """Use the Ray of this process, of ``settings.address``, of RAY_ADDRESS, or a new one.

    Example: ``--address 10.0.0.1:6379`` where nobody listens is `NoClusterThere` within ten
    seconds.

    Returns whether the use of Ray began here. Raises ClusterError, which is `NoClusterThere` for an
    address at which there is none.
    """
    if ray.is_initialized():
        return False
    address = settings.address or os.environ.get("RAY_ADDRESS") or "local"
    init = functools.partial(ray.init, address, logging_level=logging.ERROR, log_to_driver=False)
    try:
        if address == "local":
            with _environment_of_nodes():
                init(
                    num_cpus=settings.local_workers(),
                    include_dashboard=False,
                    object_store_memory=OBJECT_STORE_BYTES,
                )
        else:
            _knock(address)
            init()
    except (OSError, RuntimeError, ValueError) as error:
        kind = ClusterError if address == "local" else NoClusterThere
        raise kind(f"Ray cannot be used at {address!r}: {error}") from error
    return True


@contextlib.contextmanager
def joined(settings: Settings) -> Iterator[None]:
    """Use Ray as :func:`connect` finds it, to the end of the block. Raises ClusterError.

    Example: the texts of a plan and their verdicts come from one session, and Ray is left before
    the report is written.
    """
    began = connect(settings)
    try:
        yield
    finally:
        if began:
            ray.shutdown()


def nodes() -> list[Node]:
    """The nodes of the cluster that are alive.

    Example: ``[Node("4f1c...", 8, 17179869184)]``.
    """
    return [
        Node(n["NodeID"], int(n["Resources"].get("CPU", 0)), int(n["Resources"].get("memory", 0)))
        for n in ray.nodes()  # type: ignore[no-untyped-call]
        if n["Alive"]
    ]


def nodes_that_work(seconds: float = START_SECONDS) -> list[Node]:
    """The nodes with CPUs, the first of which is waited for. Raises ClusterError if none comes.

    Example: a head node with ``num_cpus=0`` is none; an autoscaler has two minutes to bring one.
    """
    until = time.perf_counter() + seconds
    while not (working := [node for node in nodes() if node.cpus]):
        if time.perf_counter() > until:
            raise ClusterError(
                f"no node of the Ray cluster has CPUs, and none came in {seconds:g} s: "
                "start worker nodes (ray start --address=...)"
            )
        time.sleep(0.5)
    return working


@dataclass(eq=False)
class Worker:
    """One actor as the driver sees it; ``sent`` is what it has not answered, oldest first.

    Example: worker 3 on node ``4f1c...`` with two batches in ``sent``, the older of which is
    awaited.
    """

    number: int
    actor: Any
    greeting: Any
    began: float
    node: str
    ready: bool = False
    sent: dict[Any, Batch] = field(default_factory=dict)

    @property
    def awaited(self) -> Any:
        """The reference of its next word, None if nothing is expected."""
        return next(iter(self.sent), None) if self.ready else self.greeting


class Pool:
    """The workers, all with one reservation: ``children`` solver children of ``level`` bytes.

    Example: 16 workers on two nodes, each with two children of 512 MiB and so a reservation of 1184
    MiB.
    """

    def __init__(self, options: Options, children: int, run: str) -> None:
        self.workers: list[Worker] = []
        self.level = 0
        self._options = options
        self._children = children
        self._run = run
        self._last = True
        self._numbers = itertools.count()
        self._failed_starts = 0

    @property
    def reservation(self) -> int:
        """Bytes that a worker reserves."""
        return reservation(self.level, self._children)

    def start(self, level: int, last: bool, where: Sequence[str]) -> None:
        """End the workers there are and begin one on each of the nodes named, in their order."""
        self.close()
        self.level, self._last = level, last
        self.workers = [self._begin(node) for node in where]

    def grow(self, where: Sequence[str]) -> int:
        """Begin workers where there are fewer than named, as on nodes that came; how many."""
        missing = Counter(where) - Counter(worker.node for worker in self.workers)
        room = max(0, len(where) - len(self.workers))
        begun = list(missing.elements())[:room]
        self.workers += [self._begin(node) for node in begun]
        return len(begun)

    def close(self) -> None:
        """End the workers."""
        while self.workers:
            _kill(self.workers.pop())

    def next_to_speak(self) -> Worker | None:
        """A worker with something to say, None after a pause without one. Raises ClusterError
        when none of them has come up for too long."""
        waiting = {w.awaited: w for w in self.workers if w.awaited is not None}
        spoken, _ = ray.wait(list(waiting), num_returns=1, timeout=1.0)
        if spoken:
            return waiting[spoken[0]]
        since = time.perf_counter() - START_SECONDS
        if all(not worker.ready and worker.began < since for worker in self.workers):
            free = ray.available_resources()  # type: ignore[no-untyped-call]
            raise ClusterError(
                f"none of {len(self.workers)} workers, of 1 CPU and "
                f"{self.reservation / MIB:.0f} MiB each, started in {START_SECONDS:g} s; "
                f"free in the Ray cluster: {free}"
            )
        return None

    def greet(self, worker: Worker, versions: tuple[str, str]) -> None:
        """Let a worker that has come up take part. Raises ClusterError for other solvers there."""
        here = (installed_version("z3"), installed_version("cvc5"))
        if versions != here:
            raise ClusterError(
                f"worker {worker.number} has Z3 and cvc5 in versions {versions}, this process in "
                f"{here}: verdicts would not be comparable; install the same ones"
            )
        worker.ready = True
        self._failed_starts = 0

    def replace(self, worker: Worker, death: Exception) -> None:
        """Put a fresh actor in the place of a dead one. Raises ClusterError if none comes up."""
        self._failed_starts += not worker.ready
        if self._failed_starts > len(self.workers) + 2:
            raise ClusterError(
                f"the workers of the Ray cluster end before they are ready: {last_line(death)}"
            ) from death
        _kill(worker)
        self.workers[self.workers.index(worker)] = self._begin(worker.node)

    def _begin(self, node: str) -> Worker:
        """A worker on a node, or on another one where that is gone."""
        affinity: Any = NodeAffinitySchedulingStrategy(node, soft=True)
        remote: Any = ray.remote(
            num_cpus=1,
            memory=self.reservation,
            max_restarts=0,
            max_task_retries=0,
            scheduling_strategy=affinity,
        )(SolverActor)
        number = next(self._numbers)
        actor = remote.remote(self._options, self.level, self._last, self._run, number)
        greeting = actor.versions.remote()
        return Worker(number, actor, greeting, time.perf_counter(), node)


def last_line(error: Exception) -> str:
    """The end of what an error says: Ray's messages have it there.

    Example: "Actor died: out of memory", of twenty lines of which it is the last.
    """
    return (str(error).strip().splitlines() or [type(error).__name__])[-1].strip()


@contextlib.contextmanager
def _environment_of_nodes() -> Iterator[None]:
    """What a Ray started meanwhile hands on to its workers: where this code is, and this process'
    priority.  Ray's own default is a niceness of 15, with which a run stands still where anything
    else computes."""
    before = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = python_path()
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_worker_niceness", "0")
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


def _kill(worker: Worker) -> None:
    """End an actor; harmless when it is dead, or Ray gone."""
    with contextlib.suppress(ray.exceptions.RayError, ValueError, RuntimeError):
        ray.kill(worker.actor)
