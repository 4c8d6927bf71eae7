"""Solving again: every text that a verdict rests on, on a few solver portfolios side by side."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

from shardproof.solvers import Mode, Portfolio, Query, SolverDisagreement

Texts = tuple[str, str]


class Solver:
    """The solvers' verdicts on texts, each of which is solved once. ``memory_limits``: the bytes
    that a solver has at first, and what a text that does not fit is tried with again, alone.
    ``progress``: told (done, total) of the texts of a call; what is tried again is not done before
    that.

    Example: after ``solve([texts])`` of an obligation that holds, ``unsat(texts)`` is true.
    """

    def __init__(
        self,
        parallel: int,
        mode: Mode,
        timeout: float,
        memory_limits: Sequence[int],
        seed: int,
        progress: Callable[[int, int], None],
    ) -> None:
        self.parallel = max(1, parallel)
        self.mode, self.timeout, self.seed = mode, timeout, seed
        self.memory_limits = memory_limits
        self.progress = progress
        self.verdicts: dict[Texts, str] = {}
        self._short: list[Texts] = []
        self._done = self._total = 0

    def solve(self, texts: Iterable[Texts]) -> None:
        """Find the verdict on every text: "unsat", or why there is none."""
        todo = [t for t in dict.fromkeys(texts) if t not in self.verdicts]
        parallel = self.parallel
        self._done, self._total = 0, len(todo)
        for limit in self.memory_limits:
            if todo:
                self._solve(todo, limit, min(parallel, len(todo)))
            todo, self._short, parallel = self._short, [], 1

    def _solve(self, todo: Sequence[Texts], limit: int, workers: int) -> None:
        queue = iter(todo)
        lock = threading.Lock()
        with ThreadPoolExecutor(workers) as pool:
            arguments = (queue, limit, lock)
            for future in [pool.submit(self._work, *arguments) for _ in range(workers)]:
                future.result()

    def _work(self, queue: Iterator[Texts], limit: int, lock: threading.Lock) -> None:
        last = limit == self.memory_limits[-1]
        with Portfolio(self.mode, self.timeout, limit, self.seed) as portfolio:
            while True:
                with lock:
                    texts = next(queue, None)
                if texts is None:
                    return
                verdict, short = self._ask(portfolio, texts)
                with lock:
                    self.verdicts[texts] = verdict
                    if short:
                        self._short.append(texts)
                    # What is tried again is not done.
                    self._done += last or not short
                    self.progress(self._done, self._total)

    @staticmethod
    def _ask(portfolio: Portfolio, texts: Texts) -> tuple[str, bool]:
        """What is said of a text, and whether more memory might decide it."""
        try:
            solved = portfolio.solve(Query("template", *texts))
        except SolverDisagreement as error:
            return str(error), False
        reason = f" ({solved.reason})" if solved.reason else ""
        return f"{solved.verdict}{reason}", solved.short_of_memory

    def unsat(self, texts: Texts) -> bool:
        """Whether a text is known to have no model."""
        return self.verdicts.get(texts) == "unsat"
