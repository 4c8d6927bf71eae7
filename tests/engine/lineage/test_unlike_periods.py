"""Parts of a sum that repeat with unlike extents, as ranks have them that take a block of positions
from the front and one from the end: held against sets of positions."""

from __future__ import annotations

from fractions import Fraction

import pytest

from shardproof.engine.algebra.affine import affine
from shardproof.engine.lineage.expressions import Einsum, Input, Operand
from shardproof.engine.lineage.lineage import Addend, PartialRange, View
from shardproof.engine.lineage.nodes import NodeTable, Reduction
from shardproof.engine.lineage.sums import merge_partials

RANGE = 12
FRONT_AND_END = [(0, 2, 12), (10, 2, 12), (2, 2, 6), (4, 4, 12)]


def merged(parts: list[tuple[int, int, int]], *, add: bool = True) -> list[Addend]:
    """What is left of the parts (start, size, extent) of one sum of twelve numbers."""
    nodes = NodeTable()
    x = nodes.define(Input("x"), (RANGE,))
    total = nodes.define(Einsum((Operand(x, ((0, 1, RANGE, 0),)),), ()), ())
    number = nodes.reduction(Reduction("sum", total, 0))
    addends = [
        Addend(Fraction(1), total, View(()), (PartialRange(number, affine(s), size, e),))
        for s, size, e in parts
    ]
    return merge_partials(nodes, addends, {}, add=add)


def count(parts: list[tuple[int, int, int]], position: int) -> int:
    return sum(start <= position % extent < start + size for start, size, extent in parts)


@pytest.mark.parametrize("missing", [None, *range(len(FRONT_AND_END))])
def test_they_are_all_of_the_sum_only_together(missing: int | None) -> None:
    parts = [p for n, p in enumerate(FRONT_AND_END) if n != missing]
    left = merged(parts)
    after = [(p.start.const, p.size, p.extent) for t in left for p in t.partials]
    assert (len(left) == 1 and not after) == (missing is None)
    for position in range(RANGE) if after else ():
        assert count(after, position) == count(parts, position)


def test_what_overlaps_is_no_union_and_maxima_are_no_sums() -> None:
    assert len(merged([(0, 4, 12), (2, 2, 6)])) == 2
    assert len(merged(FRONT_AND_END, add=False)) == 4


def test_two_parts_of_one_term_are_of_two_sums() -> None:
    """A third of one sum and half of another, together, are no interval of either."""
    nodes = NodeTable()
    x = nodes.define(Input("x"), (4, 2))
    read = Operand(x, ((0, 1, 4, 0), (0, 1, 2, 1)))
    total = nodes.define(Einsum((read,), ()), ())
    rows, columns = (nodes.reduction(Reduction("sum", total, axis)) for axis in (0, 1))
    parts = (PartialRange(rows, affine(1), 1, 4), PartialRange(columns, affine(0), 1, 2))
    term = Addend(Fraction(1), total, View(()), parts)
    assert merge_partials(nodes, [term], {}) == [term]
