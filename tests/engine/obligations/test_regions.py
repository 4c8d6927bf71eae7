"""Tensors of which nothing lies in some regions: how these are represented."""

from __future__ import annotations

from fractions import Fraction

import pytest

from shardproof.engine.algebra.affine import ZERO, affine
from shardproof.engine.lineage.expressions import Input, Opaque
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


@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize(("third", "expected"), [(2, True), (1, False)])
def test_an_operand_that_is_read_at_no_such_stride_is_not_cut(
    third: int, expected: bool, rank: int, holds: Holds
) -> None:
    """The gradient of a view of half of 3072 biases as [512, 3], of which values are the last of
    every three; the biases themselves are not read, and have no digit of 512.  Rank 1's claim could
    not be stated, for its half does not begin at 0."""
    nodes = NodeTable()
    bias, gradient = nodes.define(Input("bias"), (3072,)), nodes.define(Input("g"), (1024,))
    half = (StridedInterval(0, 1, 3072, affine(1536 * rank), 1536),)
    values = (StridedInterval(0, 1, 1024, affine(512 * rank), 512),)
    one = Fraction(1)
    of_bias = Lineage((1536,), (Addend(one, bias, View((half,))),))
    given = Addend(one, gradient, View((values, ())), places=(Place(1, 2, 1, 3),))
    made = Addend(one, gradient, View((values,)), places=(Place(0, third, 1, 3),))
    claim = Claim(
        "op",
        "view",
        {"arity": 1, "size": (512, 3), "wrt": (0,)},
        True,
        (),
        1,
        (of_bias, Lineage((512, 3), (given,))),
        (Lineage((1536,), (made,)),),
        {"mb": 1},
    )
    assert holds(nodes, claim) is expected


@pytest.mark.parametrize(("start", "expected"), [(2, True), (0, False), (3, False)])
def test_a_tensor_of_its_own_of_parts_side_by_side(
    start: int, expected: bool, holds: Holds
) -> None:
    """Numbers that nothing names, of which a rank has some: read at every position, the second
    value is two positions further on than it is in the tensor.  It was not stated."""
    nodes = NodeTable()
    sizes = (2, 4)
    parts = [
        Addend(
            Fraction(1),
            nodes.define(Input(name), (size, 3)),
            View(tuple((StridedInterval(i, 1, n, ZERO, n),) for i, n in enumerate((size, 3)))),
            places=(Place(0, first, size, 6),),
        )
        for name, size, first in zip(("one", "two"), sizes, (0, 2), strict=True)
    ]
    own = nodes.define(Opaque(tuple(parts)), (6, 3))

    def rows(first: int) -> Lineage:
        dims = (StridedInterval(0, 1, 6, affine(first), 3), StridedInterval(1, 1, 3, ZERO, 3))
        return Lineage((3, 3), (Addend(Fraction(1), own, View(tuple((a,) for a in dims))),))

    given = Lineage((6, 3), tuple(parts))
    attrs = {"dim": 0, "start": affine(2), "size": 3}
    claim = Claim("op", "slice", attrs, False, (), 1, (given,), (rows(start),), {"mb": 1})
    assert holds(nodes, claim) is expected
