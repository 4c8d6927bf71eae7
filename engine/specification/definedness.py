"""Whether the single-device program may be undefined wherever it is evaluated.

A logarithm or a root of what is negative is no real number.  Of most operands it can be read off
their definition that they are not: squares, exponentials, and sums of these with positive factors.
Where it cannot, a proof is none unless the program is defined on an input that is tried: two
programs that are undefined on all of them were compared on nothing.
"""

from __future__ import annotations

from collections import Counter
from fractions import Fraction
from typing import Any

from shardproof.engine.lineage.lineage import Node, NodeTable, Operand

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
        node = nodes[number]
        if node.kind == "unary":
            function, factor, operand = _unary(node)
            found = found or (_needs(function) and not (factor > 0 and known[operand]))
        known.append(_nonnegative(node, known))
    return found


def _unary(node: Node) -> tuple[str, Fraction, int]:
    function, factor, operand = node.payload
    assert isinstance(function, str)
    assert isinstance(factor, Fraction)
    assert isinstance(operand, int)
    return function, factor, operand


def _exponent(function: str) -> Fraction | None:
    return Fraction(function[4:]) if function.startswith("pow:") else None


def _needs(function: str) -> bool:
    exponent = _exponent(function)
    return function in _OF_NONNEGATIVE or (exponent is not None and exponent.denominator != 1)


def _nonnegative(node: Node, known: list[bool]) -> bool:
    """Whether no entry of a node can be negative, by its definition."""
    payload: tuple[Any, ...] = node.payload
    if node.kind in ("one", "onehot"):
        return True
    if node.kind == "einsum":
        operands: Counter[Operand] = Counter(payload[0])
        return all(known[o.node] or n % 2 == 0 for o, n in operands.items())
    if node.kind == "combine":
        factors, terms, _ = payload
        return all(f > 0 and known[o.node] for f, o in zip(factors, terms, strict=True))
    if node.kind == "amax":
        return bool(payload[0] > 0 and known[payload[1].node])
    if node.kind == "unary":
        function, factor, operand = _unary(node)
        exponent = _exponent(function)
        even = exponent is not None and exponent.denominator == 1 and exponent % 2 == 0
        kept = function == "inv" or exponent is not None
        return function in _NONNEGATIVE or even or (kept and factor > 0 and known[operand])
    return False
