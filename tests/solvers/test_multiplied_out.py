"""Goals that Z3 rewrites to 0 = 0, each by itself; what is not equal is never one of them."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

import pytest

from shardproof.engine.algebra.terms import Term, TermTable
from shardproof.solvers import portfolio as module
from shardproof.solvers.answers import Query
from shardproof.solvers.configurations import CONFIGURATIONS
from shardproof.solvers.portfolio import Portfolio
from shardproof.solvers.worker import multiplied_out

FEATURES = 16


def text(goals: list[tuple[Term, Term]], given: list[tuple[Term, Term]] | None = None) -> str:
    return Query.of("goals", goals, given or []).nonlinear_text


def norm_backward(mistaken: bool = False) -> list[tuple[Term, Term]]:
    """The gradient of a layer norm's operand in two forms: derived step by step, and as kernels
    have it; the variance is written in two ways. ``mistaken``: one feature has another mean."""
    table = TermTable()
    x, w, g = ([table.symbol(f"{n}{i}") for i in range(FEATURES)] for n in "xwg")
    part = table.const(Fraction(1, FEATURES))
    mean = part * table.add(*x)
    centered = [v + table.const(-1) * mean for v in x]
    squares = table.add(*(c * c for c in centered))
    one = table.app("rsqrt", part * squares + Fraction(1, 2))
    other = table.app("rsqrt", part * (squares + FEATURES // 2))
    scaled = [a * b for a, b in zip(g, w, strict=True)]
    inner = table.add(*(s * c for s, c in zip(scaled, centered, strict=True)))
    cube = one * one * one
    left = [s * one - part * inner * cube * c for s, c in zip(scaled, centered, strict=True)]
    along = table.add(*(s * other * c * other for s, c in zip(scaled, centered, strict=True)))
    right = [other * s - part * (c * other * along) for s, c in zip(scaled, centered, strict=True)]
    means = [part * table.add(*side) for side in (left, right)]
    if mistaken:
        means[1] = means[1] + part * right[3]
    return [(a - means[0], b - means[1]) for a, b in zip(left, right, strict=True)]


def test_the_backward_of_a_norm_is_one_in_both_forms() -> None:
    assert multiplied_out(text(norm_backward())).verdict == "unsat"
    wrong = multiplied_out(text(norm_backward(mistaken=True)))
    assert (wrong.verdict, wrong.reason) == (
        "unknown",
        "goal 0 is not 0 = 0 when it is multiplied out",
    )


def test_letters_are_only_a_first_attempt() -> None:
    """x + y is on both sides, and equal only if it is what it is."""
    table = TermTable()
    x, y = table.symbol("x"), table.symbol("y")
    total = x + y
    assert multiplied_out(text([(total * total, total * x + total * y)])).verdict == "unsat"
    assert multiplied_out(text([(total * total, total * x + total * x)])).verdict == "unknown"


@pytest.mark.parametrize(("other", "verdict"), [(1, "unsat"), (2, "unknown")])
def test_functions_of_one_sum_are_one(other: int, verdict: str) -> None:
    table = TermTable()
    x, y, z = (table.symbol(n) for n in "xyz")
    one = table.app("f", Fraction(1, 16) * (x + y + 16))
    two = table.app("f", Fraction(1, 16) * (x + y) + other)
    assert multiplied_out(text([(one * z, z * two)])).verdict == verdict


@pytest.mark.parametrize(("other", "verdict"), [(1, "unsat"), (2, "unknown")])
def test_functions_of_one_polynomial_are_one(other: int, verdict: str) -> None:
    """Z3 gives the two polynomials, of which one is f's, another order of their products; f is in
    an argument of g."""
    table = TermTable()
    x, y, z, w = (table.symbol(n) for n in "xyzw")
    square = (x + y * z) * (x + y * z) + w
    products = w + other * (y * z * (x + y * z)) + x * (z * y) + x * x
    if other == 2:
        products = products + x
    f, g = (table.app("g", table.app("f", a) * x + 1) for a in (square, products))
    assert multiplied_out(text([((f + w) * z, z * w + g * z)])).verdict == verdict


def test_what_is_given_is_not_looked_at() -> None:
    table = TermTable()
    x, y = table.symbol("x"), table.symbol("y")
    assert multiplied_out(text([(x * x, x * y)], [(x, y)])).verdict == "unknown"
    assert multiplied_out(text([(x * y, y * x)], [(x, y)])).verdict == "unsat"


def test_another_text_is_not_decided() -> None:
    plain = "(set-logic QF_UFNRA)\n(declare-fun x () Real)\n(assert (> x 1.0))\n(check-sat)\n"
    assert multiplied_out(plain).verdict == "unknown"
    assert multiplied_out(plain.replace("(> x 1.0)", "(not (> x 1.0))")).verdict == "unknown"


def test_the_portfolio_multiplies_out_what_no_solver_decides(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The configuration for stubborn texts alone, as a child of its own."""
    stubborn = next(
        c for c in CONFIGURATIONS if "multiply" in dict(c.options).get("tactics for functions", "")
    )
    monkeypatch.setattr(module, "CONFIGURATIONS", (replace(stubborn, after=0.0),))
    with Portfolio("z3", timeout=60) as portfolio:
        (answer,) = portfolio._solve_text(text(norm_backward()), "nonlinear", want_model=False)
    assert (answer.verdict, answer.configuration) == ("unsat", stubborn.name)
