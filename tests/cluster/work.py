"""Queries to execute, and a portfolio that counts instead of solving."""

from __future__ import annotations

from typing import Self

from shardproof.cluster.settings import Options
from shardproof.engine.algebra.terms import TermTable
from shardproof.solvers import Answer, Portfolio, Query, Solved, emit


def mixed(count: int) -> list[Query]:
    """Column-parallel sums, as ``q0``, ``q1``, ...; every third lacks an addend (see `wrong`)."""
    table = TermTable()
    queries = []
    for i in range(count):
        x = [table.symbol(f"x{i}_{k}") for k in range(3)]
        y = table.symbol("y")
        whole = (x[0] + x[1] + x[2]) * y
        parts = x[0] * y + x[1] * y
        queries.append(Query.of(f"q{i}", [(whole, parts if wrong(i) else parts + x[2] * y)]))
    return queries


def wrong(i: int) -> bool:
    return i % 3 == 0


def expected(count: int) -> dict[str, str]:
    return {f"q{i}": "sat" if wrong(i) else "unsat" for i in range(count)}


def endless(name: str = "x") -> Query:
    """Twelve coupled cubics, far beyond what either solver does in a minute."""
    table = TermTable()
    x = [table.symbol(f"{name}{i}") for i in range(12)]
    given = [
        (
            x[i] * x[i] * x[(i + 1) % 12] + x[(i + 3) % 12] * x[(i + 5) % 12] * x[(i + 7) % 12],
            table.const(i + 2),
        )
        for i in range(12)
    ]
    return Query("endless", emit([(x[0], x[0] + 1)], given, "nonlinear"), "")


def heavy(name: str, depth: int) -> Query:
    """A text that takes memory in proportion to its depth and little time: about 0.5 KiB a level
    in Z3."""
    sum_ = "(- " * depth + "x" + ")" * depth
    goal = f"(assert (and (> x 0) (< {sum_} x) (> {sum_} x)))"
    return Query(name, f"(set-logic QF_UFLRA)\n(declare-fun x () Real)\n{goal}\n(check-sat)\n", "")


def said(verdict: str, model: dict[str, str] | None = None, reason: str = "") -> Solved:
    """A verdict as Z3 would give it."""
    answer = Answer(verdict, "z3", "1.2.3", 0.5, 20.0, model or {}, reason)  # type: ignore[arg-type]
    return Solved(answer.verdict, "linear", (answer,))


class Counting(Portfolio):
    """Says ``verdict`` to everything, and keeps the keys it was asked about in ``asked``."""

    def __init__(self, options: Options, asked: list[str], verdict: str = "unsat") -> None:
        super().__init__(options.mode, options.timeout, seed=options.seed)
        self.asked = asked
        self.verdict = verdict

    def __enter__(self) -> Self:
        return self

    def solve(self, query: Query) -> Solved:
        self.asked.append(query.key)
        return said(self.verdict)
