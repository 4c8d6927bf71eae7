"""Tensors of which nothing lies in some regions: how these are represented."""

from __future__ import annotations

from fractions import Fraction

import pytest

from shardproof.engine.algebra.affine import ZERO
from shardproof.engine.lineage.expressions import Input
from shardproof.engine.lineage.lineage import Addend, Lineage, Place, StridedInterval, View
from shardproof.engine.lineage.nodes import NodeTable
from shardproof.engine.obligations.obligation import Claim
from tests.engine.asking import Holds


@pytest.mark.parametrize(("factor", "expected"), [(1, True), (2, False)])
def test_as_many_heads_as_features_of_a_head(factor: int, expected: bool, holds: Holds) -> None:
    """Halves of 128 features, each beside nothing, are added; there are 128 heads too, in 8 groups
    of 16.  What is nothing is represented as the other half is, and not as heads are."""
    nodes = NodeTable()
    heads = (StridedInterval(1, 1, 8, ZERO, 8), StridedInterval(2, 1, 16, ZERO, 16))
    features = (StridedInterval(0, 1, 64, ZERO, 64),)
    halves = [
        Addend(
            Fraction(1),
            nodes.define(Input(name), (64, 8, 16)),
            View((heads, features)),
            places=(Place(1, start, 64, 128),),
        )
        for name, start in (("first", 0), ("second", 64))
    ]
    shape = (128, 128)
    given = tuple(Lineage(shape, (half,)) for half in halves)
    claimed = Lineage(shape, (halves[0], halves[1]._replace(factor=Fraction(factor))))
    claim = Claim("op", "add", {}, False, (), 1, given, (claimed,), {"mb": 1})
    assert holds(nodes, claim) is expected
