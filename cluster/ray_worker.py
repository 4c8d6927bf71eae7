"""The far end of the Ray executor: what runs in an actor, and what travels back from it.

Texts come as rows of an Arrow table from the object store, verdicts go back as rows of the ledger,
so that nothing is pickled but buffers. Ray itself is not needed here.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import pyarrow as pa

from cluster.ledger import to_batch
from cluster.local import TRIES, solve_each
from cluster.settings import Options, installed_version
from cluster.work import TEXTS
from solvers import Query, Solved, SolverDisagreement, SolverUnavailable


@dataclass(frozen=True)
class Returned:
    """What a worker did of a batch: verdicts as ledger rows, the seconds, and what stopped it.

    ``disputed`` is the answers on which solvers disagree, as a row; ``unavailable`` the message
    of a solver that does not start.
    """

    rows: pa.RecordBatch
    seconds: float
    disputed: pa.RecordBatch | None = None
    unavailable: str = ""


class SolverActor:
    """A worker: one portfolio whose children have ``limit_bytes`` each, asked in batches.

    A query that does not fit is believed at once unless this is the ``last`` level.
    """

    def __init__(self, options: Options, limit_bytes: int, last: bool) -> None:
        self._options = options
        self._tries = TRIES if last else 1
        limited = replace(options, memory_limit_bytes=limit_bytes)
        self._portfolio = limited.portfolio().__enter__()

    def versions(self) -> tuple[str, str]:
        """The solvers installed where this worker is."""
        return installed_version("z3"), installed_version("cvc5")

    def solve(self, texts: pa.RecordBatch, rows: Sequence[int], seconds: float) -> Returned:
        """Work through rows of a table, at least one and no new one after so many seconds."""
        start = time.perf_counter()
        solved: dict[str, Solved] = {}
        disputed: pa.RecordBatch | None = None
        missing = ""
        try:
            for key, one in solve_each(self._portfolio, queries_in(texts, rows), self._tries):
                solved[key] = one
                if time.perf_counter() - start > seconds:
                    break
        except SolverDisagreement as dispute:
            answers = Solved("unknown", dispute.rung, dispute.answers)
            disputed = to_batch({dispute.key: answers}, self._options, cached=False)
        except SolverUnavailable as unavailable:
            missing = str(unavailable)
        done = to_batch(solved, self._options, cached=False)
        return Returned(done, time.perf_counter() - start, disputed, missing)


def queries_in(texts: pa.RecordBatch, rows: Sequence[int]) -> Iterator[Query]:
    """Queries of a table of texts, one by one: only what is asked next is in this process."""
    columns = [texts.column(name) for name in TEXTS.names]
    for row in rows:
        yield Query(*(column[row].as_py() for column in columns))
