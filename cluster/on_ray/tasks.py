"""Functions over a Ray cluster: one task per argument, few in flight, results as they come."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

import ray

from shardproof.cluster.on_ray.code_digest import digest
from shardproof.cluster.on_ray.pool import ClusterError, joined, last_line, nodes_that_work
from shardproof.cluster.settings import Settings
from shardproof.engine.storage.sources import import_root

Shared = TypeVar("Shared")
Argument = TypeVar("Argument")
Answer = TypeVar("Answer")

WINDOW = 2
RETRIES = 3
"""How often a task is tried again whose worker or node died: the function has no effects."""


def spread(
    function: Callable[[Shared, Argument], Answer],
    shared: Shared,
    work: Callable[[int], Sequence[Argument]],
    settings: Settings,
    memory_bytes: int,
    tell: Callable[[int, int], None] = lambda done, total: None,
) -> list[Answer]:
    """``function(shared, argument)`` for each argument, in their order.

    Example: the 96 slices of the claims of a plan, at most two for each worker in flight at once.

    ``work``: the arguments for so many tasks at a time. ``shared`` goes to each node once; a task
    reserves a CPU and so much memory. Raises ClusterError if the cluster has no room or a task is
    lost for good or its node has other sources than this process, and what the function raises.
    """
    with joined(settings):
        room = sum(min(n.cpus, n.memory_bytes // memory_bytes) for n in nodes_that_work())
        if not room:
            raise ClusterError(
                f"no node of the Ray cluster has room for a task of 1 CPU and "
                f"{memory_bytes / 2**20:.0f} MiB"
            )
        workers = min(room, settings.workers or room)
        arguments = work(workers)
        results: dict[int, Answer] = {}
        needs = {"num_cpus": 1, "memory": memory_bytes}
        for number, one in _stream(function, shared, arguments, WINDOW * workers, needs):
            results[number] = one
            tell(len(results), len(arguments))
        return [results[number] for number in range(len(arguments))]


def stream(
    function: Callable[[Shared, Argument], Answer],
    shared: Shared,
    arguments: Sequence[Argument],
    window: int,
) -> Iterator[tuple[int, Answer]]:
    """The number of each argument and ``function(shared, argument)``, as they come, ``window`` at
    once, on all nodes of the cluster that this process uses. Tasks reserve nothing: they wait for
    processes of their own. Raises as :func:`spread` does.

    Example: the runs of a sweep with ``--jobs 8``, eight at once; the second may come before the
    first.
    """
    needs = {"num_cpus": 0, "scheduling_strategy": "SPREAD"}
    yield from _stream(function, shared, arguments, window, needs)


def _stream(
    function: Callable[[Shared, Argument], Answer],
    shared: Shared,
    arguments: Sequence[Argument],
    window: int,
    needs: dict[str, Any],
) -> Iterator[tuple[int, Answer]]:
    remote: Any = ray.remote(max_retries=RETRIES, **needs)(_call)
    reference = ray.put(shared)
    left = list(enumerate(arguments))[::-1]
    at_work: dict[Any, int] = {}
    while left or at_work:
        while left and len(at_work) < window:
            number, argument = left.pop()
            at_work[remote.remote(function, digest(), reference, argument)] = number
        (done,), _ = ray.wait(list(at_work), num_returns=1)
        yield at_work.pop(done), _result(done)


def _call(
    function: Callable[[Shared, Argument], Answer], sources: str, shared: Shared, argument: Argument
) -> Answer:
    if digest() != sources:
        where = socket.gethostname()
        raise ClusterError(
            f"node {where} has other sources of Shardproof in {import_root()} than this process: "
            "what it finds is not to be trusted; install the same ones"
        )
    return function(shared, argument)


def _result(reference: Any) -> Any:
    """What a task returned; raises its own error as it was."""
    try:
        return ray.get(reference)
    except ray.exceptions.RayTaskError as error:
        raise error.cause from None
    except ray.exceptions.RayError as error:
        raise ClusterError(f"a task was lost: {last_line(error)}") from error
