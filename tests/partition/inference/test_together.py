"""Sums of what ranks made of one addend each, as what the single device makes of the sum."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

import pytest

from shardproof.engine.algebra.affine import ZERO
from shardproof.engine.lineage.expressions import Input
from shardproof.engine.lineage.joining import permuted
from shardproof.engine.lineage.lineage import Addend, Lineage, StridedInterval, View
from shardproof.engine.lineage.nodes import NodeTable
from shardproof.partition.inference.interpreter import LineageInterpreter

ROWS, CHOICES, WIDTH = 4, 3, 5
ONE = Fraction(1)


class Router:
    """The backward of a router: of softmaxes, and of the product with its matrix."""

    def __init__(self) -> None:
        self.nodes = NodeTable()
        self.single = LineageInterpreter(self.nodes)
        self.weights = self.input("weights", (ROWS, CHOICES))
        self.matrix = self.input("matrix", (CHOICES, WIDTH))
        self.given = [self.input(f"given {i}", (ROWS, CHOICES)) for i in range(3)]

    def input(self, name: str, shape: Sequence[int]) -> Lineage:
        number = self.nodes.define(Input(name), tuple(shape))
        dims = tuple((StridedInterval(i, 1, n, ZERO, n),) for i, n in enumerate(shape))
        return Lineage(tuple(shape), (Addend(ONE, number, View(dims)),))

    def backward(self, r: LineageInterpreter, gradient: Lineage, matrix: Lineage) -> Lineage:
        """What becomes of a gradient: linear in it."""
        for _ in range(3):
            moved = r.einsum("ac,ac->ac", self.weights, gradient)
            total = r.einsum("ac,a->ac", self.weights, r.einsum("ac->a", moved))
            gradient = r.combine([moved, total], [ONE, -ONE], Fraction(0))
        return r.einsum("ac,cw->aw", gradient, matrix)

    def of_sum(self) -> Lineage:
        """What the single device makes of the sum of all that is given, added up one by one."""
        first, *others = self.given
        for other in others:
            first = self.single.combine([first, other], [ONE, ONE], Fraction(0))
        return self.backward(self.single, first, self.matrix)


@pytest.mark.parametrize("factor", [ONE, Fraction(-1, 2)])
def test_a_sum_of_what_ranks_made_is_made_of_the_sum(factor: Fraction) -> None:
    router = Router()
    expected = router.of_sum()
    ranks = LineageInterpreter(router.nodes, len(router.nodes))
    each = [router.backward(ranks, g, router.matrix) for g in router.given]
    assert ranks.combine(each, [factor] * 3, Fraction(0)) == Lineage(
        expected.shape, tuple(t._replace(factor=factor * t.factor) for t in expected.addends)
    )
    assert ranks.opened


def test_what_is_added_up_may_have_its_axes_in_another_order(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # In a large plan nothing is multiplied out any more when it comes to this.
    monkeypatch.setattr("shardproof.partition.inference.match.MOST_WORK", -1)
    router = Router()
    router.given[1:] = [permuted(router.input("turned", (CHOICES, ROWS)), (1, 0))]
    expected = router.of_sum()
    ranks = LineageInterpreter(router.nodes, len(router.nodes))
    each = [router.backward(ranks, g, router.matrix) for g in router.given]
    assert ranks.combine(each, [ONE] * 2, Fraction(0)) == expected


@pytest.mark.parametrize("fault", ["one twice", "one left out", "another matrix", "another factor"])
def test_another_sum_is_not(fault: str) -> None:
    router = Router()
    expected = router.of_sum()
    other = router.input("another matrix", (CHOICES, WIDTH))
    ranks = LineageInterpreter(router.nodes, len(router.nodes))
    matrices = [router.matrix] * 2 + [other if fault == "another matrix" else router.matrix]
    each = [router.backward(ranks, g, m) for g, m in zip(router.given, matrices, strict=True)]
    if fault == "one twice":
        each[2] = each[1]
    if fault == "one left out":
        each = each[:2]
    factors = [ONE] * len(each)
    if fault == "another factor":
        factors[0] = Fraction(2)
    made = ranks.combine(each, factors, Fraction(0))
    assert all(t.node not in {e.node for e in expected.addends} for t in made.addends)
