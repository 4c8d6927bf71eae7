"""Where functions that are undefined somewhere are defined: of what the single-device program takes
them, and of what is in their domain by its definition.

Squares are never negative, exponentials and sums of them are positive: of these a root, a logarithm
or a reciprocal is defined at every input.  A function is as defined as another one of the same
values if its domain is no smaller: ``sqrt(x)`` wherever ``rsqrt(x)`` is.

A logarithm or a root of what is negative is no real number.  Where it cannot be read off the
definitions that a single-device program has none, a proof is none unless the program is defined on
an input that is tried: two programs that are undefined on all of them were compared on nothing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from enum import Enum
from fractions import Fraction
from typing import Any

from shardproof.engine.lineage.lineage import Node, NodeTable, Operand, Term
from shardproof.engine.ops.laws import exponent_of

#: Functions without a value at negative numbers.
_OF_NONNEGATIVE = frozenset({"log", "sqrt", "rsqrt"})
#: Functions whose values are never negative.
_NONNEGATIVE = frozenset({"exp", "sigmoid", "sqrt", "rsqrt", "normal_cdf", "normal_pdf"})

#: Functions whose values are positive.
_POSITIVE = frozenset({"exp", "sigmoid", "normal_cdf", "normal_pdf", "inv", "rsqrt", "sqrt"})
#: Of these, the ones that are so of positive values only.
_OF_POSITIVE = frozenset({"inv", "rsqrt", "sqrt"})


class Domain(Enum):
    """Of which numbers a function has a value."""

    POSITIVE = "positive numbers"
    NONNEGATIVE = "numbers that are not negative"
    NONZERO = "numbers that are not zero"

    def lies_in(self, other: Domain) -> bool:
        return self is other or self is Domain.POSITIVE


def domain(function: str) -> Domain:
    """The domain of a partial function."""
    exponent = exponent_of(function)
    if exponent is None or (exponent < 0 and exponent.denominator != 1):
        return Domain.POSITIVE
    return Domain.NONZERO if exponent.denominator == 1 else Domain.NONNEGATIVE


class Signs:
    """What can be read off the definitions of nodes about the signs of their entries."""

    def __init__(self, nodes: NodeTable) -> None:
        self.nodes = nodes
        self._positive: list[bool] = []
        self._nonnegative: list[bool] = []
        self._finite: list[bool] = []

    def within(self, factor: Fraction, node: int, held: Domain) -> bool:
        """Whether ``factor`` times every entry of a node is in a domain, at every input."""
        if held is Domain.NONNEGATIVE:
            return factor >= 0 and self.nonnegative(node)
        return bool(factor) and (factor > 0 or held is Domain.NONZERO) and self.positive(node)

    def positive(self, number: int) -> bool:
        self._read(number)
        return self._positive[number]

    def nonnegative(self, number: int) -> bool:
        self._read(number)
        return self._nonnegative[number]

    def finite(self, number: int) -> bool:
        """Whether no entry is minus infinity: nothing that it is made of linearly is masked."""
        self._read(number)
        return self._finite[number]

    def _read(self, number: int) -> None:
        """Definitions up to this one, in order: each names earlier ones."""
        for place in range(len(self._finite), number + 1):
            node = self.nodes[place]
            free = node.kind == "unary" or all(self._finite[n] for n in _named(node))
            self._finite.append(node.kind != "causal" and free)
            self._positive.append(self._is_positive(node))
            self._nonnegative.append(self._positive[place] or self._is_nonnegative(node))

    def _is_positive(self, node: Node) -> bool:
        payload: tuple[Any, ...] = node.payload
        if node.kind == "one":
            return True
        if node.kind == "einsum":
            return all(self.positive(o.node) for o in payload[0])
        if node.kind == "combine":
            factors, terms, _ = payload
            return all(
                f > 0 and self.nonnegative(o.node) for f, o in zip(factors, terms, strict=True)
            ) and any(self.positive(o.node) for o in terms)
        if node.kind == "amax":
            return bool(payload[0] > 0 and self.positive(payload[1].node))
        if node.kind in ("block", "piece"):
            return self._all_of(node, self.positive)
        if node.kind == "unary" and str(payload[0]) in _POSITIVE:
            function, factor, operand = _unary(node)
            if function in _OF_POSITIVE:
                return factor > 0 and self.positive(operand)
            return self.finite(operand)
        return False

    def _all_of(self, node: Node, holds: Callable[[int], bool]) -> bool:
        """Whether something holds of all that a node shows of others: a block, or a tensor that is
        one whole term."""
        if node.kind == "block":
            return holds(node.payload[0])  # type: ignore[arg-type]
        terms: tuple[Term, ...] = node.payload[0]  # type: ignore[assignment]
        return len(terms) == 1 and all(
            t.factor > 0 and not t.parts and not t.places and holds(t.node) for t in terms
        )

    def _is_nonnegative(self, node: Node) -> bool:
        payload: tuple[Any, ...] = node.payload
        if node.kind == "onehot":
            return True
        if node.kind == "einsum":
            operands: Counter[Operand] = Counter(payload[0])
            return all(self.nonnegative(o.node) or n % 2 == 0 for o, n in operands.items())
        if node.kind == "combine":
            factors, terms, _ = payload
            return all(
                f > 0 and self.nonnegative(o.node) for f, o in zip(factors, terms, strict=True)
            )
        if node.kind == "amax":
            return bool(payload[0] > 0 and self.nonnegative(payload[1].node))
        if node.kind in ("block", "piece"):
            return self._all_of(node, self.nonnegative)
        if node.kind == "unary":
            function, factor, operand = _unary(node)
            exponent = exponent_of(function)
            even = exponent is not None and exponent.denominator == 1 and exponent % 2 == 0
            kept = exponent is not None
            return (
                function in _NONNEGATIVE
                or even
                or (kept and factor > 0 and self.nonnegative(operand))
            )
        return False


def _named(node: Node) -> Iterable[int]:
    """The nodes that a definition names, also those of values that only the parallel side has."""
    for kind, item in node.payload_items():
        if kind == "node":
            yield item
        elif kind == "operand":
            yield item.node
        elif kind == "operands":
            yield from (o.node for o in item)
        elif node.kind in ("piece", "stack", "maximum") and isinstance(item, tuple):
            yield from (t.node for t in item)
    if node.kind in ("at", "over"):
        yield int(node.payload[-1])  # type: ignore[call-overload]


def doubtful(nodes: NodeTable, size: int) -> bool:
    """Whether one of the first ``size`` nodes takes a logarithm or a root of what may be negative
    throughout."""
    signs = Signs(nodes)
    for number in range(size):
        node = nodes[number]
        if node.kind == "unary":
            function, factor, operand = _unary(node)
            if _needs(function) and not (factor > 0 and signs.nonnegative(operand)):
                return True
    return False


def _unary(node: Node) -> tuple[str, Fraction, int]:
    function, factor, operand = node.payload
    assert isinstance(function, str)
    assert isinstance(factor, Fraction)
    assert isinstance(operand, int)
    return function, factor, operand


def _needs(function: str) -> bool:
    exponent = exponent_of(function)
    return function in _OF_NONNEGATIVE or (exponent is not None and exponent.denominator != 1)
