"""One position of many is part of the sum over all of them, and of no other sum."""

from __future__ import annotations

from fractions import Fraction

from shardproof.engine.algebra.affine import ZERO, affine
from shardproof.engine.lineage.expressions import Amax, Einsum, Input, Operand
from shardproof.engine.lineage.lineage import Addend, StridedInterval, View
from shardproof.engine.lineage.nodes import NodeTable
from shardproof.engine.lineage.reductions import Reductions, part_of

ONE = Fraction(1)


def test_one_row_is_part_of_the_sum_over_rows() -> None:
    nodes = NodeTable()
    x = nodes.define(Input("x"), (8, 3))
    total = nodes.define(Einsum((Operand(x, ((0, 1, 8, 0), (1, 1, 3, 1))),), (1,)), (3,))
    row = StridedInterval(0, 1, 8, affine(0, {"dp": 1}), 1)
    view = View(((StridedInterval(1, 1, 3, ZERO, 3),),), (row,))
    part = part_of(nodes, Addend(ONE, x, view), total)
    assert part is not None
    assert str(part) == f"n{total}[a0[3]] part #0[<dp> +1 of 8]"
    assert Reductions(nodes, total + 1).part(Addend(ONE, x, view)) == part


def test_a_row_in_two_digits_is_one_position() -> None:
    """Which microbatch of which replica."""
    nodes = NodeTable()
    x = nodes.define(Input("x"), (8, 3))
    total = nodes.define(Einsum((Operand(x, ((0, 1, 8, 0), (1, 1, 3, 1))),), (1,)), (3,))
    replica = StridedInterval(0, 2, 4, affine(0, {"dp": 1}), 1)
    microbatch = StridedInterval(0, 1, 2, affine(1), 1)
    columns = (StridedInterval(1, 1, 3, ZERO, 3),)
    for at in ((replica, microbatch), (microbatch, replica)):
        part = part_of(nodes, Addend(ONE, x, View((columns,), at)), total)
        assert str(part) == f"n{total}[a0[3]] part #0[<2*dp + 1> +1 of 8]"
    assert part_of(nodes, Addend(ONE, x, View((columns,), (replica,))), total) is None


def test_what_is_no_position_of_the_sum_is_no_part_of_it() -> None:
    nodes = NodeTable()
    x = nodes.define(Input("x"), (8, 8, 4))
    columns = Operand(x, ((0, 1, 8, 0), (1, 1, 8, 1), (2, 1, 4, 2)))
    diagonal = Operand(x, ((0, 1, 8, 0), (1, 1, 8, 0), (2, 1, 4, 1)))
    sums = [
        nodes.define(Einsum((columns,), (0, 1)), (8, 8)),
        nodes.define(Einsum((diagonal,), (0,)), (8,)),
    ]
    at = (StridedInterval(0, 1, 8, affine(2), 1), StridedInterval(1, 1, 8, affine(3), 1))
    half = StridedInterval(2, 1, 4, ZERO, 2)
    last = StridedInterval(2, 1, 4, affine(3), 1)
    assert part_of(nodes, Addend(ONE, x, View((), (*at, last))), sums[0]) is not None
    assert part_of(nodes, Addend(ONE, x, View((), (*at, last))), sums[1]) is None
    assert part_of(nodes, Addend(ONE, x, View(((half,),), at)), sums[0]) is None


def test_one_entry_is_part_of_the_sums_over_rows_and_columns() -> None:
    """One row and one position on every rank: the gradient of a norm's weight."""
    nodes = NodeTable()
    x = nodes.define(Input("x"), (8, 4, 3))
    read = Operand(x, ((0, 1, 8, 0), (1, 1, 4, 1), (2, 1, 3, 2)))
    total = nodes.define(Einsum((read,), (2,)), (3,))
    row = StridedInterval(0, 1, 8, affine(0, {"dp": 1}), 1)
    column = StridedInterval(1, 1, 4, affine(0, {"tp": 1}), 1)
    features = (StridedInterval(2, 1, 3, ZERO, 3),)
    part = part_of(nodes, Addend(ONE, x, View((features,), (row, column))), total)
    assert str(part) == f"n{total}[a0[3]] part #0[<dp> +1 of 8], #1[<tp> +1 of 4]"
    assert part_of(nodes, Addend(ONE, x, View((features,), (row,))), total) is None


def test_a_block_of_rows_is_part_of_the_sum_over_blocks() -> None:
    """``x.view(2, 4, 3).sum(0)``, of which each of two ranks has four rows."""
    nodes = NodeTable()
    x = nodes.define(Input("x"), (8, 3))
    read = Operand(x, ((0, 4, 2, 0), (0, 1, 4, 1), (1, 1, 3, 2)))
    total = nodes.define(Einsum((read,), (1, 2)), (4, 3))
    columns = (StridedInterval(1, 1, 3, ZERO, 3),)
    rows = (StridedInterval(0, 1, 8, affine(0, {"dp": 4}), 4),)
    part = part_of(nodes, Addend(ONE, x, View((rows, columns))), total)
    assert str(part) == f"n{total}[a0[4], a1[3]] part #0[<dp> +1 of 2]"
    beside = (StridedInterval(0, 1, 8, affine(1, {"dp": 2}), 4),)
    assert part_of(nodes, Addend(ONE, x, View((beside, columns))), total) is None


def test_one_row_is_part_of_the_maximum_over_rows_of_numbers_of_that_sign() -> None:
    nodes = NodeTable()
    x = nodes.define(Input("x"), (8, 3))
    read = Operand(x, ((0, 1, 8, 0), (1, 1, 3, 1)))
    largest, least = (nodes.define(Amax(sign, read, (1,)), (3,)) for sign in (1, -1))
    row = StridedInterval(0, 1, 8, affine(0, {"dp": 1}), 1)
    view = View(((StridedInterval(1, 1, 3, ZERO, 3),),), (row,))
    part = part_of(nodes, Addend(Fraction(2), x, view), largest, "max")
    assert str(part) == f"2*n{largest}[a0[3]] part #0[<dp> +1 of 8]"
    part = part_of(nodes, Addend(Fraction(-2), x, view), least, "max")
    assert str(part) == f"2*n{least}[a0[3]] part #1[<dp> +1 of 8]"
    assert part_of(nodes, Addend(Fraction(-2), x, view), largest, "max") is None
    assert part_of(nodes, Addend(ONE, x, view), largest) is None


def test_the_sum_of_a_row_is_part_of_the_sum_over_rows_and_columns() -> None:
    nodes = NodeTable()
    x = nodes.define(Input("x"), (8, 4, 3))
    read = Operand(x, ((0, 1, 8, 0), (1, 1, 4, 1), (2, 1, 3, 2)))
    total = nodes.define(Einsum((read,), (2,)), (3,))
    rows = nodes.define(Einsum((read,), (0, 2)), (8, 3))
    row = StridedInterval(0, 1, 8, affine(0, {"dp": 1}), 1)
    features = (StridedInterval(1, 1, 3, ZERO, 3),)
    addend = Addend(ONE, rows, View((features,), (row,)))
    part = part_of(nodes, addend, total)
    assert str(part) == f"n{total}[a0[3]] part #0[<dp> +1 of 8]"
    reductions = Reductions(nodes, total + 2)
    assert reductions.part(addend) is None
    assert reductions.wider(addend) == part
    # All rows are no part, and rows are no part of the columns' sums.
    every = Addend(ONE, rows, View(((StridedInterval(0, 1, 8, ZERO, 8),), features)))
    assert reductions.wider(every) is None
    columns = nodes.define(Einsum((read,), (1, 2)), (4, 3))
    assert part_of(nodes, addend, columns) is None


def test_rows_and_columns_may_be_one_label_of_the_sum_over_both() -> None:
    """Rows of tokens, one after the other, as a linear layer has them."""
    nodes = NodeTable()
    x = nodes.define(Input("x"), (32, 3))
    apart = Operand(x, ((0, 4, 8, 0), (0, 1, 4, 1), (1, 1, 3, 2)))
    total = nodes.define(Einsum((Operand(x, ((0, 1, 32, 0), (1, 1, 3, 1))),), (1,)), (3,))
    rows = nodes.define(Einsum((apart,), (0, 2)), (8, 3))
    places = nodes.define(Einsum((apart,), (1, 2)), (4, 3))
    features = (StridedInterval(1, 1, 3, ZERO, 3),)
    at = {rows: 8, places: 4}
    said = {
        n: str(
            part_of(
                nodes,
                Addend(ONE, n, View((features,), (StridedInterval(0, 1, e, affine(2), 1),))),
                total,
            )
        )
        for n, e in at.items()
    }
    assert said[rows] == f"n{total}[a0[3]] part #0[8 +4 of 32]"
    assert said[places] == f"n{total}[a0[3]] part #0[2 +1 of 4]"
    other = nodes.define(Einsum((Operand(x, ((0, 2, 16, 0), (1, 1, 3, 1))),), (1,)), (3,))
    view = View((features,), (StridedInterval(0, 1, 8, affine(2), 1),))
    assert part_of(nodes, Addend(ONE, rows, view), other) is None
