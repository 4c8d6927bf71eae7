"""Values that are forgotten after their last use."""

from __future__ import annotations

import numpy as np
import pytest

from shardproof.engine.interpreters.dims import exact
from shardproof.engine.plan.expectations import LOSS
from shardproof.engine.schedule.instances import Unrolled
from shardproof.engine.schedule.unroll import unroll
from shardproof.engine.simulation.lifetimes import Evaluated, last_uses, most_at_once
from shardproof.engine.simulation.simulate import simulate
from shardproof.engine.simulation.true_size import confirmed, outright
from shardproof.engine.specification.demands import demands
from shardproof.engine.specification.gradients import Derived
from shardproof.partition.stages.partition import partition
from tests.faults.plans import attrs, edit_op, llama


def small() -> tuple[Unrolled, Derived]:
    result = partition(llama())
    return unroll(result.plan.programs, result.plan.microbatches), result.derived


def test_a_value_ends_with_its_last_use() -> None:
    instances = small()[0].instances
    kept = set(instances[-1].outputs)
    ends = last_uses(instances, kept)
    ended = [v for own in ends for v in own]
    assert len(ended) == len(set(ended))
    assert kept.isdisjoint(ended)
    met: set[int] = set()
    gone: set[int] = set()
    for instance, own in zip(instances, ends, strict=True):
        assert gone.isdisjoint(v for v in instance.inputs if v >= 0)
        met.update(v for v in (*instance.inputs, *instance.outputs) if v >= 0)
        gone.update(own)
    assert gone | kept == met


def test_fewer_numbers_are_held_than_there_are() -> None:
    unrolled = small()[0]
    instances = unrolled.instances
    ones = [1] * len(unrolled.tensors)
    ends = last_uses(instances, instances[-1].outputs)
    written = sum(len(i.outputs) for i in instances)
    assert most_at_once(instances, [()] * len(instances), ones) == written
    assert 0 < most_at_once(instances, ends, ones) < written


def test_what_is_remembered_is_bounded() -> None:
    memory = Evaluated(most=10)
    values = [exact(np.zeros(4)) for _ in range(4)]
    for number, value in enumerate(values):
        memory.add(number, [], [value])
    assert [memory.get(n) is not None for n in range(4)] == [False, False, True, True]
    assert memory.get(3) == [values[3]]


@pytest.mark.parametrize("wrong", [True, False])
def test_a_difference_is_sought_in_the_plan_itself(wrong: bool) -> None:
    """The softmax of a layer over the queries; and the plan as it is, told that its loss
    differs."""
    plan = edit_op(llama(), "softmax", attrs(dim=-2))
    parallel = unroll(plan.programs, plan.microbatches)
    derived = partition(plan).derived
    smaller = simulate(plan, derived, parallel)
    assert smaller.differs
    assert smaller.fewer
    if not wrong:
        plan = llama()
        parallel = unroll(plan.programs, plan.microbatches)
    itself = confirmed(smaller, plan, derived, parallel)
    assert not itself.failure
    assert not itself.fewer
    assert itself.differs == wrong
    losses = [d for d in demands(plan, derived, parallel) if d.kind == LOSS]
    assert {c.demand.kind for c in itself.comparisons} == {LOSS}
    assert len(itself.comparisons) >= len(losses)
    # The same without a difference that says what to look at.
    alone = outright(plan, derived, parallel)
    assert not alone.failure
    assert alone.differs == wrong
    assert [(c.demand, c.at, c.worst) for c in alone.comparisons] == [
        (c.demand, c.at, c.worst) for c in itself.comparisons
    ]
