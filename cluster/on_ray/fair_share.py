"""Who waits for which text: several runs before one pool of workers, served in turn.

A text that several runs wait for is solved once. Everything here is plain data behind one lock; the
solving is somebody else's (`cluster.on_ray.shared_pool`).
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Iterable
from typing import NamedTuple

from shardproof.cluster.settings import Options
from shardproof.solvers import Query, Solved

SILENT_SECONDS = 60.0
"""A run that has not asked for its verdicts for so long is gone."""


class Round(NamedTuple):
    """Texts to be solved next, under one set of options.

    Example: ``Round(options, [query, other])``, one text each of two runs that wait.
    """

    options: Options
    queries: list[Query]


class _Run:
    """What one run has asked for: ``queue`` is not at the solvers yet, ``verdicts`` not fetched."""

    def __init__(self, options: Options) -> None:
        self.options = options
        self.queue: deque[Query] = deque()
        self.verdicts: list[tuple[str, Solved]] = []
        self.failure: Exception | None = None
        self.heard = time.monotonic()


class FairShare:
    """Runs, by name, with what they wait for. All methods may be called from any thread.

    Example: of run A with 1000 texts and run B with 2, a round of 4 takes A's first, B's first, A's
    second, B's second.
    """

    def __init__(self) -> None:
        self._runs: dict[str, _Run] = {}
        self._turn: deque[str] = deque()
        self._waiting: dict[tuple[Options, str], list[str]] = {}
        self._changed = threading.Condition()

    def submit(self, run: str, options: Options, queries: Iterable[Query]) -> None:
        """A run waits for these texts, named by their keys; one that somebody else waits for is
        not queued again. Raises ValueError for a run that waits under other options."""
        with self._changed:
            here = self._runs.get(run)
            if here is None:
                here = self._runs[run] = _Run(options)
                self._turn.append(run)
            if here.options != options:
                raise ValueError(f"the run {run} waits under {here.options}, not {options}")
            here.heard = time.monotonic()
            for query in queries:
                waiting = self._waiting.setdefault((options, query.key), [])
                if not waiting:
                    here.queue.append(query)
                if run not in waiting:
                    waiting.append(run)
            self._changed.notify_all()

    def take(self, most: int, seconds: float) -> Round | None:
        """Up to so many texts, one from each run in turn; waits for the first so many seconds.

        All are under the options of the run whose turn it is, which is another one each time.
        """
        with self._changed:
            self._changed.wait_for(self._someone, seconds)
            self._forget_silent()
            if not self._someone():
                return None
            while not self._runs[self._turn[0]].queue:
                self._turn.rotate(-1)
            options = self._runs[self._turn[0]].options
            chosen: list[Query] = []
            served = [r for r in map(self._runs.__getitem__, self._turn) if r.options == options]
            while len(chosen) < most and any(run.queue for run in served):
                for run in served:
                    if run.queue and len(chosen) < most:
                        chosen.append(run.queue.popleft())
            self._turn.rotate(-1)
            return Round(options, chosen)

    def add_known(self, run: str, known: Iterable[tuple[str, Solved]]) -> None:
        """Verdicts for one run that were there before it asked."""
        with self._changed:
            if run in self._runs:
                self._runs[run].verdicts += known
            self._changed.notify_all()

    def solved(self, options: Options, key: str, solved: Solved) -> None:
        """A verdict, for everybody who waits for it."""
        with self._changed:
            for run in self._waiting.pop((options, key), ()):
                if run in self._runs:
                    self._runs[run].verdicts.append((key, solved))
            self._changed.notify_all()

    def give_back(self, options: Options, queries: Iterable[Query]) -> None:
        """Texts that were taken and have no verdict are queued again, in front."""
        with self._changed:
            for query in reversed(list(queries)):
                waiting = self._waiting.get((options, query.key), ())
                here = [run for run in waiting if run in self._runs]
                if here:
                    self._runs[here[0]].queue.appendleft(query)
            self._changed.notify_all()

    def fail(self, options: Options, keys: Iterable[str], error: Exception) -> None:
        """Whoever waits for one of these texts is told why there will be no verdict."""
        with self._changed:
            for key in keys:
                for run in self._waiting.pop((options, key), ()):
                    if run in self._runs:
                        self._runs[run].failure = error
            self._changed.notify_all()

    def collect(self, run: str, seconds: float) -> list[tuple[str, Solved]]:
        """What a run's texts came to since it last asked; waits for the first so many seconds.

        Raises what the run was failed with, and KeyError for a run that is not here.
        """
        with self._changed:
            here = self._runs[run]
            here.heard = time.monotonic()
            self._changed.wait_for(lambda: here.verdicts or here.failure is not None, seconds)
            here.heard = time.monotonic()
            if here.failure is not None:
                raise here.failure
            verdicts, here.verdicts = here.verdicts, []
            return verdicts

    def leave(self, run: str) -> None:
        """A run waits for nothing any more; what only it waited for is not solved."""
        with self._changed:
            self._leave(run)

    def _leave(self, run: str) -> None:
        gone = self._runs.pop(run, None)
        if gone is None:
            return
        self._turn.remove(run)
        for query in gone.queue:
            # Somebody else may wait for what this run had queued.
            waiting = self._waiting.get((gone.options, query.key), [])
            others = [other for other in waiting if other in self._runs]
            if others:
                self._runs[others[0]].queue.append(query)
            else:
                self._waiting.pop((gone.options, query.key), None)

    def _someone(self) -> bool:
        return any(run.queue for run in self._runs.values())

    def _forget_silent(self) -> None:
        late = time.monotonic() - SILENT_SECONDS
        for name in [name for name, run in self._runs.items() if run.heard < late]:
            self._leave(name)
