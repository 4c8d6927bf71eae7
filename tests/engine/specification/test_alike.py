"""Sums of all entries of sums, which are the sums of what these add up, and what is none such."""

from __future__ import annotations

from fractions import Fraction

import pytest

from shardproof.engine.algebra.affine import Affine
from shardproof.engine.lineage.expressions import Causal, Combine, Einsum, Input, Operand
from shardproof.engine.lineage.lineage import Addend, Lineage, View
from shardproof.engine.lineage.nodes import NodeTable
from shardproof.engine.specification.alike import same_number

ONE, TWO = Fraction(1), Fraction(2)
ONES, BOTH = ((0, 1, 4, 0),), ((0, 1, 4, 0), (1, 1, 4, 1))
WIDE = ((0, 1, 4, 0), (1, 1, 3, 1))


def number(*terms: tuple[int, int]) -> Lineage:
    """Numbers of nodes, each as often as is said."""
    return Lineage((), tuple(Addend(Fraction(often), node, View(())) for node, often in terms))


def column(node: int, at: int) -> Operand:
    return Operand(node, ONES, ((1, 1, 3, Affine(at)),))


def total(nodes: NodeTable, operand: Operand) -> int:
    return nodes.define(Einsum((operand,), ()))


@pytest.mark.parametrize(("often", "alike"), [(2, True), (1, False), (3, False)])
@pytest.mark.parametrize("other", [1, 2])
def test_columns_add_up_by_themselves(often: int, alike: bool, other: int) -> None:
    nodes = NodeTable()
    x = nodes.define(Input("x"), (4, 3))
    first, second = (total(nodes, column(x, n)) for n in (0, 1))
    each = nodes.define(Combine((ONE, TWO), (column(x, 0), column(x, other)), (0,)), (4,))
    have = number((total(nodes, Operand(each, ONES)), 1))
    expected = alike and other == 1
    assert same_number(nodes, have, number((first, 1), (second, often))) is expected


@pytest.mark.parametrize(("often", "alike"), [(3, True), (1, False), (4, False)])
def test_what_does_not_vary_counts_as_often_as_there_are_positions(often: int, alike: bool) -> None:
    nodes = NodeTable()
    x, y = nodes.define(Input("x"), (4, 3)), nodes.define(Input("y"), (4,))
    own, of_rows = total(nodes, Operand(x, WIDE)), total(nodes, Operand(y, ONES))
    operands = (Operand(x, WIDE), Operand(y, ONES))
    each = nodes.define(Combine((ONE, ONE), operands, (0, 1)), (4, 3))
    have = number((total(nodes, Operand(each, WIDE)), 1))
    assert same_number(nodes, have, number((own, 1), (of_rows, often))) is alike


@pytest.mark.parametrize("nested", [False, True])
@pytest.mark.parametrize("along", [0, 1])
def test_sums_of_rows_are_sums_of_all_entries(along: int, nested: bool) -> None:
    nodes = NodeTable()
    every, diagonal = ((0, 1, 4, 0), (1, 1, 4, 1)), ((0, 1, 4, 0), (1, 1, 4, 0))
    x, y = (nodes.define(Input(name), (4, 4)) for name in "xy")
    rows = [nodes.define(Einsum((Operand(n, every),), (along,)), (4,)) for n in (x, y)]
    operands = (Operand(rows[0], ONES), Operand(rows[1], ONES))
    each = nodes.define(Combine((ONE, TWO), operands, (0,)), (4,))
    if nested:
        outer = (Operand(each, ONES), Operand(rows[0], ONES))
        each = nodes.define(Combine((ONE, TWO), outer, (0,)), (4,))
    have = number((total(nodes, Operand(each, ONES)), 1))
    own, beside = (total(nodes, Operand(n, every)) for n in (x, y))
    often = 3 if nested else 1
    assert same_number(nodes, have, number((own, often), (beside, 2)))
    assert not same_number(nodes, have, number((own, often + 1), (beside, 2)))
    other = total(nodes, Operand(x, diagonal))
    assert not same_number(nodes, have, number((other, often), (beside, 2)))


def test_entries_of_one_axis_twice_are_not_all() -> None:
    nodes = NodeTable()
    x, y = nodes.define(Input("x"), (4, 4)), nodes.define(Input("y"), (4,))
    diagonal = ((0, 1, 4, 0), (1, 1, 4, 0))
    inner = nodes.define(Combine((ONE,), (Operand(x, BOTH),), (0, 1)), (4, 4))
    operands = (Operand(inner, diagonal), Operand(y, ONES))
    each = nodes.define(Combine((ONE, ONE), operands, (0,)), (4,))
    of_x, of_y = total(nodes, Operand(x, BOTH)), total(nodes, Operand(y, ONES))
    have = number((total(nodes, Operand(each, ONES)), 1))
    assert not same_number(nodes, have, number((of_x, 1), (of_y, 1)))


def test_scores_that_a_mask_hides_are_no_such_sums() -> None:
    nodes = NodeTable()
    x, hidden = nodes.define(Input("x"), (4, 4)), nodes.define(Causal(), (0, 0))
    reads = (Operand(x, BOTH), Operand(hidden, BOTH))
    each = nodes.define(Combine((ONE, ONE), reads, (0, 1)), (4, 4))
    own, other = (total(nodes, read) for read in reads)
    have = number((total(nodes, Operand(each, BOTH)), 1))
    assert not same_number(nodes, have, number((own, 1), (other, 1)))
