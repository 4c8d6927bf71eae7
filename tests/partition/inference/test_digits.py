"""Views in the digits in which the single-device program reads its values."""

from __future__ import annotations

from fractions import Fraction

from shardproof.engine.algebra.affine import Affine, affine
from shardproof.engine.lineage.expressions import Combine, Einsum, Input, Operand
from shardproof.engine.lineage.lineage import Addend, StridedInterval, View
from shardproof.engine.lineage.nodes import NodeTable
from shardproof.partition.inference.digits import AsRead

ROWS, HEADS, WIDTH = 4, 2, 4


def table() -> tuple[NodeTable, int]:
    """``x[4, 8]`` of two heads of four features, of which second halves are taken."""
    nodes = NodeTable()
    x = nodes.define(Input("x"), (ROWS, HEADS * WIDTH))
    rows, heads, halves = (0, 1, ROWS, 0), (1, WIDTH, HEADS, 1), (1, 1, 2, 2)
    read = Operand(x, (rows, heads, halves), ((1, 2, 2, affine(1)),))
    nodes.define(Einsum((read,), (0, 1, 2)), (ROWS, HEADS, 2))
    return nodes, x


def at(axis: int, stride: int, extent: int, start: Affine | int) -> StridedInterval:
    place = affine(start) if isinstance(start, int) else start
    return StridedInterval(axis, stride, extent, place, 1)


def test_which_half_of_which_head() -> None:
    nodes, x = table()
    rank = Affine(0, (("tp", 1),))
    half = StridedInterval(1, 1, 2, affine(0), 2)
    quarter = at(1, 2, 4, Affine(1, (("tp", 2),)))
    view = View(((half,),), (at(0, 1, ROWS, 3), quarter))
    (cut,) = AsRead(nodes, len(nodes)).cuts(Addend(Fraction(1), x, view))
    assert cut.fixed == (at(1, 2, 2, 1),)
    assert cut.addend.view.dims == ((half,),)
    assert set(cut.addend.view.fixed) == {at(0, 1, ROWS, 3), at(1, WIDTH, HEADS, rank)}


def test_a_block_of_a_dimension_is_one_of_the_halves() -> None:
    nodes, x = table()
    block = StridedInterval(1, 1, HEADS * WIDTH, affine(6), 2)
    view = View(((StridedInterval(0, 1, ROWS, affine(0), ROWS),), (block,)))
    (cut,) = AsRead(nodes, len(nodes)).cuts(Addend(Fraction(1), x, view))
    assert cut.fixed == (at(1, 2, 2, 1),)
    assert cut.addend.view.dims[1] == (StridedInterval(1, 1, 2, affine(0), 2),)
    assert cut.addend.view.fixed == (at(1, WIDTH, HEADS, 1),)


def test_what_lies_across_heads_stays() -> None:
    nodes, x = table()
    across = StridedInterval(1, 1, HEADS * WIDTH, affine(3), 2)
    view = View(((StridedInterval(0, 1, ROWS, affine(0), ROWS),), (across,)))
    assert list(AsRead(nodes, len(nodes)).cuts(Addend(Fraction(1), x, view))) == []


def test_rows_are_one_digit_where_they_are_read_as_one() -> None:
    nodes, x = table()
    view = View(((), ()), (at(0, 2, 2, 1), at(0, 1, 2, 1), at(1, 1, HEADS * WIDTH, 6)))
    (cut,) = AsRead(nodes, len(nodes)).cuts(Addend(Fraction(1), x, view))
    assert at(0, 1, ROWS, 3) in cut.addend.view.fixed


def test_views_are_cut_together_as_the_sum_at_their_place_reads_them() -> None:
    """A mask over blocks of a product, which every block's sum reads in digits of its own."""
    nodes = NodeTable()
    mask = nodes.define(Input("mask"), (4, HEADS * WIDTH))
    x = nodes.define(Input("x"), (ROWS, WIDTH))
    rows = Operand(x, ((0, 1, ROWS, 0), (1, 1, WIDTH, 1)))
    halves, first = ((0, 2, 2, affine(1)), (0, 1, 2, affine(0))), (1, WIDTH, 2, affine(0))
    for fixed in ((*halves, first), ((0, 1, 4, affine(3)), first)):
        own = Operand(mask, ((1, 1, WIDTH, 1),), fixed)
        nodes.define(Combine((Fraction(1), Fraction(1)), (own, rows), (0, 1)), (ROWS, WIDTH))
    reads = AsRead(nodes, len(nodes))
    features = StridedInterval(1, 1, WIDTH, affine(0), WIDTH)
    batch = StridedInterval(0, 1, ROWS, affine(0), 2)
    product = Addend(Fraction(1), x, View(((batch,), (features,)), ()))

    def at_row(row: int) -> Addend:
        block = StridedInterval(1, 1, HEADS * WIDTH, affine(0), WIDTH)
        return Addend(Fraction(1), mask, View(((), (block,)), (at(0, 1, 4, row),)))

    (cuts,) = reads.together([at_row(3), product])
    assert set(cuts[0].fixed) == {at(0, 1, 4, 3), at(1, WIDTH, 2, 0)}
    assert cuts[0].addend.view.dims[1] == (features,)
    assert cuts[1].addend == product
    assert list(reads.together([at_row(1), product])) == []
