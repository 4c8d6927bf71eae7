"""Claims of reduce-scatters as claims of the whole sum, and where they are left as they are."""

from __future__ import annotations

from fractions import Fraction

import pytest

from shardproof.engine.algebra.affine import ZERO, Affine, affine
from shardproof.engine.claims.claim import Claim
from shardproof.engine.claims.scattered import of_the_sum
from shardproof.engine.lineage.expressions import Input, Opaque
from shardproof.engine.lineage.lineage import Addend, Lineage, Place, StridedInterval, View
from shardproof.engine.lineage.nodes import NodeTable

ROWS, COLUMNS, RANKS = 8, 3, 4
STEP = ROWS // RANKS


def box(node: int, start: Affine, rows: int = STEP, factor: int = 1) -> Lineage:
    """Rows of a node of all rows."""
    dims = (
        (StridedInterval(0, 1, ROWS, start, rows),),
        (StridedInterval(1, 1, COLUMNS, ZERO, COLUMNS),),
    )
    return Lineage((rows, COLUMNS), (Addend(Fraction(factor), node, View(dims)),))


def halves(nodes: NodeTable) -> tuple[Addend, ...]:
    """Two values side by side: one in the first half of the rows, one in the second."""
    addends = []
    for number in range(2):
        node = nodes.define(Input(f"half {number}"), (ROWS // 2, COLUMNS))
        dims = tuple(
            (StridedInterval(axis, 1, n, ZERO, n),) for axis, n in enumerate((ROWS // 2, COLUMNS))
        )
        place = Place(0, number * ROWS // 2, ROWS // 2, ROWS)
        addends.append(Addend(Fraction(1), node, View(dims), places=(place,)))
    return tuple(addends)


def scatter(given: Lineage, output: Lineage, over: str = "dp", dim: int = 0) -> Claim:
    return Claim(
        "reduce_scatter",
        "reduce_scatter",
        {"dim": dim, "op": "sum"},
        False,
        ((over, RANKS),),
        1,
        (given,),
        (output,),
        {"dp": RANKS, "tp": RANKS},
    )


def test_a_part_of_a_local_tensor_is_the_sums_if_all_of_it_is() -> None:
    nodes = NodeTable()
    addends = halves(nodes)
    node = nodes.define(Opaque(addends), (ROWS, COLUMNS))
    given = Lineage((ROWS, COLUMNS), addends)
    claim = of_the_sum(nodes, scatter(given, box(node, affine(0, {"dp": STEP}), factor=2), dim=-2))
    doubled = tuple(t._replace(factor=Fraction(2)) for t in addends)
    assert (claim.kind, claim.attrs) == ("all_reduce", {"op": "sum"})
    assert claim.outputs == (Lineage((ROWS, COLUMNS), doubled),)


@pytest.mark.parametrize(
    "start",
    [
        affine(0),
        affine(STEP, {"dp": STEP}),
        affine(0, {"tp": STEP}),
        affine(0, {"dp": 1}),
        affine(ROWS - STEP, {"dp": -STEP}),
    ],
    ids=["the first", "the next one", "along another axis", "too near", "in reverse"],
)
def test_another_part_than_the_members_own_is_left_as_it_is(start: Affine) -> None:
    nodes = NodeTable()
    addends = halves(nodes)
    node = nodes.define(Opaque(addends), (ROWS, COLUMNS))
    claim = scatter(Lineage((ROWS, COLUMNS), addends), box(node, start))
    assert of_the_sum(nodes, claim) is claim


def test_a_tensor_that_differs_along_the_axis_is_left_as_it_is() -> None:
    nodes = NodeTable()
    addends = halves(nodes)
    node = nodes.define(Opaque(addends), (ROWS, COLUMNS), frozenset({"dp"}))
    claim = scatter(Lineage((ROWS, COLUMNS), addends), box(node, affine(0, {"dp": STEP})))
    assert of_the_sum(nodes, claim) is claim


def test_a_part_of_a_single_device_value_is_left_as_it_is() -> None:
    nodes = NodeTable()
    node = nodes.define(Input("w"), (ROWS, COLUMNS))
    claim = scatter(box(node, ZERO, ROWS), box(node, affine(0, {"dp": STEP})))
    assert of_the_sum(nodes, claim) is claim
