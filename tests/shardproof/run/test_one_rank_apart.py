"""In a large plan of which one rank differs, what is made of that rank's values behind the next
gather is not read before the difference is confirmed; if it is not, the plan is read whole."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest

from shardproof.engine.plan.ir import Op, Plan
from shardproof.inputs.assume import Assumptions
from shardproof.inputs.load import load_plan
from shardproof.partition.stages import worded
from shardproof.partition.stages.partition import Partition, partition
from shardproof.run import beside, early, pipeline
from tests.faults.plans import verify

SINGLE = "dp1_pp1_tp1_nm1_gbs512_ly2_h32_hi4096_sq128"
PARALLEL = "dp2_pp4_tp8_nm8_gbs512_ly2_h32_hi4096_sq128"
RANK, EPSILON = 3, Fraction(2)


@pytest.fixture
def plan(shared_plans: Path) -> Plan:
    files = [shared_plans / f"llama3_default_{name}.pkl" for name in (SINGLE, PARALLEL)]
    return load_plan(*files, Assumptions(groups="as recorded"))


def apart(plan: Plan) -> Plan:
    """Another epsilon in the first norm of one rank."""
    program = next(program for program in plan.programs if program.base == RANK)
    for number, body in enumerate(program.bodies):
        for place, op in enumerate(body.ops):
            if op.name == "add" and "norm" in op.source.module and not op.backward:
                ops = changed(body.ops, place)
                bodies = list(program.bodies)
                bodies[number] = replace(body, ops=ops)
                other = replace(program, bodies=tuple(bodies))
                programs = [other if p is program else p for p in plan.programs]
                return replace(plan, programs=tuple(programs))
    raise AssertionError("no norm")


def changed(ops: Sequence[Op], place: int) -> tuple[Op, ...]:
    one = replace(ops[place], attrs={**ops[place].attrs, "other": EPSILON})
    return (*ops[:place], one, *ops[place + 1 :])


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> list[Partition]:
    """What was read of plans, one after the other, as of large ones."""
    results: list[Partition] = []

    def noting(*args: Any, **kwargs: Any) -> Partition:
        results.append(partition(*args, **kwargs))
        return results[-1]

    monkeypatch.setattr(worded, "partition", noting)
    monkeypatch.setattr(early, "LARGE", 0)
    return results


def test_what_one_rank_has_apart_is_read_as_far_as_the_next_gather(
    plan: Plan, read: list[Partition]
) -> None:
    result = verify(apart(plan))
    first = result.findings[0]
    assert (result.verdict, first.operator, first.ranks) == ("refuted", "add", (RANK,))
    assert "holds with" in first.repair
    assert [one.unread for one in read] == [True]
    # Few values are none of the single device's; read whole, the plan has many more.
    strange = len(read[0].nodes) - read[0].reference_size
    whole = partition(apart(plan))
    assert 2 * strange < len(whole.nodes) - whole.reference_size


def test_the_right_plan_is_read_whole_at_once(plan: Plan, read: list[Partition]) -> None:
    assert verify(plan).verdict == "proved"
    assert [one.unread for one in read] == [False]


def test_without_a_difference_that_is_confirmed_it_is_read_whole(
    plan: Plan, read: list[Partition], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(early.EarlySimulation, "simulation", lambda self, result: None)
    result = verify(apart(plan))
    assert (result.verdict, result.findings[0].operator) == ("refuted", "add")
    assert [one.unread for one in read] == [True, False]


@pytest.mark.parametrize("forked", [True, False])
def test_it_is_run_beside_the_diagnosis(
    forked: bool, plan: Plan, read: list[Partition], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Begun as soon as a loss is seen not to be concluded, for a right plan never; what is told is
    the same where there is no other processor."""
    begun: list[bool] = []

    class Noted(early.EarlySimulation):
        def go_on(self, result: Partition) -> None:
            super().go_on(result)
            begun.append(self.is_under_way(result))

    monkeypatch.setattr(beside, "can_fork", lambda: forked)
    monkeypatch.setattr(pipeline, "EarlySimulation", Noted)
    result = verify(apart(plan))
    assert (result.verdict, result.findings[0].ranks) == ("refuted", (RANK,))
    assert [f.message for f in result.findings if f.kind == "metadata"]
    assert verify(plan).verdict == "proved"
    assert begun == [True, False]
