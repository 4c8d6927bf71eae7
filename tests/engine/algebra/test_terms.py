"""Terms: exact constants, one object per structure, arrays of terms, normal forms."""

from __future__ import annotations

import copy
import pickle
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardproof.engine.algebra.terms import Term, TermTable, normal_form

NAMES = ("x", "y", "z")
rationals = st.fractions(min_value=-4, max_value=4, max_denominator=6)


def expressions() -> st.SearchStrategy[Any]:
    """Expressions as nested tuples, to be read over terms and over rationals."""
    leaves = st.sampled_from(NAMES) | rationals
    return st.recursive(
        leaves,
        lambda inner: st.one_of(
            st.tuples(st.sampled_from(["add", "mul", "sub"]), inner, inner),
            st.tuples(st.just("neg"), inner),
            st.tuples(st.just("div"), inner, rationals.filter(bool)),
        ),
        max_leaves=12,
    )


def read(expression: Any, values: dict[str, Any]) -> Any:
    match expression:
        case str():
            return values[expression]
        case ("add", left, right):
            return read(left, values) + read(right, values)
        case ("sub", left, right):
            return read(left, values) - read(right, values)
        case ("mul", left, right):
            return read(left, values) * read(right, values)
        case ("neg", inner):
            return -read(inner, values)
        case ("div", inner, divisor):
            return read(inner, values) / divisor
        case _:
            return expression


def evaluate(term: Term, values: dict[str, Fraction]) -> Fraction:
    if term.value is not None:
        return term.value
    if term.kind == "symbol":
        return values[str(term.name)]
    total = Fraction(term.kind == "mul")
    for argument in (evaluate(a, values) for a in term.args):
        total = total + argument if term.kind == "add" else total * argument
    return total


def expanded(term: Term, values: dict[str, Fraction]) -> Fraction:
    total = Fraction(0)
    for monomial, coefficient in normal_form(term):
        for factor, exponent in monomial:
            coefficient *= values[factor] ** exponent
        total += coefficient
    return total


def over_terms(expression: Any) -> Term:
    table = TermTable()
    result = read(expression, {name: table.symbol(name) for name in NAMES})
    return result if isinstance(result, Term) else table.const(result)


points = st.fixed_dictionaries(dict.fromkeys(NAMES, rationals))


@given(expressions(), points)
def test_a_term_means_what_the_arithmetic_means(
    expression: Any, point: dict[str, Fraction]
) -> None:
    expected = read(expression, point)
    assert evaluate(over_terms(expression), point) == expected
    assert expanded(over_terms(expression), point) == expected


@given(expressions(), expressions())
def test_equal_structure_is_one_object(first: Any, second: Any) -> None:
    table = TermTable()
    values = {name: table.symbol(name) for name in NAMES}
    terms = [read(e, values) for e in (first, second, first)]
    assert terms[0] is terms[2] or not isinstance(terms[0], Term)


@given(expressions(), expressions(), expressions())
def test_normal_forms_know_the_ring(a: Any, b: Any, c: Any) -> None:
    left = over_terms(("mul", ("add", a, b), c))
    right = over_terms(("add", ("mul", c, b), ("mul", c, a)))
    assert normal_form(left) == normal_form(right)


def test_a_float_is_its_decimal_text() -> None:
    table = TermTable()
    assert table.const(1e-05).value == Fraction(1, 100000)
    assert table.const(np.float64(0.1)) is table.const("0.1") is table.const(Fraction(1, 10))
    assert table.const(np.int64(7)) is table.const(7)
    assert type(table.const(np.int64(7)).value.numerator) is int  # type: ignore[union-attr]


@pytest.mark.parametrize("infinite", [float("nan"), float("inf"), "inf", "one"])
def test_what_is_not_a_finite_number_is_refused(infinite: float | str) -> None:
    with pytest.raises(ValueError, match="not a finite number"):
        TermTable().const(infinite)


def test_only_what_is_exact_at_a_glance_is_simplified() -> None:
    table = TermTable()
    x, y = table.symbol("x"), table.symbol("y")
    negative = -x
    assert 0 + x is x + 0 is 1 * x is x * 1 is -negative is x / 1 is x
    assert 0 * x is x * 0 is table.zero
    assert 2 * (x * 3) is 6 * x
    assert x * (3 * y) is 3 * (x * y)
    assert x + y is not y + x
    assert (x - x).kind == "add"
    assert x**0 is table.one
    assert x**2 is x * x
    assert table.add(1, x, 2).args == (x, table.const(3))
    assert table.const(1) / 4 is table.const("0.25")


def test_arithmetic_that_would_not_be_exact_is_refused() -> None:
    table = TermTable()
    x = table.symbol("x")
    with pytest.raises(TypeError):
        x + 0.5  # type: ignore[operator]
    with pytest.raises(TypeError, match="multiply by app\\('inv', divisor\\)"):
        1 / x
    with pytest.raises(ZeroDivisionError):
        x / 0
    with pytest.raises(ValueError, match="belongs to another TermTable"):
        x + TermTable().symbol("x")
    with pytest.raises(TypeError, match="no truth value"):
        bool(x)
    with pytest.raises(TypeError, match="non-negative integer powers"):
        x**-1
    with pytest.raises(ValueError, match="at least one argument"):
        table.app("exp")


def test_terms_stay_what_they_are() -> None:
    x = TermTable().symbol("x")
    with pytest.raises(AttributeError, match="immutable"):
        x.name = "y"
    with pytest.raises(TypeError):
        Term()
    with pytest.raises(TypeError, match="cannot be pickled"):
        pickle.dumps(x)
    assert copy.deepcopy(np.array([x], dtype=object))[0] is x


def symbols(table: TermTable, name: str, *shape: int) -> np.ndarray[Any, Any]:
    array = np.empty(shape, dtype=object)
    for index in np.ndindex(*shape):
        array[index] = table.symbol(name + "".join(map(str, index)))
    return array


@pytest.mark.parametrize("optimize", [False, True])
def test_numpy_contracts_arrays_of_terms(optimize: bool) -> None:
    table = TermTable()
    a, b = symbols(table, "a", 2, 3), symbols(table, "b", 3, 2)
    whole = np.einsum("ik,kj->ij", a, b, optimize=optimize)
    by_hand = a[1, 0] * b[0, 1] + a[1, 1] * b[1, 1] + a[1, 2] * b[2, 1]
    assert normal_form(whole[1, 1]) == normal_form(by_hand)
    assert normal_form((a @ b)[1, 1]) == normal_form(by_hand)
    assert normal_form(np.sum(a)) == normal_form(sum(a.flat))
    assert (np.int64(3) * a)[0, 0] is a[0, 0] * 3
    assert np.mean(a, axis=1).shape == (2,)
    assert np.square(a)[0, 0] is a[0, 0] * a[0, 0]


def test_normal_forms_do_not_depend_on_the_order_of_creation() -> None:
    first, second = TermTable(), TermTable()
    second.symbol("y")
    left = first.app("exp", first.symbol("x") + first.symbol("y")) * first.symbol("x")
    right = second.symbol("x") * second.app("exp", second.symbol("y") + second.symbol("x"))
    assert normal_form(left) == normal_form(right)
    other = second.symbol("x") * second.app("exp", second.symbol("y"))
    assert normal_form(left) != normal_form(other)


def test_deep_and_doubling_terms_need_neither_recursion_nor_expansion() -> None:
    table = TermTable()
    x = table.symbol("x")
    deep = power = binomial = x
    for _ in range(100_000):
        deep = deep + x
    for _ in range(20_000):
        power = table.app("f", power)
    for _ in range(40):
        binomial = binomial * binomial + x
    assert normal_form(deep) == ((((("x", 1),)), Fraction(100_001)),)
    assert len(normal_form(power)) == 1
    assert normal_form(binomial) == normal_form(binomial + 0)
    doubled = x
    for _ in range(40):
        doubled = doubled * doubled
    assert normal_form(doubled) == (((("x", 2**40),), Fraction(1)),)
