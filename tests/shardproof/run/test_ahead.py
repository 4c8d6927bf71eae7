"""Texts are solved while others are stated: all of them, once, and no fault is lost."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from types import SimpleNamespace
from typing import cast

import pytest

from shardproof.cluster.local import SMALL, LocalExecutor
from shardproof.cluster.lower_claims import Texts
from shardproof.cluster.memory.budget import OverBudget
from shardproof.run.solve import Ahead

MANY: list[Texts] = [(f"text {number}", "") for number in range(SMALL + 37)]


class Rounds:
    """Takes rounds down; raises in the one that has ``fails``."""

    def __init__(self, fails: Texts | None = None) -> None:
        self.taken: list[list[Texts]] = []
        self.fails = fails
        self.threads: set[int] = set()

    def __call__(self, texts: Sequence[Texts], executor: LocalExecutor) -> None:
        self.threads.add(threading.get_ident())
        self.taken.append(list(texts))
        if self.fails in texts:
            raise ValueError("a solver is wrong")


def opened() -> LocalExecutor:
    return cast(LocalExecutor, SimpleNamespace(close=lambda: None))


def test_all_texts_are_solved_once_in_another_thread() -> None:
    rounds = Rounds()
    ahead = Ahead(rounds, opened)
    for texts in (*MANY, *MANY[:5]):
        ahead.give(texts)
    ahead.finish()
    assert [texts for one in rounds.taken for texts in one] == MANY
    assert threading.get_ident() not in rounds.threads


def test_few_texts_wait_for_the_others() -> None:
    rounds = Rounds()
    ahead = Ahead(rounds, opened)
    for texts in MANY[: SMALL - 1]:
        ahead.give(texts)
    ahead.finish()
    assert rounds.taken == []


def test_what_goes_wrong_is_raised_where_it_is_waited_for() -> None:
    ahead = Ahead(Rounds(fails=MANY[3]), opened)
    for texts in MANY:
        ahead.give(texts)
    with pytest.raises(ValueError, match="a solver is wrong"):
        ahead.finish()


def test_a_budget_that_is_exceeded_there_ends_the_run() -> None:
    def over() -> LocalExecutor:
        raise OverBudget(80, 96 << 20)

    ahead = Ahead(Rounds(), over)
    for texts in MANY:
        ahead.give(texts)
    with pytest.raises(OverBudget):
        ahead.finish()


def test_nobody_waits_for_a_thread_that_is_left() -> None:
    rounds = Rounds()
    ahead = Ahead(rounds, opened)
    for texts in MANY:
        ahead.give(texts)
    ahead.leave()
    assert ahead._thread is not None
    ahead._thread.join(20)
    assert not ahead._thread.is_alive()
