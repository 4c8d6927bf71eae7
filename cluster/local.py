"""The executor in this process: threads that each talk to solver children of their own.

Solving happens in the children, so threads suffice; Ray is not imported on this path. A query that
did not fit is tried again alone, at the end, with more memory (`cluster.memory.retry`).
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import replace

from shardproof.cluster.machine import PORTFOLIO_BYTES, machine_bytes
from shardproof.cluster.memory.budget import admit
from shardproof.cluster.memory.retry import MIB, with_figures
from shardproof.cluster.settings import Options, Settings
from shardproof.cluster.verdicts.events import Events
from shardproof.engine.storage.closing import Closing
from shardproof.solvers import Answer, Portfolio, Query, Solved, SolverUnavailable

SMALL = 50
"""Below this many queries a second worker takes longer to start than it saves."""

Peaks = dict[tuple[int, str], float]
"""The most memory, in MiB, that a worker's children of one solver held resident."""


TRIES = 3
"""How often a query is asked until the death of its solver is believed."""


def solve_each(
    portfolio: Portfolio, queries: Iterable[Query], memory_tries: int = TRIES
) -> Iterator[tuple[str, Solved]]:
    """Keys and verdicts in order. A solver's death, at work or while starting, is only believed
    when it repeats: whatever killed it may not have been the query, and the next child is empty.
    ``memory_tries``: the same for a death of memory, 1 where somebody else tries with more of it.

    Example: a query whose Z3 is killed twice and then says "unsat" is "unsat"; one that it dies of
    three times is "crashed".
    """
    for query in queries:
        yield query.key, _solve(portfolio, query, memory_tries)


def _solve(portfolio: Portfolio, query: Query, memory_tries: int) -> Solved:
    times = 0
    while True:
        times += 1
        try:
            solved = portfolio.solve(query)
        except SolverUnavailable:
            if times == TRIES:
                raise
            continue
        tries = {"memory": memory_tries, "crashed": TRIES}.get(solved.verdict, 1)
        if times >= tries:
            return solved


def limits(settings: Settings, machine: int) -> tuple[int, ...]:
    """The bytes that one solver gets at first, and what it is tried again with on this machine,
    where the user sets no limit: doubled, up to all there is for as many as a worker may have.

    Example: with 21 GiB and a worker that has two solvers, 2, 4, 8 and 10.5 GiB.
    """
    levels = [settings.first_limit_bytes]
    most = machine // settings.solvers_per_worker
    while settings.memory_limit_bytes is None and levels[-1] < most:
        levels.append(min(2 * levels[-1], most))
    return tuple(levels)


def note_peaks(peaks: Peaks, worker: int, answers: Sequence[Answer]) -> None:
    """Raise the peaks of a worker to what its answers report.

    Example: answers of Z3 with 40 and 90 MiB raise the peak ``(0, "z3")`` of worker 0 from 60 to 90
    MiB.
    """
    for answer in answers:
        slot = (worker, answer.solver)
        peaks[slot] = max(peaks.get(slot, 0.0), answer.rss_mib)


class LocalExecutor(Closing):
    """Workers in this process, one portfolio each; children stay warm until :meth:`close`.

    Example: 40 queries are solved by one worker, since a second takes longer to start than it
    saves; 400 by one per CPU.

    ``peaks`` is what solver children needed so far. Opening it starts the first worker's child,
    so that it warms up while the caller prepares queries. For one caller at a time.
    """

    def __init__(
        self,
        settings: Settings,
        portfolio: Callable[[Options], Portfolio] = Options.portfolio,
        events: Events | None = None,
    ) -> None:
        self.peaks: Peaks = {}
        self.events = Events() if events is None else events
        self._workers = settings.local_workers()
        self.options = settings.options
        self._open_portfolio = portfolio
        self._portfolios: list[Portfolio] = []
        self._limits = limits(settings, machine_bytes())

    def open(self) -> None:
        """Start the first worker's child."""
        self._start(1)

    def close(self) -> None:
        """End the solver children."""
        while self._portfolios:
            self._portfolios.pop().close()

    def solve(self, queries: Sequence[Query], on_solved: Callable[[str, Solved], None]) -> None:
        """Report every query's verdict, from this thread, in the order in which they come.

        Raises what the portfolio raises, and what ``on_solved`` does; queries that others are at
        work on are then given up.
        """
        workers = 1 if len(queries) < SMALL else min(self._workers, len(queries))
        self._start(workers)
        tight: dict[str, Solved] = {}

        def heard(key: str, solved: Solved) -> None:
            if solved.short_of_memory:
                tight[key] = solved
            else:
                on_solved(key, solved)

        if workers == 1:
            for key, solved in solve_each(self._portfolios[0], queries):
                note_peaks(self.peaks, 0, solved.answers)
                heard(key, solved)
        else:
            self._solve_threaded(queries, workers, heard)
        if tight:
            self.close()
        for query in queries:
            if query.key in tight:
                on_solved(query.key, self._alone(query, tight[query.key]))

    def _alone(self, query: Query, solved: Solved) -> Solved:
        """The verdict on a query that did not fit: limit after limit, and nothing beside it."""
        first, *higher = self._limits
        tried = [first]
        for limit in higher:
            self.events.say("retry", [query.key], cause="memory", level_mib=limit // MIB)
            with self._open_portfolio(replace(self.options, memory_limit_bytes=limit)) as portfolio:
                solved = _solve(portfolio, query, TRIES if limit == self._limits[-1] else 1)
            note_peaks(self.peaks, 0, solved.answers)
            tried.append(limit)
            if not solved.short_of_memory:
                return solved
        return with_figures(solved, tried)

    def _start(self, workers: int) -> None:
        while len(self._portfolios) < workers:
            admit(PORTFOLIO_BYTES)
            portfolio = self._open_portfolio(self.options)
            self._portfolios.append(portfolio.__enter__())

    def _solve_threaded(
        self, queries: Sequence[Query], workers: int, on_solved: Callable[[str, Solved], None]
    ) -> None:
        results: queue.SimpleQueue[_Report] = queue.SimpleQueue()
        pending = _Pending(queries)
        threads = [
            threading.Thread(
                target=_work,
                args=(number, self._portfolios[number], pending, results),
                name=f"solver worker {number}",
                daemon=True,
            )
            for number in range(workers)
        ]
        for thread in threads:
            thread.start()
        with ExitStack() as undo:
            undo.callback(self._abandon, threads)
            undo.callback(pending.give_up)
            for _ in queries:
                report = results.get()
                if isinstance(report, Exception):
                    raise report
                worker, key, solved = report
                note_peaks(self.peaks, worker, solved.answers)
                on_solved(key, solved)
            undo.pop_all()
        for thread in threads:
            thread.join()

    def _abandon(self, threads: list[threading.Thread]) -> None:
        """Let threads that are at work close what they use, instead of waiting for them."""
        portfolios, self._portfolios = self._portfolios, []

        def close() -> None:
            for thread in threads:
                thread.join()
            for portfolio in portfolios:
                portfolio.close()

        threading.Thread(target=close, name="solver closer", daemon=True).start()


_Report = tuple[int, str, Solved] | Exception


class _Pending:
    """The queries nobody has taken yet, for several threads."""

    def __init__(self, queries: Sequence[Query]) -> None:
        self._left = iter(queries)
        self._lock = threading.Lock()

    def __iter__(self) -> Iterator[Query]:
        while True:
            with self._lock:
                query = next(self._left, None)
            if query is None:
                return
            yield query

    def give_up(self) -> None:
        with self._lock:
            self._left = iter(())


def _work(
    number: int,
    portfolio: Portfolio,
    pending: _Pending,
    results: queue.SimpleQueue[_Report],
) -> None:
    try:
        for key, solved in solve_each(portfolio, pending):
            results.put((number, key, solved))
    except Exception as error:  # noqa: BLE001 - raised again where the results are awaited
        results.put(error)
