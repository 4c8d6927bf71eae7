"""The gradient of a maximum: right plans that take it are proved, wrong ones refuted."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction

import pytest

from shardproof.engine.plan.ir import Body, Op, Plan
from shardproof.frontends.builder.builder import BodyBuilder
from tests.faults.plans import assert_proved, assert_refuted, edit_body
from tests.faults.test_routes import Formula, plan

#: What the gradient of a maximum may be mistaken for.
OTHERS = ("sum", "mean")


def over(first: Callable[[BodyBuilder, int], int]) -> Formula:
    """x w1 times the largest entry of a row of what ``first`` makes of x w2."""

    def formula(b: BodyBuilder, x: int, t: int, w1: int, w2: int) -> int:
        return b.mul(b.matmul(x, w1), b.amax(first(b, b.matmul(x, w2)), -1, keepdim=True))

    return formula


def itself(b: BodyBuilder, y: int) -> int:
    return y


def twice(b: BodyBuilder, y: int) -> int:
    return b.mul_constant(y, Fraction(2))


def by_column(b: BodyBuilder, x: int, t: int, w1: int, w2: int) -> int:
    """x w1 times the largest entry of a column of x w2, among the rows of this rank."""
    return b.mul(b.matmul(x, w1), b.amax(b.matmul(x, w2), 0, keepdim=True))


def renamed(made: Plan, name: str) -> Plan:
    """The backward of the maximum becomes that of another reduction."""

    def change(op: Op) -> Op:
        return replace(op, name=name) if op.name == "amax" else op

    def within(body: Body) -> Body:
        return replace(body, ops=tuple(change(op) for op in body.ops))

    return edit_body(made, 0, "backward", within)


def test_the_gradient_of_a_maximum_is_proved() -> None:
    made = plan(over(itself), over(itself))
    assert any(op.name == "amax" for op in made.programs[0].bodies[1].ops)
    assert_proved(made)


@pytest.mark.parametrize("name", OTHERS)
def test_another_gradient_of_a_maximum_is_refuted(name: str) -> None:
    made = plan(over(itself), over(itself))
    assert_refuted(renamed(made, name), kind="mismatch")


def test_the_maximum_of_something_else_is_refuted() -> None:
    assert_refuted(plan(over(itself), over(twice)), kind="mismatch")


def test_the_maximum_over_one_rank_is_not_that_over_all() -> None:
    assert_proved(plan(by_column, by_column, replicas=1))
    assert_refuted(plan(by_column, by_column), kind="mismatch")


def beside(factor: Fraction) -> Formula:
    """x w1 times the largest entry of a row of x w2, times a factor, and of x."""

    def formula(b: BodyBuilder, x: int, t: int, w1: int, w2: int) -> int:
        scaled = b.op("mul", b.matmul(x, w2), other=factor)
        row = b.op("concat", scaled, x, dim=1)
        return b.mul(b.matmul(x, w1), b.amax(row, -1, keepdim=True))

    return formula


@pytest.mark.parametrize("factor", [Fraction(-2), Fraction(1), Fraction(10**38)])
def test_entries_of_a_scaled_maximum_are_those_of_a_maximum_of_more(factor: Fraction) -> None:
    assert_proved(plan(beside(factor), beside(factor)))
    assert_refuted(plan(beside(factor), beside(2 * factor)), kind="mismatch")
