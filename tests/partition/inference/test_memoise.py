"""Rows that repeat: the same lineages and templates as if every row had been read by itself."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from shardproof.engine.lineage.lineage import Lineage
from shardproof.engine.plan.ir import Plan
from shardproof.engine.plan.unrolled import unrolled
from shardproof.engine.records.run import PARALLEL, SINGLE
from shardproof.frontends.zoo import build
from shardproof.partition.inference.memoise import GIVEN, Repeats
from shardproof.partition.stages.lowering import obligations
from shardproof.partition.stages.partition import Partition, partition
from tests.faults.plans import attrs, edit_op

SMALL: dict[str, Any] = {"vocabulary": 32, "sequence": 8, "hidden": 16, "heads": 4, "ffn": 24}


def dense(layers: int, **settings: Any) -> Plan:
    return build("llama3-8b", layers=layers, kv_heads=2, **{**SMALL, **settings})


def wrong() -> Plan:
    """The softmax of the first layer runs over the queries."""
    return edit_op(dense(2, tp=2), "softmax", attrs(dim=-2))


PLANS: dict[str, Callable[[], Plan]] = {
    "dense": lambda: dense(3, dp=2, tp=2, sequence_parallel=True, microbatches=2),
    "ranks apart": lambda: unrolled(dense(2, tp=2, pp=2, microbatches=2), "tp"),
    "divided gradients": lambda: dense(2, dp=2, zero=3, microbatches=2),
    "positions": lambda: dense(2, cp=2),
    "experts": lambda: build(
        "mixtral-8x7b", layers=2, kv_heads=2, experts=4, chosen=2, dp=2, ep=2, **SMALL
    ),
    "an axis that is wrong": wrong,
}


def each_by_itself(_: Repeats, *told: Any) -> list[Lineage]:
    """The last of what is told is how to read the row."""
    read: Callable[[], list[Lineage]] = told[-1]
    return read()


@pytest.mark.parametrize("name", PLANS)
def test_repeated_rows_are_what_they_would_be(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = PLANS[name]()
    found = partition(plan)
    repeated = sum(len(found.side(s).repeats) for s in (SINGLE, PARALLEL))
    monkeypatch.setattr(Repeats, "read", each_by_itself)
    expected = partition(plan)
    assert repeated > len(found.stages) // 2
    assert found.nodes.nodes == expected.nodes.nodes
    assert found.nodes.reductions == expected.nodes.reductions
    for side in (SINGLE, PARALLEL):
        assert found.side(side).lineages == expected.side(side).lineages
    assert found.stages == expected.stages
    assert found.conclusions == expected.conclusions
    assert [repr(o) for o in obligations(found)] == [repr(o) for o in obligations(expected)]


def long_way(found: Partition) -> int:
    """Rows that were read themselves, of those that may repeat."""
    count = 0
    for name in (SINGLE, PARALLEL):
        side = found.side(name)
        first = {repeat.row for repeat in side.repeats.values()}
        rows = range(len(side.unrolled.instances))
        read = [n for n in rows if n in first or n not in side.repeats]
        count += sum(side.unrolled.instances[n].kind not in GIVEN for n in read)
    return count


def test_more_layers_are_not_read_again() -> None:
    few, many = (partition(dense(layers, tp=2)) for layers in (4, 12))
    assert len(many.stages) > 2 * len(few.stages)
    # Masks are: forward and backward, on both sides, and in the derivative that is held against.
    assert long_way(many) - long_way(few) <= 5 * (12 - 4)
