"""Laws of functions: they hold over the reals, and nothing that looks like one is taken for one."""

from __future__ import annotations

import math
from fractions import Fraction

import pytest

from shardproof.engine.algebra.terms import Term, TermTable
from shardproof.engine.ops.laws import (
    HALF,
    applied,
    common_exponentials,
    logarithms,
    of_constant,
    power,
    power_of_power,
    settled,
    size_apart,
    without_opposites,
)


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
    return FUNCTIONS[str(term.name)](*args)


FUNCTIONS = {
    "exp": math.exp,
    "log": math.log,
    "inv": lambda x: 1 / x,
    "sqrt": math.sqrt,
    "rsqrt": lambda x: 1 / math.sqrt(x),
    "pow:1/4": lambda x: x**0.25,
    "pow:-1/4": lambda x: x**-0.25,
}


POINT = {"a": 0.7, "b": -1.3, "c": 2.3}


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


@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize("scale", [1, -1, Fraction(1, 2)])
def test_logarithms_in_an_exponential_are_factors(sign: int, scale: Fraction) -> None:
    """exp(s (a + b - t log(a + 3))), wherever the sign of the logarithm is all that it has."""
    table = TermTable()
    a, b = table.symbol("a"), table.symbol("b")
    base = table.add(a, table.const(3))
    exponent = table.mul(scale, table.add(a, table.add(b, table.mul(sign, table.app("log", base)))))
    found = applied(table, "exp", exponent)
    assert ("log" in {t.name for t in below(found)}) == (abs(scale) != 1)
    want = math.exp(scale * (POINT["a"] + POINT["b"] + sign * math.log(POINT["a"] + 3)))
    assert math.isclose(value(found, POINT), want)


@pytest.mark.parametrize("scale", [1, Fraction(1, 3)])
def test_a_logarithm_of_a_product_with_exponentials_is_a_sum(scale: Fraction) -> None:
    """Of s exp(a) c, of s exp(a) / c, and of exp(a)."""
    table = TermTable()
    a, c = table.symbol("a"), table.symbol("c")
    grow = table.app("exp", a)
    for product, left in (
        (table.mul(scale, grow, c), table.mul(scale, c)),
        (table.mul(scale, c, table.mul(grow, table.app("exp", c))), table.mul(scale, c)),
        (table.mul(scale, grow, table.app("inv", c)), table.mul(1 / Fraction(scale), c)),
    ):
        found = applied(table, "log", product)
        assert math.isclose(value(found, POINT), math.log(value(product, POINT)))
        assert not {"exp", "inv"} & {t.name for t in below(found)}
        assert list(logarithms("log", found)) == [table.app("log", left)]
    assert applied(table, "log", grow) is a


@pytest.mark.parametrize("other", ["-exp(a)", "exp(a) + c", "a c", "exp(sum)", "exp(b sum)"])
def test_other_logarithms_stay(other: str) -> None:
    """Also where an exponent is a sum over positions, which has a length."""
    table = TermTable()
    a, b, c = (table.symbol(x) for x in "abc")
    positions = table.add(a, table.mul(7, b))
    argument = {
        "-exp(a)": table.mul(-1, c),
        "exp(a) + c": table.add(table.app("exp", a), c),
        "a c": table.mul(a, c),
        "exp(sum)": table.mul(c, table.app("exp", table.add(c, positions))),
        "exp(b sum)": table.mul(c, table.app("exp", table.mul(b, positions))),
    }[other]
    found = applied(table, "log", argument, whole=frozenset({positions}))
    assert found is table.app("log", argument)


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
    assert applied(table, "inv", table.mul(2, a)) is table.mul(Fraction(1, 2), table.app("inv", a))


def test_constants() -> None:
    table = TermTable()
    assert of_constant("inv", Fraction(6)) == Fraction(1, 6)
    assert of_constant("inv", Fraction(0)) is None
    assert of_constant("exp", Fraction(0)) == 1
    assert of_constant("exp", Fraction(1)) is None
    assert of_constant("log", Fraction(0)) is None
    assert applied(table, "inv", table.const(Fraction(-2, 3))) is table.const(Fraction(-3, 2))
    assert applied(table, "inv", table.zero) is table.app("inv", table.zero)


def below(term: Term) -> list[Term]:
    return [term, *(t for x in term.args for t in below(x))]


NAMES = ("inv", "sqrt", "rsqrt")


@pytest.mark.parametrize("outer", NAMES)
@pytest.mark.parametrize("inner", NAMES)
def test_a_power_of_a_power_is_one_power(inner: str, outer: str) -> None:
    table = TermTable()
    base = table.add(table.symbol("a"), table.symbol("c"))
    found = applied(table, outer, applied(table, inner, base))
    plain = table.app(outer, table.app(inner, base))
    assert math.isclose(value(found, POINT), value(plain, POINT))
    assert len([t for t in below(found) if t.kind == "app"]) <= 1


def test_the_root_of_an_even_power_is_none() -> None:
    """It is the size of the base, not the base."""
    assert power_of_power(Fraction(1), Fraction(-2), HALF) is None
    assert power_of_power(Fraction(2), Fraction(-1), HALF) is None
    assert power_of_power(Fraction(2), HALF, Fraction(-1)) == (HALF, -HALF)
    assert power(-HALF) == "rsqrt"


def test_powers_of_one_base_join_in_products() -> None:
    table = TermTable()
    a, b, c = (table.symbol(x) for x in "abc")
    base = table.mul(3, a)
    inverse, root = table.app("inv", base), table.app("rsqrt", base)
    for product in (
        table.mul(a, inverse),
        table.mul(table.mul(a, b), table.mul(2, inverse)),
        table.mul(a, root, b),
        table.mul(a, root, root, root),
        table.mul(table.app("sqrt", base), table.app("sqrt", base)),
        table.mul(a, a, inverse, c),
    ):
        found = without_opposites(product)
        assert found is not product
        assert math.isclose(value(found, POINT), value(product, POINT))
    assert without_opposites(table.mul(a, inverse)) is table.const(Fraction(1, 3))


def test_powers_of_other_bases_stay() -> None:
    table = TermTable()
    a, b = table.symbol("a"), table.symbol("b")
    for product in (
        table.mul(a, table.app("inv", b)),
        table.mul(a, table.app("inv", table.add(a, b))),
        table.mul(table.app("rsqrt", a), table.app("rsqrt", a)),
        table.mul(a, a),
    ):
        assert without_opposites(product) is product


def test_what_is_left_of_powers_has_their_sum() -> None:
    for exponents in (
        [1, -1],
        [1, -HALF],
        [1, -HALF, -HALF, -HALF],
        [HALF, HALF, HALF],
        [1, -1, -1],
    ):
        left = settled([Fraction(e) for e in exponents])
        assert left is not None
        assert sum(left, start=Fraction(0)) == sum(map(Fraction, exponents))
        assert len(left) < len(exponents)
    assert settled([Fraction(1), Fraction(1)]) is None
    assert settled([-HALF, -HALF, -HALF]) is None


def test_the_exponential_of_a_sum_is_a_product() -> None:
    table = TermTable()
    a, b, c = (table.symbol(name) for name in "abc")
    exponent = table.add(table.mul(Fraction(1, 2), table.add(a, table.mul(-1, b))), b, c)
    found = applied(table, "exp", exponent, True)
    assert sorted(t.name == "exp" for t in below(found)).count(True) == 3
    want = math.exp((POINT["a"] - POINT["b"]) / 2 + POINT["b"] + POINT["c"])
    assert math.isclose(value(found, POINT), want)
    assert applied(table, "exp", table.add(a, table.mul(-1, a), c), True) is table.app("exp", c)


def test_a_constant_is_taken_out_of_a_reciprocal_that_a_logarithm_makes() -> None:
    """As out of any other reciprocal where sums are taken apart (Gumbel noise: -log(-log u))."""
    table = TermTable()
    a, b = table.symbol("a"), table.symbol("b")
    noise = table.app("log", table.mul(-1, a))
    exponential = applied(table, "exp", table.add(b, table.mul(-1, noise)), True)
    inverse = applied(table, "inv", table.mul(-1, a), True)
    assert exponential is table.mul(inverse, table.app("exp", b))


def test_a_sum_over_positions_is_not_taken_apart_in_an_exponent() -> None:
    table = TermTable()
    a, b, c = (table.symbol(name) for name in "abc")
    total = table.add(a, table.mul(3, b))
    found = applied(table, "exp", table.add(table.mul(2, total), c), True, {total})
    assert found is table.mul(table.app("exp", table.mul(2, total)), table.app("exp", c))


def test_common_exponentials_are_taken_out_of_a_sum() -> None:
    table = TermTable()
    a, b, c = (table.symbol(name) for name in "abc")
    one, other = table.app("exp", a), table.app("exp", b)
    addends = [table.mul(c, one, other, one), table.mul(-2, other, one), table.mul(one, b, other)]
    common, rest = common_exponentials(table, addends)
    assert common is table.mul(one, other)
    assert rest == [table.mul(c, one), table.const(-2), b]
    none, same = common_exponentials(table, [one, other])
    assert none is table.one
    assert same == [one, other]


@pytest.mark.parametrize("factor", [Fraction(4), Fraction(-3, 2), Fraction(1), Fraction(0)])
@pytest.mark.parametrize("number", [-2.0, 0.0, 0.7])
def test_what_is_made_of_the_sign_of_a_number_commutes_with_its_size(
    factor: Fraction, number: float
) -> None:
    functions = {"relu": lambda x: max(x, 0.0), "abs": abs, "step": lambda x: float(x > 0)}
    for name, function in functions.items():
        size, left = size_apart(name, factor)
        assert float(size) * function(float(left) * number) == function(float(factor) * number)
        assert left in (-1, 0, 1)
    assert size_apart("exp", factor) == (1, factor)
