"""Claims about sums with gaps: what adds an outer digit of a range up before the inner ones."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from fractions import Fraction

import pytest

from shardproof.checker.obligations.families import members
from shardproof.checker.values.ranges import IllFormed
from shardproof.checker.values.views import ViewChecker
from shardproof.engine.algebra.affine import Affine, affine
from shardproof.engine.errors import Unsupported
from shardproof.engine.lineage.expressions import Einsum, Input, Operand
from shardproof.engine.lineage.lineage import (
    Addend,
    Lineage,
    PartialRange,
    StridedInterval,
    View,
)
from shardproof.engine.lineage.nodes import NodeTable, Reduction
from shardproof.engine.obligations.obligation import Claim, build
from shardproof.solvers import Portfolio, Query

EXTENTS = {"cp": 4, "tp": 2, "mb": 3}
RANGE = 96

Range = tuple[Affine, int, int]
Holds = Callable[[Claim], bool]


def at(constant: int = 0, **steps: int) -> Affine:
    return affine(constant, steps)


@pytest.fixture(scope="module")
def table() -> NodeTable:
    """A sum over 96 positions of x times y: node 3, reduction 0."""
    nodes = NodeTable()
    x = nodes.define(Input("x"), (RANGE,))
    y = nodes.define(Input("y"), (RANGE,))
    reads = (Operand(x, ((0, 1, RANGE, 0),)), Operand(y, ((0, 1, RANGE, 0),)))
    nodes.reduction(Reduction("sum", nodes.define(Einsum(reads, ()), ()), 0))
    return nodes


def partial(*ranges: Range, factor: int = 1) -> Lineage:
    partials = tuple(PartialRange(0, start, size, extent) for start, size, extent in ranges)
    return Lineage((), (Addend(Fraction(factor), 3, View(()), partials),))


def over(axis: str, given: Lineage, claimed: Lineage) -> Claim:
    sums = ((axis, EXTENTS[axis]),)
    return Claim("all_reduce", "", {"op": "sum"}, False, sums, 1, (given,), (claimed,), EXTENTS)


def together(given: list[Lineage], claimed: Lineage) -> Claim:
    attrs = {"op": "sum"}
    count = len(given)
    return Claim(
        "all_reduce", "", attrs, False, (), count, tuple(given), (claimed,) * count, EXTENTS
    )


@pytest.fixture(scope="module")
def holds(table: NodeTable) -> Iterator[Holds]:
    with Portfolio() as portfolio:

        def everywhere(claim: Claim) -> bool:
            """Whether a claim is proved at every member that decides its family."""
            found = [claim, *(member for _, member in members(table, claim))]
            try:
                return all(
                    portfolio.solve(Query.of("", build(table, one).goals)).verdict == "unsat"
                    for one in found
                )
            except Unsupported:
                return False

        yield everywhere


#: cp * 24 + mb * 8 + tp * 4: context outside, microbatches, tensor parallel inside.
GIVEN = partial((at(cp=24, mb=8, tp=4), 4, RANGE))


@pytest.mark.parametrize(
    ("axis", "claimed"),
    [
        ("cp", partial((at(mb=8, tp=4), 4, 24))),
        ("mb", partial((at(tp=4), 4, 8), (at(cp=24), 24, RANGE))),
        ("tp", partial((at(cp=24, mb=8), 8, RANGE))),
    ],
    ids=["outer", "middle", "inner"],
)
def test_a_sum_over_any_digit(axis: str, claimed: Lineage, holds: Holds) -> None:
    assert holds(over(axis, GIVEN, claimed))


@pytest.mark.parametrize(
    ("axis", "claimed"),
    [
        ("cp", partial((at(mb=8), 4, 24))),  # of one tensor-parallel rank
        ("cp", partial((at(mb=8, tp=4), 4, 48))),  # every second of them only
        ("cp", partial((at(mb=8, tp=4), 4, 24), factor=4)),
        ("cp", partial((at(mb=8), 8, 24))),  # gaps taken as filled
        ("cp", partial()),
        ("mb", partial((at(tp=4), 4, 8))),  # of all cp ranks
        ("mb", partial((at(tp=4), 4, 8), (at(), 24, RANGE))),  # of one of them
        ("mb", partial((at(tp=4), 4, 8), (at(cp=24), 16, RANGE))),  # one microbatch is missing
        ("mb", partial((at(cp=24), 24, RANGE))),
        ("tp", partial((at(cp=24, mb=8), 4, RANGE), factor=2)),
        ("tp", partial((at(mb=8), 8, 24))),
    ],
)
def test_a_sum_over_other_positions_is_not_proved(
    axis: str, claimed: Lineage, holds: Holds
) -> None:
    assert not holds(over(axis, GIVEN, claimed))


def test_gaps_are_filled_by_what_fills_them(holds: Holds) -> None:
    assert holds(over("tp", partial((at(tp=4), 4, 8)), partial()))
    outer = (at(cp=24), 24, RANGE)
    assert holds(over("tp", partial((at(tp=4), 4, 8), outer), partial(outer)))
    assert holds(over("cp", partial((at(tp=4), 4, 8), outer), partial((at(tp=4), 4, 8))))
    # The inner digit is half as long as the gap, or the same for both ranks.
    assert not holds(over("tp", partial((at(tp=4), 4, 16)), partial()))
    assert not holds(over("tp", partial((at(), 4, 8)), partial()))
    assert not holds(over("tp", partial((at(tp=4), 4, 8), outer), partial()))


def test_explicit_members_with_gaps(holds: Holds) -> None:
    given = [partial((at(24 * i, tp=4), 4, RANGE)) for i in range(4)]
    assert holds(together(given, partial((at(tp=4), 4, 24))))
    assert not holds(together([*given[:3], given[0]], partial((at(tp=4), 4, 24))))
    assert not holds(together(given[:3], partial((at(tp=4), 4, 24))))
    assert holds(together(given[:2], partial((at(tp=4), 4, 24), (at(), 48, RANGE))))


@pytest.mark.parametrize(
    ("ranges", "says"),
    [
        ([(at(), 4, 36)], "a part of 36 positions, 96 are reduced"),
        ([(at(), 4, 0)], "a part of 0 positions"),
        ([(at(mb=8), 9, 24)], "is not inside"),
        ([(at(cp=8), 4, 24)], "is not inside"),
        ([(at(tp=4), 4, 8), (at(cp=24), 20, RANGE)], "cuts through periods of 8"),
        ([(at(tp=4), 4, 8), (at(cp=12), 24, RANGE)], "cuts through periods of 8"),
        ([(at(), 4, 12), (at(), 32, 32)], "cuts through periods of 12"),
        ([(at(cp=24), 24, RANGE), (at(tp=4), 4, 8)], "not in order"),
        ([(at(), 4, 24), (at(mb=8), 4, 24)], "not in order"),
    ],
)
def test_ranges_that_mean_nothing_are_rejected(
    ranges: list[Range], says: str, table: NodeTable
) -> None:
    with pytest.raises(IllFormed, match=says):
        ViewChecker(table).lineage(partial(*ranges), EXTENTS)


def test_ranges_that_repeat_are_views(table: NodeTable) -> None:
    ViewChecker(table).lineage(GIVEN, EXTENTS)
    ViewChecker(table).lineage(partial((at(tp=4), 4, 8), (at(cp=24), 24, RANGE)), EXTENTS)


@pytest.mark.parametrize(("extent", "says"), [(8, ""), (4, "4 positions in front of stride 8")])
def test_what_an_interval_is_of_is_told_by_its_axis(extent: int, says: str) -> None:
    """Another extent changes nothing that the view reads, so nothing else would notice it."""
    table = NodeTable()
    node = table.define(Input("w"), (8,))
    half = StridedInterval(0, 1, extent, at(), 2)
    lineage = Lineage((2,), (Addend(Fraction(1), node, View(((half,),))),))
    if not says:
        ViewChecker(table).lineage(lineage, EXTENTS)
        return
    with pytest.raises(IllFormed, match=says):
        ViewChecker(table).lineage(lineage, EXTENTS)
