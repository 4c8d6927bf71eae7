"""Products with one-hots, whose classes have no end, are multiplied out as others are."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

import pytest

from shardproof.engine.algebra.affine import ZERO
from shardproof.engine.lineage.expressions import Input, Onehot
from shardproof.engine.lineage.lineage import ABSOLUTE, Addend, Lineage, StridedInterval, View
from shardproof.engine.lineage.nodes import NodeTable
from shardproof.partition.inference.interpreter import LineageInterpreter

ROWS, CHOICES, CLASSES = 4, 2, 5
ONE = Fraction(1)


def whole(nodes: NodeTable, number: int, shape: Sequence[int]) -> Lineage:
    """A node as a lineage of this shape, the first classes of those without an end."""
    extents = nodes[number].extents
    dims = tuple(
        (StridedInterval(axis, 1, extent, ZERO, size),)
        for axis, (extent, size) in enumerate(zip(extents, shape, strict=True))
    )
    return Lineage(tuple(shape), (Addend(ONE, number, View(dims)),))


@pytest.mark.parametrize(
    ("factors", "same"), [((ONE, -ONE), True), ((ONE, ONE), False)], ids=["right", "sign"]
)
def test_gradients_of_chosen_scores(factors: tuple[Fraction, Fraction], same: bool) -> None:
    """Differences go back to the classes that were chosen; ranks send each operand by itself."""
    nodes = NodeTable()
    single = LineageInterpreter(nodes)
    shape = (ROWS, CHOICES)
    ids = nodes.define(Input("ids"), shape)
    onehot = whole(nodes, nodes.define(Onehot(ONE, ids), (*shape, ABSOLUTE)), (*shape, CLASSES))
    scores = whole(nodes, nodes.define(Input("scores"), (ROWS, CLASSES)), (ROWS, CLASSES))
    matrix = whole(nodes, nodes.define(Input("matrix"), (CLASSES, ROWS)), (CLASSES, ROWS))
    rows = whole(nodes, nodes.define(Input("rows"), (ROWS,)), (ROWS,))
    x, y = (whole(nodes, nodes.define(Input(name), shape), shape) for name in "xy")
    difference = single.combine([x, y], [ONE, -ONE], Fraction(0))
    scaled = single.einsum("rk,r->rk", difference, rows)
    expected = single.einsum("rkc,rk->rc", onehot, scaled)
    expected = single.einsum("rc,rc->rc", expected, scores)
    expected = single.einsum("rc,cw->rw", expected, matrix)
    ranks = LineageInterpreter(nodes, len(nodes))
    each = [ranks.einsum("rkc,rk->rc", onehot, v) for v in (x, y)]
    each = [ranks.einsum("rc,r->rc", v, rows) for v in each]
    each = [ranks.einsum("rc,rc->rc", v, scores) for v in each]
    each = [ranks.einsum("rc,cw->rw", v, matrix) for v in each]
    assert (ranks.combine(each, factors, Fraction(0)) == expected) is same
