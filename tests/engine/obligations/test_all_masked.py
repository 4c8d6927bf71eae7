"""A claim all of which a causal mask hides, on both sides, has nothing to compare; an entry that one
side alone hides is compared."""

from __future__ import annotations

from fractions import Fraction

import numpy as np

from shardproof.engine.algebra.affine import affine
from shardproof.engine.claims.claim import Claim
from shardproof.engine.lineage.expressions import Causal
from shardproof.engine.lineage.lineage import ABSOLUTE, Addend, Lineage, StridedInterval, View
from shardproof.engine.lineage.nodes import NodeTable
from shardproof.engine.obligations.obligation import build
from shardproof.engine.obligations.spot_check import holds
from shardproof.solvers.answers import Query

ROWS, KEYS = 2, 3


def block(nodes: NodeTable, row: int, key: int) -> Lineage:
    """Entries of the causal mask from a query and a key on."""
    mask = nodes.define(Causal(), (ABSOLUTE, ABSOLUTE))
    dims = (
        (StridedInterval(0, 1, ABSOLUTE, affine(row), ROWS),),
        (StridedInterval(1, 1, ABSOLUTE, affine(key), KEYS),),
    )
    return Lineage((ROWS, KEYS), (Addend(Fraction(1), mask, View(dims)),))


def test_what_is_hidden_altogether_is_equal_to_what_is() -> None:
    """Blocks at random places: claimed equal exactly where NumPy's masks are."""
    random = np.random.default_rng(7)
    mask = np.triu(np.ones((16, 16)), 1)
    seen = set()
    for row, key, other, behind in random.integers(0, 12, (40, 4)).tolist():
        nodes = NodeTable()
        given, claimed = block(nodes, row, key), block(nodes, other, behind)
        one = build(
            nodes, Claim("op", "identity", {}, False, (), 1, (given,), (claimed,), {"dp": 1})
        )
        ours = mask[row : row + ROWS, key : key + KEYS]
        theirs = mask[other : other + ROWS, behind : behind + KEYS]
        equal = np.array_equal(ours, theirs)
        assert holds(one) == equal
        assert Query.of("", one.goals).linear_text
        seen.add((bool(ours.all()), equal))
    assert seen == {(True, True), (True, False), (False, True), (False, False)}
