"""Programs that say logistic functions in other words, read in one: ``sigmoid`` of one sign.

``1 / (1 + exp(-x))`` is ``sigmoid(x)``, ``sigmoid(-x)`` is ``1 - sigmoid(x)``, ``log(1 + exp(x))``
is ``x - log(sigmoid(x))``, ``1 / (1 - sigmoid(x))`` is ``1 + exp(x)``, ``tanh(x)`` is ``2
sigmoid(2 x) - 1``, and where an exponential meets a logistic function of the same values in a
product, ``exp(-x) sigmoid(x)`` is ``1 - sigmoid(x)``.
Both sides are read so, and only where they did not meet otherwise; each claim states what it uses
(`engine.obligations.logistic`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from fractions import Fraction
from math import prod
from typing import Final, TypeGuard

from shardproof.engine.lineage.expressions import Combine, Einsum, Expression, Unary
from shardproof.engine.lineage.floating import settled
from shardproof.engine.lineage.lineage import Addend, Lineage
from shardproof.engine.lineage.nodes import NodeTable
from shardproof.engine.lineage.places import has_places
from shardproof.engine.ops.primitives import labels
from shardproof.partition.inference.interpreter import LineageInterpreter
from shardproof.partition.inference.laws import DEEPEST, factor_views
from shardproof.partition.inference.opened import opened
from shardproof.partition.inference.views import view_of_constant

#: Functions that are said in other words of one another.
MINUS: Final = Fraction(-1)
_WORDS = frozenset({"sigmoid", "tanh", "exp", "log", "inv"})


def says_otherwise(table: NodeTable, reference_size: int) -> bool:
    """Whether logistic functions are read, and the parallel side takes a function of what the
    single-device program has, and this does not, that may be one of them in other words; or it
    multiplies by exponentials of what they are taken of, or reads what is made of 1 and these, or
    multiplies a sum by the inverse of an exponential in it; or several logistic functions are
    taken of one value.

    Example: of ``1 / (1 + exp(-x))`` beside ``sigmoid(x)``, ``exp(-x)``; of derivatives of the
    former, their factor ``exp(-x)``.
    """
    if _has_several(table):
        return True
    gated, softened = _gated(table), _softened(table)
    for node in table.nodes[reference_size:]:
        match node.definition:
            case Unary(function=function, node=operand) if function in _WORDS:
                if gated and _is_known(table, operand, reference_size):
                    return True
            case Combine() as total if not softened.isdisjoint(total.children()):
                return True
            case Einsum() as product:
                if not softened.isdisjoint(product.children()):
                    return True
                factors = [table[n].definition for n in product.children()]
                powers = {(f.factor, f.node) for f in factors if _is_exponential(f)}
                if any(n in gated for _, n in powers) or any(
                    (-f, n) in powers for f, n in _added_exponentials(table, factors)
                ):
                    return True
    return False


def _added_exponentials(
    table: NodeTable, factors: Sequence[Expression]
) -> Iterator[tuple[Fraction, int]]:
    """The exponents of exponentials among what sums add up, each as a factor and a node."""
    for total in factors:
        if isinstance(total, Combine):
            for part in (table[n].definition for n in total.children()):
                inner = part.children() if isinstance(part, Einsum) else ()
                for power in (part, *(table[n].definition for n in inner)):
                    if _is_exponential(power):
                        yield power.factor, power.node


def _has_several(table: NodeTable) -> bool:
    """Whether several logistic functions are taken of one node, such as ``sigmoid(x)`` and
    ``sigmoid(-x)``."""
    taken_of = Counter(
        d.node
        for d in (node.definition for node in table.nodes)
        if isinstance(d, Unary) and d.function in ("sigmoid", "tanh")
    )
    return any(many > 1 for many in taken_of.values())


def _gated(table: NodeTable) -> set[int]:
    """The nodes that a logistic function is taken of, in one form or another."""
    gated: set[int] = set()
    for node in table.nodes:
        match node.definition:
            case Unary(function="sigmoid" | "tanh", node=operand):
                gated.add(operand)
            case Combine() as total if table.one in total.children():
                inner = (table[n].definition for n in total.children())
                gated.update(d.node for d in inner if _is_exponential(d))
    return gated


def _softened(table: NodeTable) -> set[int]:
    """The nodes that are 1 and an exponential, their reciprocals and logarithms."""
    softened: set[int] = set()
    for number, node in enumerate(table.nodes):
        match node.definition:
            case Unary(function="inv" | "log", node=operand) if operand in softened:
                softened.add(number)
            case Combine() as total if table.one in total.children():
                inner = (table[n].definition for n in total.children())
                if any(_is_exponential(d) for d in inner):
                    softened.add(number)
    return softened


def _is_exponential(definition: Expression) -> TypeGuard[Unary]:
    return isinstance(definition, Unary) and definition.function == "exp"


def _is_known(table: NodeTable, number: int, size: int) -> bool:
    """Whether a node is the single device's, or a sum of what is."""
    definition = table[number].definition
    is_sum = isinstance(definition, Combine)
    return number < size or (is_sum and all(n < size for n in definition.children()))


class Logistic(LineageInterpreter):
    """Reads logistic functions in one sign, whatever they are written as.

    Example: ``x - softplus(x)`` and ``log(sigmoid(x))`` are one value.
    """

    def __init__(
        self,
        table: NodeTable,
        reference_size: int | None = None,
        mesh: Mapping[str, int] | None = None,
    ) -> None:
        super().__init__(table, reference_size, mesh)
        self._gated: set[int] = set()
        self._read = 0

    def unary(self, function: str, x: Lineage) -> Lineage:
        """As `LineageInterpreter.unary`, of logistic functions in one sign.

        Example: ``inv`` of ``1 + exp(-x)`` is ``sigmoid(x)``.
        """
        made = None if has_places(x) or not x.addends else self._in_one_sign(function, x)
        if made is None:
            return super().unary(function, x)
        self.rewrote = True
        return made

    def _function(self, function: str, addend: Addend) -> Addend:
        """As `Functions._function`: a reciprocal of a factor of a product is one, too."""
        if function == "inv" and not addend.places:
            shape = tuple(prod(a.size for a in dim) for dim in addend.view.dims)
            made = self._in_one_sign(function, Lineage(shape, (addend,)))
            if made is not None:
                self.rewrote = True
                return self._single(made)
        return super()._function(function, addend)

    def _in_one_sign(self, function: str, x: Lineage) -> Lineage | None:
        if function == "tanh":
            twice = self.unary("sigmoid", _times(x, Fraction(2)))
            return self.combine([twice], [Fraction(2)], MINUS)
        if function == "sigmoid":
            parts = self._added_up(x)
            if not _is_negative(parts):
                return None
            opposite = _times(x, MINUS)
            if len(x.addends) == 1 and x.addends[0].factor > 0:
                opposite = self.fold(_times(Lineage(x.shape, parts), MINUS))
            return self.combine([super().unary(function, opposite)], [MINUS], Fraction(1))
        if function == "inv" and (of := self._one_and(x, "exp", 1)) is not None:
            gate = self.unary("sigmoid", _times(of[1], MINUS))
            return self.combine([gate], [1 / of[0]], Fraction(0))
        if function == "inv" and (of := self._one_and(x, "sigmoid", -1)) is not None:
            power = self.unary("exp", of[1])
            return self.combine([power], [1 / of[0]], 1 / of[0])
        if function == "log":
            return self._logarithm(x)
        if function == "exp" and len(x.addends) == 1 and self._is_gated(x.addends[0].node):
            # It may meet that logistic function, so it is not taken apart.
            return Lineage(x.shape, (self._function(function, self._single(x)),))
        return self._of_logarithm(x) if function == "exp" else None

    def _of_logarithm(self, x: Lineage) -> Lineage | None:
        """``exp(a + log(sigmoid(b)))`` as ``exp(a) sigmoid(b)``, ``exp(a - log(sigmoid(b)))`` as
        ``exp(a) (1 + exp(-b))``; None of other values."""
        if any(t.partials or t.places for t in x.addends):
            return None
        parts = [p for t in x.addends for p in (self._flat(t) or [t])]
        for place, part in enumerate(parts):
            if self._function_of(part) != "log" or abs(part.factor) != 1:
                continue
            gate = self._argument(part)
            if self._function_of(gate) != "sigmoid" or gate.factor != 1:
                continue
            factor = Lineage(x.shape, (gate,))
            if part.factor < 0:
                power = self.unary("exp", _times(Lineage(x.shape, (self._argument(gate),)), MINUS))
                factor = self.combine([power], [Fraction(1)], Fraction(1))
            rest = self.fold(Lineage(x.shape, (*parts[:place], *parts[place + 1 :])))
            names = labels(len(x.shape))
            power = self.unary("exp", rest) if rest.addends else self._number(x.shape, Fraction(1))
            return self.einsum(f"{names},{names}->{names}", power, factor)
        return None

    def _number(self, shape: tuple[int, ...], number: Fraction) -> Lineage:
        return Lineage(shape, (Addend(number, self.table.one, view_of_constant(shape)),))

    def _is_gated(self, number: int) -> bool:
        """Whether a logistic function is taken of a node."""
        for node in self.table.nodes[self._read :]:
            match node.definition:
                case Unary(function="sigmoid", node=operand):
                    self._gated.add(operand)
        self._read = len(self.table.nodes)
        return number in self._gated and not self.table.is_masked(number)

    def _logarithm(self, x: Lineage) -> Lineage | None:
        """``log(1 + exp(a))`` as ``-log(sigmoid(-a))``, ``log(1 - sigmoid(a))`` as
        ``log(sigmoid(a)) - a``; None of other values."""
        of = self._one_and(x, "exp", 1)
        if of is not None and of[0] == 1:
            gate = self.unary("sigmoid", _times(of[1], MINUS))
            return self.combine([self.unary("log", gate)], [MINUS], Fraction(0))
        of = self._one_and(x, "sigmoid", -1)
        if of is None or of[0] != 1:
            return None
        log = super().unary("log", super().unary("sigmoid", of[1]))
        return self.combine([log, of[1]], [Fraction(1), MINUS], Fraction(0))

    def combine(
        self, xs: Sequence[Lineage], factors: Sequence[Fraction], constant: Fraction
    ) -> Lineage:
        """As `LineageInterpreter.combine`; sums of products of logistic functions are one sum.

        Example: of ``y - y^2``, ``y`` being ``1 - sigmoid(x)``, ``sigmoid(x) - sigmoid(x)^2``.
        """
        if has_places(*xs):
            return super().combine(xs, factors, constant)
        apart = [
            x._replace(addends=tuple(p for t in x.addends for p in self._of_gates(t))) for x in xs
        ]
        return super().combine(apart, factors, constant)

    def _of_gates(self, addend: Addend) -> list[Addend]:
        """What a sum of products of logistic functions and numbers adds up; anything else as it
        is."""
        parts = self._flat(addend)
        return parts if self._are_gates(parts) else [addend]

    def _are_gates(self, parts: Sequence[Addend]) -> bool:
        """Whether addends, of which there are some, are products of logistic functions and
        numbers."""
        every = [f for t in parts for f in factor_views(self.table, t)]
        return bool(every) and all(
            f.node == self.table.one or self._function_of(f) == "sigmoid" for f in every
        )

    def einsum(self, spec: str, *xs: Lineage, sizes: Mapping[str, int] | None = None) -> Lineage:
        """As `LineageInterpreter.einsum`; a logistic function that meets an exponential of the same
        values is a sum.

        Example: of ``g exp(-x) sigmoid(x)``, ``g - g sigmoid(x)``.
        """
        made = super().einsum(spec, *xs, sizes=sizes)
        if has_places(made):
            return made
        parts = [self._met(made.shape, addend) for addend in made.addends]
        if all(part is None for part in parts):
            return made
        self.rewrote = True
        kept = [
            Lineage(made.shape, (addend,)) if part is None else part
            for addend, part in zip(made.addends, parts, strict=True)
        ]
        total = self._total(made.shape, kept)
        for addend in (t for x in (*xs, total) for t in x.addends):
            self.opened |= self._below(addend.node, DEEPEST)
        return total

    def _below(self, number: int, depth: int) -> set[int]:
        """The products and sums that a value is made of, and functions of these that may meet: what
        its claim has to read."""
        match self.table[number].definition:
            case Einsum() | Combine() as definition if depth:
                inner = (self._below(n, depth - 1) for n in definition.children())
                return {number}.union(*inner)
            case Unary(function="sigmoid" | "exp"):
                return {number}
        return set()

    def _met(self, shape: tuple[int, ...], addend: Addend) -> Lineage | None:
        """A product in which a logistic function meets an exponential, as a sum; None if none
        does."""
        if addend.partials:
            return None
        factors = factor_views(self.table, addend)
        gates = [n for n, t in enumerate(factors) if self._function_of(t) == "sigmoid"]
        powers = [n for n, t in enumerate(factors) if self._function_of(t) == "exp"]
        for gate in gates:
            for power in powers:
                sign = self._sign(factors[gate], factors[power])
                if sign:
                    rest = [t for n, t in enumerate(factors) if n not in (gate, power)]
                    first = rest if sign < 0 else [*rest, factors[power]]
                    both = (first, [*rest, factors[gate]])
                    signs = (addend.factor, -addend.factor)
                    made = [self._times(shape, f, x) for f, x in zip(signs, both, strict=True)]
                    return self._total(shape, made)
        return self._distributed(shape, addend.factor, factors)

    def _distributed(
        self, shape: tuple[int, ...], factor: Fraction, factors: Sequence[Addend]
    ) -> Lineage | None:
        """A product in which a sum has what meets another factor, addend by addend; None if none
        has."""
        for place, total in enumerate(factors):
            parts = self._flat(total)
            around = [*factors[:place], *factors[place + 1 :]]
            inside = [f for t in parts for f in factor_views(self.table, t)]
            beside = [f for t in around for f in self._letters(t)]
            gates = self._are_gates(parts)
            if any(self._meet(one, other, gates) for one in inside for other in beside):
                made = [self._times(shape, factor, [*around, part]) for part in parts]
                return self._total(shape, made)
        return None

    def _total(self, shape: tuple[int, ...], xs: Sequence[Lineage]) -> Lineage:
        """A sum of sums as one sum, so that what cancels does."""
        addends = [p for x in xs for t in x.addends for p in (self._flat(t) or [t])]
        return self.fold(Lineage(shape, tuple(addends)))

    def _letters(self, factor: Addend) -> list[Addend]:
        """A factor, and those of what it adds up."""
        return [factor, *(f for t in self._flat(factor) for f in factor_views(self.table, t))]

    def _flat(self, addend: Addend, depth: int = DEEPEST) -> list[Addend]:
        """What a sum of sums adds up; nothing of what is no sum."""
        parts = opened(self.table, addend) if depth else []
        return [x for t in parts for x in (self._flat(t, depth - 1) or [t])]

    def _meet(self, one: Addend, other: Addend, gates: bool) -> bool:
        """Whether two views are a logistic function and an exponential of the same values, or one
        divides by the other, or they are exponentials that are each other's inverse; where
        ``gates``, also whether both are logistic functions of the same values."""
        for above, below in ((one, other), (other, one)):
            if self._function_of(below) == "inv" and self._argument(below).node == above.node:
                return True
            both = (self._function_of(above), self._function_of(below))
            if both == ("exp", "exp") and self._sign(above, below) < 0:
                return True
            meet = both == ("sigmoid", "exp") or (gates and both == ("sigmoid", "sigmoid"))
            if meet and self._sign(above, below):
                return True
        return False

    def _times(self, shape: tuple[int, ...], factor: Fraction, views: Sequence[Addend]) -> Lineage:
        """A product of views, and a number."""
        names = labels(len(shape))
        factors = [self._number(shape, factor), *(Lineage(shape, (t,)) for t in views)]
        return self.einsum(f"{','.join([names] * len(factors))}->{names}", *factors)

    def _function_of(self, addend: Addend) -> str:
        """The function that a view is one of (none: "")."""
        definition = self.table[addend.node].definition
        return definition.function if isinstance(definition, Unary) else ""

    def _argument(self, addend: Addend) -> Addend:
        """What a view of a function's values takes it of."""
        definition = self.table[addend.node].definition
        assert isinstance(definition, Unary)
        return addend._replace(factor=definition.factor, node=definition.node)

    def _sign(self, gate: Addend, power: Addend) -> int:
        """1 where an exponential is of what a logistic function is of, -1 where of less that, else
        0."""
        of, other = (
            {self._key(t): t.factor for t in self._opened(self._argument(one))}
            for one in (gate, power)
        )
        if of.keys() != other.keys():
            return 0
        return next((s for s in (1, -1) if all(of[k] == s * other[k] for k in of)), 0)

    def _key(self, addend: Addend) -> tuple[object, ...]:
        return addend.node, settled(addend.view), addend.partials

    def _opened(self, addend: Addend) -> tuple[Addend, ...]:
        return tuple(opened(self.table, addend)) or (addend,)

    def _added_up(self, x: Lineage) -> tuple[Addend, ...]:
        """What a value adds up."""
        return self._opened(x.addends[0]) if len(x.addends) == 1 else x.addends

    def _one_and(self, x: Lineage, function: str, sign: int) -> tuple[Fraction, Lineage] | None:
        """``c`` and ``a`` of ``c + sign c function(a)``; None of other values."""
        parts = self._added_up(x)
        ones = [t for t in parts if t.node == self.table.one]
        rest = [t for t in parts if t.node != self.table.one]
        if len(ones) != 1 or len(rest) != 1 or rest[0].partials or rest[0].places:
            return None
        (constant,), (power,) = ones, rest
        if self._function_of(power) != function or power.factor != sign * constant.factor:
            return None
        argument = self._argument(power)
        if self.table.is_masked(argument.node):
            return None
        return constant.factor, Lineage(x.shape, (argument,))


def _times(x: Lineage, factor: Fraction) -> Lineage:
    return Lineage(x.shape, tuple(t._replace(factor=t.factor * factor) for t in x.addends))


def _is_negative(addends: Sequence[Addend]) -> bool:
    """Whether the first addend, by its node and view, has a negative factor."""
    return min(addends, key=lambda t: (t.node, repr(t.view), repr(t.partials))).factor < 0
