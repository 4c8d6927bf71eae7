"""Local tensors of a rank as parts of the single device's, where values lie side by side in them."""

from __future__ import annotations

from fractions import Fraction

import pytest

from shardproof.engine.algebra.affine import ZERO, Affine
from shardproof.engine.lineage.expressions import Input, Opaque
from shardproof.engine.lineage.lineage import (
    ABSOLUTE,
    BROADCAST,
    Addend,
    Place,
    StridedInterval,
    View,
)
from shardproof.engine.lineage.nodes import NodeTable
from shardproof.partition.inference.shares import Shares

MESH = {"dp": 4}


def side_by_side(nodes: tuple[int, int], start: Affine, rows: int) -> tuple[Addend, ...]:
    """Two values of 8 rows in turn along the columns: the rows from ``start`` on."""
    dims = (StridedInterval(0, 1, 8, start, rows),), (StridedInterval(1, 1, 2, ZERO, 2),)
    places = (Place(1, 0, 1, 2),), (Place(1, 1, 1, 2),)
    return tuple(
        Addend(Fraction(1), node, View(dims), (), own)
        for node, own in zip(nodes, places, strict=True)
    )


def test_a_part_is_as_long_as_the_whole_where_values_lie_side_by_side() -> None:
    """Four columns, of which each value has two: it was a view of four of two columns."""
    table = NodeTable()
    one, two = (table.define(Input(name), (8, 2)) for name in ("one", "two"))
    whole = side_by_side((one, two), ZERO, 8)
    piece = table.define(Opaque(whole), (8, 4))
    shares = Shares(table, len(table))
    start = Affine(0, (("dp", 2),))
    share = shares.of_sum(side_by_side((one, two), start, 2), (2, 4), MESH)
    assert share is not None
    view = share.view((2, 4))
    assert view.node == piece
    assert str(view.view) == "[a0[<2*dp> +2 of 8], a1[4]]"
    # In the other order they are no part of it, and all of it is none either.
    assert shares.of_sum(side_by_side((two, one), start, 2), (2, 4), MESH) is None
    assert shares.of_sum(whole, (8, 4), MESH) is None


@pytest.mark.parametrize(("start", "part"), [(0, False), (1, True)])
def test_what_the_single_device_has_is_no_part_of_what_else_it_has(start: int, part: bool) -> None:
    """The shifts of a padded convolution along 4 rows and along 9 columns are positions of one table:
    those of the rows were read as part of those of the columns, which is no product with rows."""
    table = NodeTable()
    shift = table.define(Input("shift"), (ABSOLUTE, ABSOLUTE))

    def positions(rows: int, columns: int, first: int = 0) -> tuple[Addend]:
        row = StridedInterval(0, 1, ABSOLUTE, Affine(first), rows)
        column = StridedInterval(1, 1, ABSOLUTE, Affine(1), columns)
        return (Addend(Fraction(1), shift, View(((row,), (column,)))),)

    for shape in ((4, 4), (9, 8)):
        table.define(Opaque(positions(*shape)), shape)
    shares = Shares(table, len(table))
    found = shares.of_sum(positions(4, 4, start), (4, 4), MESH)
    assert (found is not None) == part


def in_a_half(
    nodes: tuple[int, int], start: Affine, size: int, constant: bool = False, half: int = 0
) -> tuple[Addend, ...]:
    """Two values side by side along two positions, each in one half of 16 features: the features
    of that half from ``start`` on."""
    features = (StridedInterval(1, 1, 2, Affine(half), 1), StridedInterval(0, 1, 8, start, size))
    one = (StridedInterval(BROADCAST, 0, 1, ZERO, 1),) if constant else ()
    places = (Place(0, 0, 1, 2),), (Place(0, 1, 1, 2),)
    return tuple(
        Addend(Fraction(1), node, View((one, features)), (), own)
        for node, own in zip(nodes, places, strict=True)
    )


@pytest.mark.parametrize("constant", [False, True])
@pytest.mark.parametrize(("half", "part"), [(0, True), (1, False)])
def test_a_part_in_one_of_two_halves(half: int, part: bool, constant: bool) -> None:
    """Features of one half that a rank has some of, as a gated recurrent layer has them behind a
    convolution: ``constant`` says that the one position of a dimension is written, too."""
    table = NodeTable()
    one, two = (table.define(Input(name), (8, 2)) for name in ("one", "two"))
    table.define(Opaque(in_a_half((one, two), ZERO, 8)), (2, 8))
    shares = Shares(table, len(table))
    own = in_a_half((one, two), Affine(0, (("dp", 2),)), 2, constant, half)
    share = shares.of_sum(own, (2, 2), MESH)
    assert (share is not None) == part
    if share is not None:
        assert str(share.view((2, 2)).view) == "[a0[2], a1[<2*dp> +2 of 8]]"
