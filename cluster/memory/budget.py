"""A bound on the memory of the whole process tree, and how a run keeps within it.

What can be planned is planned: solver children and their limits take half of the budget, batches
of an exhaustive run a small share of it. What cannot (how large a plan becomes in memory) is
watched: shortly below the budget the run is ended from within, long before the kernel would.
"""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from types import FrameType

from shardproof.cluster.memory.usage import MemorySampler
from shardproof.cluster.settings import Settings

MIB = 1 << 20

SOLVERS_SHARE = 2
"""One part in so many of the budget is for all solver children together."""

LEAST_CHILD_BYTES = 384 * MIB
"""The smallest limit a solver child starts under; it bounds address space, most of it untouched."""

BATCH_SHARE = 64
"""One part in so many of the budget is for a batch of an exhaustive run."""

INSTANCE_BYTES = 2048
"""What one instance takes until its batch is written."""

BATCH_INSTANCES = (256, 1 << 14)
"""The fewest and the most instances of a batch."""

RESERVE_BYTES = 48 * MIB
RESERVE_SHARE = 8
"""What is kept free for what grows between two looks: the larger of the two, as a part of the
budget, but never more than a quarter of it."""

AGAIN_SECONDS = 2.0
"""A run that has been told to end, and has not, is told again after this time."""


class OverBudget(BaseException):
    """The process tree came too close to its budget; no handler of errors is to swallow it."""

    def __init__(self, used_mib: float, budget_bytes: int, wanted_bytes: int = 0) -> None:
        super().__init__(used_mib, budget_bytes, wanted_bytes)
        self.used_mib = used_mib
        self.budget_bytes = budget_bytes
        self.wanted_bytes = wanted_bytes

    def __str__(self) -> str:
        more = f", {self.wanted_bytes / MIB:.0f} MiB more were needed" if self.wanted_bytes else ""
        return (
            f"the process tree held {self.used_mib:.0f} MiB{more}; a memory budget of "
            f"{self.budget_bytes / MIB:.0f} MiB allows {ceiling(self.budget_bytes) / MIB:.0f} MiB "
            "and a reserve"
        )


def ceiling(budget_bytes: int) -> int:
    """The bytes at which a run is ended.

    Example: 896 MiB with a budget of 1 GiB, 96 MiB with one of 128 MiB.
    """
    reserve = max(budget_bytes // RESERVE_SHARE, RESERVE_BYTES)
    return budget_bytes - min(reserve, budget_bytes // 4)


def within(settings: Settings, budget_bytes: int) -> Settings:
    """The settings with as many workers, and limits for their solvers, as the budget has room for.

    Example: with 8 GiB and four solvers per worker, two workers whose solvers have 512 MiB each;
    with 2 GiB one worker, with 384 MiB each.

    They follow from the budget alone, so that equal budgets have equal options.
    """
    room = budget_bytes // SOLVERS_SHARE
    children = settings.solvers_per_worker
    workers = min(settings.local_workers(), max(1, room // (children * LEAST_CHILD_BYTES)))
    share = max(LEAST_CHILD_BYTES, room // (workers * children))
    return replace(
        settings,
        workers=workers,
        memory_limit_bytes=min(settings.first_limit_bytes, share),
        memory_budget_bytes=budget_bytes,
    )


def batch_instances(budget_bytes: int | None) -> int:
    """How many instances an exhaustive run holds before it writes them.

    Example: 8192 with a budget of 1 GiB, 16,384 without one.
    """
    fewest, most = BATCH_INSTANCES
    if budget_bytes is None:
        return most
    return max(fewest, min(most, budget_bytes // BATCH_SHARE // INSTANCE_BYTES))


@contextmanager
def bounded(budget_bytes: int | None) -> Iterator[MemorySampler]:
    """Sample the memory of this process tree while the context is open, and keep it bounded.

    Example: with a budget of 1 GiB, a plan whose tables reach 896 MiB ends with `OverBudget` while
    it is read.

    Raises `OverBudget` within the context when the tree comes close to the budget, and ValueError
    for a budget in a thread that is not the main one: only that one can be interrupted.
    """
    if budget_bytes is None:
        with MemorySampler() as sampler:
            yield sampler
        return
    if threading.current_thread() is not threading.main_thread():
        raise ValueError("a memory budget needs the main thread of the process")
    guard = _Guard(budget_bytes, threading.get_ident())
    before = signal.signal(signal.SIGUSR1, guard.interrupt)
    try:
        with MemorySampler(watch=guard.look, every_seconds=0.03) as sampler:
            guard.used_now = sampler.sample
            _active.append(guard)
            try:
                yield sampler
            finally:
                guard.armed = False
                _active.remove(guard)
    finally:
        signal.signal(signal.SIGUSR1, before)


def admit(size_bytes: int) -> None:
    """Called before something of a known size is started; raises `OverBudget` if there is a budget
    (`bounded`) without room for it.

    Example: before a worker of 96 MiB starts, with a budget of 1 GiB of which 850 MiB are in use:
    `OverBudget`.
    """
    for guard in _active:
        guard.admit(size_bytes)


class _Guard:
    """Interrupts one thread while the tree holds more than the budget allows."""

    def __init__(self, budget_bytes: int, thread: int) -> None:
        self.armed = True
        self.used_now: Callable[[], float] = lambda: 0.0
        self._budget_bytes = budget_bytes
        self._thread = thread
        self._used_mib = 0.0
        self._again = 0.0

    def look(self, used_mib: float) -> None:
        """Called with what the tree holds, by the sampling thread."""
        over = used_mib * MIB > ceiling(self._budget_bytes)
        if over and self.armed and time.monotonic() >= self._again:
            self._used_mib, self._again = used_mib, time.monotonic() + AGAIN_SECONDS
            signal.pthread_kill(self._thread, signal.SIGUSR1)

    def admit(self, size_bytes: int) -> None:
        """Raise, before the memory is taken, for what would bring the tree above the budget."""
        used_mib = self.used_now()
        if used_mib * MIB + size_bytes > ceiling(self._budget_bytes):
            raise OverBudget(used_mib, self._budget_bytes, size_bytes)

    def interrupt(self, number: int, frame: FrameType | None) -> None:
        """The handler of the signal, in the interrupted thread."""
        del number, frame
        if self.armed:
            raise OverBudget(self._used_mib, self._budget_bytes)


_active: list[_Guard] = []
"""The budgets of this process: one at most, unless runs are nested."""
