"""Walks over terms: each term once, however often it occurs, and without recursion, for terms are
as deep as the programs that they are made of.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

from shardproof.engine.algebra.terms import Term

T = TypeVar("T")


def subterms(roots: Iterable[Term]) -> Iterator[Term]:
    """Some terms and all that they are made of, each once.

    Example: of ``x * (y + 1)`` it, ``x``, ``y + 1``, ``y`` and ``1``, in an order of no meaning.
    """
    todo, seen = list(roots), set[Term]()
    while todo:
        term = todo.pop()
        if term not in seen:
            seen.add(term)
            todo += term.args
            yield term


def arguments(term: Term) -> tuple[Term, ...]:
    """What a term is made of.

    Example: of ``x * (y + 1)``, ``x`` and ``y + 1``.
    """
    return term.args


def folded(
    root: Term,
    known: dict[Term, T],
    one: Callable[[Term], T],
    below: Callable[[Term], tuple[Term, ...]] = arguments,
) -> T:
    """What is computed of a term from what is computed of those ``below`` it.  ``known`` holds it
    for all terms that it was computed of, and is added to; ``one`` computes it of a term whose
    ``below`` are known.

    Example: how deep a term is, ``folded(term, {}, one)`` where ``one`` is 1 more than the most
    that is known of ``term.args``.
    """
    todo = [root]
    while todo:
        term = todo[-1]
        missing = [] if term in known else [t for t in below(term) if t not in known]
        if missing:
            todo += missing
            continue
        if term not in known:
            known[term] = one(term)
        todo.pop()
    return known[root]
