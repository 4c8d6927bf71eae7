"""Counts of the largest entries of rows, which are not zero, and what is none."""

from __future__ import annotations

from fractions import Fraction

import pytest

from shardproof.engine.lineage.expressions import Amax, Combine, Einsum, Input, Operand, Unary
from shardproof.engine.lineage.nodes import NodeTable
from shardproof.engine.specification.definedness import Domain, Signs
from shardproof.engine.specification.largest import sign_of_count

ONE = Fraction(1)
ROW, ENTRY = ((0, 1, 4, 0),), ((0, 1, 4, 0), (1, 1, 4, 1))


def count(
    sign: int = 1, lead: Fraction = ONE, along: int = 1, over: int = 1, other: bool = False
) -> tuple[NodeTable, int]:
    """sum of lead (1 - sign(x - max(x))^2); ``sign``: -1 with the least entry; ``along``: where the
    maximum runs; ``over``: where the sum does; ``other``: the largest of another tensor."""
    nodes = NodeTable()
    x, y = (nodes.define(Input(name), (4, 4)) for name in "xy")
    most = nodes.define(Amax(sign, Operand(y if other else x, ENTRY), (1 - along,)), (4,))
    kept = ((0, 1, 4, 1 - along),)
    gap = nodes.define(
        Combine((ONE * sign, -ONE), (Operand(x, ENTRY), Operand(most, kept)), (0, 1)), (4, 4)
    )
    apart = Operand(nodes.define(Unary("sign", ONE, gap), (4, 4)), ENTRY)
    square = Operand(nodes.define(Einsum((apart, apart), (0, 1)), (4, 4)), ENTRY)
    entry = nodes.define(Combine((lead, -lead), (Operand(nodes.one, ()), square), (0, 1)), (4, 4))
    return nodes, nodes.define(Einsum((Operand(entry, ENTRY),), (1 - over,)), (4,))


@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize("along", [0, 1])
@pytest.mark.parametrize("lead", [ONE, -ONE])
def test_rows_have_a_largest_entry(sign: int, along: int, lead: Fraction) -> None:
    nodes, number = count(sign, lead, along, along)
    assert sign_of_count(nodes, number) == lead
    signs = Signs(nodes)
    assert signs.within(ONE, number, Domain.NONZERO)
    assert signs.within(lead, number, Domain.POSITIVE)
    assert not signs.within(-lead, number, Domain.POSITIVE)
    assert not signs.within(-lead, number, Domain.NONNEGATIVE)


def test_columns_need_not_have_the_largest_of_a_row() -> None:
    nodes, number = count(along=1, over=0)
    assert sign_of_count(nodes, number) == 0
    nodes, number = count(other=True)
    assert sign_of_count(nodes, number) == 0
    assert not Signs(nodes).within(ONE, number, Domain.NONZERO)
