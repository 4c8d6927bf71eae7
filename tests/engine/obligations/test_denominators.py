"""Equalities times what they are divided by: polynomials, with as many positions as these take."""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction

import pytest

from shardproof.engine.algebra.affine import ZERO
from shardproof.engine.algebra.terms import Term, TermTable
from shardproof.engine.claims.claim import Claim
from shardproof.engine.claims.cone import cone
from shardproof.engine.lineage.expressions import Einsum, Input, Operand, Unary
from shardproof.engine.lineage.lineage import Addend, Lineage, StridedInterval, View
from shardproof.engine.lineage.nodes import NodeTable
from shardproof.engine.lineage.views import constant_interval
from shardproof.engine.obligations.denominators import cleared
from shardproof.engine.obligations.obligation import Obligation, build
from shardproof.engine.small_model.bounds import enough
from shardproof.engine.small_model.related import related
from shardproof.solvers import Portfolio, Query

SIZE = 6
ONE = Fraction(1)


@pytest.fixture(scope="module")
def solver() -> Iterator[Portfolio]:
    with Portfolio("z3", timeout=30) as portfolio:
        yield portfolio


def test_what_holds_only_for_numbers_that_are_not_zero(solver: Portfolio) -> None:
    table = TermTable()
    x, y, z = (table.symbol(name) for name in "xyz")
    share = table.app("inv", x + y)

    def verdict(left: Term, right: Term) -> str:
        whole = cleared(table, [(left, right)])
        return solver.solve(Query.of("", whole.goals if whole else ((left, right),))).verdict

    assert verdict(x * share + y * share, table.one) == "unsat"
    assert verdict(x * share * share + y * share * share, share) == "unsat"
    assert verdict(x * share + z * share, table.one) == "sat"
    # What holds as it is stays as it is, and so does what is an argument of a function.
    assert cleared(table, [(x * share, share * x)]) is None
    inside = table.app("exp", x * share + y * share)
    assert cleared(table, [(inside, table.app("exp", table.one))]) is None


def weights(nodes: NodeTable) -> tuple[int, int]:
    """e[b, k], and e[b, k] / the sum of e[b, k] over k."""
    e = nodes.define(Input("e"), (SIZE, SIZE))
    row = Operand(e, ((0, 1, SIZE, 0), (1, 1, SIZE, 1)))
    total = nodes.define(Einsum((row,), (0,)), (SIZE,))
    share = nodes.define(Unary("inv", ONE, total), (SIZE,))
    read = (row, Operand(share, ((0, 1, SIZE, 0),)))
    return e, nodes.define(Einsum(read, (0, 1)), (SIZE, SIZE))


def summed(dims: tuple[int, ...], claimed: int) -> tuple[NodeTable, Claim, frozenset[int]]:
    """The claim that weights, summed over some dimensions, are a number, and what shows it."""
    nodes = NodeTable()
    e, weighted = weights(nodes)
    axes = tuple((StridedInterval(i, 1, SIZE, ZERO, SIZE),) for i in range(2))
    given = Lineage((SIZE, SIZE), (Addend(ONE, weighted, View(axes)),))
    rank = 2 - len(dims)
    constant = View(((constant_interval(SIZE),),) * rank)
    out = Lineage((SIZE,) * rank, (Addend(Fraction(claimed), nodes.one, constant),))
    attributes = {"dim": dims, "keepdim": False}
    claim = Claim("op", "sum", attributes, False, (), 1, (given,), (out,), {})
    return nodes, claim, frozenset(range(e + 1, len(nodes)))


def stated(dims: tuple[int, ...], claimed: int) -> Obligation:
    nodes, claim, opens = summed(dims, claimed)
    return build(nodes, claim, widened=opens)


@pytest.mark.parametrize(("claimed", "verdict"), [(1, "unsat"), (2, "sat")])
def test_weights_add_up_to_one(solver: Portfolio, claimed: int, verdict: str) -> None:
    assert solver.solve(Query.of("", stated((1,), claimed).goals)).verdict == verdict


def test_what_is_multiplied_by_takes_positions() -> None:
    nodes, claim, opens = summed((1,), 1)
    here = cone(nodes, [x for x in claim.inputs if x], claim.outputs, adds=False, widened=opens)
    required = enough(nodes, claim, here, related(claim))
    e = 1
    assert [required.of((e, axis), 1, SIZE) for axis in (0, 1)] == [2, 1]
    more = required.times_divisors(factors=2, different=1)
    assert more is not None
    assert [more.of((e, axis), 1, SIZE) for axis in (0, 1)] == [3, 3]


def test_a_sum_along_what_is_divided_by_stays_as_it_is() -> None:
    """Over all rows there is no one number to multiply by: as many as rows."""
    nodes, claim, opens = summed((0, 1), SIZE)
    here = cone(nodes, [x for x in claim.inputs if x], claim.outputs, adds=False, widened=opens)
    required = enough(nodes, claim, here, related(claim))
    assert required.times_divisors(factors=1, different=1) is None
