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

from shardproof.engine.lineage.expressions import (
    AcrossRanks,
    Amax,
    AtCoordinate,
    Causal,
    Combine,
    Concatenated,
    Einsum,
    Expression,
    Maximum,
    One,
    Onehot,
    Opaque,
    Restrict,
    Unary,
)
from shardproof.engine.lineage.nodes import NodeTable
from shardproof.engine.ops.laws import exponent_of
from shardproof.engine.specification.boxes import Box
from shardproof.engine.specification.largest import sign_of_count
from shardproof.engine.specification.visible import Visible

#: Functions without a value at negative numbers.
_OF_NONNEGATIVE = frozenset({"log", "sqrt", "rsqrt"})
#: Functions whose values are never negative.
_NONNEGATIVE = frozenset({"exp", "sigmoid", "sqrt", "rsqrt", "normal_cdf", "normal_pdf"})

#: Functions whose values are positive.
POSITIVE_VALUES = frozenset({"exp", "sigmoid", "normal_cdf", "normal_pdf", "inv", "rsqrt", "sqrt"})
#: Of these, the ones that are so of positive values only.
OF_POSITIVE = frozenset({"inv", "rsqrt", "sqrt"})


class Domain(Enum):
    """The numbers of which a function has a value.

    Example: that of a logarithm is `POSITIVE`, which lies in `NONZERO`, that of a reciprocal.
    """

    POSITIVE = "positive numbers"
    NONNEGATIVE = "numbers that are not negative"
    NONZERO = "numbers that are not zero"

    def lies_in(self, other: Domain) -> bool:
        """Whether every number of this domain is one of ``other``."""
        return self is other or self is Domain.POSITIVE


def domain(function: str) -> Domain:
    """The domain of a partial function.

    Example: positive numbers of ``log``, numbers that are not zero of ``inv``.
    """
    exponent = exponent_of(function)
    if exponent is None or (exponent < 0 and exponent.denominator != 1):
        return Domain.POSITIVE
    return Domain.NONZERO if exponent.denominator == 1 else Domain.NONNEGATIVE


class Signs:
    """What can be read off the definitions of nodes about the signs of their entries.

    Example: of ``n3 = exp(n1)`` every entry is positive, of ``n4 = einsum(n1, n1)`` (squares) none
    is negative, and of an input neither is known.
    """

    def __init__(self, nodes: NodeTable) -> None:
        self.nodes = nodes
        self._positive: list[bool] = []
        self._nonnegative: list[bool] = []
        self._finite: list[bool] = []
        self._visible = Visible(self)

    def within(self, factor: Fraction, node: int, domain: Domain, box: Box | None = None) -> bool:
        """Whether ``factor`` times every entry of a node is in a domain, at every input; of those
        in a ``box``, if one is given."""
        if factor and self.negative(node):
            return factor < 0 or domain is Domain.NONZERO
        if domain is Domain.NONNEGATIVE:
            return factor >= 0 and self.nonnegative(node)
        if not factor or (factor < 0 and domain is not Domain.NONZERO):
            return False
        return self.positive(node) or (box is not None and self._visible.positive(node, box))

    def follows(self, own: Domain, factor: Fraction, node: int, domain: Domain) -> bool:
        """Whether ``factor`` times an entry of a node is in a domain wherever it is in ``own``: a
        number that is neither negative nor zero is positive.

        Example: a sum of exponentials of masked scores, by which the single device divides, has a
        logarithm there.
        """
        if own.lies_in(domain):
            return True
        rest = Domain.NONNEGATIVE if own is Domain.NONZERO else Domain.NONZERO
        return domain is Domain.POSITIVE and self.within(factor, node, rest)

    def negative(self, number: int) -> bool:
        """Whether a node counts something, times a negative number, or is a logistic function
        less 1."""
        return sign_of_count(self.nodes, number) < 0 or self._beside_one(number) < 0

    def positive(self, number: int) -> bool:
        """Whether every entry of a node is positive, at every input."""
        self._read(number)
        return self._positive[number]

    def nonnegative(self, number: int) -> bool:
        """Whether no entry of a node is negative, at any input."""
        self._read(number)
        return self._nonnegative[number]

    def finite(self, number: int) -> bool:
        """Whether no entry is minus infinity: nothing that it is made of linearly is masked."""
        self._read(number)
        return self._finite[number]

    def _read(self, number: int) -> None:
        """Definitions up to this one, in order: each names earlier ones."""
        for place in range(len(self._finite), number + 1):
            definition = self.nodes[place].definition
            free = isinstance(definition, Unary) or all(self._finite[n] for n in _named(definition))
            self._finite.append(not isinstance(definition, Causal) and free)
            counts = sign_of_count(self.nodes, place) > 0 or self._beside_one(place) > 0
            self._positive.append(counts or self._is_positive(definition))
            self._nonnegative.append(self._positive[place] or self._is_nonnegative(definition))

    def _beside_one(self, number: int) -> int:
        """The sign of a number and a multiple of a logistic function, which lies between 0 and 1; 0
        where none is seen."""
        total = self.nodes[number].definition
        if not isinstance(total, Combine) or len(total.operands) != 2:
            return 0
        one, other = sorted(
            zip(total.operands, total.factors, strict=True),
            key=lambda pair: pair[0].node != self.nodes.one,
        )
        gate = self.nodes[other[0].node].definition
        sigmoid = isinstance(gate, Unary) and gate.function == "sigmoid" and self.finite(gate.node)
        if one[0].node != self.nodes.one or not sigmoid:
            return 0
        if one[1] > 0:
            return int(one[1] + other[1] >= 0)
        return -int(one[1] + other[1] <= 0)

    def _is_positive(self, definition: Expression) -> bool:
        match definition:
            case One():
                return True
            case Einsum(operands=operands):
                return all(self.positive(o.node) for o in operands)
            case Combine(factors=factors, operands=operands):
                kept = zip(factors, operands, strict=True)
                return all(f > 0 and self.nonnegative(o.node) for f, o in kept) and any(
                    self.positive(o.node) for o in operands
                )
            case Amax(sign=sign, operand=operand):
                return sign > 0 and self.positive(operand.node)
            case Restrict() | Opaque():
                return self._all_of(definition, self.positive)
            case Unary(function=function, factor=factor, node=node) if function in POSITIVE_VALUES:
                if function in OF_POSITIVE:
                    return factor > 0 and self.positive(node)
                return self.finite(node)
        return False

    def _is_nonnegative(self, definition: Expression) -> bool:
        match definition:
            case Onehot():
                return True
            case Einsum(operands=operands):
                powers = Counter(operands)
                return all(self.nonnegative(o.node) or n % 2 == 0 for o, n in powers.items())
            case Combine(factors=factors, operands=operands):
                kept = zip(factors, operands, strict=True)
                return all(f > 0 and self.nonnegative(o.node) for f, o in kept)
            case Amax(sign=sign, operand=operand):
                return sign > 0 and self.nonnegative(operand.node)
            case Restrict() | Opaque():
                return self._all_of(definition, self.nonnegative)
            case Unary(function=function, factor=factor, node=node):
                exponent = exponent_of(function)
                if function in _NONNEGATIVE or exponent is None:
                    return function in _NONNEGATIVE
                even = exponent.denominator == 1 and exponent % 2 == 0
                return even or (factor > 0 and self.nonnegative(node))
        return False

    def _all_of(self, definition: Restrict | Opaque, holds: Callable[[int], bool]) -> bool:
        """Whether something holds of all that a node shows of others: a block, or a tensor that is
        one whole addend."""
        if isinstance(definition, Restrict):
            return holds(definition.node)
        return len(definition.addends) == 1 and all(
            t.factor > 0 and not t.partials and not t.places and holds(t.node)
            for t in definition.addends
        )


def _named(definition: Expression) -> Iterable[int]:
    """The nodes that a definition names, also those of values that only the parallel side has."""
    match definition:
        case Concatenated(addends=addends) | Opaque(addends=addends) | Maximum(addends=addends):
            return (addend.node for addend in addends)
        case AcrossRanks(node=node) | AtCoordinate(node=node):
            return (node,)
    return definition.children()


def doubtful(nodes: NodeTable, size: int) -> bool:
    """Whether one of the first ``size`` nodes takes a logarithm or a root of what may be negative
    throughout.

    Example: a logarithm of an input is, ``rsqrt`` of squares is not.
    """
    signs = Signs(nodes)
    for number in range(size):
        match nodes[number].definition:
            case Unary(function=function, factor=factor, node=node) if _needs(function):
                if not (factor > 0 and signs.nonnegative(node)):
                    return True
    return False


def _needs(function: str) -> bool:
    exponent = exponent_of(function)
    return function in _OF_NONNEGATIVE or (exponent is not None and exponent.denominator != 1)
