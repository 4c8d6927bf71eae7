"""The far end of the Ray executor: what runs in an actor, and what travels to it and back.

Queries travel as Arrow record batches, verdicts come back as rows of the ledger, so that nothing
is pickled but buffers. Ray itself is not needed here.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa

from cluster.ledger import to_batch
from cluster.local import solve_each
from cluster.settings import Options, installed_version
from solvers import Query, Solved, SolverDisagreement, SolverUnavailable

BATCH_SECONDS = 1.0
"""The time after which a worker returns a batch with what it has."""

QUERIES = pa.schema(
    [
        pa.field("key", pa.string(), False),
        pa.field("linear", pa.string(), False),
        pa.field("nonlinear", pa.string(), False),
    ]
)


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
    """A worker: one portfolio, asked in batches. Runs as a Ray actor."""

    def __init__(self, options: Options) -> None:
        self._options = options
        self._portfolio = options.portfolio().__enter__()

    def versions(self) -> tuple[str, str]:
        """The solvers installed where this worker is."""
        return installed_version("z3"), installed_version("cvc5")

    def solve(self, batch: pa.RecordBatch) -> Returned:
        """Work through a batch, at least one query and no new one after the time is up."""
        start = time.perf_counter()
        solved: dict[str, Solved] = {}
        disputed: pa.RecordBatch | None = None
        missing = ""
        try:
            for key, one in solve_each(self._portfolio, from_queries_batch(batch)):
                solved[key] = one
                if time.perf_counter() - start > BATCH_SECONDS:
                    break
        except SolverDisagreement as dispute:
            answers = Solved("unknown", dispute.rung, dispute.answers)
            disputed = to_batch({dispute.key: answers}, self._options, cached=False)
        except SolverUnavailable as unavailable:
            missing = str(unavailable)
        rows = to_batch(solved, self._options, cached=False)
        return Returned(rows, time.perf_counter() - start, disputed, missing)


def to_queries_batch(queries: Sequence[Query]) -> pa.RecordBatch:
    return pa.record_batch(
        [
            pa.array([query.key for query in queries], pa.string()),
            pa.array([query.linear_text for query in queries], pa.string()),
            pa.array([query.nonlinear_text for query in queries], pa.string()),
        ],
        schema=QUERIES,
    )


def from_queries_batch(batch: pa.RecordBatch) -> list[Query]:
    columns = [batch.column(name).to_pylist() for name in QUERIES.names]
    return [Query(*row) for row in zip(*columns, strict=True)]
