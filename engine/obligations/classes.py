"""Equalities that hold because each id names one class: a one-hot of ids adds up to 1 over classes
that all of them are among.

To a solver ``is(id, c)`` is an unknown function.  Where equalities need the law, one of these
functions is written as what the others leave of 1, for each id of which the plan says what it is
among.  It is done only where it is needed, so that all others are what they were.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from fractions import Fraction
from typing import NamedTuple, TypeAlias

from shardproof.engine.algebra.terms import Term, TermTable
from shardproof.engine.algebra.walks import folded, subterms
from shardproof.engine.lineage.expressions import Onehot
from shardproof.engine.obligations.entries import Meaning
from shardproof.engine.obligations.evaluation import Point
from shardproof.engine.obligations.logistic import logistic

Goals: TypeAlias = Sequence[tuple[Term, Term]]
#: The entries of a one-hot at the classes that represent all that an id may name, and how many
#: classes each stands for: so often, they add up to 1.
OneHot: TypeAlias = tuple[tuple[Term, int], ...]


class Counted(NamedTuple):
    """Equalities in which one-hots add up to 1; ``degree``: the most entries of one-hots that are
    multiplied with one another.

    Example: of ``is(v0, 0) + is(v0, 1) == 1``, ``is(v0, 0) + (1 - is(v0, 0)) == 1``, and 1.
    """

    goals: tuple[tuple[Term, Term], ...]
    degree: int


def one_hots(meaning: Meaning, defined: Iterable[int], goals: Goals) -> Iterator[OneHot]:
    """The one-hots of ids in equalities, of which the plan says what they are among, where the
    claim represents these classes and no others of them.

    Example: of ids among 24 classes, of which 0, 1, 12 and 13 stand for all,
    ``is(v0, 0) + 11 * is(v0, 1) + is(v0, 12) + 11 * is(v0, 13)``.
    """
    read = _read(goals)
    for number in sorted(defined):
        definition = meaning.nodes[number].definition
        if not isinstance(definition, Onehot) or definition.factor != 1:
            continue
        among = meaning.nodes.domain(definition.node)
        axis = number, len(meaning.nodes[definition.node].extents)
        kept = None if among is None else meaning.representatives.classes(axis, *among)
        if among is None or kept is None:
            continue
        places = {c for c, _ in kept}
        of_ids = (entry for key, entry in meaning.memo.items() if key[0] == definition.node)
        for ids in dict.fromkeys(e for e in of_ids if e in read):
            if all(c in places for c in read[ids] if among[0] <= c < among[1]):
                table = meaning.terms
                yield tuple((table.app("is", ids, table.const(c)), n) for c, n in kept)


def _read(goals: Goals) -> dict[Term, set[Fraction]]:
    """The classes that ids are compared with, by ids."""
    classes: dict[Term, set[Fraction]] = {}
    for term in subterms(side for goal in goals for side in goal):
        if term.kind == "app" and term.name == "is":
            ids, place = term.args
            if place.value is not None:
                classes.setdefault(ids, set()).add(place.value)
    return classes


def counted(goals: Goals, known: Sequence[OneHot]) -> Counted | None:
    """Equalities in which each of some one-hots adds up to 1; None where that is not needed, or
    where they do not hold even so.

    Example: of ``is(v0, 0) * v1 + is(v0, 1) * v1 == v1``, the same with ``1 - is(v0, 0)`` for
    ``is(v0, 1)``.
    """
    before, after = Point(), Point()
    if not known or all(a is b or before.value(a) == before.value(b) for a, b in goals):
        return None
    written = _Written(goals[0][0].table, known)
    made = tuple((written.of(a), written.of(b)) for a, b in goals)
    holds = all(after.value(a) == after.value(b) for a, b in made)
    if not holds and logistic(goals[0][0].table, made) is None:
        return None
    return Counted(made, max(written.degree(side) for goal in goals for side in goal))


class _Written:
    """Terms in which the last entry of each one-hot is what the others leave of 1."""

    def __init__(self, table: TermTable, known: Sequence[OneHot]) -> None:
        self.table = table
        self._degrees: dict[Term, tuple[int, int]] = {}
        self._entries = {entry for one in known for entry, _ in one}
        self._known: dict[Term, Term] = {one[-1][0]: _rest(table, one) for one in known}

    def of(self, root: Term) -> Term:
        """A term so written."""
        return folded(root, self._known, lambda term: _with(self.table, term, self._known))

    def degree(self, root: Term) -> int:
        """The most entries of one-hots that are multiplied in a term, or in what a function below
        it is taken of."""
        outer, inner = folded(root, self._degrees, self._degree)
        return max(outer, inner)

    def _degree(self, term: Term) -> tuple[int, int]:
        """The most that are multiplied in a term, and in what functions below it are taken of."""
        below = [self._degrees[t] for t in term.args]
        own = [outer for outer, _ in below] or [0]
        inner = max((deep for _, deep in below), default=0)
        match term.kind:
            case "add":
                return max(own), inner
            case "mul":
                return sum(own), inner
            case "app" if term in self._entries:
                return 1, inner
        return 0, max(inner, *own)


def _rest(table: TermTable, one: OneHot) -> Term:
    (_, many) = one[-1]
    others = [table.mul(-n, entry) for entry, n in one[:-1]]
    return table.mul(Fraction(1, many), table.add(1, *others))


def _with(table: TermTable, term: Term, known: Mapping[Term, Term]) -> Term:
    """A term whose arguments are written otherwise."""
    args = [known[t] for t in term.args]
    match term.kind:
        case "add":
            return table.add(*args)
        case "mul":
            return table.mul(*args)
        case "app":
            return table.app(str(term.name), *args)
    return term
