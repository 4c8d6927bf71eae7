"""Verdicts do not depend on seeds, on names or on order: a sample of `benchmarks/stability`."""

from __future__ import annotations

import random
from typing import get_args

import numpy as np
import pytest

from benchmarks.stability.run import ask, shuffled
from shardproof.engine.algebra.terms import Term, TermTable
from shardproof.solvers import Query
from shardproof.solvers.answers import SolverName


def attention(wrong: bool) -> list[tuple[Term, Term]]:
    """Softmax of a row over shards of the keys, with the values; wrong: a shard counted twice."""
    table = TermTable()
    scores = [table.app("exp", table.symbol(f"s{i}")) for i in range(4)]
    values = [table.symbol(f"v{i}") for i in range(4)]
    total = table.app("inv", sum(scores[1:], scores[0]))
    whole = sum((e * total * v for e, v in zip(scores, values, strict=True)), table.zero)
    halves = np.split(np.array([e * v for e, v in zip(scores, values, strict=True)]), 2)
    joined = [h.sum() * total for h in halves]
    return [(whole, joined[0] + joined[0 if wrong else 1]), (scores[0] * total, total * scores[0])]


TEMPLATES = [
    (query.linear_text, query.nonlinear_text)
    for query in (Query.of("", attention(wrong)) for wrong in (False, True))
]


@pytest.mark.parametrize("solver", get_args(SolverName))
def test_verdicts_are_stable(solver: SolverName) -> None:
    proved, refuted = ask(TEMPLATES, solver, range(1, 11), timeout=20)
    assert proved.verdicts == {"unsat": 10}
    assert refuted.verdicts == {"sat": 10}
    assert not proved.changed
    assert not refuted.changed


def test_a_shuffled_text_says_the_same_otherwise() -> None:
    text = TEMPLATES[0][1]
    other = shuffled(text, random.Random(1))
    assert other != text
    assert sorted(map(len, other.splitlines()))[0] > 0
    assert other.count("(declare-fun") == text.count("(declare-fun")
    assert other.count("(") == text.count("(")
    assert shuffled(text, random.Random(1)) == other
