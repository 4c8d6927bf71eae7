"""Equalities in logistic functions of one sign: written so, terms have the values that they had."""

from __future__ import annotations

import numpy as np
import pytest

from shardproof.engine.algebra.terms import Term, TermTable
from shardproof.engine.obligations import logistic as words
from shardproof.engine.obligations.evaluation import Point

FUNCTIONS = {
    "exp": np.exp,
    "log": np.log,
    "inv": lambda x: 1 / x,
    "sigmoid": lambda x: 1 / (1 + np.exp(-x)),
    "tanh": np.tanh,
}


def value(term: Term, at: dict[str, float]) -> float:
    """What a term is in double precision."""
    if term.value is not None:
        return float(term.value)
    inner = [value(t, at) for t in term.args]
    match term.kind:
        case "symbol":
            return at[str(term.name)]
        case "add":
            return sum(inner)
        case "mul":
            return float(np.prod(inner))
    return float(FUNCTIONS[str(term.name)](*inner))


def argument(table: TermTable, random: np.random.Generator) -> Term:
    """A sum of symbols with small factors, of either sign."""
    names = random.permutation(["x", "y", "z"])[: random.integers(1, 3)]
    parts = [table.mul(int(random.choice([-2, -1, 1, 2])), table.symbol(str(n))) for n in names]
    return table.add(*parts)


def expression(table: TermTable, random: np.random.Generator, depth: int) -> Term:
    """Sums and products of logistic functions, exponentials, and what is made of them."""
    a = argument(table, random)
    softened = table.mul(int(random.integers(1, 3)), table.add(table.app("exp", a), 1))
    gate = table.app("sigmoid", a)
    leaf = [
        gate,
        table.app("tanh", a),
        table.app("exp", a),
        a,
        table.app("inv", softened),
        table.app("log", softened),
        table.app("log", gate),
        table.app("inv", table.add(1, -gate)),
        table.app("log", table.add(1, -gate)),
    ]
    kind = random.integers(0, 3) if depth else 2
    if kind == 2:
        return leaf[random.integers(0, len(leaf))]
    parts = [expression(table, random, depth - 1) for _ in range(random.integers(2, 4))]
    return table.add(*parts) if kind == 0 else table.mul(*parts)


@pytest.mark.parametrize("seed", range(300))
def test_a_term_has_the_value_that_it_had(seed: int) -> None:
    random, table = np.random.default_rng(seed), TermTable()
    term = expression(table, random, 2)
    written = words._Written(table).of(term)
    for _ in range(3):
        at = dict(zip("xyz", random.normal(size=3), strict=True))
        assert value(written, at) == pytest.approx(value(term, at), rel=1e-8, abs=1e-8)


def goals(table: TermTable) -> dict[str, tuple[Term, Term]]:
    x, y, g = (table.symbol(n) for n in "xyg")
    up, down = table.app("exp", x), table.app("exp", -x)
    gate, other = table.app("sigmoid", x), table.app("sigmoid", -x)
    inverse = table.app("inv", table.add(1, down))
    return {
        "reciprocal": (inverse, gate),
        "with its factor": (table.app("inv", table.add(3, 3 * up)), other / 3),
        "quotient": (up * table.app("inv", table.add(1, up)), gate),
        "the other sign": (table.add(1, -gate), other),
        "derivative": (g * inverse * inverse * down, g * (gate - gate * gate)),
        "logarithm": (table.app("log", table.add(1, up)), x - table.app("log", gate)),
        "inverse in a sum": (up * (g * down + y), g + y * up),
        "hyperbolic": (table.app("tanh", x), 2 * table.app("sigmoid", 2 * x) - 1),
        "in parts": (
            table.app("inv", table.add(1, table.app("exp", x) * table.app("exp", -y))),
            table.app("sigmoid", y - x),
        ),
    }


@pytest.mark.parametrize("name", goals(TermTable()))
def test_what_holds_by_logistic_functions_is_stated_so(name: str) -> None:
    table = TermTable()
    left, right = goals(table)[name]
    ((a, b),) = words.logistic(table, [(left, right)]) or (pytest.fail("not written"),)
    assert Point().value(a) == Point().value(b)
    # What is another function is not stated, and what holds as it is stays as it is.
    assert words.logistic(table, [(left, 2 * right)]) is None
    assert words.logistic(table, [(left, left), (right, right)]) is None
