"""Products of sums of several values: addend by addend where the single-device program has it so.

A tensor of several values is multiplied region by region, and in each region value by value.  What
lies in all regions and what lies in one are counted apart there; a rank that has one region alone
has them all at once, more than are kept apart of values that only a rank has.
"""

from __future__ import annotations

from fractions import Fraction

from shardproof.engine.algebra.affine import ZERO, affine
from shardproof.engine.lineage.expressions import Input
from shardproof.engine.lineage.floating import settled
from shardproof.engine.lineage.lineage import Addend, Lineage, StridedInterval, View
from shardproof.engine.lineage.nodes import NodeTable
from shardproof.partition.inference.interpreter import LineageInterpreter
from shardproof.partition.inference.views import local_view

ROWS, WIDTH = 4, 6
ONE = Fraction(1)


def _settled(x: Lineage) -> Lineage:
    """The same tensor, with positions of one of many in no dimension."""
    return x._replace(addends=tuple(t._replace(view=settled(t.view)) for t in x.addends))


def test_rows_by_themselves_have_more_addends_at_once() -> None:
    table = NodeTable()
    single = LineageInterpreter(table)

    def given(name: str, *shape: int) -> Lineage:
        axes = tuple(n for n in shape if n != 1)
        return local_view(table.define(Input(name), axes), shape)

    def total(made: LineageInterpreter, *parts: Lineage) -> Lineage:
        return made.combine(parts, [ONE] * len(parts), Fraction(0))

    def product(made: LineageInterpreter, x: Lineage) -> Lineage:
        return made.einsum("ri,io->ro", x, given("g", WIDTH, WIDTH))

    def part(name: str, rows: int) -> Lineage:
        """Half of a sum: beside it, others stay what they are."""
        x, w = given(name, rows, WIDTH), given(f"{name} weight", WIDTH, WIDTH)
        half = [single.slice(one, 1, affine(0), WIDTH // 2) for one in (x, w)]
        return single.einsum("ri,oi->ro", *half)

    # Four parts of sums in all rows, and a fifth that is part of another one in the first row.
    parts = [part(f"x{n}", ROWS) for n in range(4)]
    beside = single.concat([part("first", 1), part("rest", ROWS - 1)], 0)
    whole = total(single, *parts, beside)
    expected = product(single, whole)

    many = LineageInterpreter(table, len(table))
    other = total(many, whole, single.einsum("ri,io->ro", parts[0], given("w1", WIDTH, WIDTH)))
    for start in (0, 2):
        own = many.slice(whole, 0, affine(start), 2)
        assert len(own.addends) >= 5
        there = _settled(many.slice(expected, 0, affine(start), 2))
        assert _settled(product(many, own)) == there
        wrong = many.slice(other, 0, affine(start), 2)
        assert _settled(product(many, wrong)) != there


def test_an_axis_of_one_position_stays_where_a_position_of_many_is_read_elsewhere() -> None:
    """One of two rows, read as part of a dimension and beside all of them: the product has the axis
    of the one expert that a token goes to, as the single-device program's has."""
    table = NodeTable()
    single = LineageInterpreter(table)

    def given(name: str, *shape: int) -> Lineage:
        dims = [(StridedInterval(n, 1, size, ZERO, size),) for n, size in enumerate(shape)]
        node = table.define(Input(name), shape)
        return Lineage(shape, (Addend(ONE, node, View(tuple(dims))),))

    chosen, gains = given("chosen", 2, 2, 1, 3), given("gains", 3, 2, 2)
    expected = single.einsum("abcd,dab->abc", chosen, gains)
    many = LineageInterpreter(table, len(table))

    def row(x: Lineage, dim: int, start: int, shape: tuple[int, ...]) -> Lineage:
        return many.reshape(many.slice(x, dim, affine(start), 1), shape)

    for start in range(2):
        own = row(chosen, 0, start, (2, 1, 3))
        right, wrong = (_settled(row(gains, 1, n, (3, 2))) for n in (start, 1 - start))
        there = _settled(row(expected, 0, start, (2, 1)))
        assert _settled(many.einsum("bcd,db->bc", own, right)) == there
        assert _settled(many.einsum("bcd,db->bc", own, wrong)) != there


def test_gradients_of_a_table_are_added_up_in_another_order() -> None:
    """A table's axis of classes has no end; sums of several gradients of it are the same sum in
    whatever order."""
    table = NodeTable()
    single = LineageInterpreter(table)
    ids = local_view(table.define(Input("ids"), (ROWS,)), (ROWS,))
    chosen = single.onehot(ids, affine(0), 3)
    names = ("x", "y", "z")
    given = [local_view(table.define(Input(n), (ROWS, WIDTH)), (ROWS, WIDTH)) for n in names]
    x, y, z = (single.einsum("tv,td->vd", chosen, g) for g in given)
    zero, share = Fraction(0), Fraction(-1, 8)
    expected = single.combine([single.combine([x, y], [ONE, share], zero), z], [ONE, ONE], zero)
    many = LineageInterpreter(table, len(table))
    assert many.combine([z, y, x], [ONE, share, ONE], zero) == expected
    assert many.combine([z, y, x], [ONE, -share, ONE], zero) != expected
    assert many.combine([z, y, y], [ONE, share, ONE], zero) != expected
