"""Sums and products at positions beside each other, as the single device has them."""

from __future__ import annotations

from fractions import Fraction

import pytest

from shardproof.engine.algebra.affine import affine
from shardproof.engine.lineage.blocks import Block
from shardproof.engine.lineage.expressions import Causal, Combine, Einsum, Input, Operand, Restrict
from shardproof.engine.lineage.joining import joined
from shardproof.engine.lineage.lineage import (
    ABSOLUTE,
    Addend,
    Lineage,
    Place,
    StridedInterval,
    View,
)
from shardproof.engine.lineage.nodes import NodeTable
from shardproof.partition.inference.interpreter import LineageInterpreter
from shardproof.partition.inference.shared_blocks import SharedBlocks
from shardproof.partition.inference.stencils import Stencils

LONG, SIZE = 16, 14


def at(node: int, start: int, size: int = 1, full: int = LONG, factor: int = 1) -> Addend:
    interval = StridedInterval(0, 1, full, affine(start), size)
    view = View((), (interval,)) if size == 1 else View(((interval,),))
    return Addend(Fraction(factor), node, view)


def combined(nodes: NodeTable, *parts: tuple[int, int, int]) -> int:
    """The sum of factors times blocks of nodes, SIZE positions from a start on."""
    reads = []
    for _, node, start in parts:
        block = nodes.define(Restrict(node, (Block(0, start, SIZE, LONG),)), (SIZE,))
        reads.append(Operand(block, ((0, 1, SIZE, 0),)))
    factors = tuple(Fraction(f) for f, _, _ in parts)
    return nodes.define(Combine(factors, tuple(reads), (0,)), (SIZE,))


def test_addends_that_ranks_added_up_first_are_taken_apart() -> None:
    nodes = NodeTable()
    taps = [nodes.define(Input(name), (LONG,)) for name in "abc"]
    whole = combined(nodes, *((1, tap, 2 - place) for place, tap in enumerate(taps)))
    size = len(nodes)
    reads = tuple(Operand(tap, ((0, 1, LONG, axis),)) for axis, tap in enumerate(taps[1:]))
    own = nodes.define(Combine((Fraction(1), Fraction(1)), reads, (0, 1)), (LONG, LONG))
    singles = [StridedInterval(axis, 1, LONG, affine(6 - axis), 1) for axis in (0, 1)]
    behind = Addend(Fraction(3), own, View((), tuple(singles)))
    made = Stencils(nodes, size).of([at(taps[0], 7, factor=3), behind])
    assert made is not None
    assert made[0] == at(whole, 5, full=SIZE, factor=3)
    assert made[1] >= {own, whole}
    for wrong in (at(taps[0], 8, factor=3), at(taps[0], 7), at(taps[1], 7, factor=3)):
        assert Stencils(nodes, size).of([wrong, behind]) is None


def test_positions_outside_of_a_sum_are_none_of_it() -> None:
    nodes = NodeTable()
    x = nodes.define(Input("x"), (LONG,))
    whole = combined(nodes, (1, x, 0), (1, x, 1))
    stencils = Stencils(nodes, len(nodes))
    assert stencils.of([at(x, 3, 4), at(x, 4, 4)]) == (at(whole, 3, 4, SIZE), {whole})
    assert stencils.of([at(x, 12, 3), at(x, 13, 3)]) is None
    assert stencils.of([at(x, 3, 4), at(x, 5, 4)]) is None


def test_one_row_is_a_row_of_the_blocks_that_are_multiplied() -> None:
    nodes = NodeTable()
    x, g = nodes.define(Input("x"), (LONG,)), nodes.define(Input("g"), (SIZE,))
    block = nodes.define(Restrict(x, (Block(0, 2, SIZE, LONG),)), (SIZE,))
    reads = (Operand(g, ((0, 1, SIZE, 0),)), Operand(block, ((0, 1, SIZE, 0),)))
    nodes.define(Einsum(reads, ()), ())
    blocks = SharedBlocks(nodes, len(nodes), {})
    (made,) = blocks.readings([at(g, 5, full=SIZE), at(x, 7)])
    assert made == [at(g, 5, full=SIZE), at(block, 5, full=SIZE)]
    assert not list(blocks.readings([at(g, 5, full=SIZE), at(x, 1)]))


@pytest.mark.parametrize(("start", "joins"), [(7, True), (6, False), (5, False)])
def test_one_position_is_one_of_every_other(start: int, joins: bool) -> None:
    row = StridedInterval(0, 2, LONG // 2, affine(4), 3)
    odd = StridedInterval(0, 1, 2, affine(1), 1)
    behind = Addend(Fraction(1), 1, View(((row,),), (odd,)), places=(Place(0, 1, 3, 4),))
    alone = StridedInterval(0, 1, LONG, affine(start), 1)
    first = Addend(Fraction(1), 1, View(((alone,),)), places=(Place(0, 0, 1, 4),))
    whole = View(((row._replace(start=affine(3), size=4),),), (odd,))
    made = joined([first, behind])
    assert (made == [Addend(Fraction(1), 1, whole)]) is joins


def test_masks_that_hide_nothing_add_up_to_nothing() -> None:
    nodes = NodeTable()
    mask = nodes.define(Causal(), (ABSOLUTE, ABSOLUTE))
    interpreter = LineageInterpreter(nodes, len(nodes))
    query = StridedInterval(0, 1, ABSOLUTE, affine(4), 1)
    keys = StridedInterval(1, 1, ABSOLUTE, affine(0), 3)
    lineages = [
        Lineage((n,), (Addend(Fraction(1), mask, View(((keys._replace(size=n),),), (query,))),))
        for n in (3, 3)
    ]
    other = lineages[1].addends[0].view.fixed[0]._replace(start=affine(5))
    moved = lineages[1].addends[0]._replace(view=View(lineages[1].addends[0].view.dims, (other,)))
    both = Lineage((3,), (*lineages[0].addends, moved))
    assert interpreter.fold(both) == Lineage((3,), ())
