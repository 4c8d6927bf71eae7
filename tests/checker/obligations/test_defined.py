"""Which terms are positive, whatever their symbols are."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from types import SimpleNamespace
from typing import Any, cast

import pytest

from shardproof.checker.obligations.defined import positive
from shardproof.checker.obligations.restate import Rebuilder
from shardproof.checker.result import Problems
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


def is_asked(taken: str, claimed: Sequence[str], expanded: Sequence[str]) -> bool:
    """Whether it is a problem that an operator takes a function of x, where the claimed values take
    others of it, and the definitions that these are expanded by."""
    x = symbol("x")
    rebuilder = Rebuilder(NODES, [], Problems(), thorough=False)
    obligation = SimpleNamespace(
        goals=[(TERMS.app(taken, x), TERMS.app(name, x)) for name in claimed],
        applications=[TERMS.app(taken, x)],
        claimed=[TERMS.app(name, x) for name in expanded],
        symbols=SYMBOLS,
    )
    known = SimpleNamespace(operand=lambda claim: False, signs=Signs(NODES))
    rebuilder._definedness(cast(Any, None), cast(Any, obligation), "here", cast(Any, known))
    return any(not same for same in rebuilder.partial)


@pytest.mark.parametrize(
    ("taken", "claimed", "defined"),
    [
        ("sqrt", "rsqrt", True),
        ("inv", "log", True),
        ("rsqrt", "sqrt", False),
        ("log", "inv", False),
    ],
)
def test_what_an_operator_takes_the_claimed_values_take_of_no_more(
    taken: str, claimed: str, defined: bool
) -> None:
    """A root is defined wherever one over it is, and not the other way round, at zero."""
    assert is_asked(taken, [claimed], []) == (not defined)
    assert is_asked(taken, [], [claimed]) == (not defined)
