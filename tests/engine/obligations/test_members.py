"""What the members of a collective have alike is one equality; a member that has something else has
its own, which does not hold."""

from __future__ import annotations

from fractions import Fraction

from shardproof.engine.algebra.affine import affine
from shardproof.engine.claims.claim import Claim
from shardproof.engine.lineage.expressions import Input
from shardproof.engine.lineage.lineage import Addend, Lineage, StridedInterval, View
from shardproof.engine.lineage.nodes import NodeTable
from shardproof.engine.obligations.obligation import Obligation, build
from shardproof.engine.obligations.spot_check import holds

MEMBERS, ROWS = 8, 4


def gathered(nodes: NodeTable, outputs: list[Lineage]) -> Obligation:
    """An all-gather of the rows of a vector, whose members claim to have these."""
    x = nodes.define(Input("x"), (MEMBERS * ROWS,))
    parts = tuple(rows(x, ROWS * rank, ROWS) for rank in range(MEMBERS))
    return build(
        nodes,
        Claim(
            "all_gather", "all_gather", {"dim": 0}, False, (), MEMBERS, parts, tuple(outputs), {}
        ),
    )


def rows(node: int, start: int, size: int) -> Lineage:
    interval = StridedInterval(0, 1, MEMBERS * ROWS, affine(start), size)
    return Lineage((size,), (Addend(Fraction(1), node, View(((interval,),))),))


def test_equal_members_are_compared_once() -> None:
    nodes = NodeTable()
    whole = rows(nodes.define(Input("x"), (MEMBERS * ROWS,)), 0, MEMBERS * ROWS)
    together = gathered(nodes, [whole] * MEMBERS)
    assert holds(together)
    # No more equalities than there are positions, however many members there are.
    assert len(together.goals) <= MEMBERS * ROWS


def test_the_member_that_differs_is_compared() -> None:
    nodes = NodeTable()
    x = nodes.define(Input("x"), (MEMBERS * ROWS,))
    whole = rows(x, 0, MEMBERS * ROWS)
    other = Lineage((MEMBERS * ROWS,), (Addend(Fraction(2), x, whole.addends[0].view),))
    for place in range(MEMBERS):
        outputs = [whole] * MEMBERS
        outputs[place] = other
        assert not holds(gathered(nodes, outputs))
