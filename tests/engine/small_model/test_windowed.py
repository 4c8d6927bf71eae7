"""Claims over windows of one axis that overlap, each taken for a tensor of its own."""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction

import numpy as np
import pytest

from shardproof.engine.algebra.affine import affine
from shardproof.engine.claims.claim import Claim
from shardproof.engine.lineage.blocks import Block
from shardproof.engine.lineage.expressions import Combine, Einsum, Input, Operand, Restrict
from shardproof.engine.lineage.lineage import (
    Addend,
    Lineage,
    PartialRange,
    Place,
    StridedInterval,
    View,
)
from shardproof.engine.lineage.nodes import NodeTable, Reduction
from shardproof.engine.obligations.obligation import build
from shardproof.engine.small_model.windowed import FIRST
from shardproof.solvers import Portfolio, Query

#: Positions of the axis, more than are ever kept whole, and of a window.
LONG, SIZE = 5000, 4000


@pytest.fixture(scope="module")
def solver() -> Iterator[Portfolio]:
    with Portfolio("z3", timeout=30) as portfolio:
        yield portfolio


def verdict(solver: Portfolio, nodes: NodeTable, claim: Claim) -> str:
    return solver.solve(Query.of("", build(nodes, claim).goals)).verdict


def window(node: int, start: int, size: int = SIZE, full: int = LONG, factor: int = 1) -> Addend:
    """``factor`` times the positions [start, start + size) of a node of one axis."""
    dim = (StridedInterval(0, 1, full, affine(start), size),)
    return Addend(Fraction(factor), node, View((dim,)))


def block(nodes: NodeTable, node: int, start: int) -> int:
    return nodes.define(Restrict(node, (Block(0, start, SIZE, LONG),)), (SIZE,))


def sum_of(nodes: NodeTable, *parts: tuple[int, int]) -> int:
    """The sum of factors times nodes of SIZE positions."""
    reads = tuple(Operand(node, ((0, 1, SIZE, 0),)) for _, node in parts)
    return nodes.define(Combine(tuple(Fraction(f) for f, _ in parts), reads, (0,)), (SIZE,))


def total(claimed: Addend, *given: Addend, size: int = SIZE) -> Claim:
    inputs = tuple(Lineage((size,), (addend,)) for addend in given)
    return Claim("op", "add", {}, False, (), 1, inputs, (Lineage((size,), (claimed,)),), {})


def test_two_windows_are_added(solver: Portfolio) -> None:
    nodes = NodeTable()
    x = nodes.define(Input("x"), (LONG,))
    added = sum_of(nodes, (1, block(nodes, x, 0)), (1, block(nodes, x, 1)))
    claimed = window(added, 0, full=SIZE)
    assert verdict(solver, nodes, total(claimed, window(x, 0), window(x, 1))) == "unsat"
    assert verdict(solver, nodes, total(claimed, window(x, 0), window(x, 2))) == "sat"
    assert verdict(solver, nodes, total(claimed, window(x, 1), window(x, 1))) == "sat"
    # A part of it begins at the same place of both.
    part = window(added, 7, 3000, SIZE)
    right = total(part, window(x, 7, 3000), window(x, 8, 3000), size=3000)
    wrong = total(part, window(x, 7, 3000), window(x, 7, 3000), size=3000)
    assert verdict(solver, nodes, right) == "unsat"
    assert verdict(solver, nodes, wrong) == "sat"


def test_windows_are_read_as_windows() -> None:
    nodes = NodeTable()
    x = nodes.define(Input("x"), (LONG,))
    added = sum_of(nodes, (1, block(nodes, x, 0)), (1, block(nodes, x, 1)))
    obligation = build(nodes, total(window(added, 0, full=SIZE), window(x, 0), window(x, 1)))
    places = [key[1] for key in obligation.symbols.values()]
    assert len(places) == 4
    assert all(isinstance(p, tuple) and p[0] >= FIRST for p in places)


@pytest.mark.parametrize("seed", range(30))
def test_what_is_proved_is_true(solver: Portfolio, seed: int) -> None:
    """Random sums of two windows, claimed to be random sums of blocks: what is proved is so, in
    numbers at all positions."""
    rng = np.random.default_rng(seed)
    nodes = NodeTable()
    x, y = (nodes.define(Input(n), (LONG,)) for n in "xy")
    numbers = {x: rng.normal(size=LONG), y: rng.normal(size=LONG)}
    given = [(int(rng.choice([x, y])), int(rng.integers(0, 3))) for _ in range(2)]
    own = given if rng.integers(0, 2) else [(node, int(rng.integers(0, 3))) for node, _ in given]
    order = [own[int(i)] for i in rng.permutation(2)]
    factor = int(rng.integers(1, 3))
    added = sum_of(nodes, *((factor, block(nodes, node, start)) for node, start in order))
    claim = total(window(added, 0, full=SIZE), *(window(n, s, factor=factor) for n, s in given))

    def value(parts: list[tuple[int, int]]) -> np.ndarray:
        return sum((numbers[n][s : s + SIZE] for n, s in parts), np.zeros(SIZE))

    equal = np.allclose(value(given), value(order))
    assert verdict(solver, nodes, claim) == ("unsat" if equal else "sat")


def test_parts_of_a_sum_over_windows(solver: Portfolio) -> None:
    """sum over i of g[i] x[i + 2], in two parts: the second begins where the first ends."""
    nodes = NodeTable()
    x, g = nodes.define(Input("x"), (LONG,)), nodes.define(Input("g"), (SIZE,))
    moved = block(nodes, x, 2)
    product = nodes.define(
        Einsum((Operand(g, ((0, 1, SIZE, 0),)), Operand(moved, ((0, 1, SIZE, 0),))), ()), ()
    )
    reduction = nodes.reduction(Reduction("sum", product, 0))

    def part(start: int, size: int, at: int) -> Claim:
        inputs = [window(g, start, size, SIZE), window(x, at, size)]
        own = (PartialRange(reduction, affine(start), size, SIZE),)
        claimed = Addend(Fraction(1), product, View(()), own)
        given = tuple(Lineage((size,), (t,)) for t in inputs)
        attrs = {"equation": "i,i->"}
        return Claim("op", "einsum", attrs, False, (), 1, given, (Lineage((), (claimed,)),), {})

    for start, size in ((0, 1500), (1500, 2500)):
        assert verdict(solver, nodes, part(start, size, start + 2)) == "unsat"
        assert verdict(solver, nodes, part(start, size, start + 1)) == "sat"


def test_regions_of_windows(solver: Portfolio) -> None:
    """Zeros before a window that is joined: by regions, each of which is a window."""
    nodes = NodeTable()
    x = nodes.define(Input("x"), (LONG,))
    place = Place(0, 1, LONG - 1, LONG)
    behind = window(x, 0, LONG - 1)._replace(places=(place,))
    first = nodes.define(Restrict(x, (Block(0, 0, LONG - 1, LONG),)), (LONG - 1,))
    second = nodes.define(Restrict(x, (Block(0, 1, LONG - 1, LONG),)), (LONG - 1,))
    reads = tuple(Operand(n, ((0, 1, LONG - 1, 0),)) for n in (first, second))
    both = nodes.define(Combine((Fraction(1), Fraction(1)), reads, (0,)), (LONG - 1,))
    beginning = Place(0, 0, 1, LONG)
    for at, expected in ((0, "unsat"), (1, "sat")):
        alone = window(x, at, 1)._replace(places=(beginning,))
        rest = window(both, 0, LONG - 1, LONG - 1)._replace(places=(place,))
        inputs = (Lineage((LONG,), (behind,)), Lineage((LONG,), (window(x, 0, LONG),)))
        outputs = (Lineage((LONG,), (alone, rest)),)
        claim = Claim("op", "add", {}, False, (), 1, inputs, outputs, {})
        assert verdict(solver, nodes, claim) == expected
