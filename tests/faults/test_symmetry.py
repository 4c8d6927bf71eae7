"""Symmetry saves work and hides nothing: one member stands for a family only if all are alike.

A fault in one pipeline stage, in one microbatch, or in how something depends on a coordinate is
found; replicas and microbatches cost nothing; with symmetry off the answer is the same.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from shardproof.engine.algebra.affine import Affine, affine
from shardproof.engine.plan.ir import Body, Plan, Shard
from shardproof.frontends.zoo import build
from shardproof.partition.stages.partition import partition
from tests.faults.plans import (
    appended,
    assert_proved,
    assert_refuted,
    attrs,
    edit_body,
    edit_op,
    edit_shard,
    find,
    llama,
    named,
    on_microbatch,
    verify,
)

# -- what is distinct ------------------------------------------------------------------------------


def test_replicas_and_microbatches_cost_nothing() -> None:
    """At the model's true sizes, where no two of them coincide."""
    few, many = (
        verify(build("llama3-8b", dp=dp, tp=2, pp=1, microbatches=m, layers=1))
        for dp, m in ((3, 5), (11, 7))
    )
    assert few.verdict == many.verdict == "proved"
    assert few.counts.templates == many.counts.templates
    assert few.counts.stages == many.counts.stages
    assert many.counts.parallel_operators > 5 * few.counts.parallel_operators


@pytest.mark.parametrize("operator", ["rms_norm", "silu"])
def test_a_fault_in_one_pipeline_stage_is_found_there(operator: str) -> None:
    plan = llama(tp=2, pp=2, microbatches=2, layers=2)
    wrong = attrs(eps=2) if operator == "rms_norm" else named("sigmoid")
    found = assert_refuted(edit_op(plan, operator, wrong, program=1), kind="mismatch", ranks=(2, 3))
    assert found.findings[0].layer.startswith("layers.1")


def test_the_pipeline_without_a_fault_is_proved() -> None:
    assert_proved(llama(tp=2, pp=2, microbatches=2, layers=2))


def sigmoid(body: Body) -> Body:
    number = find(body, "silu")
    ops = list(body.ops)
    ops[number] = replace(ops[number], name="sigmoid")
    return replace(body, ops=tuple(ops))


def test_a_fault_in_one_microbatch_is_found_there() -> None:
    """Microbatches that run different bodies are taken one by one."""
    plan = llama(tp=2, microbatches=2)
    assert_proved(on_microbatch(plan, 1, lambda body: body))
    found = assert_refuted(
        on_microbatch(plan, 1, sigmoid),
        kind="mismatch",
        ranks=(0, 1),
        layer="layers.0.feed_forward",
    )
    assert found.findings[0].microbatches == (1,)
    assert found.findings[0].agreeing_microbatches == (0,)


# -- coordinates -----------------------------------------------------------------------------------


def four() -> Plan:
    """Four tensor-parallel ranks, so that a line through two members misses the others."""
    return llama(tp=4, kv_heads=4)


def test_four_ranks_are_proved() -> None:
    assert_proved(four())


def through(*points: int) -> Affine:
    """Affine in tp, right (8 tp) at one member only."""
    start, slope = points
    return affine(start, {"tp": slope})


@pytest.mark.parametrize(
    "start",
    [through(0, 0), through(8, 0), through(24, 0), through(-8, 16), through(24, -8), through(0, 7)],
)
@pytest.mark.parametrize(
    ("operator", "body"),
    [
        ("embedding", "forward"),
        ("pick", "forward"),
        ("cross_entropy_grad", "backward"),
    ],
)
def test_a_range_that_is_right_on_some_ranks_only_is_refuted(
    start: Affine, operator: str, body: str
) -> None:
    assert_refuted(edit_op(four(), operator, attrs(start=start), body=body), kind="mismatch")


@pytest.mark.parametrize("start", [through(8, 0), through(24, -8), through(0, 0)])
def test_a_shard_that_is_right_on_some_ranks_only_is_refuted(start: Affine) -> None:
    def change(shard: Shard) -> Shard:
        return replace(shard, offset=(start, *shard.offset[1:]))

    assert_refuted(edit_shard(four(), 0, "output.weight", change), kind="mismatch")


# -- symmetry off ----------------------------------------------------------------------------------


@pytest.mark.parametrize("fault", [False, True])
def test_every_instance_by_itself_gives_the_same_answer(fault: bool) -> None:
    plan = llama(dp=2, tp=2, microbatches=2)
    if fault:
        plan = edit_op(plan, "silu", named("sigmoid"))
    family, alone = verify(plan), verify(plan, exhaustive=True)
    assert family.verdict == alone.verdict == ("refuted" if fault else "proved")
    assert family.counts.templates == alone.counts.templates
    assert [f.message for f in family.findings] == [f.message for f in alone.findings]


# -- nothing is left out ---------------------------------------------------------------------------


def test_every_operator_is_in_a_stage_and_what_nobody_reads_is_listed_dead() -> None:
    plan = edit_body(llama(tp=2), 0, "forward", lambda b: appended(b, "exp", (3,), (1, 8, 16)))
    result = partition(plan)
    for name in ("single", "parallel"):
        instances = result.side(name).unrolled.instances
        assert [s.row for s in result.stages if s.side == name] == list(range(len(instances)))
    instances = result.parallel.unrolled.instances
    dead = [instances[s.row].name for s in result.stages if s.side == "parallel" and not s.live]
    assert dead == ["exp"]
    # Messages, loads and parameters have no claim of their own; everything else alive has one.
    assert all(
        s.template >= 0 or instances[s.row].kind in ("shard", "load", "seed")
        for s in result.stages
        if s.side == "parallel" and s.live
    )
