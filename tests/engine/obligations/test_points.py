"""A family whose members are not one claim, moved, is stated at every member, by prover and
checker: what is right at its ends and wrong in the middle is not proved."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction

import pytest

from shardproof.checker.obligations.families import members
from shardproof.engine.algebra.affine import ZERO, Affine, affine
from shardproof.engine.claims.cone import cone
from shardproof.engine.errors import Unsupported
from shardproof.engine.lineage.expressions import Causal, Combine, Einsum, Input, Onehot, Operand
from shardproof.engine.lineage.lineage import (
    ABSOLUTE,
    Addend,
    Lineage,
    PartialRange,
    StridedInterval,
    View,
)
from shardproof.engine.lineage.members import concrete
from shardproof.engine.lineage.nodes import NodeTable, Reduction
from shardproof.engine.obligations.obligation import MOST_MEMBERS, Claim, build, points
from tests.engine.asking import Holds

MEMBERS = 32
LAST = MEMBERS - 1
DP = affine(0, {"dp": 1})
BACK = affine(LAST, {"dp": -1})
EXTENTS = {"dp": MEMBERS}


def identity(given: Lineage, claimed: Lineage, dp: int = MEMBERS) -> Claim:
    return Claim("op", "identity", {}, False, (), 1, (given,), (claimed,), {"dp": dp})


def stated(nodes: NodeTable, claim: Claim) -> list[dict[str, int]]:
    inputs = [x for x in claim.inputs if x is not None]
    return points(nodes, claim, cone(nodes, inputs, claim.outputs, adds=claim.adds))


# -- sums of two entries
# ----------------------------------------------------------------------------

Place = Callable[[NodeTable, Affine], Addend]


def in_a_table(nodes: NodeTable, start: Affine) -> Addend:
    """An entry of a vector, by its position."""
    x = nodes.define(Input("x"), (MEMBERS,))
    return Addend(Fraction(1), x, View(((StridedInterval(0, 1, MEMBERS, start, 1),),)))


def in_strides(nodes: NodeTable, start: Affine) -> Addend:
    """Four entries of a vector, one of every row of 32."""
    x = nodes.define(Input("x"), (4 * MEMBERS,))
    column, row = StridedInterval(0, 1, MEMBERS, start, 1), StridedInterval(0, MEMBERS, 4, ZERO, 4)
    return Addend(Fraction(1), x, View(((row,),), (column,)))


def in_a_vocabulary(nodes: NodeTable, start: Affine) -> Addend:
    """Whether an id is a class, by the number of the class."""
    ids = nodes.define(Input("ids"), ())
    hot = nodes.define(Onehot(Fraction(1), ids), (ABSOLUTE,))
    return Addend(Fraction(1), hot, View(((StridedInterval(0, 1, ABSOLUTE, start, 1),),)))


def both(nodes: NodeTable, place: Place, one: Affine, other: Affine) -> Lineage:
    addends = place(nodes, one), place(nodes, other)
    size = 1
    for interval in addends[0].view.dims[0]:
        size *= interval.size
    return Lineage((size,), addends)


@pytest.mark.parametrize("place", [in_a_table, in_strides, in_a_vocabulary])
def test_what_holds_at_the_ends_only_is_not_proved(place: Place, holds: Holds) -> None:
    """Positions c and 31 - c are 0 and 31 at the first and at the last of 32 members."""
    nodes = NodeTable()
    given = both(nodes, place, DP, BACK)
    wrong = identity(given, both(nodes, place, affine(0), affine(LAST)))
    right = identity(given, both(nodes, place, BACK, DP))
    for claim in (wrong, right):
        assert [here["dp"] for here in stated(nodes, claim)] == list(range(MEMBERS))
    assert not holds(nodes, wrong)
    assert holds(nodes, right)
    at = {here["dp"]: holds(nodes, member) for here, member in members(nodes, wrong)}
    assert at == {n: n in (0, LAST) for n in range(MEMBERS)}
    assert all(holds(nodes, member) for _, member in members(nodes, right))


def test_a_class_is_read_by_its_number_where_a_one_hot_is_defined(holds: Holds) -> None:
    """Entries of a one-hot that is taken as it is are symbols, whatever their class: one member
    stands for all. Where its definition is read, all are stated."""
    nodes = NodeTable()
    hot = in_a_vocabulary(nodes, DP)
    given, twice = (Lineage((1,), (hot._replace(factor=Fraction(n)),)) for n in (1, 2))
    right, wrong = identity(given, given), identity(given, twice)
    for claim in (right, wrong):
        assert stated(nodes, claim) == [{}]
        assert list(members(nodes, claim)) == []
        each = {holds(nodes, at(claim, n)) for n in range(MEMBERS)}
        assert each == {holds(nodes, claim)} == {claim is right}
    backwards = identity(given, Lineage((1,), (in_a_vocabulary(nodes, BACK),)))
    assert len(stated(nodes, backwards)) == MEMBERS
    assert not holds(nodes, backwards)
    ids = Lineage((1,), (Addend(Fraction(1), *nodes[hot.node].definition.children(), View(((),))),))
    made = identity(ids, given)
    assert len(stated(nodes, made)) == len(list(members(nodes, made))) == MEMBERS


def at(claim: Claim, position: int) -> Claim:
    """The claim of one member."""
    here = {"dp": position}
    return claim._replace(
        inputs=tuple(None if x is None else concrete(x, here) for x in claim.inputs),
        outputs=tuple(concrete(x, here) for x in claim.outputs),
    )


# -- masks
# ------------------------------------------------------------------------------------------


def masked(nodes: NodeTable, rows: Affine) -> Lineage:
    """16 rows of a causal mask from ``rows`` on, and its keys 200 to 204."""
    causal = nodes.define(Causal(), (ABSOLUTE, ABSOLUTE))
    dims = (
        (StridedInterval(0, 1, ABSOLUTE, rows, 16),),
        (StridedInterval(1, 1, ABSOLUTE, affine(200), 4),),
    )
    return Lineage((16, 4), (Addend(Fraction(1), causal, View(dims)),))


def test_a_mask_that_is_another_in_the_middle_only(holds: Holds) -> None:
    """16 rows from 128c and from 64c + 16 on are all before the keys, or all behind them, but of
    the third of 32 members."""
    nodes = NodeTable()
    given = masked(nodes, affine(0, {"dp": 128}))
    wrong = identity(given, masked(nodes, affine(16, {"dp": 64})))
    assert [here["dp"] for here in stated(nodes, wrong)] == list(range(MEMBERS))
    assert not holds(nodes, wrong)
    assert holds(nodes, identity(given, given))
    at = [
        not build(nodes, member).goals or holds(nodes, member)
        for _, member in members(nodes, wrong)
    ]
    assert [n for n, holds in enumerate(at) if not holds] == [2]


# -- how many
# ---------------------------------------------------------------------------------------


def test_too_many_that_differ_are_refused() -> None:
    """By the prover, and by the checker, which never takes the ends for all."""
    nodes = NodeTable()
    given = both(nodes, in_a_vocabulary, DP, BACK)
    claim = identity(given, given, MOST_MEMBERS)
    assert len(stated(nodes, claim)) == MOST_MEMBERS
    more = identity(given, given, MOST_MEMBERS + 1)
    with pytest.raises(Unsupported, match="a family of more than 1024 members that differ"):
        build(nodes, more)
    with pytest.raises(Unsupported, match="a family of more than 1024 members that differ"):
        list(members(nodes, more))


def test_members_that_are_one_claim_moved_are_one_however_many(holds: Holds) -> None:
    nodes = NodeTable()
    x = nodes.define(Input("x"), (4096,))
    given = Lineage(
        (4,), (Addend(Fraction(1), x, View(((StridedInterval(0, 1, 4096, DP * 4, 4),),))),)
    )
    claim = identity(given, given, 1024)
    assert stated(nodes, claim) == [{}]
    assert list(members(nodes, claim)) == []
    assert holds(nodes, claim)
    wrong = given._replace(addends=(given.addends[0]._replace(factor=Fraction(2)),))
    assert not holds(nodes, identity(given, wrong, 1024))


# -- partial sums that move
# -------------------------------------------------------------------------


def sums(nodes: NodeTable) -> tuple[int, int, int]:
    """A sum over 4,096 products of x and y; a node that is twice the whole of it."""
    x, y = (nodes.define(Input(name), (4096,)) for name in "xy")
    reads = tuple(Operand(n, ((0, 1, 4096, 0),)) for n in (x, y))
    total = nodes.define(Einsum(reads, ()), ())
    token = nodes.reduction(Reduction("sum", total, 0))
    twice = nodes.define(Combine((Fraction(2),), (Operand(total, ()),), ()), ())
    return total, token, twice


def share(total: int, token: int) -> Lineage:
    return Lineage(
        (), (Addend(Fraction(1), total, View(()), (PartialRange(token, DP * 4, 4, 4096),)),)
    )


def test_a_range_that_moves_is_one_claim_moved() -> None:
    nodes = NodeTable()
    total, token, _ = sums(nodes)
    claim = identity(share(total, token), share(total, token), 1024)
    assert stated(nodes, claim) == [{}]
    assert list(members(nodes, claim)) == []


def test_a_range_that_moves_beside_the_whole_sum_is_not() -> None:
    """What is renamed for the range is not what is renamed for the sum of all, wherever that is:
    as a view, or in a definition."""
    nodes = NodeTable()
    total, token, twice = sums(nodes)
    part = share(total, token)
    for other in (total, twice):
        also = Addend(Fraction(1), other, View(()))
        claimed = Lineage((), (*part.addends, also))
        x = nodes.define(Input("x"), (4096,))
        given = Lineage(
            (4,), (Addend(Fraction(1), x, View(((StridedInterval(0, 1, 4096, DP * 4, 4),),))),)
        )
        claim = Claim("op", "sum", {}, False, (), 1, (given,), (claimed,), {"dp": 1024})
        assert len(stated(nodes, claim)) == len(list(members(nodes, claim))) == 1024


# -- what is scattered
# ------------------------------------------------------------------------------


def scatter(given: Lineage, claimed: Lineage, count: int) -> Claim:
    over = (("dp", count),)
    return Claim(
        "reduce_scatter", "", {"dim": 0}, False, over, 1, (given,), (claimed,), {"dp": count}
    )


def vector(nodes: NodeTable, *intervals: StridedInterval, factor: int = 1) -> Lineage:
    extent, size = 1, 1
    for interval in intervals:
        extent, size = extent * interval.extent, size * interval.size
    x = nodes.define(Input("x"), (extent,))
    return Lineage((size,), (Addend(Fraction(factor), x, View((intervals,))),))


@pytest.mark.parametrize("count", [8, 512])
def test_what_is_scattered_is_one_claim_moved(count: int, holds: Holds) -> None:
    nodes = NodeTable()
    size = 4 * count
    given = vector(nodes, StridedInterval(0, 1, size, ZERO, size))
    right = vector(nodes, StridedInterval(0, 1, size, DP * 4, 4), factor=count)
    claim = scatter(given, right, count)
    assert [here["dp"] for here in stated(nodes, claim)] == [1, 0, count - 1]
    assert holds(nodes, claim)
    for wrong in (
        vector(nodes, StridedInterval(0, 1, size, affine(size - 4, {"dp": -4}), 4), factor=count),
        vector(nodes, StridedInterval(0, 1, size, DP * 4, 4)),
    ):
        try:
            assert not holds(nodes, scatter(given, wrong, count))
        except Unsupported:
            assert count > MOST_MEMBERS


def test_what_is_scattered_across_digits_is_stated_at_every_member(holds: Holds) -> None:
    """Pieces of half a row: where the next begins is no affine function of one digit."""
    nodes = NodeTable()
    rows, columns = StridedInterval(0, 8, 16, ZERO, 16), StridedInterval(0, 1, 8, ZERO, 8)
    given = vector(nodes, rows, columns)
    size = 128
    right = Lineage((4,), (given.addends[0]._replace(view=View(((StridedInterval(0, 1, size, DP * 4, 4),),)),
                                                   factor=Fraction(32)),))  # fmt: skip
    claim = scatter(given, right, 32)
    assert [here["dp"] for here in stated(nodes, claim)] == list(range(32))
    assert holds(nodes, claim)
    wrong = right._replace(addends=(right.addends[0]._replace(factor=Fraction(31)),))
    assert not holds(nodes, scatter(given, wrong, 32))
