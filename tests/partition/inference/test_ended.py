"""Sums on ranks that the single device has region by region, or of tensors that it takes whole."""

from __future__ import annotations

from fractions import Fraction

import pytest

from shardproof.engine.algebra.affine import ZERO, Affine, affine
from shardproof.engine.lineage.expressions import Input
from shardproof.engine.lineage.lineage import (
    ABSOLUTE,
    Addend,
    Lineage,
    Place,
    StridedInterval,
    View,
)
from shardproof.engine.lineage.nodes import NodeTable
from shardproof.engine.lineage.views import constant_interval
from shardproof.partition.inference.collectives import total
from shardproof.partition.inference.interpreter import LineageInterpreter

ONE = Fraction(1)
ROWS, POSITIONS, WIDTH = 4, 4, 3
MESH = {"dp": 2}
#: Rows of a rank: half of them, from ``<2*dp>`` on.
HALF = affine(0, {"dp": 2})


class Tokens:
    """A first position that is the same in all rows (a class token) before others, and gradients of
    two kinds for the two halves of what is made of them."""

    def __init__(self) -> None:
        self.nodes = NodeTable()
        self.first, *self.of_first = (
            self.nodes.define(Input(f"first {i}"), (WIDTH,)) for i in range(3)
        )
        self.others, *self.of_others = (
            self.nodes.define(Input(f"others {i}"), (ROWS, POSITIONS, WIDTH)) for i in range(3)
        )

    def tensor(
        self, first: int, others: int, rows: tuple[Affine, int], begins: int = 0
    ) -> tuple[Addend, Addend]:
        """Values of these rows: the first position and three others, of four from ``begins`` on."""
        start, size = rows
        last = (StridedInterval(0, 1, WIDTH, ZERO, WIDTH),)
        alone = View(((constant_interval(size),), (constant_interval(1),), last))
        row = (StridedInterval(0, 1, ROWS, start, size),)
        position = (StridedInterval(1, 1, POSITIONS, affine(begins), POSITIONS - 1),)
        beside = View((row, position, (StridedInterval(2, 1, WIDTH, ZERO, WIDTH),)))
        return (
            Addend(ONE, first, alone, (), (Place(1, 0, 1, POSITIONS),)),
            Addend(ONE, others, beside, (), (Place(1, 1, POSITIONS - 1, POSITIONS),)),
        )

    def single(self) -> Lineage:
        """The gradient of the weight: what the single device makes of both halves at once."""
        r, rows = LineageInterpreter(self.nodes), (ZERO, ROWS)
        x = Lineage((ROWS, POSITIONS, WIDTH), self.tensor(self.first, self.others, rows))
        addends = [
            t._replace(places=(*t.places, Place(2, half * WIDTH, WIDTH, 2 * WIDTH)))
            for half in (0, 1)
            for t in self.tensor(self.of_first[half], self.of_others[half], rows)
        ]
        g = Lineage((ROWS, POSITIONS, 2 * WIDTH), tuple(addends))
        return r.einsum("bpi,bpo->oi", x, g)

    def on_ranks(self, half: int, begins: int = 0) -> Lineage:
        """What replicas of half of the rows each make of one half, added up."""
        r = LineageInterpreter(self.nodes, len(self.nodes), MESH)
        rows, shape = (HALF, ROWS // 2), (ROWS // 2, POSITIONS, WIDTH)
        x = Lineage(shape, self.tensor(self.first, self.others, rows, begins))
        g = Lineage(shape, self.tensor(self.of_first[half], self.of_others[half], rows, begins))
        return total(r, [r.einsum("bpi,bpo->oi", x, g)], (("dp", 2),))


@pytest.mark.parametrize("half", [0, 1])
@pytest.mark.parametrize("begins", [0, 1])
def test_one_region_is_what_the_single_device_has_there(half: int, begins: int) -> None:
    """On a rank of one half it was a value beside a part of a sum that nobody completes."""
    tokens = Tokens()
    whole = tokens.single()
    expected = [
        t._replace(places=())
        for t in whole.addends
        if t.places == (Place(0, half * WIDTH, WIDTH, 2 * WIDTH),)
    ]
    made = tokens.on_ranks(half, begins)
    assert (list(made.addends) == expected) == (begins == 0)


@pytest.mark.parametrize("other", [0, 2])
def test_a_part_of_a_sum_of_tensors_that_are_taken_whole(other: int) -> None:
    """Rows that are looked up, and read as heads: as rows they have no two digits, so that the
    single device adds up two tensors that are no views of one another; in half of them they are."""
    nodes = NodeTable()
    heads = nodes.define(Input("heads"), (WIDTH, 2, 2))
    rows = nodes.define(Input("rows"), (ABSOLUTE, WIDTH))

    def lineage(start: int, size: int, shifted: int) -> Lineage:
        head = StridedInterval(1, 1, 2, affine(start // 2), size // 2)
        first = ((head, StridedInterval(2, 1, 2, ZERO, 2)), _all(0))
        second = ((StridedInterval(0, 1, ABSOLUTE, affine(shifted), size),), _all(1))
        return Lineage(
            (size, WIDTH),
            (Addend(ONE, heads, View(first)), Addend(Fraction(2), rows, View(second))),
        )

    whole = LineageInterpreter(nodes).fold(lineage(0, 4, 0))
    ranks = LineageInterpreter(nodes, len(nodes), MESH)
    (made,) = ranks.fold(lineage(0, 2, other)).addends
    (expected,) = whole.addends
    assert (made.node == expected.node) == (other == 0)
    if other == 0:
        assert str(made.view) == f"[a0[0 +2 of 4], a1[{WIDTH}]]"


def _all(axis: int) -> tuple[StridedInterval]:
    return (StridedInterval(axis, 1, WIDTH, ZERO, WIDTH),)
