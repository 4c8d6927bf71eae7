"""Equalities that hold only because ``S * 1/S`` is 1, times all that they are divided by.

``sum(e g) / S - S sum(e g) / S^2`` is zero where ``S`` is not.  As ``1/S`` is an unknown function
of ``S`` to a solver, such an equality is stated times ``S^2``, which is not zero: then it is one
between polynomials.  It is done only where it is needed, so that all others are what they were.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from shardproof.engine.algebra.terms import Term, TermTable
from shardproof.engine.algebra.walks import folded
from shardproof.engine.obligations.evaluation import Point

#: Factors that a term may be divided by.
MOST_FACTORS = 12


class Cleared(NamedTuple):
    """Equalities without what they were divided by: the most factors that either side of one was
    multiplied by, and the most different ones.

    Example: of ``sum(e) / S == 1``, ``sum(e) == S``, one factor.
    """

    goals: tuple[tuple[Term, Term], ...]
    factors: int
    different: int


class _Fraction(NamedTuple):
    above: Term
    below: Counter[Term]


class _TooManyFactors(Exception):
    """A term is divided by more than is worth stating."""


def cleared(table: TermTable, goals: Sequence[tuple[Term, Term]]) -> Cleared | None:
    """Some equalities, those that need it times all that they are divided by; None where none does,
    or where they do not hold even so.

    Example: of ``inv(v0 + v1) * v0 + inv(v0 + v1) * v1 == 1``, ``v0 + v1 == v0 + v1``.
    """
    letters, exact = Point(inverses=False), Point()
    needs = [a is not b and letters.value(a) != letters.value(b) for a, b in goals]
    if not any(needs) or any(exact.value(a) != exact.value(b) for a, b in goals):
        return None
    clearing = _Clearing(table)
    result: list[tuple[Term, Term]] = []
    most = different = 0
    try:
        for (a, b), need in zip(goals, needs, strict=True):
            if not need:
                result.append((a, b))
                continue
            left, right = clearing.fraction(a), clearing.fraction(b)
            common = left.below | right.below
            most = max(most, common.total())
            different = max(different, len(common))
            result.append((clearing.times(left, common), clearing.times(right, common)))
    except _TooManyFactors:
        return None
    return Cleared(tuple(result), most, different) if most else None


class _Clearing:
    """Terms as fractions.  What is an argument of a function stays as it is; so does ``1/S`` where
    something is divided in ``S`` itself."""

    def __init__(self, table: TermTable) -> None:
        self.table = table
        self._known: dict[Term, _Fraction] = {}

    def fraction(self, root: Term) -> _Fraction:
        """A term as one fraction.

        Example: ``x * inv(y) + z`` is ``x + z * y``, divided by ``y``.
        """
        return folded(root, self._known, self._one, _divided)

    def _one(self, term: Term) -> _Fraction:
        match term.kind:
            case "add":
                parts = [self._known[t] for t in term.args]
                below = _most(p.below for p in parts)
                above = self.table.add(*(self.times(p, below) for p in parts))
            case "mul":
                parts = [self._known[t] for t in term.args]
                below = Counter(x for p in parts for x in p.below.elements())
                above = self.table.mul(*(p.above for p in parts))
            case "app" if term.name == "inv" and not self._known[term.args[0]].below:
                above, below = self.table.one, Counter(term.args)
            case _:
                above, below = term, Counter[Term]()
        if below.total() > MOST_FACTORS:
            raise _TooManyFactors
        return _Fraction(above, below)

    def times(self, part: _Fraction, common: Counter[Term]) -> Term:
        """A fraction times all of ``common``, which it is divided by part of.

        Example: ``x`` divided by ``y``, times ``y`` twice, is ``x * y``.
        """
        return self.table.mul(part.above, *(common - part.below).elements())


def _divided(term: Term) -> tuple[Term, ...]:
    """What a fraction that a term is follows from."""
    return term.args if term.kind in ("add", "mul") or term.name == "inv" else ()


def _most(counts: Iterable[Counter[Term]]) -> Counter[Term]:
    most = Counter[Term]()
    for count in counts:
        most |= count
    return most
