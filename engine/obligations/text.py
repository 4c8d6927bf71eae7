"""Obligations as text: what their symbols stand for, and the equalities, shared terms named once.

Example::

    v0 = n1[0, 0]
    v1 = n2[0, 0]
    t0 = v0 * v1
    t0 + 3 * t0 == 4 * t0
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from shardproof.engine.algebra.terms import Term
from shardproof.engine.lineage.lineage import PartialRange
from shardproof.engine.obligations.obligation import Obligation


def obligation_text(obligation: Obligation) -> str:
    """An obligation, a line for each symbol, shared term and goal.

    Example: the lines ``v0 = n1[0, 0]`` and ``t0 + 3 * t0 == 4 * t0`` of the module's text.
    """
    return "\n".join(_lines(obligation)) + "\n"


def _lines(obligation: Obligation) -> Iterator[str]:
    for name, key in obligation.symbols.items():
        yield f"{name} = {_symbol(key)}"
    order: list[Term] = []
    uses: Counter[Term] = Counter()
    for goal in obligation.goals:
        for side in goal:
            _count(side, uses, order)
    names: dict[Term, str] = {}
    for term in order:
        if uses[term] > 1 and term.args:
            text = _text(term, names)
            names[term] = f"t{len(names)}"
            yield f"{names[term]} = {text}"
    for left, right in obligation.goals:
        yield f"{_text(left, names)} == {_text(right, names)}"


def _symbol(key: tuple[object, ...]) -> str:
    """An entry of a node, or of its partial sum: (node, index, parts)."""
    node, index, *parts = key
    place = ", ".join(map(str, index)) if isinstance(index, tuple) else str(index)
    ranges = ", ".join(str(part) for part in parts if isinstance(part, PartialRange))
    return f"n{node}[{place}]{f' part {ranges}' if ranges else ''}"


def _count(root: Term, uses: Counter[Term], order: list[Term]) -> None:
    """How often each term is used; arguments come before what they are in."""
    todo: list[tuple[Term, bool]] = [(root, False)]
    while todo:
        term, done = todo.pop()
        if done:
            order.append(term)
            continue
        uses[term] += 1
        if uses[term] == 1:
            todo.append((term, True))
            todo.extend((argument, False) for argument in reversed(term.args))


def _text(term: Term, names: dict[Term, str]) -> str:
    if term in names:
        return names[term]
    if term.kind == "const":
        return str(term.value)
    if term.kind == "symbol":
        return str(term.name)
    inner = [_text(argument, names) for argument in term.args]
    if term.kind == "add":
        return " + ".join(inner)
    if term.kind == "mul":
        sums = [a.kind == "add" and a not in names for a in term.args]
        return " * ".join(f"({t})" if s else t for t, s in zip(inner, sums, strict=True))
    return f"{term.name}({', '.join(inner)})"
