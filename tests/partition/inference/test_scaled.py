"""A value of the parallel program alone: nodes of it without the factor before it."""

from __future__ import annotations

from fractions import Fraction

from shardproof.engine.lineage.expressions import Input
from shardproof.engine.lineage.lineage import Lineage, Place
from shardproof.engine.lineage.nodes import NodeTable
from shardproof.partition.inference.products import Products
from shardproof.partition.inference.views import local_view

ROWS = 4


def inputs(table: NodeTable, *names: str) -> list[Lineage]:
    return [local_view(table.define(Input(name), (ROWS,)), (ROWS,)) for name in names]


def scaled(x: Lineage, factor: Fraction) -> Lineage:
    return Lineage(x.shape, tuple(t._replace(factor=t.factor * factor) for t in x.addends))


def test_scaled_values_are_one_node_and_its_factors() -> None:
    table = NodeTable()
    values = Products(table)
    x, y = inputs(table, "x", "y")
    half, quarter = Fraction(-1, 2), Fraction(-1, 4)
    both = Lineage((ROWS,), x.addends + y.addends)
    for z in (x, both):
        (one,) = values.scaled_piece(scaled(z, half)).addends
        (other,) = values.scaled_piece(scaled(z, quarter)).addends
        assert (one.factor, other.factor, one.node) == (half, quarter, other.node)
    # Addends that are scaled in different ways are a value of their own.
    mixed = Lineage((ROWS,), x.addends + scaled(y, half).addends)
    (alone,) = values.scaled_piece(mixed).addends
    (together,) = values.scaled_piece(both).addends
    assert alone.factor == 1
    assert alone.node != together.node


def test_a_product_reads_places_inside_one_another_as_one() -> None:
    def product(*places: tuple[int, int, int]) -> Lineage:
        put = [Place(0, start, size, extent) for start, size, extent in places]
        (addend,) = x.addends
        wide = Lineage((4 * ROWS,), (addend._replace(places=tuple(put)),))
        return values.einsum("a,a->a", wide, z)

    table = NodeTable()
    values = Products(table)
    (x,) = inputs(table, "x")
    z = local_view(table.define(Input("z"), (4 * ROWS,)), (4 * ROWS,))
    inside = product((0, ROWS, 2 * ROWS), (2 * ROWS, 2 * ROWS, 4 * ROWS))
    assert inside == product((2 * ROWS, ROWS, 4 * ROWS))
    assert inside != product((3 * ROWS, ROWS, 4 * ROWS))
