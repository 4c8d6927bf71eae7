"""The driver's record of one pool's work: who has what, what came back, what a death leaves.

Queries are rows of tables of texts (Arrow), which nodes fetch once by reference; a batch is a table
and the numbers of rows in it. A query that was at work when its worker died is suspected, and is
sent alone from then on; after :data:`DEATHS_ALONE` deaths alone it is given up.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Container, Iterable, Mapping, Sequence
from typing import NamedTuple

import pyarrow as pa

from shardproof.solvers import Query

TABLE_BYTES = 8 << 20
"""Text in one table, about: a node holds the tables that its batches are from."""

DEATHS_ALONE = 3
"""Workers that died with one query alone, until it is given up. One may be bad luck."""

TEXTS = pa.schema(
    [
        pa.field("key", pa.string(), False),
        pa.field("linear", pa.string(), False),
        pa.field("nonlinear", pa.string(), False),
    ]
)


class Batch(NamedTuple):
    """Rows of one table; ``numbers`` are the queries they are.

    Example: ``Batch(0, (4, 5, 6), (4, 5, 6))``, three queries of the first table; ``alone`` for a
    query that a worker died with.
    """

    table: int
    rows: tuple[int, ...]
    numbers: tuple[int, ...]
    alone: bool = False


class Work:
    """Queries without a verdict yet; ``alone``: keys of those that are sent one by one.

    Example: ten queries for two windows are handed out as batches of 4, 3, 2 and 1 with
    ``take(4, shares=2)``.
    """

    def __init__(self, queries: Sequence[Query], alone: Container[str] = ()) -> None:
        self.left = len(queries)
        self._queries = queries
        self._tables = _cut(queries)
        self._place = {n: (t, row) for t, table in enumerate(self._tables)
                       for row, n in enumerate(table)}  # fmt: skip
        self._open = [len(table) for table in self._tables]
        self._deaths: dict[int, int] = {}
        self._plain = deque(n for n, query in enumerate(queries) if query.key not in alone)
        self._alone = deque(n for n, query in enumerate(queries) if query.key in alone)

    @property
    def waiting(self) -> int:
        """Queries that no worker has."""
        return len(self._plain) + len(self._alone)

    def key(self, number: int) -> str:
        """The key of a query by its number."""
        return self._queries[number].key

    def table(self, number: int) -> pa.RecordBatch:
        """The texts of one table."""
        return texts_of([self._queries[n] for n in self._tables[number]])

    def take(self, most: int, shares: int) -> Batch | None:
        """The next batch: so many queries at most, and no more than a fair share of the rest."""
        if not self._plain:
            return self._batch([self._alone.popleft()], alone=True) if self._alone else None
        most = min(most, -(-len(self._plain) // shares))
        chosen = [self._plain.popleft()]
        table = self._place[chosen[0]][0]
        while self._plain and len(chosen) < most and self._place[self._plain[0]][0] == table:
            chosen.append(self._plain.popleft())
        return self._batch(chosen, alone=False)

    def returned(self, batch: Batch, done: Mapping[str, object]) -> None:
        """Take back what a worker had no time for; they are the next."""
        rest = [n for n in batch.numbers if self._queries[n].key not in done]
        (self._alone if batch.alone else self._plain).extendleft(reversed(rest))
        self._settle(n for n in batch.numbers if self._queries[n].key in done)

    def lost(self, batches: Sequence[Batch]) -> list[Query]:
        """Take back what a dead worker had, its current batch first; returns what is given up."""
        given_up: list[int] = []
        for position, batch in enumerate(batches):
            if position == 0:
                given_up += self._suspect(batch)
            else:
                (self._alone if batch.alone else self._plain).extend(batch.numbers)
        self._settle(given_up)
        return [self._queries[n] for n in given_up]

    def finished(self, table: int) -> bool:
        """Whether every query of a table has its verdict: nobody needs the texts any more."""
        return self._open[table] == 0

    def _suspect(self, batch: Batch) -> list[int]:
        """Queries that were at work in a worker that died; those it died of once too often."""
        if not batch.alone:
            self._alone.extend(batch.numbers)
            return []
        (number,) = batch.numbers
        self._deaths[number] = self._deaths.get(number, 0) + 1
        if self._deaths[number] >= DEATHS_ALONE:
            return [number]
        self._alone.append(number)
        return []

    def _settle(self, numbers: Iterable[int]) -> None:
        for number in numbers:
            self.left -= 1
            self._open[self._place[number][0]] -= 1

    def _batch(self, numbers: list[int], *, alone: bool) -> Batch:
        rows = tuple(self._place[n][1] for n in numbers)
        return Batch(self._place[numbers[0]][0], rows, tuple(numbers), alone)


def texts_of(queries: Sequence[Query]) -> pa.RecordBatch:
    """Queries as a table of texts.

    Example: one row ``{"key": "k", "linear": "(assert false)...", "nonlinear": ""}`` per query.
    """
    return pa.record_batch(
        [
            pa.array([query.key for query in queries], pa.string()),
            pa.array([query.linear_text for query in queries], pa.string()),
            pa.array([query.nonlinear_text for query in queries], pa.string()),
        ],
        schema=TEXTS,
    )


def _cut(queries: Sequence[Query]) -> list[list[int]]:
    """Numbers of queries by table, in order, each of about :data:`TABLE_BYTES` of text."""
    tables: list[list[int]] = []
    length = TABLE_BYTES
    for number, query in enumerate(queries):
        if length >= TABLE_BYTES:
            tables.append([])
            length = 0
        tables[-1].append(number)
        length += len(query.linear_text) + len(query.nonlinear_text)
    return tables
