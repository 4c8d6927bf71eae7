"""Whether what the parallel program takes a function of is in the function's domain wherever the
single-device program is defined.

Three things show that: a node of it is one of the single device's; the definition of its operand
says so (`engine.specification.definedness.Signs`); or the single device takes a function with no
larger domain of the same values.  The last is looked for between operators that take a function of
an operand as it is, since laws may leave nothing of the function in what such an operator gives:
``x / x`` is 1, but only where the single-device program divides by ``x`` as well.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from fractions import Fraction
from typing import Final, NamedTuple

from shardproof.checker.values.sides import Side
from shardproof.engine.algebra.terms import Term
from shardproof.engine.lineage.expressions import Unary
from shardproof.engine.lineage.lineage import BROADCAST, Addend, Lineage
from shardproof.engine.lineage.nodes import NodeTable
from shardproof.engine.obligations.obligation import Claim
from shardproof.engine.ops.laws import power
from shardproof.engine.ops.primitives import is_partial
from shardproof.engine.plan.ir import Attr
from shardproof.engine.specification.boxes import Box, box_of
from shardproof.engine.specification.definedness import (
    OF_POSITIVE,
    POSITIVE_VALUES,
    Domain,
    Signs,
    domain,
)

#: Which operand an operator takes a function of, as it is, forward and backward.
_OPERAND: Final = {"div": 1, "reciprocal": 0, "log": 0, "sqrt": 0, "rsqrt": 0, "pow": 0}

#: The node, the entry and the partial ranges that the symbols of an obligation stand for, by name.
Symbols = Mapping[str, tuple[object, ...]]


class PartialFunction(NamedTuple):
    """A partial function that the single-device side takes: of which domain, and of which view of a
    node, times a factor.

    Example: of ``log(x)`` on the single device, positive numbers, and the whole of the node that
    ``x`` is.
    """

    domain: Domain
    addend: Addend


class Defined:
    """What the single-device side takes partial functions of; ``nodes``: its values.

    Example: ``x / x`` on a rank is 1; that is defined where the single-device program divides by
    ``x`` as well, or takes its logarithm.
    """

    def __init__(self, table: NodeTable, nodes: frozenset[int], side: Side) -> None:
        self.nodes = nodes
        self.signs = Signs(table)
        self.table = table
        self._known: dict[tuple[int, int], list[PartialFunction]] = {}
        for read in _partial_functions(side):
            key = read.addend.node, _sign(read.addend.factor)
            self._known.setdefault(key, []).append(read)
        self._functions: dict[tuple[int, int], set[Domain]] = {}
        for number in nodes:
            known = self._function(number)
            if known is not None:
                domain, factor, operand = known
                self._functions.setdefault((operand, _sign(factor)), set()).add(domain)

    def node(self, number: int, box: Box | None = None) -> bool:
        """Whether a node, if it is a partial function, is defined where the single device is; at
        the positions in ``box``, if one is given."""
        known = self._function(number)
        if number in self.nodes or known is None:
            return True
        domain, factor, operand = known
        own = self._functions.get((operand, _sign(factor)), ())
        return self.signs.within(factor, operand, domain, box) or any(
            self.signs.follows(d, factor, operand, domain) for d in own
        )

    def operand(self, claim: Claim) -> bool:
        """Whether a claim's operator takes functions of an operand only, and that is in their
        domain."""
        read = _of(claim.name, claim.inputs, claim.attrs, claim.backward)
        if read is None or claim.kind != "op":
            return False
        domain, addend = read
        known = self._known.get((addend.node, _sign(addend.factor)), ())
        box = box_of(self.table, addend)
        return self.signs.within(addend.factor, addend.node, domain, box) or any(
            self.signs.follows(own.domain, addend.factor, addend.node, domain)
            and (_whole(own.addend) or own.addend.view == addend.view)
            for own in known
        )

    def _function(self, number: int) -> tuple[Domain, Fraction, int] | None:
        match self.table[number].definition:
            case Unary(function=function, factor=factor, node=node) if is_partial(function):
                return domain(function), factor, node
        return None


def positive(term: Term, symbols: Symbols, signs: Signs) -> bool:
    """Whether a term is positive whatever its symbols are, so that every partial function is
    defined there: a positive number, an exponential of what is not masked, sums, products and roots
    of such.  Example: 1/100 + exp(x)."""
    if term.value is not None:
        return term.value > 0
    if term.kind == "symbol":
        number, *place = symbols[str(term.name)]
        return isinstance(number, int) and len(place) == 1 and signs.positive(number)
    if term.kind != "app":
        return all(positive(part, symbols, signs) for part in term.args)
    if term.name in OF_POSITIVE:
        return positive(term.args[0], symbols, signs)
    return term.name in POSITIVE_VALUES and _finite(term, symbols, signs)


def _finite(term: Term, symbols: Symbols, signs: Signs) -> bool:
    """Whether no symbol below a term may be minus infinity."""
    if term.kind == "symbol":
        number = symbols[str(term.name)][0]
        return isinstance(number, int) and signs.finite(number)
    return all(_finite(part, symbols, signs) for part in term.args)


def _partial_functions(side: Side) -> Iterable[PartialFunction]:
    """What the operators of the single-device side take partial functions of, dead ones too: where
    they are undefined, so is the program."""
    for instance in side.unrolled.instances:
        if instance.kind == "op":
            inputs = [side.lineages[v] if v >= 0 else None for v in instance.inputs]
            read = _of(instance.name, inputs, instance.attrs, instance.backward)
            if read is not None:
                yield read


def _of(
    name: str,
    inputs: Iterable[Lineage | None],
    attrs: object,
    backward: bool,
) -> PartialFunction | None:
    """What an operator takes partial functions of, if that is one whole view."""
    given = list(inputs)
    place = _OPERAND.get(name)
    if place is None or place >= len(given) - backward:
        return None
    x = given[place]
    domain = _domain(name, attrs, backward)
    if (
        x is None
        or domain is None
        or len(x.addends) != 1
        or x.addends[0].partials
        or x.addends[0].places
    ):
        return None
    return PartialFunction(domain, x.addends[0])


def _domain(name: str, attrs: object, backward: bool) -> Domain | None:
    """Of which numbers an operator and its derivative are defined; None: of all."""
    if name in ("div", "reciprocal"):
        return Domain.NONZERO
    if name in ("log", "rsqrt"):
        return Domain.POSITIVE
    exponent: Attr = attrs.get("exponent") if isinstance(attrs, dict) else None
    if name == "pow":
        if not isinstance(exponent, Fraction | int):
            return None
        function = power(Fraction(exponent))
        if not is_partial(function):
            return None
        whole = Fraction(exponent).denominator == 1
        return domain(function) if whole or not backward else Domain.POSITIVE
    return Domain.POSITIVE if backward else Domain.NONNEGATIVE


def _whole(addend: Addend) -> bool:
    """Whether a view is of all entries of its node."""
    intervals = [interval for dim in addend.view.dims for interval in dim]
    return not addend.view.fixed and all(a.full for a in intervals if a.axis != BROADCAST)


def _sign(factor: Fraction) -> int:
    return (factor > 0) - (factor < 0)
