"""Equalities that hold by what the logistic function is: ``1 / (1 + exp(-a))``.

``1 - sigmoid(a)`` is ``sigmoid(-a)``, ``exp(-a) sigmoid(a)`` is ``1 - sigmoid(a)``, and ``log(1 +
exp(a))`` is ``-log(sigmoid(-a))``.  As both functions are unknown to a solver, an equality that
needs this is stated in logistic functions of one sign, and exponentials; ``exp(a) (x exp(-a) + y)``
is ``x + y exp(a)`` there.  It is done only where it is needed, so that all others are what they
were.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from fractions import Fraction
from itertools import islice
from typing import Final, NamedTuple

from shardproof.engine.algebra.terms import ONE, NormalForm, Term, TermTable, normal_form
from shardproof.engine.algebra.walks import folded, subterms
from shardproof.engine.obligations.evaluation import Point
from shardproof.engine.ops.laws import flat, without_opposites

#: Products that are multiplied out to see what meets in them; more are left as they are.
MOST_PRODUCTS: Final = 4_000

Goals = Sequence[tuple[Term, Term]]


def logistic(table: TermTable, goals: Goals) -> tuple[tuple[Term, Term], ...] | None:
    """Equalities in logistic functions of one sign; None where that is not needed, or where they do
    not hold even so.

    Example: of ``inv(1 + exp(-1 * v0)) == sigmoid(v0)``, ``sigmoid(v0) == sigmoid(v0)``.
    """
    before = Point()
    if all(a is b or before.value(a) == before.value(b) for a, b in goals):
        return None
    if not any(_has_logistic(side) for goal in goals for side in goal):
        return None
    written, after = _Written(table), Point()
    try:
        made = tuple((written.of(a), written.of(b)) for a, b in goals)
    except _TooManyProducts:
        return None
    return made if all(after.value(a) == after.value(b) for a, b in made) else None


def _has_logistic(root: Term) -> bool:
    """Whether a term has a logistic function, 1 and an exponential in a sum, or an exponential and
    its inverse."""
    powers = set[NormalForm]()
    for term in subterms([root]):
        if term.name in ("sigmoid", "tanh") or _softened(term) is not None:
            return True
        if term.name == "exp":
            exponent = normal_form(term.args[0])
            if tuple((m, -c) for m, c in exponent) in powers:
                return True
            powers.add(exponent)
    return False


def _softened(term: Term) -> tuple[Fraction, Term] | None:
    """``c`` and ``a`` of ``c (1 + exp(a))``; None of other terms."""
    factor, core = _split(term)
    if core.kind != "add" or len(core.args) != 2:
        return None
    power, constant = core.args
    scale, product = _split(power)
    if constant.value is None or constant.value != scale:
        return None
    factors = flat(product)
    if not all(f.kind == "app" and f.name == "exp" for f in factors):
        return None
    return factor * scale, term.table.add(*(f.args[0] for f in factors))


def _rest_of(term: Term) -> tuple[Fraction, Term] | None:
    """``c`` and ``a`` of ``c (1 - sigmoid(a))``; None of other terms."""
    factor, core = _split(term)
    if core.kind != "add" or len(core.args) != 2:
        return None
    scale, gate = _split(core.args[0])
    if core.args[1].value != -scale or gate.kind != "app" or gate.name != "sigmoid":
        return None
    return -factor * scale, gate.args[0]


class _TooManyProducts(Exception):
    """An equality is multiplied out to more products than are worth stating."""


class _Written:
    """Terms, written in logistic functions of one sign.

    Example: ``log(1 + exp(v0))`` is ``v0 - log(sigmoid(v0))``.
    """

    def __init__(self, table: TermTable) -> None:
        self.table = table
        self._known: dict[Term, Term] = {}
        self._made = 0

    def of(self, root: Term) -> Term:
        """A term so written."""
        return folded(root, self._known, self._one)

    def _one(self, term: Term) -> Term:
        args = [self._known[t] for t in term.args]
        match term.kind:
            case "add":
                return self._added(args)
            case "mul":
                return self._product(args)
            case "app" if term.name == "sigmoid":
                return self._sigmoid(args[0])
            case "app" if term.name == "tanh":
                twice = self._sigmoid(self.table.mul(2, args[0]))
                return self._added([self.table.mul(2, twice), self.table.const(-1)])
            case "app" if term.name == "log":
                return self._logarithm(args[0])
            case "app" if term.name == "inv" and (of := _softened(args[0])) is not None:
                below = self._sigmoid(self.table.mul(-1, of[1]))
                return self.table.mul(1 / of[0], below)
            case "app" if term.name == "inv" and (gated := _rest_of(args[0])) is not None:
                power = self.table.app("exp", gated[1])
                return self.table.mul(1 / gated[0], self.table.add(1, power))
            case "app":
                return self.table.app(str(term.name), *args)
        return term

    def _added(self, addends: Sequence[Term]) -> Term:
        """A sum with addends that cancel left out, so that 1 and an exponential are seen as such
        where they are all that is left."""
        totals: dict[Term, Fraction] = {}
        for scale, part in _addends(self.table, ONE, self.table.add(*addends)):
            totals[part] = totals.get(part, Fraction(0)) + scale
        return self.table.add(*(self.table.mul(s, t) for t, s in totals.items() if s))

    def _sigmoid(self, argument: Term) -> Term:
        """Of the argument whose sign is that of the others."""
        table = self.table
        if not _is_negative(argument):
            return table.app("sigmoid", argument)
        return table.add(1, table.mul(-1, table.app("sigmoid", table.mul(-1, argument))))

    def _logarithm(self, argument: Term) -> Term:
        """``log(1 + exp(a))`` is ``-log(sigmoid(-a))``, and ``log(1 - sigmoid(a))`` is
        ``log(sigmoid(a)) - a``."""
        table, of = self.table, _softened(argument)
        if of is not None and of[0] == 1:
            return table.mul(-1, self._logarithm(self._sigmoid(table.mul(-1, of[1]))))
        gated = _rest_of(argument)
        if gated is not None and gated[0] == 1:
            gate = table.app("sigmoid", gated[1])
            return table.add(table.app("log", gate), table.mul(-1, gated[1]))
        return table.app("log", argument)

    def _product(self, factors: Sequence[Term]) -> Term:
        """A product, multiplied out as far as logistic functions meet exponentials in it."""
        self._made += 1
        if self._made > MOST_PRODUCTS:
            raise _TooManyProducts
        table = self.table
        product = without_opposites(table.mul(*factors))
        if product.kind != "mul":
            return product
        own = flat(product)
        met = _met(table, own)
        if met is not None:
            rest = list(own)
            for factor in (met.gate, *met.powers):
                rest.remove(factor)
            first = rest if met.sign < 0 else [*rest, *met.powers]
            second = [table.const(-1), *rest, met.gate]
            return self._added([self._product(first or [table.one]), self._product(second)])
        place = next((n for n, f in enumerate(own) if _may_meet(f, own)), None)
        if place is None:
            return product
        others = [*own[:place], *own[place + 1 :]]
        return self._added([self._product([part, *others]) for part in own[place].args])


class _Met(NamedTuple):
    """A logistic function, and exponentials whose product is that of what it is taken of (1), or of
    less that (-1)."""

    gate: Term
    powers: tuple[Term, ...]
    sign: int


def _met(table: TermTable, factors: Sequence[Term]) -> _Met | None:
    """A logistic function among factors that meets an exponential there, or all of them: that of a
    sum may be written as several.  None if none does."""
    powers = [f for f in factors if f.kind == "app" and f.name == "exp"]
    gates = [f for f in factors if f.kind == "app" and f.name == "sigmoid"]
    groups = [*((power,) for power in powers), *([tuple(powers)] if len(powers) > 1 else [])]
    for gate in dict.fromkeys(gates):
        for group in groups:
            exponent = table.add(*(power.args[0] for power in group))
            for sign in (1, -1):
                if _equal(gate.args[0], exponent, sign):
                    return _Met(gate, group, sign)
    return None


def _equal(one: Term, other: Term, sign: int) -> bool:
    """Whether a term is another one times a sign, as far as their normal forms show."""
    if one is other:
        return sign > 0
    return normal_form(one) == tuple((m, c * sign) for m, c in normal_form(other))


def _may_meet(factor: Term, factors: Sequence[Term]) -> bool:
    """Whether a sum among the factors of a product has what meets another factor."""
    if factor.kind != "add":
        return False
    around = [f for f in factors if f is not factor]
    rest = [*around, *(x for f in around if f.kind == "add" for xs in _functions(f) for x in xs)]
    below = [f.args[0] for f in rest if f.name == "exp"]
    return any(
        _met(factor.table, [*xs, *rest]) is not None
        or any(_equal(x.args[0], b, -1) for x in xs if x.name == "exp" for b in below)
        for xs in _functions(factor)
    )


def _functions(total: Term) -> Iterator[list[Term]]:
    """The functions that are factors of what a sum adds up, addend by addend."""
    for part in total.args:
        factors = flat(part)
        yield [f for f in factors if f.kind == "app"]
        for inner in factors:
            if inner.kind == "add":
                yield from _functions(inner)


def _is_negative(term: Term) -> bool:
    """Whether the first product of a term's normal form has a negative factor."""
    return any(factor < 0 for _, factor in islice(normal_form(term), 1))


def _addends(table: TermTable, scale: Fraction, term: Term) -> Iterator[tuple[Fraction, Term]]:
    """What a sum of sums adds up, each with its factor."""
    factor, core = _split(term)
    if core.value is not None:
        yield scale * factor * core.value, table.one
    elif core.kind != "add":
        yield scale * factor, core
    else:
        for part in core.args:
            yield from _addends(table, scale * factor, part)


def _split(term: Term) -> tuple[Fraction, Term]:
    """The constant factor of a term, and the rest."""
    if term.kind == "mul" and term.args[0].value is not None:
        return term.args[0].value, term.args[1]
    return ONE, term
