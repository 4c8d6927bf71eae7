"""Walks over terms see each term once, and arguments before what they are in."""

from __future__ import annotations

from shardproof.engine.algebra.terms import Term, TermTable
from shardproof.engine.algebra.walks import folded, subterms


def _tower(table: TermTable, floors: int) -> Term:
    """A sum of a term and itself, that of itself, and so on: 2 to the ``floors`` as a tree."""
    term = table.symbol("x")
    for _ in range(floors):
        term = table.add(term, term)
    return term


def test_terms_are_seen_once_however_often_they_occur() -> None:
    table = TermTable()
    x, y = table.symbol("x"), table.symbol("y")
    seen = list(subterms([x * (y + 1), y + 1]))
    assert sorted(map(repr, seen)) == sorted(map(repr, {x * (y + 1), x, y + 1, y, table.one}))
    assert len(list(subterms([_tower(table, 5_000)]))) == 5_001


def test_what_is_computed_of_a_term_follows_from_its_arguments() -> None:
    table, made = TermTable(), list[Term]()
    depths: dict[Term, int] = {}

    def depth(term: Term) -> int:
        made.append(term)
        return 1 + max((depths[t] for t in term.args), default=0)

    top = _tower(table, 5_000)
    assert folded(top, depths, depth) == 5_001
    assert folded(table.add(top, 1), depths, depth) == 5_002
    assert len(made) == len(set(made)) == 5_003


def test_a_walk_ends_at_what_is_known_and_at_what_has_nothing_below() -> None:
    table = TermTable()
    x, y = table.symbol("x"), table.symbol("y")
    hidden = table.app("exp", x)
    known = {hidden: 7}
    assert folded(hidden, known, lambda _: 0) == 7
    assert folded(hidden + y, known, lambda t: sum(known.get(a, 0) for a in t.args)) == 7
    assert x not in known
    whole = dict[Term, int]()
    folded(hidden + y, whole, lambda _: 1, lambda t: () if t is hidden else t.args)
    assert set(whole) == {hidden + y, hidden, y}
