"""Conclusions come from the single-device program; what the plan says about itself changes none.

Losses over microbatches and replicas, gradients after their last reduction, definedness, vacuity.
"""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

import pytest

from shardproof.engine.plan.ir import Call, Group, Plan
from shardproof.frontends.builder.builder import ProgramBuilder
from tests.faults.plans import (
    assert_proved,
    assert_refuted,
    attrs,
    edit_body,
    edit_calls,
    edit_op,
    edit_program,
    identity,
    llama,
    scaled_input,
    swapped_calls,
    twice,
    verify,
)
from tests.faults.small import replicas

FEED_FORWARD = "layers.0.feed_forward"


def replicated() -> Plan:
    """Two replicas of two tensor-parallel ranks, two microbatches each."""
    return llama(dp=2, tp=2, microbatches=2)


def test_the_twin_is_proved_with_a_gradient_for_every_shard() -> None:
    plan = replicated()
    found = assert_proved(plan)
    shards = [s.name for s in plan.programs[0].shards if s.trainable]
    assert [c.name for c in found.conclusions if c.kind == "gradient"] == shards
    assert sorted(c.name for c in found.conclusions if c.kind == "coverage") == sorted(shards)


# -- losses ----------------------------------------------------------------------------------------


def test_a_loss_that_is_not_divided_by_all_tokens_is_refuted() -> None:
    """The mean over one microbatch, added up as if it were over all."""
    plan = edit_op(replicated(), "mul", attrs(other=Fraction(1, 8)), layer="loss")
    found = assert_refuted(plan, kind="mismatch", ranks=(0, 1), layer="loss")
    assert any(c.kind == "loss" and not c.holds for c in found.conclusions)


def test_a_mean_of_losses_is_not_their_sum() -> None:
    found = assert_refuted(
        replace(replicated(), loss="mean"),
        kind="mismatch",
        layer="loss",
        ranks=(0, 1),
        says="the mean of the losses over 4 slices",
    )
    wrong = [c.message for c in found.conclusions if c.kind == "loss" and not c.holds]
    assert wrong
    assert "the mean of the losses over 4 slices" in wrong[0]


def test_means_of_means_are_proved() -> None:
    """Every microbatch gives the mean over its own tokens, and the gradient of it."""
    plan = replace(replicated(), loss="mean")
    for body in ("forward", "backward"):
        plan = edit_op(plan, "mul", attrs(other=Fraction(1, 8)), layer="loss", body=body)
    assert_proved(plan)


def test_a_plan_without_a_loss_is_not_proved() -> None:
    plan = edit_body(replicas(), 0, "forward", lambda b: replace(b, losses=()))
    found = verify(plan)
    assert found.verdict != "proved"
    assert [c.message for c in found.conclusions if c.kind == "loss"] == ["no rank computes a loss"]


def test_a_plan_that_runs_nothing_is_not_proved() -> None:
    """No obligations, nothing unsatisfied: a vacuous proof is none."""
    found = verify(edit_calls(replicas(), 0, lambda calls: ()))
    assert found.verdict != "proved"


# -- gradients over replicas -----------------------------------------------------------------------

WK = "layers.0.attention.wk.weight"


@pytest.mark.parametrize(
    ("factor", "says"),
    [
        (Fraction(2), "is 2 times"),
        (Fraction(1, 2), "is 1/2 times"),
    ],
)
def test_a_scaled_gradient_is_refuted_and_located(factor: Fraction, says: str) -> None:
    plan = scaled_input(replicated(), "all_reduce", factor, body="reducer", nth=3)
    assert_refuted(
        plan,
        kind="conclusion",
        operator=f"gradient of {WK}",
        layer=WK,
        ranks=(0, 1, 2, 3),
        says=says,
    )


def test_a_gradient_that_is_not_reduced_is_refuted_and_located() -> None:
    plan = edit_op(replicated(), "all_reduce", identity, nth=3, body="reducer")
    assert_refuted(
        plan,
        kind="conclusion",
        operator=f"gradient of {WK}",
        layer=WK,
        ranks=(0, 1, 2, 3),
        says="a reduction is missing",
    )


def test_gradients_that_are_never_reduced_are_refuted() -> None:
    assert_refuted(
        edit_calls(replicated(), 0, lambda calls: calls[:-1]),
        kind="mismatch",
        operator="backward of embedding",
        ranks=(0, 1),
        says="a reduction is missing",
    )


def test_gradients_that_are_reduced_twice_are_refuted() -> None:
    assert_refuted(
        edit_calls(replicated(), 0, lambda calls: (*calls, calls[-1])),
        kind="conclusion",
        ranks=(0, 1, 2, 3),
        says="is 2 times",
    )
    plan = edit_body(replicated(), 0, "reducer", lambda b: twice("all_reduce", b))
    assert_refuted(plan, kind="mismatch", operator="all_reduce", ranks=(0, 1), says="is 2 times")


@pytest.mark.parametrize("axes", [("tp",), ("dp", "tp")])
def test_a_gradient_reduced_over_the_wrong_axis_is_refuted_and_located(
    axes: tuple[str, ...],
) -> None:
    plan = edit_op(replicated(), "all_reduce", attrs(group=Group(axes=axes)), nth=2, body="reducer")
    assert_refuted(
        plan,
        kind="mismatch",
        operator="all_reduce",
        layer="layers.0.attention.wq.weight",
        ranks=(0, 1),
    )


def test_a_reducer_before_the_last_backward_is_refuted() -> None:
    plan = replicated()
    last = len(plan.programs[0].calls) - 1
    assert_refuted(
        edit_calls(plan, 0, swapped_calls(last - 1, last)),
        kind="mismatch",
        operator="all_reduce",
        ranks=(0, 1),
    )
    assert_refuted(
        edit_calls(plan, 0, swapped_calls(0, last)), kind="read before write", ranks=(0,)
    )


# -- batches ---------------------------------------------------------------------------------------


def test_microbatches_in_another_order_are_proved_and_one_twice_refuted() -> None:
    def numbered(numbers: dict[int, int]) -> Plan:
        def change(calls: object) -> list[Call]:
            return [
                replace(c, microbatch=numbers.get(c.microbatch, -1))
                for c in replicas().programs[0].calls
            ]

        return edit_calls(replicas(), 0, change)

    assert_proved(numbered({0: 1, 1: 0}))
    assert verify(numbered({0: 0, 1: 0})).verdict == "refuted"


def test_a_missing_microbatch_is_refuted() -> None:
    """Forward and backward of one microbatch only."""
    assert_refuted(
        edit_calls(replicas(), 0, lambda calls: (*calls[:2], calls[-1])),
        kind="mismatch",
        ranks=(0,),
    )


# -- what the plan cannot choose -------------------------------------------------------------------


def test_a_parameter_declared_frozen_still_needs_its_gradient() -> None:
    def freeze(plan: Plan) -> Plan:
        return edit_program(
            plan,
            0,
            lambda p: replace(p, shards=tuple(replace(s, trainable=False) for s in p.shards)),
        )

    plan = freeze(replicas())
    found = verify(plan)
    assert found.verdict == "refuted"
    assert any("never computed" in c.message for c in found.conclusions)


def test_a_parameter_without_influence_gets_no_gradient() -> None:
    plan = replicas(spare=True)
    assert_proved(plan)
    garbage = edit_body(
        plan, 0, "backward", lambda b: replace(b, gradients=(*b.gradients, (b.gradients[0][0], 1)))
    )
    assert_refuted(garbage, kind="conclusion", operator="gradient of spare", ranks=(0, 1))


def test_the_single_device_backward_is_checked_too() -> None:
    plan = replicas()
    body = plan.single.bodies[1]
    ops = tuple(
        replace(op, attrs={**op.attrs, "other": Fraction(1, 4)}) if op.name == "mul" else op
        for op in body.ops
    )
    single = replace(plan.single, bodies=(plan.single.bodies[0], replace(body, ops=ops)))
    found = verify(replace(plan, single=single))
    assert found.verdict != "proved"
    assert [c.holds for c in found.conclusions if c.kind == "single-device gradient"] == [False]


# -- definedness -----------------------------------------------------------------------------------


def partial(extra: int | None) -> Plan:
    """The loss has log x[:, :4]; the parallel program adds 0 times the log of four more columns,
    from column ``extra`` on."""

    def program(columns: int | None) -> ProgramBuilder:
        made = ProgramBuilder("program")
        weight = made.parameter("w", (8, 8))
        body = made.body("forward")
        (x,) = body.load_batch(("x", (4, 8), "float32"))
        total = body.sum(body.linear(x, body.parameter(weight)))
        total = body.add(total, body.sum(body.log(body.op("slice", x, dim=1, start=0, size=4))))
        if columns is not None:
            more = body.sum(body.log(body.op("slice", x, dim=1, start=columns, size=4)))
            total = body.add(total, body.mul_constant(more, Fraction(0)))
        body.loss(total)
        made.schedule(body, body.backward(), 1)
        return made

    return Plan("partial", program(None).build(), (program(extra).build(),), 1)


def test_a_function_of_values_that_the_single_device_does_not_take_it_of_is_not_proved() -> None:
    assert_proved(partial(None))
    assert_proved(partial(0))
    assert verify(partial(4)).verdict != "proved"


def test_a_division_that_cancels_is_not_proved() -> None:
    """x y / y is x only where y is not zero."""

    def program(divided: bool) -> ProgramBuilder:
        made = ProgramBuilder("program")
        weight = made.parameter("w", (8, 8), trainable=False)
        body = made.body("forward")
        x, y = body.load_batch(("x", (4, 8), "float32"), ("y", (4, 8), "float32"))
        out = body.linear(x, body.parameter(weight))
        if divided:
            out = body.op("div", body.mul(out, y), y)
        body.loss(body.sum(out))
        made.call(body, (), (made.slot(),), 0)
        return made

    single = program(False).build()
    assert_proved(Plan("division", single, (single,), 1))
    found = verify(Plan("division", single, (program(True).build(),), 1))
    assert found.verdict != "proved"
