"""Which terms are positive, whatever their symbols are."""

from __future__ import annotations

from fractions import Fraction

import pytest

from shardproof.checker.obligations.defined import positive
from shardproof.engine.algebra.terms import Term, TermTable
from shardproof.engine.specification.definedness import Signs
from tests.engine.specification.test_signs import table

TERMS = TermTable()
NODES, NUMBERS = table()
SYMBOLS = {name: (number, (0,)) for name, number in NUMBERS.items()}


def symbol(name: str) -> Term:
    return TERMS.symbol(name)


def exp(term: Term) -> Term:
    return TERMS.app("exp", term)


@pytest.mark.parametrize(
    ("term", "expected"),
    [
        (TERMS.const(Fraction(1, 100)), True),
        (TERMS.zero, False),
        (TERMS.const(Fraction(-1)), False),
        (symbol("x"), False),
        (symbol("above"), True),
        (exp(symbol("x")), True),
        (exp(symbol("masked")), False),
        (exp(TERMS.add(symbol("x"), symbol("masked"))), False),
        (TERMS.add(exp(symbol("x")), TERMS.const(Fraction(2))), True),
        (TERMS.add(exp(symbol("x")), TERMS.const(Fraction(-2))), False),
        (TERMS.mul(TERMS.const(Fraction(-1)), exp(symbol("x"))), False),
        (TERMS.mul(exp(symbol("x")), symbol("above")), True),
        (TERMS.mul(exp(symbol("x")), symbol("x")), False),
        (TERMS.app("rsqrt", symbol("above")), True),
        (TERMS.app("inv", symbol("x")), False),
        (TERMS.app("log", symbol("above")), False),
    ],
    ids=str,
)
def test_positive(term: Term, expected: bool) -> None:
    assert positive(term, SYMBOLS, Signs(NODES)) == expected


def test_a_part_of_a_sum_is_not_what_its_node_is() -> None:
    """A symbol of a partial sum of a positive node says nothing: its range may be empty."""
    partial = {"total": (NUMBERS["total"], (), "part 0")}
    assert positive(symbol("total"), {"total": (NUMBERS["total"], ())}, Signs(NODES))
    assert not positive(symbol("total"), partial, Signs(NODES))
