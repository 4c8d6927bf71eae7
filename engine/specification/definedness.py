"""Whether the single-device program may be undefined wherever it is evaluated.

A logarithm or a root of what is negative is no real number.  Of most operands it can be read off
their definition that they are not: squares, exponentials, and sums of these with positive factors.
Where it cannot, a proof is none unless the program is defined on an input that is tried: two
programs that are undefined on all of them were compared on nothing.
"""

from __future__ import annotations

from collections import Counter
from fractions import Fraction

from shardproof.engine.lineage.expressions import (
    Amax,
    Combine,
    Einsum,
    Expression,
    One,
    Onehot,
    Unary,
)
from shardproof.engine.lineage.nodes import NodeTable

#: Functions without a value at negative numbers.
_OF_NONNEGATIVE = frozenset({"log", "sqrt", "rsqrt"})
#: Functions whose values are never negative.
_NONNEGATIVE = frozenset({"exp", "sigmoid", "sqrt", "rsqrt", "normal_cdf", "normal_pdf"})


def doubtful(nodes: NodeTable, size: int) -> bool:
    """Whether one of the first ``size`` nodes takes a logarithm or a root of what may be negative
    throughout."""
    known: list[bool] = []
    found = False
    for number in range(size):
        definition = nodes[number].definition
        if isinstance(definition, Unary) and _needs(definition.function):
            found = found or not (definition.factor > 0 and known[definition.node])
        known.append(_nonnegative(definition, known))
    return found


def _exponent(function: str) -> Fraction | None:
    return Fraction(function[4:]) if function.startswith("pow:") else None


def _needs(function: str) -> bool:
    exponent = _exponent(function)
    return function in _OF_NONNEGATIVE or (exponent is not None and exponent.denominator != 1)


def _nonnegative(definition: Expression, known: list[bool]) -> bool:
    """Whether no entry of a node that is defined so can be negative."""
    match definition:
        case One() | Onehot():
            return True
        case Einsum(operands=operands):
            return all(known[o.node] or n % 2 == 0 for o, n in Counter(operands).items())
        case Combine(factors=factors, operands=operands):
            return all(f > 0 and known[o.node] for f, o in zip(factors, operands, strict=True))
        case Amax(sign=sign, operand=operand):
            return sign > 0 and known[operand.node]
        case Unary(function=function, factor=factor, node=node):
            exponent = _exponent(function)
            even = exponent is not None and exponent.denominator == 1 and exponent % 2 == 0
            kept = function == "inv" or exponent is not None
            return function in _NONNEGATIVE or even or (kept and factor > 0 and known[node])
    return False
