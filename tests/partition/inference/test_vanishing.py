"""Sums that are zero: of what is centred, on one device or over ranks."""

from __future__ import annotations

from fractions import Fraction

import pytest

from shardproof.engine.algebra.affine import ZERO
from shardproof.engine.lineage.expressions import Einsum, Input, Operand
from shardproof.engine.lineage.lineage import Addend, Lineage, StridedInterval, View
from shardproof.engine.lineage.nodes import NodeTable
from shardproof.engine.plan.ir import Plan
from shardproof.frontends.builder.builder import BodyBuilder, along
from shardproof.partition.inference.interpreter import LineageInterpreter
from shardproof.partition.inference.vanishing import zero
from tests.partition.formulas import Formula, Given, Weight, not_proved, pair, proved
from tests.partition.truth import truth

ROWS, WIDTH = 4, 8
BATCH = [(ROWS, WIDTH), (ROWS, WIDTH)]


def mean(b: BodyBuilder, x: int, width: int, axis: str = "") -> int:
    """The mean of every row, of which ranks along ``axis`` hold a part each."""
    total = b.sum(x, 1, keepdim=True)
    total = b.reduce_from(total, along(axis)) if axis else total
    return b.mul_constant(total, Fraction(1, width))


def centred(again: bool = False, right: bool = True) -> Formula:
    """The squares of centred products; ``again``: with the mean of what is centred taken away,
    which a wrong program takes of its own part alone."""

    def formula(b: BodyBuilder, given: Given) -> int:
        x, t = given.batch
        ranks = "tp" if given.extents.get("tp", 1) > 1 else ""
        inner = b.copy_to(x, along(ranks)) if ranks else x
        y = b.linear(inner, given["w"])
        own = mean(b, y, WIDTH, ranks)
        y = b.sub(y, b.copy_to(own, along(ranks)) if ranks else own)
        if again:
            rest = mean(b, y, WIDTH, ranks if right else "")
            y = b.sub(y, b.copy_to(rest, along(ranks)) if ranks and right else rest)
        t = b.chunk(t, 1, along(ranks)) if ranks else t
        loss = b.sum(b.mul(t, b.mul(y, b.silu(y))))
        return b.reduce_from(loss, along(ranks)) if ranks else loss

    return formula


@pytest.mark.parametrize("tp", [2, pytest.param(4, marks=pytest.mark.slow)])
def test_a_mean_that_is_zero(tp: int) -> None:
    weights = {"w": Weight((WIDTH, WIDTH), {0: "tp"})}

    def made(right: bool = True) -> Plan:
        return pair(centred(), centred(True, right), weights, BATCH, axes={"tp": tp})

    assert truth(made()).wrong == ()
    proved(made())
    assert truth(made(False)).wrong == ()
    not_proved(made(False))


def uncentred(right: bool = True) -> Formula:
    """As `centred`, where what is taken away last is a mean of half of each row."""

    def formula(b: BodyBuilder, given: Given) -> int:
        x, t = given.batch
        y = b.linear(x, given["w"])
        y = b.sub(y, mean(b, y, WIDTH))
        part = y if right else b.op("slice", y, dim=1, start=0, size=WIDTH // 2)
        y = b.sub(y, mean(b, part, WIDTH))
        return b.sum(b.mul(t, b.mul(y, b.silu(y))))

    return formula


def test_a_part_of_what_is_centred_is_not() -> None:
    weights = {"w": Weight((WIDTH, WIDTH))}
    plan = pair(centred(), uncentred(), weights, BATCH, axes={"tp": 1})
    assert truth(plan).wrong == ()
    proved(plan)
    wrong = pair(centred(), uncentred(False), weights, BATCH, axes={"tp": 1})
    assert truth(wrong).wrong == ()
    not_proved(wrong)


def shared_out(own: bool = False, part: bool = False) -> Formula:
    """The loss of `centred` without a mean; ``own``: and, added, the sums of e t - e sum(e t) / s,
    with s the sum of the exponentials e (``part``: of half of them)."""

    def formula(b: BodyBuilder, given: Given) -> int:
        x, t = given.batch
        y = b.linear(x, given["w"])
        loss = b.sum(b.mul(t, b.silu(y)))
        if not own:
            return loss
        e = b.exp(y)
        halved = b.op("slice", e, dim=1, start=0, size=WIDTH // 2) if part else e
        weighted = b.mul(e, t)
        share = b.op("div", b.sum(weighted, 1, keepdim=True), b.sum(halved, 1, keepdim=True))
        gap = b.sub(weighted, b.mul(e, share))
        return b.add(loss, b.sum(b.sum(gap, 1)))

    return formula


def test_what_is_divided_by_its_own_sum() -> None:
    weights = {"w": Weight((WIDTH, WIDTH))}
    right = pair(shared_out(), shared_out(True), weights, BATCH, axes={"tp": 1}, backward=False)
    assert truth(right).wrong == ()
    proved(right)
    wrong = pair(
        shared_out(), shared_out(True, True), weights, BATCH, axes={"tp": 1}, backward=False
    )
    assert truth(wrong).wrong == ()
    not_proved(wrong)


def test_what_is_centred_is_read_as_one_value() -> None:
    """Of the product that is centred nothing is read: only its mean counts."""
    nodes = NodeTable()
    table = LineageInterpreter(nodes)

    def given(name: str, shape: tuple[int, ...]) -> Lineage:
        number = nodes.define(Input(name), shape)
        dims = tuple((StridedInterval(i, 1, n, ZERO, n),) for i, n in enumerate(shape))
        return Lineage(shape, (Addend(Fraction(1), number, View(dims)),))

    y = table.einsum("ac,bc->ab", given("x", (ROWS, 3)), given("w", (WIDTH, 3)))
    total = table.einsum("ab->a", y)
    apart = table.einsum("a->ab", total, sizes={"b": WIDTH})
    centre = table.combine([y, apart], [Fraction(1), Fraction(-1, WIDTH)], Fraction(0))
    number = centre.addends[0].node
    operand = Operand(number, ((0, 1, ROWS, 0), (1, 1, WIDTH, 1)), ())
    by = zero(nodes, Einsum((operand,), (0,)))
    assert by == {number, total.addends[0].node}
    apart_twice = table.combine([y, apart], [Fraction(1), Fraction(-2, WIDTH)], Fraction(0))
    other = operand._replace(node=apart_twice.addends[0].node)
    assert zero(nodes, Einsum((other,), (0,))) is None
