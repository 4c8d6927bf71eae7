"""Laws of functions: they hold over the reals, and nothing that looks like one is taken for one."""

from __future__ import annotations

import math
from fractions import Fraction

import pytest

from shardproof.engine.algebra.terms import Term, TermTable
from shardproof.engine.ops.laws import applied, of_constant, without_opposites


def value(term: Term, symbols: dict[str, float]) -> float:
    """A term over the reals."""
    args = [value(x, symbols) for x in term.args]
    match term.kind:
        case "const":
            return float(term.value or 0)
        case "symbol":
            return symbols[str(term.name)]
        case "add":
            return sum(args)
        case "mul":
            return math.prod(args)
    return {"exp": math.exp, "inv": lambda x: 1 / x}[str(term.name)](*args)


POINT = {"a": 0.7, "b": -1.3}


def test_the_inverse_of_an_exponential_is_one() -> None:
    table = TermTable()
    a = table.symbol("a")
    for argument in (a, table.mul(3, a), table.add(a, table.symbol("b"))):
        for factor in (Fraction(1), Fraction(-5, 2)):
            exponential = table.mul(factor, table.app("exp", argument))
            found = applied(table, "inv", exponential)
            assert "inv" not in {t.name for t in below(found)}
            assert math.isclose(value(found, POINT), 1 / value(exponential, POINT))


def test_exponentials_cancel_wherever_they_are_in_a_product() -> None:
    table = TermTable()
    a, b = table.symbol("a"), table.symbol("b")
    grow, decay = table.app("exp", a), table.app("exp", table.mul(-1, a))
    assert without_opposites(table.mul(grow, decay)) is table.one
    found = without_opposites(table.mul(table.mul(b, decay), table.mul(-2, grow), decay))
    assert found is table.mul(-2, table.mul(b, decay))


@pytest.mark.parametrize("other", ["exp(2a)", "exp(-b)", "inv(a)", "sum"])
def test_what_does_not_cancel_stays_as_it_is(other: str) -> None:
    table = TermTable()
    a, b = table.symbol("a"), table.symbol("b")
    grow = table.app("exp", a)
    factor = {
        "exp(2a)": table.app("exp", table.mul(-2, a)),
        "exp(-b)": table.app("exp", table.mul(-1, b)),
        "inv(a)": table.app("inv", a),
        "sum": table.add(table.app("exp", table.mul(-1, a)), b),
    }[other]
    product = table.mul(grow, factor)
    assert without_opposites(product) is product
    held = applied(table, "inv", table.mul(2, a))
    assert held is table.app("inv", table.mul(2, a))


def test_constants() -> None:
    table = TermTable()
    assert of_constant("inv", Fraction(6)) == Fraction(1, 6)
    assert of_constant("inv", Fraction(0)) is None
    assert of_constant("exp", Fraction(0)) is None
    assert applied(table, "inv", table.const(Fraction(-2, 3))) is table.const(Fraction(-3, 2))
    assert applied(table, "inv", table.zero) is table.app("inv", table.zero)


def below(term: Term) -> list[Term]:
    return [term, *(t for x in term.args for t in below(x))]
