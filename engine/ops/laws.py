"""Laws of functions that hold wherever both sides of them are defined, as rewritings of terms.

``1 / c`` of a constant is the constant, ``1 / exp(a)`` is ``exp(-a)``, and ``exp(a) exp(-a)`` is 1:
an exponential is never zero, so none of these makes a value defined that was not.  (``a / a`` is 1
only where ``a`` is not zero; no such law is here.)  What stands on one side of a law is written as
the other one, whatever program it is of; functions are uninterpreted otherwise.
"""

from __future__ import annotations

from fractions import Fraction

from shardproof.engine.algebra.terms import Term, TermTable


def of_constant(function: str, value: Fraction) -> Fraction | None:
    """The value of a function at a constant, where a law says it."""
    return 1 / value if function == "inv" and value else None


def applied(table: TermTable, function: str, argument: Term) -> Term:
    """A function of a term."""
    if argument.value is not None:
        value = of_constant(function, argument.value)
        return table.app(function, argument) if value is None else table.const(value)
    if function == "inv":
        factor, core = _split(argument)
        if core.kind == "app" and core.name == "exp":
            return table.mul(1 / factor, table.app("exp", table.mul(-1, core.args[0])))
    return table.app(function, argument)


def without_opposites(found: Term) -> Term:
    """A product, as it is unless exponentials in it cancel."""
    table = found.table
    flat = _flat(found)
    exponents = {f.args[0] for f in flat if f.kind == "app" and f.name == "exp"}
    if not any(table.mul(-1, a) in exponents for a in exponents):
        return found
    kept: list[Term] = []
    for factor in flat:
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


def _flat(term: Term) -> list[Term]:
    """The factors of a product of products."""
    if term.kind != "mul":
        return [term]
    return [factor for argument in term.args for factor in _flat(argument)]
