"""How many positions a claim keeps: as many as the theorem of docs/soundness.md, 5.3, asks for."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from fractions import Fraction

import pytest

from shardproof.engine.algebra.affine import ZERO
from shardproof.engine.claims.claim import Claim
from shardproof.engine.claims.cone import cone
from shardproof.engine.errors import Unsupported
from shardproof.engine.lineage.expressions import Causal, Combine, Einsum, Input, Operand, Unary
from shardproof.engine.lineage.lineage import ABSOLUTE, Addend, Lineage, StridedInterval, View
from shardproof.engine.lineage.nodes import NodeTable
from shardproof.engine.lineage.views import constant_interval
from shardproof.engine.obligations.obligation import build
from shardproof.engine.small_model import representatives
from shardproof.engine.small_model.bounds import enough
from shardproof.engine.small_model.related import related
from shardproof.solvers import Portfolio, Query

SIZE = 6


@pytest.fixture(scope="module")
def solver() -> Iterator[Portfolio]:
    with Portfolio("z3", timeout=30) as portfolio:
        yield portfolio


def verdict(solver: Portfolio, nodes: NodeTable, claim: Claim, more: int = 0) -> str:
    return solver.solve(Query.of("", build(nodes, claim, more=more).goals)).verdict


def whole(axis: int, size: int = SIZE) -> tuple[StridedInterval, ...]:
    return (StridedInterval(axis, 1, size, ZERO, size),)


def square(nodes: NodeTable) -> int:
    return nodes.define(Input("y"), (SIZE, SIZE))


def view(node: int, rank: int, *dims: int, factor: int = 1) -> Addend:
    """The term node[i_dims], as a tensor with ``rank`` dimensions i."""
    layout = [(constant_interval(SIZE),)] * rank
    for axis, dim in enumerate(dims):
        layout[dim] = whole(axis)
    return Addend(Fraction(factor), node, View(tuple(layout)))


def same(given: Sequence[Addend], claimed: Sequence[Addend], rank: int) -> Claim:
    shape = (SIZE,) * rank
    lineages = Lineage(shape, tuple(given)), Lineage(shape, tuple(claimed))
    return Claim("op", "identity", {}, False, (), 1, lineages[:1], lineages[1:], {})


def kept(nodes: NodeTable, claim: Claim, *axes: tuple[int, int]) -> list[int]:
    """How many positions the pieces of axes keep."""
    given = [x for x in claim.inputs if x is not None]
    here = cone(nodes, given, claim.outputs, adds=False)
    required = enough(nodes, claim, here, related(claim))
    return [required.of(axis, 1, nodes[axis[0]].extents[axis[1]]) for axis in axes]


# -- free labels -----------------------------------------------------------------------------------


def test_three_free_labels_of_one_axis(solver: Portfolio) -> None:
    """y[i,j] + y[j,k] + y[k,i] = y[j,i] + y[k,j] + y[i,k] holds where two of i, j, k are equal."""
    nodes = NodeTable()
    y = square(nodes)
    turned = [view(y, 3, 0, 1), view(y, 3, 1, 2), view(y, 3, 2, 0)]
    other = [view(y, 3, 1, 0), view(y, 3, 2, 1), view(y, 3, 0, 2)]
    false, true = same(turned, other, 3), same(turned, turned[::-1], 3)
    assert kept(nodes, false, (y, 0), (y, 1)) == [3, 3]
    assert verdict(solver, nodes, false) == "sat"
    assert verdict(solver, nodes, true) == "unsat"


def test_labels_of_different_axes_are_counted_apart(solver: Portfolio) -> None:
    nodes = NodeTable()
    x = nodes.define(Input("x"), (SIZE, SIZE, SIZE))
    claim = same([view(x, 3, 0, 1, 2)], [view(x, 3, 0, 1, 2)], 3)
    assert kept(nodes, claim, (x, 0), (x, 1), (x, 2)) == [1, 1, 1]
    assert verdict(solver, nodes, claim) == "unsat"


def product(nodes: NodeTable, x: int, y: int) -> int:
    """z[i, j] = sum over k of x[i, k] y[k, j]."""
    left = Operand(x, ((0, 1, SIZE, 0), (1, 1, SIZE, 2)))
    right = Operand(y, ((0, 1, SIZE, 2), (1, 1, SIZE, 1)))
    return nodes.define(Einsum((left, right), (0, 1)), (SIZE, SIZE))


def matmul(nodes: NodeTable, x: int, y: int, claimed: int) -> Claim:
    def tensor(node: int) -> Lineage:
        return Lineage((SIZE, SIZE), (view(node, 2, 0, 1),))

    inputs = tensor(x), tensor(y)
    return Claim("op", "matmul", {}, False, (), 1, inputs, (tensor(claimed),), {})


def test_free_and_summed_labels_of_one_axis(solver: Portfolio) -> None:
    """In y y, the axes of y are one class: i, j, and the k that is summed."""
    nodes = NodeTable()
    x, y = nodes.define(Input("x"), (SIZE, SIZE)), square(nodes)
    apart, together = matmul(nodes, x, y, product(nodes, x, y)), product(nodes, y, y)
    assert kept(nodes, apart, (x, 0), (x, 1), (y, 1)) == [1, 1, 1]
    claim = matmul(nodes, y, y, together)
    assert kept(nodes, claim, (y, 0), (y, 1)) == [3, 3]
    assert verdict(solver, nodes, apart) == "unsat"
    assert verdict(solver, nodes, claim) == "unsat"
    assert verdict(solver, nodes, matmul(nodes, y, x, product(nodes, x, y))) == "sat"


# -- arguments of functions ------------------------------------------------------------------------


def test_arguments_are_compared_with_one_another() -> None:
    """exp(y[i, j]) and exp(y[j, k]) are one letter for all i, j, k if they are for four
    positions."""
    nodes = NodeTable()
    y = square(nodes)
    turned = Lineage((SIZE, SIZE), (view(y, 2, 0, 1), view(y, 2, 1, 0)))
    shape = (SIZE, SIZE)
    parts = [Operand(y, ((0, 1, SIZE, a), (1, 1, SIZE, 1 - a))) for a in (0, 1)]
    total = nodes.define(Combine((Fraction(1),) * 2, tuple(parts), (0, 1)), shape)
    exp = nodes.define(Unary("exp", Fraction(1), total), shape)
    claimed = Lineage(shape, (view(exp, 2, 0, 1),))
    claim = Claim("op", "exp", {}, False, (), 1, (turned,), (claimed,), {})
    assert kept(nodes, claim, (y, 0), (y, 1)) == [4, 4]


# -- the operator's own degree ---------------------------------------------------------------------


@pytest.mark.parametrize("digits", [(SIZE,), (2, 3)])
def test_the_operator_counts_as_well_as_what_is_claimed(digits: tuple[int, ...]) -> None:
    """Whatever is claimed of it, layernorm sums products of three sums, over every digit of its
    axis: of (x - mean)^2, where each mean is a sum."""
    nodes = NodeTable()
    x, w, b = (nodes.define(Input(n), (SIZE, SIZE) if n == "x" else (SIZE,)) for n in "xwb")
    strides = [1] if len(digits) == 1 else [digits[1], 1]
    split = tuple(StridedInterval(1, s, n, ZERO, n) for s, n in zip(strides, digits, strict=True))
    tensor = Lineage((SIZE, SIZE), (Addend(Fraction(1), x, View((whole(0), split))),))
    vectors = [Lineage((SIZE,), (view(n, 1, 0),)) for n in (w, b)]
    attrs = {"eps": Fraction(1, 10**5)}
    claim = Claim("op", "layernorm", attrs, False, (), 1, (tensor, *vectors), (tensor,), {})
    here = cone(nodes, [tensor, *vectors], [tensor], adds=False)
    required = enough(nodes, claim, here, related(claim))
    assert required.of((x, 0), 1, SIZE) == 2
    assert [required.of((x, 1), s, n) for s, n in zip(strides, digits, strict=True)] == [3] * len(
        digits
    )


# -- sums under a mask -----------------------------------------------------------------------------


def softmax_sum(nodes: NodeTable, *, of_scores: bool) -> Claim:
    """sum over k of exp(mask[q, k] + s[q, k]), or of exp(mask[q, k]): how many keys there are."""
    shape = (SIZE, SIZE)
    scores = nodes.define(Input("s"), shape)
    mask = nodes.define(Causal(), (ABSOLUTE, ABSOLUTE))
    reads = [Operand(mask, ((0, 1, SIZE, 0), (1, 1, SIZE, 1)))]
    if of_scores:
        reads.append(Operand(scores, ((0, 1, SIZE, 0), (1, 1, SIZE, 1))))
    payload = ((Fraction(1),) * len(reads), tuple(reads), (0, 1))
    masked = nodes.define(Combine(*payload), shape)
    weights = nodes.define(Unary("exp", Fraction(1), masked), shape)
    whole_row = Operand(weights, ((0, 1, SIZE, 0), (1, 1, SIZE, 1)))
    total = nodes.define(Einsum((whole_row,), (0,)), (SIZE,))
    claimed = Lineage((SIZE,), (view(total, 1, 0),))
    exp = Lineage(shape, (view(weights, 2, 0, 1),))
    return Claim("op", "sum", {"dim": (1,), "keepdim": False}, False, (), 1, (exp,), (claimed,), {})


def test_a_count_under_a_mask_is_refused(
    solver: Portfolio, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last position of a piece counts as the mask has it, not as those that it stands for."""
    nodes = NodeTable()
    claim = softmax_sum(nodes, of_scores=True)
    assert verdict(solver, nodes, claim) == "unsat"
    # What is small is stated as it is, and needs nothing that stands for others.
    nodes = NodeTable()
    assert build(nodes, softmax_sum(nodes, of_scores=False), widened=1).goals
    monkeypatch.setattr(representatives, "MOST_WHOLE", SIZE - 1)
    nodes = NodeTable()
    with pytest.raises(Unsupported, match="a sum under a mask over positions that are alike"):
        build(nodes, softmax_sum(nodes, of_scores=False), widened=1)
