"""Claims that are stated in two processes are stated as in one."""

from __future__ import annotations

import os
from dataclasses import replace

import pytest

from shardproof.cluster import lower_claims
from shardproof.cluster.lower_claims import Texts, texts
from shardproof.cluster.settings import Settings
from shardproof.partition.stages.partition import Partition, partition
from shardproof.partition.templates.memo import Memo
from tests.faults.plans import llama

GIB = 1 << 30
PLAIN = Settings()


@pytest.fixture
def state(monkeypatch: pytest.MonkeyPatch) -> Partition:
    monkeypatch.setattr(lower_claims, "can_fork", lambda: True)
    return partition(llama())


def stated(state: Partition, settings: Settings = PLAIN) -> tuple[list[Texts], list[Texts]]:
    """All texts, and those that were given, in the order in which they were."""
    given: list[Texts] = []
    return texts(state, settings, give=given.append), given


def test_a_fork_states_every_other_claim(state: Partition, monkeypatch: pytest.MonkeyPatch) -> None:
    expected, in_order = stated(state)
    assert in_order == expected
    monkeypatch.setattr(lower_claims, "MANY", 2)
    actual, given = stated(state)
    assert actual == expected
    assert given == [*expected[::2], *expected[1::2]]


def test_a_claim_that_a_fork_cannot_state_is_dropped(
    state: Partition, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lower_claims, "MANY", 2)
    expected, _ = stated(state)
    whole = lower_claims.lowered
    bad = state.templates[1].claim

    def lowered(*args: object) -> object:
        return "too large" if args[1] is bad else whole(*args)  # type: ignore[arg-type]

    monkeypatch.setattr(lower_claims, "lowered", lowered)
    actual, _ = stated(state)
    assert actual == [expected[0], *expected[2:]]
    problems = {stage.problem for stage in state.stages if stage.problem}
    assert problems == {"too large"}
    assert all(template.claim is not bad for template in state.templates)


def test_what_a_fork_that_dies_should_state_is_stated_here(
    state: Partition, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected, _ = stated(state)
    monkeypatch.setattr(lower_claims, "MANY", 2)
    whole, parent = lower_claims.lowered, os.getpid()

    def lowered(*args: object) -> object:
        if os.getpid() != parent:
            os._exit(1)
        return whole(*args)  # type: ignore[arg-type]

    monkeypatch.setattr(lower_claims, "lowered", lowered)
    assert stated(state)[0] == expected


def test_bounded_memory_and_a_memo_keep_it_in_one_process(
    state: Partition, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lower_claims, "MANY", 2)
    expected, in_two = stated(state)
    assert in_two != expected
    assert stated(state, replace(PLAIN, memory_budget_bytes=GIB)) == (expected, expected)
    state.memo = Memo()
    state.memo.begin(state.nodes, state.reference_size)
    assert stated(state) == (expected, expected)
