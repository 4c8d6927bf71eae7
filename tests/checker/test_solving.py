"""Solving again: a text that does not fit is tried again with more memory, and others are not."""

from __future__ import annotations

from checker.solving import Solver, Texts
from tests.cluster.work import heavy, mixed

MIB = 1 << 20


def texts(name: str, depth: int) -> Texts:
    query = heavy(name, depth)
    return query.linear_text, query.nonlinear_text


def solver(*limits: int) -> tuple[Solver, list[tuple[int, int]]]:
    told: list[tuple[int, int]] = []

    def progress(done: int, total: int) -> None:
        told.append((done, total))

    return Solver(2, "z3", 60, [n * MIB for n in limits], 1, progress), told


def test_what_does_not_fit_is_tried_with_more() -> None:
    large = texts("large", 700_000)
    small = [(q.linear_text, q.nonlinear_text) for q in mixed(4)]
    narrow, told = solver(400)
    narrow.solve([large])
    assert told == [(1, 1)]
    assert narrow.verdicts[large].startswith("memory")
    assert not narrow.unsat(large)
    wide, told = solver(400, 2000)
    wide.solve([large, *small])
    assert wide.unsat(large)
    assert [total for _, total in told] == [5] * 6, "one total for all tries"
    assert sorted(told) == told
    assert [done for done, _ in told][-2:] == [4, 5], "what is tried again is not done"
    wide.solve([large])
    assert len(told) == 6
