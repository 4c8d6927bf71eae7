"""Obligations that are known from another plan are those that would be stated."""

from __future__ import annotations

from random import Random

from shardproof.mutation import campaign
from shardproof.partition.stages.lowering import obligations
from shardproof.partition.stages.partition import Partition, partition
from shardproof.partition.templates.memo import Memo
from tests.faults.plans import llama


def stated(result: Partition) -> list[object]:
    return [(repr(o.goals), o.symbols) for o in obligations(result)]


def test_mutants_have_the_same_templates_with_and_without_a_memo() -> None:
    plan, memo = llama(tp=2, microbatches=2), Memo()
    stated(partition(plan, memo=memo))
    known = len(memo.obligations)
    assert known > 100
    made = [m.apply(plan, Random("1")) for m in campaign.MUTATORS if m.keeps][:16:5]
    for mutant in made:
        assert mutant is not None
        alone, together = partition(mutant.plan), partition(mutant.plan, memo=memo)
        assert stated(alone) == stated(together)
        assert alone.stages == together.stages
        assert len(together.templates) > 100
    assert len(memo.obligations) < 1.5 * known


def test_another_model_shares_nothing() -> None:
    memo = Memo()
    stated(partition(llama(tp=2), memo=memo))
    other = llama(tp=2, ffn=16)
    assert stated(partition(other, memo=memo)) == stated(partition(other))
    before = len(memo.obligations)
    stated(partition(other, memo=memo))
    assert len(memo.obligations) == before
    stated(partition(other, more=1, memo=memo))
    assert len(memo.obligations) > before
