"""One-hots add up to 1 over all that their ids are among, and over nothing less."""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction
from itertools import product

import pytest

from shardproof.engine.algebra.affine import Affine
from shardproof.engine.algebra.terms import Term, TermTable
from shardproof.engine.claims.claim import Claim
from shardproof.engine.lineage.expressions import Einsum, Input, Onehot, Operand
from shardproof.engine.lineage.lineage import ABSOLUTE, Addend, Lineage, StridedInterval, View
from shardproof.engine.lineage.nodes import NodeTable
from shardproof.engine.lineage.views import constant_interval
from shardproof.engine.obligations.classes import counted
from shardproof.engine.obligations.obligation import build
from shardproof.solvers import Portfolio, Query

IDS, CLASSES = 4, 12


@pytest.fixture(scope="module")
def solver() -> Iterator[Portfolio]:
    with Portfolio("z3", timeout=30) as portfolio:
        yield portfolio


def interval(axis: int, size: int, extent: int, start: int = 0) -> tuple[StridedInterval, ...]:
    return (StridedInterval(axis, 1, extent, Affine(start), size),)


def row_sums(nodes: NodeTable, start: int, size: int, factor: Fraction) -> Claim:
    """That the classes from ``start`` on of a one-hot add up to a number for each id."""
    ids = nodes.define(Input("y"), (IDS,))
    hot = nodes.define(Onehot(Fraction(1), ids), (IDS, ABSOLUTE))
    view = View((interval(0, IDS, IDS), interval(1, size, ABSOLUTE, start)))
    given = Lineage((IDS, size), (Addend(Fraction(1), hot, view),))
    total = Addend(factor, nodes.one, View(((constant_interval(IDS),),)))
    return Claim(
        "op", "sum", {"dim": (1,)}, False, (), 1, (given,), (Lineage((IDS,), (total,)),), {}
    )


@pytest.mark.parametrize(
    ("domain", "start", "size", "factor", "expected"),
    [
        ((0, CLASSES), 0, CLASSES, 1, "unsat"),
        ((0, CLASSES), 0, CLASSES, 2, "sat"),
        ((0, CLASSES), 0, CLASSES - 1, 1, "sat"),
        ((0, CLASSES), 1, CLASSES - 1, 1, "sat"),
        ((-1, CLASSES), 0, CLASSES, 1, "sat"),
        ((0, CLASSES + 1), 0, CLASSES, 1, "sat"),
        ((3, CLASSES), 3, CLASSES - 3, 1, "unsat"),
        (None, 0, CLASSES, 1, "sat"),
    ],
    ids=["all", "twice", "not the last", "not the first", "a mark", "one more", "some", "unknown"],
)
def test_a_sum_over_classes(
    solver: Portfolio,
    domain: tuple[int, int] | None,
    start: int,
    size: int,
    factor: int,
    expected: str,
) -> None:
    nodes = NodeTable()
    nodes.domains = {} if domain is None else {"y": domain}
    claim = row_sums(nodes, start, size, Fraction(factor))
    goals = build(nodes, claim, widened=frozenset({2})).goals
    assert solver.solve(Query.of("", goals)).verdict == expected


@pytest.mark.parametrize(("less", "expected"), [(1, "unsat"), (2, "sat")])
def test_what_does_not_vary_along_classes(solver: Portfolio, less: int, expected: str) -> None:
    """What a class is chosen of, less a number for each id, is what is chosen less that number."""
    nodes = NodeTable()
    nodes.domains = {"y": (0, CLASSES)}
    ids = nodes.define(Input("y"), (IDS,))
    scores = nodes.define(Input("s"), (IDS, CLASSES))
    largest = nodes.define(Input("m"), (IDS,))
    hot = nodes.define(Onehot(Fraction(1), ids), (IDS, ABSOLUTE))
    read = ((0, 1, IDS, 0), (1, 1, CLASSES, 1))
    picked = nodes.define(Einsum((Operand(hot, read), Operand(scores, read)), (0,)), (IDS,))
    both = interval(0, IDS, IDS), interval(1, CLASSES, CLASSES)
    of_ids = View((interval(0, IDS, IDS),))
    spread = View((interval(0, IDS, IDS), (constant_interval(CLASSES),)))
    one = View((interval(0, IDS, IDS), interval(1, CLASSES, ABSOLUTE)))
    table = (Addend(Fraction(1), scores, View(both)), Addend(Fraction(-1), largest, spread))
    claimed = (Addend(Fraction(1), picked, of_ids), Addend(Fraction(-less), largest, of_ids))
    claim = Claim(
        "op",
        "einsum",
        {"equation": "ab,ab->a"},
        False,
        (),
        1,
        (Lineage((IDS, CLASSES), (Addend(Fraction(1), hot, one),)), Lineage((IDS, CLASSES), table)),
        (Lineage((IDS,), claimed),),
        {},
    )
    goals = build(nodes, claim, widened=frozenset({hot})).goals
    assert solver.solve(Query.of("", goals)).verdict == expected


def value(term: Term, ids: dict[str, int], x: Fraction) -> Fraction:
    """What a term is where symbols are ids, or ``x``."""
    inner = [] if term.name == "is" else [value(t, ids, x) for t in term.args]
    match term.kind:
        case "const":
            assert term.value is not None
            return term.value
        case "symbol":
            return x
        case "add":
            return sum(inner, start=Fraction(0))
        case "mul":
            return inner[0] * value_of(inner[1:])
    assert term.name == "is"
    return Fraction(ids[str(term.args[0].name)] == term.args[1].value)


def value_of(factors: list[Fraction]) -> Fraction:
    result = Fraction(1)
    for factor in factors:
        result *= factor
    return result


def test_terms_have_the_values_that_they_had() -> None:
    table = TermTable()
    names = [table.symbol("y"), table.symbol("z")]
    x = table.symbol("x")
    hots = [tuple((table.app("is", n, table.const(c)), 1) for c in range(3)) for n in names]
    (first, second) = ([entry for entry, _ in hot] for hot in hots)
    goals = [
        (table.add(*(e * x for e in first)), x),
        (table.add(*(a * b for a in first for b in second)), table.one),
        (table.add(*second) * first[2], first[2]),
    ]
    made = counted(goals, hots)
    assert made is not None
    assert made.degree == 2
    for own in product(range(3), repeat=2):
        at = dict(zip("yz", own, strict=True))
        for before, after in zip(goals, made.goals, strict=True):
            for one, other in zip(before, after, strict=True):
                assert value(one, at, Fraction(5)) == value(other, at, Fraction(5))
    assert counted([(first[0], second[0])], hots) is None
    assert counted([(first[0], first[0])], hots) is None
