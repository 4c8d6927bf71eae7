"""Blocks of an axis as positions of what there is for all blocks, and sums of sums as one sum."""

from __future__ import annotations

from fractions import Fraction

from shardproof.engine.algebra.affine import ZERO, affine
from shardproof.engine.lineage.expressions import Einsum, Input, Operand
from shardproof.engine.lineage.lineage import Addend, Lineage, PartialRange, StridedInterval, View
from shardproof.engine.lineage.nodes import NodeTable, Reduction
from shardproof.partition.inference.flattened import flattened
from shardproof.partition.inference.interpreter import LineageInterpreter
from shardproof.partition.inference.laws import Factor
from shardproof.partition.inference.slots import at_slots

ONE = Fraction(1)


def along(axis: int, size: int, start: int = 0, extent: int = 0) -> StridedInterval:
    return StridedInterval(axis, 1, extent or size, affine(start), size)


GROUP = StridedInterval(0, 16, 2, ZERO, 2)


def of_groups(*dim: StridedInterval, node: int = 4) -> Addend:
    return Addend(ONE, node, View(((GROUP,), dim)))


def test_a_block_of_each_group_is_a_position_of_all_blocks() -> None:
    way = at_slots([of_groups(along(0, 4, 8, 16))], "xyz")
    assert way is not None
    assert [str(t) for t in way.addends] == ["n4[a0/16[2], a0[4], a0/4[2 +1 of 4]]"]
    assert (way.labels, way.kept) == (("x",), "x")
    # All of an axis, what begins elsewhere, what moves with ranks and what is in no group is none.
    moving = StridedInterval(0, 1, 16, affine(0, {"tp": 4}), 4)
    for interval in (along(0, 16), along(0, 4, 2, 16), moving):
        assert at_slots([of_groups(interval)], "xyz") is None
    assert at_slots([Addend(ONE, 4, View(((along(0, 4, 8, 16),),)))], "xyz") is None


def test_a_gate_and_what_it_is_of_stay_two_blocks() -> None:
    halves = [of_groups(along(0, 8, start, 16)) for start in (0, 8)]
    assert at_slots(halves, "xyz") is None
    assert at_slots([halves[1], halves[1]._replace(node=5)], "xyz") is not None


def test_halves_of_one_head_have_its_number_in_common() -> None:
    halves = [of_groups(along(0, 2, 8 + 2 * k, 16), node=4 + k) for k in (0, 1)]
    way = at_slots(halves, "xyz")
    assert way is not None
    assert way.labels == ("xy", "xz")
    assert str(way.addends[1]) == "n5[a0/16[2], a0[2], a0/4[2 +1 of 4], a0/2[1 +1 of 2]]"


def test_the_keys_squares_are_those_of_queries_elsewhere() -> None:
    """Two groups of two queries, a key and a value, whichever is read first."""
    for order in ((0, 1), (1, 0)):
        nodes = NodeTable()
        x = nodes.define(Input("x"), (32,))
        read = LineageInterpreter(nodes)
        group = StridedInterval(0, 16, 2, ZERO, 2)
        heads = (group, StridedInterval(0, 4, 4, ZERO, 2))
        queries = Lineage((4, 4), (Addend(ONE, x, View((heads, (along(0, 4),)))),))
        keys = Lineage((2, 4), (Addend(ONE, x, View(((group,), (along(0, 4, 8, 16),)))),))
        both = [queries, keys]
        squares = [read.einsum("ab,ab->ab", both[i], both[i]) for i in order]
        made = [read.einsum("ab->a", x) for x in squares]
        assert len({m.addends[0].node for m in made}) == 1


def sums(nodes: NodeTable) -> tuple[int, int]:
    x = nodes.define(Input("x"), (8, 4, 3))
    read = Operand(x, ((0, 1, 8, 0), (1, 1, 4, 1), (2, 1, 3, 2)))
    return x, nodes.define(Einsum((read,), (0, 2)), (8, 3))


def test_a_sum_over_rows_of_sums_is_one_sum() -> None:
    nodes = NodeTable()
    x, rows = sums(nodes)
    given = Lineage((8, 3), (Addend(ONE, rows, View(((along(0, 8),), (along(1, 3),)))),))
    once = LineageInterpreter(nodes).einsum("ab->b", given)
    dims = tuple((along(i, n),) for i, n in enumerate((8, 4, 3)))
    whole = Lineage((8, 4, 3), (Addend(ONE, x, View(dims)),))
    assert once == LineageInterpreter(nodes).einsum("abc->c", whole)


def test_part_of_a_sum_is_part_of_the_one_sum() -> None:
    nodes = NodeTable()
    x, rows = sums(nodes)
    token = nodes.reduction(Reduction("sum", rows, 1))
    half = PartialRange(token, affine(2), 2, 4)
    read = Factor(Addend(ONE, rows, View(()), (half,)), ((along(0, 8), 0), (along(1, 3), 1)))
    flat = flattened(nodes, read, {0: 8, 1: 3}, {0: along(0, 8), 1: along(1, 3)})
    assert flat is not None
    assert flat.read.addend.node == x
    assert flat.intervals[2] == StridedInterval(1, 1, 4, affine(2), 2)
    # Every second pair of positions is no interval of the label.
    other = read.addend._replace(partials=(PartialRange(token, ZERO, 1, 2),))
    assert flattened(nodes, read._replace(addend=other), {0: 8, 1: 3}, {}) is None
    assert flattened(nodes, read._replace(addend=read.addend._replace(node=x)), {}, {}) is None
