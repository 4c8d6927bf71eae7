"""Axes without end of which a claim reads some positions as all that there are."""

from __future__ import annotations

from fractions import Fraction

import pytest

from shardproof.engine.algebra.affine import ZERO, Affine
from shardproof.engine.claims.claim import Claim
from shardproof.engine.lineage.expressions import Input
from shardproof.engine.lineage.lineage import ABSOLUTE, Addend, Lineage, StridedInterval, View
from shardproof.engine.lineage.nodes import NodeTable
from shardproof.engine.obligations.obligation import build
from shardproof.solvers import Portfolio, Query


def two_positions(first: int) -> tuple[NodeTable, Claim]:
    """That two positions of an endless axis from ``first`` are those of an axis of two."""
    nodes = NodeTable()
    node = nodes.define(Input("x"), (ABSOLUTE,))
    intervals = (
        StridedInterval(0, 1, ABSOLUTE, Affine(first), 2),
        StridedInterval(0, 1, 2, ZERO, 2),
    )
    one, other = (
        Lineage((2,), (Addend(Fraction(1), node, View(((interval,),))),)) for interval in intervals
    )
    return nodes, Claim("op", "identity", {}, False, (), 1, (one,), (other,), {})


@pytest.mark.parametrize(("first", "verdict"), [(0, "unsat"), (2, "sat"), (4, "sat")])
def test_positions_beyond_are_not_taken_for_the_first(first: int, verdict: str) -> None:
    nodes, claim = two_positions(first)
    with Portfolio("z3", timeout=30) as solver:
        assert solver.solve(Query.of("", build(nodes, claim).goals)).verdict == verdict
