"""A position in a dimension of its own, where the rest of its axis runs elsewhere."""

from __future__ import annotations

from shardproof.engine.algebra.affine import affine
from shardproof.engine.lineage.floating import sunk
from shardproof.engine.lineage.lineage import StridedInterval, View

BLOCK = StridedInterval(0, 2, 2, affine(0, {"dp": 1}), 1)
REST = StridedInterval(0, 1, 2, affine(0), 2)
OTHER = StridedInterval(1, 1, 4, affine(3), 1)


def test_a_position_in_a_dimension_of_its_own_sinks_into_the_rest_of_its_axis() -> None:
    view = View(((BLOCK,), (REST, OTHER)))
    joined = StridedInterval(0, 1, 4, affine(0, {"dp": 2}), 2)
    assert sunk(view, 0) == View(((), (joined, OTHER)), ())


def test_what_has_no_rest_stays() -> None:
    view = View(((OTHER,), (REST,)))
    assert sunk(view, 0) is view
