"""Which microbatch a call belongs to: what is once is not taken for once in every microbatch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction

import pytest

from shardproof.engine.plan.ir import Plan, Program
from shardproof.engine.schedule.unroll import unroll
from shardproof.frontends.builder.builder import ProgramBuilder
from tests.faults.plans import assert_proved, assert_refuted, edit_program
from tests.faults.small import layer, replicas

REDUCER = 2
HALF = Fraction(1, 2)


def reducers(microbatches: Sequence[int]) -> Plan:
    """`replicas` with a call of the reducer for each of ``microbatches`` (-1: of none)."""

    def change(program: Program) -> Program:
        *calls, last = program.calls
        assert last.body == REDUCER
        return replace(
            program, calls=(*calls, *(replace(last, microbatch=m) for m in microbatches))
        )

    return edit_program(replicas(), 0, change)


@pytest.mark.parametrize("microbatches", [(0, 1), (-1, -1), (1, 0)])
def test_a_reducer_that_runs_in_every_microbatch_reduces_twice(microbatches: Sequence[int]) -> None:
    assert_refuted(reducers(microbatches), kind="conclusion", says="2 times")


@pytest.mark.parametrize("microbatch", [-1, 0, 1])
def test_a_reducer_that_runs_once_is_proved_whatever_it_is_labelled(microbatch: int) -> None:
    plan = reducers([microbatch])
    assert_proved(plan)
    assert unroll(plan.programs, 2).symbolic == (microbatch < 0)


def frozen(calls: Sequence[int], microbatches: int = 2) -> Plan:
    """A frozen layer that runs in the given microbatches (of two)."""

    def program(rows: int, microbatches: Sequence[int]) -> Program:
        made = ProgramBuilder("rank 0")
        weight = made.parameter("w", (16, 8), trainable=False)
        body = made.body("forward")
        (x,) = body.load_batch(("x", (rows, 8), "float32"))
        body.loss(layer(body, weight, x))
        for m in microbatches:
            made.call(body, (), (made.slot(),), m)
        return made.build()

    rows = 4 // microbatches
    return Plan("frozen", program(4, [0]), (program(rows, calls),), microbatches)


def test_both_microbatches_are_proved() -> None:
    assert_proved(frozen([0, 1]))
    assert_proved(frozen([1, 0]))


def test_where_there_is_one_microbatch_it_need_not_be_named() -> None:
    assert_proved(frozen([0], 1))
    assert_proved(frozen([-1], 1))
    assert_refuted(frozen([-1, -1], 1), kind="conclusion")


@pytest.mark.parametrize("calls", [[-1], [-1, -1], [0, 2], [0, -1]])
def test_a_batch_is_loaded_for_a_microbatch_that_there_is(calls: Sequence[int]) -> None:
    assert_refuted(frozen(calls), kind="microbatch", operator="load_batch", ranks=(0,))


@pytest.mark.parametrize("calls", [[0], [1], [0, 0], [0, 1, 1]])
def test_a_microbatch_that_is_missing_or_there_twice_is_refuted(calls: Sequence[int]) -> None:
    assert_refuted(frozen(calls), kind="conclusion")


def penalty(factor: Fraction, microbatches: Sequence[int]) -> Plan:
    """The loss is ``factor`` times a sum over a frozen weight, in calls of ``microbatches``; the
    batch is loaded in each of two and not used."""

    def program(rows: int, loads: Sequence[int], factor: Fraction, calls: Sequence[int]) -> Program:
        made = ProgramBuilder("rank 0")
        weight = made.parameter("w", (16, 8), trainable=False)
        load = made.body("load")
        load.load_batch(("x", (rows, 8), "float32"))
        body = made.body("penalty")
        body.loss(body.mul_constant(body.sum(body.silu(body.parameter(weight))), factor))
        for m in loads:
            made.call(load, (), (), m)
        for m in calls:
            made.call(body, (), (made.slot(),), m)
        return made.build()

    single = program(4, [0], Fraction(1), [-1])
    return Plan("penalty", single, (program(2, [0, 1], factor, microbatches),), 2)


@pytest.mark.parametrize("microbatches", [[-1], [0], [1]])
def test_a_loss_of_one_call_counts_once(microbatches: Sequence[int]) -> None:
    assert_proved(penalty(Fraction(1), microbatches))
    assert_refuted(penalty(HALF, microbatches), kind="mismatch", operator="mul")


@pytest.mark.parametrize("microbatches", [[0, 1], [-1, -1], [0, -1]])
def test_a_loss_of_two_calls_counts_in_each(microbatches: Sequence[int]) -> None:
    assert_proved(penalty(HALF, microbatches))
    assert_refuted(penalty(Fraction(1), microbatches), kind="conclusion")
