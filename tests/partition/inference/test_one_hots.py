"""Sums over all classes that ids are among: of a one-hot they are what is left without it."""

from __future__ import annotations

from fractions import Fraction

import pytest

from shardproof.engine.algebra.affine import ZERO
from shardproof.engine.lineage.expressions import Input
from shardproof.engine.lineage.lineage import Addend, Lineage, StridedInterval, View
from shardproof.engine.lineage.nodes import NodeTable
from shardproof.partition.inference.interpreter import LineageInterpreter


def whole(table: NodeTable, name: str, *shape: int) -> Lineage:
    dims = tuple((StridedInterval(axis, 1, n, ZERO, n),) for axis, n in enumerate(shape))
    return Lineage(shape, (Addend(Fraction(1), table.define(Input(name), shape), View(dims)),))


@pytest.mark.parametrize(
    ("domain", "number"),
    [((0, 6), 4), ((0, 5), 4), ((0, 7), None), ((-1, 6), None), (None, None)],
    ids=["all classes", "fewer", "one more", "a mark", "unknown"],
)
def test_how_often_classes_are_named(domain: tuple[int, int] | None, number: int | None) -> None:
    """The sum over classes of how often each is named is how many ids there are."""
    table = NodeTable()
    table.domains = {} if domain is None else {"y": domain}
    read = LineageInterpreter(table)
    counts = read.einsum("tv->v", read.onehot(whole(table, "y", 4), ZERO, 6))
    (total,) = read.einsum("v->", counts).addends
    assert (total.node == table.one) is (number is not None)
    assert number is None or total.factor == number


@pytest.mark.parametrize("fewer", [0, 1])
def test_what_is_multiplied_by_a_one_hot(fewer: int) -> None:
    table = NodeTable()
    table.domains = {"y": (0, 6)}
    read = LineageInterpreter(table)
    x, hot = whole(table, "x", 4), read.onehot(whole(table, "y", 4), ZERO, 6 - fewer)
    product = read.einsum("t,tv->tv", x, hot)
    assert (read.einsum("tv->t", product) == x) is (not fewer)
    assert (read.einsum("tv->", product) == read.einsum("t->", x)) is (not fewer)
