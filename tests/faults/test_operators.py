"""One operator of a tiny Llama at fault: refuted, at that operator or where its result is used.

Sequence, heads and head dimension are equal here, so that every exchange of dimensions keeps all
shapes: what looks right by shape has to be found wrong by value.
"""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

import pytest

from shardproof.engine.errors import InvalidInput
from shardproof.engine.plan.ir import Op, Plan
from tests.faults.plans import (
    OpEdit,
    appended,
    assert_proved,
    assert_refuted,
    attrs,
    edit_body,
    edit_op,
    exchanged,
    identity,
    llama,
    named,
    outputs_exchanged,
    renamed,
    scaled_input,
    verify,
)

ATTENTION, FEED_FORWARD = "layers.0.attention", "layers.0.feed_forward"


def square() -> Plan:
    """Dimensions of attention all 4; two microbatches."""
    return llama(microbatches=2, sequence=4, kv_heads=4)


def fault(name: str, change: OpEdit, nth: int = 0, body: str = "forward") -> Plan:
    return edit_op(square(), name, change, nth=nth, body=body)


def test_the_twin_of_all_faults_is_proved() -> None:
    found = assert_proved(square())
    assert {c.kind for c in found.conclusions} >= {"loss", "gradient", "coverage"}
    assert not found.findings


def dims(first: int, second: int) -> OpEdit:
    return attrs(dim0=first, dim1=second)


FORWARD = {
    "keys are not transposed": (fault("transpose", identity, 1), "matmul", ATTENTION),
    "keys exchange heads and positions": (fault("transpose", dims(1, 2), 1), "matmul", ATTENTION),
    "queries exchange the wrong dimensions": (
        fault("transpose", dims(2, 3), 2),
        "matmul",
        ATTENTION,
    ),
    "values are not transposed": (fault("transpose", identity, 3), None, ATTENTION),
    "heads are not moved back": (fault("transpose", identity, 4), "linear", ATTENTION),
    "queries and keys exchanged in rotary": (
        fault("apply_rotary_emb", exchanged()),
        None,
        ATTENTION,
    ),
    "softmax over queries": (fault("softmax", attrs(dim=-2)), "softmax", ATTENTION),
    "no mask": (fault("apply_mask", identity), None, ATTENTION),
    "scores divided by another number": (fault("div", attrs(other=Fraction(4))), "div", ATTENTION),
    "scores transposed": (fault("matmul", exchanged()), "matmul", ATTENTION),
    "a sigmoid for a silu": (fault("silu", named("sigmoid")), None, FEED_FORWARD),
    "another epsilon": (fault("rms_norm", attrs(eps=Fraction(2)), 1), "rms_norm", "layers.0"),
    "a residual dropped": (fault("add", identity), "rms_norm", "layers.0"),
    "a sum for a product": (fault("mul", named("add")), None, FEED_FORWARD),
    "parameters of equal shape exchanged": (
        renamed(square(), f"{ATTENTION}.wq.weight", f"{ATTENTION}.wk.weight"),
        None,
        ATTENTION,
    ),
    "gate and up exchanged": (
        renamed(square(), f"{FEED_FORWARD}.w1.weight", f"{FEED_FORWARD}.w3.weight"),
        "linear",
        FEED_FORWARD,
    ),
}


@pytest.mark.parametrize("name", FORWARD)
def test_a_wrong_forward_operator_is_refuted_and_located(name: str) -> None:
    plan, operator, layer = FORWARD[name]
    assert_refuted(plan, kind="mismatch", operator=operator, ranks=(0,), layer=layer)


BACKWARD = {
    "a sigmoid's derivative for a silu's": (
        fault("silu", named("sigmoid"), body="backward"),
        "backward of sigmoid",
        FEED_FORWARD,
    ),
    "gradients of a product exchanged": (
        edit_op(square(), "mul", outputs_exchanged, body="backward", layer=FEED_FORWARD),
        None,
        FEED_FORWARD,
    ),
    "gradients of queries and keys exchanged": (
        fault("apply_rotary_emb", outputs_exchanged, body="backward"),
        None,
        ATTENTION,
    ),
    "gradients of scores' operands exchanged": (
        fault("matmul", outputs_exchanged, 1, "backward"),
        None,
        ATTENTION,
    ),
    "another epsilon": (
        fault("rms_norm", attrs(eps=Fraction(2)), 1, "backward"),
        "backward of rms_norm",
        "layers.0",
    ),
    "an incoming gradient doubled": (
        scaled_input(square(), "silu", Fraction(2), body="backward"),
        None,
        FEED_FORWARD,
    ),
    "the wrong context": (
        edit_op(square(), "mul", exchanged(), body="backward", layer=FEED_FORWARD),
        None,
        FEED_FORWARD,
    ),
    "softmax over queries": (
        fault("softmax", attrs(dim=-2), body="backward"),
        "backward of softmax",
        ATTENTION,
    ),
}


#: The one that takes longest; the others are like it.
LONGEST = "gradients of a product exchanged"


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=[pytest.mark.slow] * (n == LONGEST)) for n in BACKWARD]
)
def test_a_wrong_backward_operator_is_refuted_and_located(name: str) -> None:
    """The loss is right, and every conclusion that does not depend on the operator."""
    plan, operator, layer = BACKWARD[name]
    found = assert_refuted(plan, kind="mismatch", operator=operator, ranks=(0,), layer=layer)
    assert [c.holds for c in found.conclusions if c.kind == "loss"] == [True]


# -- what only looks wrong -------------------------------------------------------------------------


def test_operands_that_commute_are_proved() -> None:
    plan = edit_op(square(), "mul", exchanged(), layer=FEED_FORWARD)
    assert_proved(edit_op(plan, "add", exchanged()))


def test_an_operator_that_nobody_reads_changes_nothing() -> None:
    """Dead operators are counted, no conclusion depends on them."""
    plan = edit_body(square(), 0, "forward", lambda b: appended(b, "exp", (3,), (1, 4, 16)))
    found = assert_proved(plan)
    assert found.counts.parallel_operators == assert_proved(square()).counts.parallel_operators + 2


# -- attributes and shapes -------------------------------------------------------------------------


def test_a_mean_over_another_count_is_refuted() -> None:
    """The loss as a mean over its tokens, with the wrong number of them."""
    tokens = fault("sum", named("mean"))
    right = edit_op(tokens, "mul", attrs(other=Fraction(1, 2)), layer="loss")
    back = edit_op(right, "sum", named("mean"), body="backward")
    back = edit_op(back, "mul", attrs(other=Fraction(1, 2)), body="backward", layer="loss")
    assert_proved(back)
    wrong = edit_op(back, "mean", attrs(count=8))
    found = assert_refuted(wrong, kind="mismatch", ranks=(0,), layer="loss")
    assert any(c.kind == "loss" and not c.holds for c in found.conclusions)


def test_an_attribute_that_nobody_declared_is_not_ignored() -> None:
    plan = fault("silu", attrs(approximate="tanh"))
    found = verify(plan)
    assert found.verdict == "inconclusive"
    assert "approximate" in found.reason


def test_a_cast_to_integers_is_no_identity() -> None:
    plan = fault(
        "transpose",
        lambda op: Op("to", op.inputs, op.outputs, {"dtype": "int64"}, source=op.source),
        4,
    )
    assert verify(plan).verdict in ("inconclusive", "refuted")


def test_an_unknown_operator_is_inconclusive_by_name() -> None:
    found = verify(fault("silu", named("swish_of_ours")))
    assert found.verdict == "inconclusive"
    assert "swish_of_ours" in found.reason
    assert FEED_FORWARD in found.reason


def test_a_declared_shape_that_the_operator_does_not_give_is_refuted() -> None:
    def squeeze(op: Op) -> Op:
        return replace(op, attrs={"size": (1, 16, 4)})

    assert_refuted(
        fault("view", squeeze, 3), kind="shape", operator="view", ranks=(0,), layer=ATTENTION
    )


# -- other models ----------------------------------------------------------------------------------


def test_a_missing_parameter_is_invalid_input() -> None:
    """A parallel model without its last layer."""
    deep = llama(microbatches=2, layers=2, sequence=4, kv_heads=4)
    with pytest.raises(InvalidInput, match=r"layers\.1\.attention_norm\.weight .* no rank"):
        verify(replace(square(), single=deep.single))
    with pytest.raises(InvalidInput, match=r"layers\.1\..* is not in the single-device plan"):
        verify(replace(deep, single=square().single))


def test_another_size_is_invalid_input() -> None:
    other = llama(microbatches=2, sequence=4, kv_heads=4, ffn=32)
    with pytest.raises(InvalidInput, match=r"feed_forward\.w1\.weight .*\[32, 16\].*\[24, 16\]"):
        verify(replace(other, single=square().single))
