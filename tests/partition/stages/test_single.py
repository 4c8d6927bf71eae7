"""A single-device side that is read before the other one is there: the partition is the same."""

from __future__ import annotations

from dataclasses import replace

import pytest

from shardproof.engine.plan.ir import Plan
from shardproof.partition.stages.partition import Partition, partition
from shardproof.partition.stages.single import is_alike, read_single
from tests.faults.plans import llama


@pytest.fixture(scope="module")
def plan() -> Plan:
    return llama(tp=2, microbatches=2)


def content(found: Partition) -> tuple[object, ...]:
    nodes = found.nodes
    return (
        nodes.nodes,
        nodes.reductions,
        found.single.lineages,
        found.parallel.lineages,
        found.stages,
        [template.claim for template in found.templates],
        found.conclusions,
        found.reference_size,
    )


def test_a_side_that_was_read_ahead_changes_nothing(plan: Plan) -> None:
    ahead = read_single(plan.single, plan.loss)
    assert content(partition(plan, ahead=ahead)) == content(partition(plan))


def test_a_wrong_plan_stays_wrong(plan: Plan) -> None:
    wrong = replace(plan, loss="mean")
    ahead = read_single(plan.single, plan.loss)
    found = partition(wrong, ahead=ahead)
    assert content(found) == content(partition(wrong))
    assert not all(c.holds for c in found.conclusions)


def test_another_side_is_left_aside(plan: Plan) -> None:
    other = llama(tp=2, microbatches=2, layers=2)
    ahead = read_single(other.single, other.loss)
    size = len(ahead.nodes)
    assert content(partition(plan, ahead=ahead)) == content(partition(plan))
    assert len(ahead.nodes) == size
    assert not is_alike(ahead.rows, read_single(plan.single, plan.loss).rows)
