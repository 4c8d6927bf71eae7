"""The far end of the Ray executor: what runs in an actor, and what travels back from it.

Texts come as rows of an Arrow table from the object store, verdicts go back as rows of the ledger,
so that nothing is pickled but buffers. Ray itself is not needed here. What a worker does is in its
stderr, which Ray keeps as a log: lines of JSON as in `cluster.verdicts.events`.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import pyarrow as pa

from shardproof.cluster.local import TRIES, solve_each
from shardproof.cluster.on_ray.assignments import TEXTS
from shardproof.cluster.settings import Options, installed_version
from shardproof.cluster.verdicts.events import Word, line
from shardproof.cluster.verdicts.ledger import to_batch
from shardproof.solvers import Query, Solved, SolverDisagreement, SolverUnavailable


@dataclass(frozen=True)
class Returned:
    """What a worker did of a batch: verdicts as ledger rows, the seconds, and what stopped it.

    Example: of a batch of 400 queries 120 rows and 10.2 seconds; the driver queues the other 280
    again.

    ``disputed`` is the answers on which solvers disagree, as a row; ``unavailable`` the message
    of a solver that does not start.
    """

    rows: pa.RecordBatch
    seconds: float
    disputed: pa.RecordBatch | None = None
    unavailable: str = ""


SLOW_SECONDS = 1.0
"""A query that takes longer has a line of its own in the log, as one that is not proved."""


class SolverActor:
    """A worker: one portfolio whose children have ``limit_bytes`` each, asked in batches.

    Example: "worker began", "batch", "batch done" are the lines of its log, with
    ``"level_mib": 512`` in the first.

    A query that does not fit is believed at once unless this is the ``last`` level. ``run`` and
    ``number`` are what the log calls it.
    """

    def __init__(
        self, options: Options, limit_bytes: int, last: bool, run: str = "", number: int = 0
    ) -> None:
        self._options = options
        self._run, self._number = run, number
        self._tries = TRIES if last else 1
        limited = replace(options, memory_limit_bytes=limit_bytes)
        self._portfolio = limited.portfolio().__enter__()
        self._say("worker began", level_mib=limit_bytes >> 20)

    def versions(self) -> tuple[str, str]:
        """The solvers installed where this worker is."""
        return installed_version("z3"), installed_version("cvc5")

    def solve(self, texts: pa.RecordBatch, rows: Sequence[int], seconds: float) -> Returned:
        """Work through rows of a table, at least one and no new one after so many seconds."""
        start = last = time.perf_counter()
        keys = texts.column("key")
        self._say("batch", [keys[row].as_py() for row in rows])
        solved: dict[str, Solved] = {}
        disputed: pa.RecordBatch | None = None
        missing = ""
        try:
            for key, one in solve_each(self._portfolio, queries_in(texts, rows), self._tries):
                solved[key] = one
                now = time.perf_counter()
                if one.verdict != "unsat" or now - last > SLOW_SECONDS:
                    took = round(now - last, 3)
                    self._say("query", [key], verdict=one.verdict, seconds=took, why=one.reason)
                last = now
                if now - start > seconds:
                    break
        except SolverDisagreement as dispute:
            self._say("solvers disagree", [dispute.key])
            answers = Solved("unknown", dispute.rung, dispute.answers)
            disputed = to_batch({dispute.key: answers}, self._options, cached=False)
        except SolverUnavailable as unavailable:
            missing = str(unavailable)
            self._say("no solver", why=missing)
        done = to_batch(solved, self._options, cached=False)
        took = time.perf_counter() - start
        self._say("batch done", solved=len(solved), seconds=round(took, 3))
        return Returned(done, took, disputed, missing)

    def _say(self, event: str, templates: list[str] | None = None, **more: Word) -> None:
        text = line(self._run, event, templates, worker=self._number, **more)
        sys.stderr.write(text + "\n")
        sys.stderr.flush()


def queries_in(texts: pa.RecordBatch, rows: Sequence[int]) -> Iterator[Query]:
    """Queries of a table of texts, one by one: only what is asked next is in this process.

    Example: rows 0 and 2 of a table of three texts are its first and its last query.
    """
    columns = [texts.column(name) for name in TEXTS.names]
    for row in rows:
        yield Query(*(column[row].as_py() for column in columns))
