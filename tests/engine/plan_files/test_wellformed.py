"""What no plan may hold: here, slots that two things write."""

from __future__ import annotations

from dataclasses import replace

import pytest

from shardproof.engine.errors import InvalidInput
from shardproof.engine.plan.ir import Program
from shardproof.engine.plan_files import wellformed
from tests.faults.plans import llama, verify


def test_the_gradient_of_a_loss_is_written_by_no_call() -> None:
    """A forward call whose loss lands in the slot of the loss's own gradient: whether backward then
    starts from 1 or from the loss, nothing says."""
    plan = llama(tp=2)
    (program,) = plan.programs
    ((slot, loss),) = program.seeds
    calls = tuple(
        replace(c, outputs=tuple(slot if x == loss else x for x in c.outputs))
        for c in program.calls
    )
    assert calls != program.calls
    wrong = replace(plan, programs=(replace(program, calls=calls),))
    with pytest.raises(InvalidInput, match=f"writes slot {slot}, which is the gradient of a loss"):
        wellformed.check(wrong)
    assert verify(plan).verdict == "proved"


def test_a_slot_is_the_gradient_of_one_loss() -> None:
    plan = llama(tp=2)
    (program,) = plan.programs
    seeds = (*program.seeds, (program.seeds[0][0], program.seeds[0][1] + 1))
    wrong: Program = replace(program, seeds=seeds)
    with pytest.raises(InvalidInput, match="the gradient of two losses"):
        wellformed.check(replace(plan, programs=(wrong,)))
