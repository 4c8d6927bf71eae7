"""Templates that cannot be stated leave the partition; the others are what they were."""

from __future__ import annotations

import pytest

from shardproof.engine.errors import Unsupported
from shardproof.engine.lineage.nodes import NodeTable
from shardproof.engine.obligations.obligation import Claim, Obligation, build
from shardproof.partition.stages.lowering import obligations
from shardproof.partition.stages.partition import partition
from tests.faults.plans import llama


def without_all_reduces(nodes: NodeTable, claim: Claim, more: int = 0) -> Obligation:
    if claim.kind == "all_reduce":
        raise Unsupported("all-reduces are not stated here")
    return build(nodes, claim, more=more)


def test_what_cannot_be_stated_has_its_reason_in_place_of_a_template(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    whole, found = partition(llama(tp=2)), partition(llama(tp=2))
    expected = obligations(whole)
    monkeypatch.setattr("shardproof.partition.templates.memo.build", without_all_reduces)
    left = obligations(found)
    assert len(left) == len(found.templates) == len(found.examples) < len(expected)
    assert len(whole.stages) == len(found.stages)
    dropped = 0
    for before, after in zip(whole.stages, found.stages, strict=True):
        kind = whole.side(before.side).unrolled.instances[before.row].kind
        if before.template >= 0 and kind == "all_reduce":
            assert (after.template, after.problem) == (-1, "all-reduces are not stated here")
            dropped += 1
        elif before.template < 0:
            assert after == before
        else:
            assert repr(left[after.template]) == repr(expected[before.template])
            assert found.examples[after.template] == whole.examples[before.template]
    assert dropped


def test_without_problems_nothing_is_numbered_anew() -> None:
    found = partition(llama(tp=2))
    stages = list(found.stages)
    assert len(obligations(found)) == len(found.templates)
    assert found.stages == stages
