"""Solving again: every text that a verdict rests on, on a few solver portfolios side by side."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor

from solvers import Mode, Portfolio, Query, SolverDisagreement

Texts = tuple[str, str]


class Solver:
    """Verdicts by text; each text is solved once.  ``progress``: told (done, total)."""

    def __init__(
        self,
        parallel: int,
        mode: Mode,
        timeout: float,
        memory_limit_bytes: int,
        seed: int,
        progress: Callable[[int, int], None],
    ) -> None:
        self.parallel = max(1, parallel)
        self.settings = (mode, timeout, memory_limit_bytes, seed)
        self.progress = progress
        self.verdicts: dict[Texts, str] = {}

    def solve(self, texts: Iterable[Texts]) -> None:
        """Find the verdict on every text: "unsat", or why there is none."""
        todo = [t for t in dict.fromkeys(texts) if t not in self.verdicts]
        if not todo:
            return
        queue = iter(todo)
        lock = threading.Lock()
        workers = min(self.parallel, len(todo))
        with ThreadPoolExecutor(workers) as pool:
            for future in [pool.submit(self._work, queue, lock, len(todo)) for _ in range(workers)]:
                future.result()

    def _work(self, queue: Iterator[Texts], lock: threading.Lock, total: int) -> None:
        found = 0
        with Portfolio(*self.settings) as portfolio:
            while True:
                with lock:
                    texts = next(queue, None)
                    done = len(self.verdicts)
                if texts is None:
                    return
                verdict = self._ask(portfolio, texts)
                with lock:
                    self.verdicts[texts] = verdict
                    found += 1
                    self.progress(min(done + 1, total), total)

    @staticmethod
    def _ask(portfolio: Portfolio, texts: Texts) -> str:
        try:
            solved = portfolio.solve(Query("template", *texts))
        except SolverDisagreement as error:
            return str(error)
        return f"{solved.verdict}{f' ({solved.reason})' if solved.reason else ''}"

    def unsat(self, texts: Texts) -> bool:
        return self.verdicts.get(texts) == "unsat"
