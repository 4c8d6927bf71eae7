"""Which definitions a claim reads: no more than are needed to see that it holds."""

from __future__ import annotations

from fractions import Fraction

import pytest

from shardproof.engine.algebra.affine import ZERO, affine
from shardproof.engine.claims.cone import MOST_DIRECT, MOST_NODES, cone, recomputed
from shardproof.engine.errors import Unsupported
from shardproof.engine.lineage.expressions import Combine, Einsum, Input, Operand, Unary
from shardproof.engine.lineage.lineage import (
    Addend,
    Lineage,
    PartialRange,
    StridedInterval,
    View,
)
from shardproof.engine.lineage.nodes import NodeTable, Reduction
from shardproof.engine.obligations.obligation import Claim, build
from shardproof.engine.obligations.spot_check import holds as holds_at_a_point
from tests.engine.asking import Holds

ONE = Fraction(1)


def deep(nodes: NodeTable, depth: int) -> int:
    """A vector of 4 behind ``depth`` functions."""
    number = nodes.define(Input("x"), (4,))
    for _ in range(depth):
        number = nodes.define(Unary("tanh", ONE, number), (4,))
    return number


def one_half(nodes: NodeTable, depth: int, row: int) -> Claim:
    """The first of two blocks of ``x w``, as part of the sum over both, is the product with the
    first (``row`` 0) block of ``w`` alone."""
    x, w = deep(nodes, depth), nodes.define(Input("w"), (8, 3))
    blocks = ((0, 2, 4, 0), (0, 1, 2, 1), (1, 1, 3, 2))
    both = nodes.define(Einsum((Operand(w, blocks), Operand(x, ((0, 1, 4, 0),))), (2,)), (3,))
    inside = Operand(w, ((0, 2, 4, 0), (1, 1, 3, 1)), ((0, 1, 2, affine(row)),))
    block = nodes.define(Einsum((inside, Operand(x, ((0, 1, 4, 0),))), (1,)), (3,))
    token = nodes.reduction(Reduction("sum", both, 1))
    view = View(((StridedInterval(0, 1, 3, ZERO, 3),),))
    part = Addend(ONE, both, view, (PartialRange(token, ZERO, 1, 2),))
    given, claimed = Lineage((3,), (part,)), Lineage((3,), (Addend(ONE, block, view),))
    return Claim("op", "identity", {}, False, (), 1, (given,), (claimed,), {})


@pytest.mark.parametrize("depth", [1, MOST_NODES + 1])
def test_part_of_a_sum_is_opened_however_deep_its_operands_are(depth: int, holds: Holds) -> None:
    right, wrong = (NodeTable(), NodeTable())
    assert holds(right, one_half(right, depth, 0))
    assert not holds(wrong, one_half(wrong, depth, 1))


def test_a_claim_over_too_many_definitions_is_refused() -> None:
    nodes = NodeTable()
    view = View(((StridedInterval(0, 1, 4, ZERO, 4),),))
    ends = nodes.define(Input("y"), (4,)), deep(nodes, MOST_NODES + 1)
    given, claimed = (Lineage((4,), (Addend(ONE, n, view),)) for n in ends)
    with pytest.raises(Unsupported, match="definitions"):
        cone(nodes, (given,), (claimed,), adds=False)
    assert recomputed(nodes, (given,)) == frozenset()


@pytest.mark.parametrize(("factor", "right"), [(ONE, True), (4 * ONE, False)])
def test_what_is_divided_by_a_root_is_stated_over_what_the_root_is_of(
    factor: Fraction, right: bool, holds: Holds
) -> None:
    """``g / sqrt(s)`` is ``g`` times ``rsqrt(s)``, however much ``s`` is made of."""
    nodes = NodeTable()
    g, s = nodes.define(Input("g"), (4,)), deep(nodes, MOST_NODES + 1)
    root, inverse = (
        nodes.define(Unary(f, n, s), (4,)) for f, n in (("sqrt", ONE), ("rsqrt", factor))
    )
    rows = [Operand(n, ((0, 1, 4, 0),)) for n in (g, inverse)]
    made = nodes.define(Einsum((rows[0], rows[1]), (0,)), (4,))
    view = View(((StridedInterval(0, 1, 4, ZERO, 4),),))
    x, y, z = (Lineage((4,), (Addend(ONE, n, view),)) for n in (g, root, made))
    assert holds(nodes, Claim("op", "div", {}, False, (), 1, (x, y), (z,), {})) is right


def gradient_of_a_part(nodes: NodeTable, column: int) -> tuple[int, Claim]:
    """Of ``s(x)``, the gradient of what of ``s(x) w[:, 0]`` arrives, a part of the sum over both
    columns of w (``column`` 0); and the node of ``s(x)``, which the operator computes again."""
    x, w = nodes.define(Input("x"), (4,)), nodes.define(Input("w"), (4, 2))
    own = nodes.define(Unary("sigmoid", ONE, x), (4,))
    row = Operand(own, ((0, 1, 4, 0),))
    both = nodes.define(Einsum((row, Operand(w, ((0, 1, 4, 0), (1, 1, 2, 1)))), (0,)), (4,))
    square = Operand(nodes.define(Einsum((row, row), (0,)), (4,)), ((0, 1, 4, 0),))
    slope = Operand(nodes.define(Combine((ONE, -ONE), (row, square), (0,)), (4,)), row.intervals)
    inside = Operand(w, row.intervals, ((1, 1, 2, affine(column)),))
    made = nodes.define(Einsum((inside, row, slope), (0,)), (4,))
    token = nodes.reduction(Reduction("sum", both, 1))
    view = View(((StridedInterval(0, 1, 4, ZERO, 4),),))
    read = Lineage((4,), (Addend(ONE, x, view),))
    given = Lineage((4,), (Addend(ONE, both, view, (PartialRange(token, ZERO, 1, 2),)),))
    claimed = Lineage((4,), (Addend(ONE, made, view),))
    attrs = {"wrt": (0,), "arity": 1}
    return own, Claim("op", "sigmoid", attrs, True, (), 1, (read, given), (claimed,), {})


def test_what_other_symbols_determine_is_read_by_its_definition() -> None:
    nodes = NodeTable()
    own, right = gradient_of_a_part(nodes, 0)
    given = [x for x in right.inputs if x is not None]
    behind = recomputed(nodes, given)
    assert behind == {own}
    assert not holds_at_a_point(build(nodes, right))
    assert holds_at_a_point(build(nodes, right, widened=behind))
    _, wrong = gradient_of_a_part(nodes, 1)
    assert not holds_at_a_point(build(nodes, wrong, widened=behind))


@pytest.mark.parametrize("depth", [2 * MOST_DIRECT, MOST_NODES + 1])
@pytest.mark.parametrize(("factor", "right"), [(-ONE, True), (ONE, False)])
def test_what_inputs_and_results_are_both_made_of_is_a_symbol(
    depth: int, factor: Fraction, right: bool, holds: Holds
) -> None:
    """``1 - n3`` with ``n3 = 1 - n2`` is ``n2``, however much that is made of."""
    nodes = NodeTable()
    own = deep(nodes, depth)
    row = ((0, 1, 4, 0),)
    terms = (Operand(nodes.one, ()), ONE), (Operand(own, row), factor)
    operands, factors = zip(*terms, strict=True)
    made = nodes.define(Combine(factors, operands, (0,)), (4,))
    view = View(((StridedInterval(0, 1, 4, ZERO, 4),),))
    given = Lineage((4,), (Addend(-ONE, made, view),))
    claimed = Lineage((4,), (Addend(ONE, own, view),))
    here = cone(nodes, (given,), (claimed,), adds=False)
    assert own in here.opaque
    claim = Claim("op", "add", {"other": ONE}, False, (), 1, (given,), (claimed,), {})
    assert holds(nodes, claim) is right
