"""Laws of functions that hold wherever both sides of them are defined, as rewritings of terms.

``1 / c`` of a constant is the constant, ``exp(0)`` is 1, ``1 / exp(a)`` is ``exp(-a)``, and
``exp(a) exp(-a)`` is 1: an exponential is never zero, so none of these makes a value defined that
was not.  ``exp(a + log(b))`` is ``b exp(a)`` and ``exp(a - log(b))`` is ``exp(a) / b``, wherever
the logarithm is defined.  ``log(exp(a) b)`` is ``a + log(b)``, and ``log(c / b)`` is
``-log(b / c)``: either side is defined where the other one is, and nowhere else.

A root, a reciprocal and a value itself are powers of one base.  A power of a power is one power
(``1 / sqrt(a)`` is ``rsqrt(a)``), that of a product the product of theirs (``1 / (a b)`` is
``1 / a 1 / b``, and ``1 / (a / 2)`` is ``2 / a``), and in a product powers of one base that go up
and down are one (``a rsqrt(a)`` is ``sqrt(a)``, ``a / a`` is 1).  These hold wherever their left
side is defined, which may be in fewer places than the right side is.  So whoever applies them has
to look at what the functions were taken of before (`engine.specification.definedness`): a parallel
program that takes ``a / a`` where the single device has 1 is no proof.

A positive factor of what ``relu``, ``abs`` and ``step`` are taken of comes out of them, and the
sign out of ``abs`` (`size_apart`): these hold for all numbers, and everything is defined.

What stands on one side of a law is written as the other one, whatever program it is of; functions
are uninterpreted otherwise.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from collections.abc import Set as AbstractSet
from fractions import Fraction
from functools import reduce
from operator import and_
from typing import Final

from shardproof.engine.algebra.terms import ONE, ZERO, Term, TermTable

HALF: Final = Fraction(1, 2)
#: Powers that are functions with a name.
NAMED_POWERS: Final = {HALF: "sqrt", -HALF: "rsqrt", Fraction(-1): "inv"}
_EXPONENTS: Final = {name: exponent for exponent, name in NAMED_POWERS.items()}


#: Functions of a positive multiple of a number: how often they are multiplied by its factor.
_OF_SIGN: Final = {"relu": 1, "abs": 1, "step": 0}


def size_apart(function: str, factor: Fraction) -> tuple[Fraction, Fraction]:
    """What a function of ``factor`` times ``a`` is multiplied by, and the factor of ``a`` that is
    left in it: what is made of the sign of a number commutes with positive factors, for all ``a``.

    Example: ``relu(-4 a)`` is ``4 relu(-a)`` and ``step(4 a)`` is ``step(a)``: (4, -1) and (1, 1);
    ``exp(4 a)`` is left as it is, (1, 4).
    """
    if function not in _OF_SIGN or not factor:
        return ONE, factor
    size = abs(factor)
    return size ** _OF_SIGN[function], ONE if function == "abs" else factor / size


def exponent_of(function: str) -> Fraction | None:
    """Which power a function is (None: none).

    Example: -1/2 of ``rsqrt``.
    """
    if function.startswith("pow:"):
        return Fraction(function[4:])
    return _EXPONENTS.get(function)


def power(exponent: Fraction) -> str:
    """The function that is a power.

    Example: ``rsqrt`` of -1/2.
    """
    return NAMED_POWERS.get(exponent, f"pow:{exponent}")


def power_of_power(
    factor: Fraction, inner: Fraction, outer: Fraction
) -> tuple[Fraction, Fraction] | None:
    """``(factor a^inner)^outer`` as (factor, exponent of ``a``), wherever it is defined; None where
    no law says it.  A root of an even power is none: it forgets the sign.

    Example: ``1 / (1 / a)`` is (1, 1), that is ``a``.
    """
    whole = outer.denominator == 1
    if not whole and (factor != 1 or (inner.denominator == 1 and inner % 2 == 0)):
        return None
    exponent = inner * outer
    if exponent.denominator == 1 and exponent > 1:
        return None  # That is a product, and no function.
    return factor ** int(outer) if whole else factor, exponent


def settled(exponents: Sequence[Fraction]) -> list[Fraction] | None:
    """What is left of a product of powers of one base (1, -1, 1/2 and -1/2) that go up and down, or
    of several roots; None where nothing changes.

    Example: 1 and -1 leave nothing, 1 and -1/2 leave 1/2.
    """
    up, down = (any(sign * e > 0 for e in exponents) for sign in (1, -1))
    if not (up and down) and exponents.count(HALF) < 2:
        return None
    total = sum(exponents, start=Fraction(0))
    root = [] if total.denominator == 1 else [HALF if total > 0 else -HALF]
    if total > 0 or -1 in exponents:
        step = Fraction(1 if total > 0 else -1)
        return [step] * int(abs(total)) + root
    return [-HALF] * int(-2 * total)


def of_constant(function: str, value: Fraction) -> Fraction | None:
    """The value of a function at a constant, where a law says it.

    Example: ``exp`` of 0 is 1.
    """
    if function == "exp" and not value:
        return Fraction(1)
    return 1 / value if function == "inv" and value else None


def applied(
    table: TermTable,
    function: str,
    argument: Term,
    apart: bool = False,
    whole: AbstractSet[Term] = frozenset(),
) -> Term:
    """A function of a term, as the laws of this module write it.  ``apart``: the exponential of a
    sum is the product of exponentials; that of one of ``whole``, a sum over positions, is one.

    Example: ``inv`` of ``exp(x)`` is ``exp(-1 * x)``, ``inv`` of ``sqrt(x)`` is ``rsqrt(x)``,
    ``exp`` of 0 is 1.
    """
    if argument.value is not None:
        value = of_constant(function, argument.value)
        return table.app(function, argument) if value is None else table.const(value)
    if function == "exp":
        return _exponential(table, argument, apart, whole)
    if function == "log":
        return _logarithm(table, argument, whole)
    factor, core = _split(argument)
    outer = exponent_of(function)
    if function == "inv" and core.kind == "mul":
        inverse = [applied(table, function, part) for part in flat(core)]
        return table.mul(1 / factor, *inverse)
    if function == "inv" and factor != 1:
        return table.mul(1 / factor, applied(table, function, core, apart, whole))
    if core.kind != "app" or outer is None:
        return table.app(function, argument)
    if function == "inv" and core.name == "exp":
        return table.mul(1 / factor, table.app("exp", table.mul(-1, core.args[0])))
    inner = exponent_of(str(core.name))
    power = None if inner is None else power_of_power(factor, inner, outer)
    if power is None:
        return table.app(function, argument)
    return table.mul(power[0], _raised(table, core.args[0], power[1]))


def _exponential(table: TermTable, argument: Term, apart: bool, whole: AbstractSet[Term]) -> Term:
    """The exponential of a term: logarithms in it are factors, and so are, where sums are taken
    apart, the exponentials of what it adds up."""
    addends = list(_addends(Fraction(1), argument, whole))
    if apart:
        totals: dict[Term, Fraction] = {}
        for scale, part in addends:
            totals[part] = totals.get(part, ZERO) + scale
        addends = [(scale, part) for part, scale in totals.items() if scale]
    rest, factors = [], []
    for scale, part in addends:
        if part.kind == "app" and part.name == "log" and abs(scale) == 1:
            base = part.args[0]
            factors.append(base if scale > 0 else applied(table, "inv", base, apart))
        else:
            rest.append(table.mul(scale, part))
    if apart:
        return table.mul(*factors, *(table.app("exp", part) for part in rest))
    left = _collected(table, rest)
    if not factors and left:
        return table.app("exp", argument)
    return table.mul(*factors, applied(table, "exp", table.add(*left)))


def _collected(table: TermTable, addends: Sequence[Term]) -> list[Term]:
    """The addends of a sum, each term once: what is left where some cancel."""
    totals: dict[Term, Fraction] = {}
    for addend in addends:
        scale, part = _split(addend)
        totals[part] = totals.get(part, ZERO) + scale
    return [table.mul(scale, part) for part, scale in totals.items() if scale]


def _logarithm(table: TermTable, argument: Term, whole: AbstractSet[Term]) -> Term:
    """The logarithm of a term: the exponents of exponentials that are factors are added to it, and
    that of a reciprocal is subtracted.  An exponent that sums over positions stays where it is."""
    factor, core = _split(argument)
    exponents, rest = [], []
    for part in flat(core):
        power = part.kind == "app" and part.name == "exp"
        if power and not _sums(part.args[0], whole):
            exponents.append(part.args[0])
        else:
            rest.append(part)
    left = table.mul(factor, *rest)
    if left is table.one:
        return table.add(*exponents)
    share, inverse = _split(left)
    if inverse.kind == "app" and inverse.name == "inv":
        base = _logarithm(table, table.mul(1 / share, inverse.args[0]), whole)
        return table.add(*exponents, table.mul(-1, base))
    if not exponents:
        return table.app("log", argument)
    return table.add(*exponents, table.app("log", left))


def _sums(term: Term, whole: AbstractSet[Term]) -> bool:
    """Whether a term has one of ``whole`` in it, outside of functions."""
    if term.kind not in ("add", "mul"):
        return False
    return term in whole or any(_sums(part, whole) for part in term.args)


def logarithms(function: str, term: Term) -> Iterator[Term]:
    """The logarithms among the addends of what `applied` gives for a logarithm.

    Example: of ``log`` of ``exp(a) b``, which is ``a + log(b)``, ``log(b)``.
    """
    if function == "log":
        parts = (core for _, core in _addends(Fraction(1), term, frozenset()))
        yield from (part for part in parts if part.kind == "app" and part.name == "log")


def _addends(
    scale: Fraction, term: Term, whole: AbstractSet[Term]
) -> Iterator[tuple[Fraction, Term]]:
    """The addends of a sum of sums, each with its factor; those of ``whole`` are one."""
    factor, core = _split(term)
    if core.kind != "add" or core in whole:
        yield scale * factor, core
        return
    for part in core.args:
        yield from _addends(scale * factor, part, whole)


def _raised(table: TermTable, base: Term, exponent: Fraction) -> Term:
    return base if exponent == 1 else table.app(power(exponent), base)


def common_exponentials(table: TermTable, addends: Sequence[Term]) -> tuple[Term, list[Term]]:
    """The exponentials that are factors of all addends of a sum, and the addends without them.

    Example: of ``exp(a) b`` and ``c exp(a)`` they are ``exp(a)``, and ``b`` and ``c`` are left.
    """
    factors = [flat(addend) for addend in addends]
    counts = [Counter(f for f in own if f.kind == "app" and f.name == "exp") for own in factors]
    common = reduce(and_, counts)
    rest = []
    for own in factors:
        shared = Counter(common)
        kept = []
        for factor in own:
            if shared[factor]:
                shared[factor] -= 1
            else:
                kept.append(factor)
        rest.append(table.mul(*kept))
    return table.mul(*common.elements()), rest


def without_opposites(term: Term) -> Term:
    """A product, as it is unless exponentials or powers in it cancel.

    Example: ``x * rsqrt(x)`` is ``sqrt(x)``, and ``exp(x) * exp(-1 * x)`` is 1.
    """
    return _without_exponentials(_without_powers(term))


def _without_powers(term: Term) -> Term:
    """A product in which powers of one base that go up and down are one."""
    if term.kind != "mul":
        return term
    table = term.table
    for factors in (list(term.args), flat(term)):
        for base in {f.args[0]: None for f in factors if _power(f) is not None}:
            scale, core = _split(base)
            own = [f for f in factors if f is core or (_power(f) is not None and f.args[0] is base)]
            left = settled([Fraction(1) if f is core else _power(f) or ZERO for f in own])
            if left is not None:
                kept = [f for f in factors if f not in own]
                share = table.const(scale ** -sum(f is core for f in own))
                return _without_powers(
                    table.mul(share, *kept, *(_raised(table, base, e) for e in left))
                )
    return term


def _power(factor: Term) -> Fraction | None:
    """The exponent of a power that has a name."""
    return _EXPONENTS.get(str(factor.name)) if factor.kind == "app" else None


def _without_exponentials(term: Term) -> Term:
    """A product in which no exponential meets its inverse."""
    table = term.table
    factors = flat(term)
    exponents = {f.args[0] for f in factors if f.kind == "app" and f.name == "exp"}
    if not any(table.mul(-1, a) in exponents for a in exponents):
        return term
    kept: list[Term] = []
    for factor in factors:
        other = None
        if factor.kind == "app" and factor.name == "exp":
            other = table.app("exp", table.mul(-1, factor.args[0]))
        if other in kept:
            kept.remove(other)
        else:
            kept.append(factor)
    return table.mul(*kept)


def _split(term: Term) -> tuple[Fraction, Term]:
    """The constant factor of a term, and the rest."""
    if term.kind == "mul" and term.args[0].value is not None:
        return term.args[0].value, term.args[1]
    return Fraction(1), term


def flat(term: Term) -> list[Term]:
    """The factors of a product of products.

    Example: of ``2 * (x * y)`` 2, x and y; of x itself x.
    """
    if term.kind != "mul":
        return [term]
    return [factor for argument in term.args for factor in flat(argument)]
