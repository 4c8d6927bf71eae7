"""Several runs before one pool: in turn, nothing twice, nothing lost when one of them leaves."""

from __future__ import annotations

import threading
import time

import pytest

from shardproof.cluster.on_ray import fair_share as desks
from shardproof.cluster.on_ray.fair_share import FairShare
from shardproof.cluster.settings import Options, Settings
from shardproof.solvers import Query
from tests.cluster.work import said

ONE = Settings(mode="z3", seed=1).options
TWO = Settings(mode="z3", seed=2).options


def texts(*keys: str) -> list[Query]:
    return [Query(key, f"text of {key}", "") for key in keys]


def taken(fair_share: FairShare, most: int) -> tuple[Options, list[str]]:
    found = fair_share.take(most, 0.0)
    assert found is not None
    return found.options, [query.key for query in found.queries]


def collected(fair_share: FairShare, run: str) -> dict[str, str]:
    return {key: solved.verdict for key, solved in fair_share.collect(run, 0.0)}


def test_runs_are_served_in_turn_however_much_they_ask() -> None:
    fair_share = FairShare()
    fair_share.submit("large", ONE, texts(*(f"l{n}" for n in range(100))))
    fair_share.submit("small", ONE, texts("s0", "s1"))
    assert taken(fair_share, 6) == (ONE, ["l0", "s0", "l1", "s1", "l2", "l3"])
    assert taken(fair_share, 2) == (ONE, ["l4", "l5"])


def test_a_text_that_two_runs_wait_for_is_solved_once_for_both() -> None:
    fair_share = FairShare()
    fair_share.submit("a", ONE, texts("x", "y"))
    fair_share.submit("b", ONE, texts("x"))
    assert taken(fair_share, 9) == (ONE, ["x", "y"])
    assert fair_share.take(9, 0.0) is None
    fair_share.solved(ONE, "x", said("unsat"))
    assert collected(fair_share, "a") == collected(fair_share, "b") == {"x": "unsat"}
    assert collected(fair_share, "a") == {}, "each verdict is told once"
    fair_share.solved(ONE, "y", said("sat"))
    assert collected(fair_share, "b") == {}
    assert collected(fair_share, "a") == {"y": "sat"}


def test_other_options_are_other_texts_and_take_turns() -> None:
    fair_share = FairShare()
    fair_share.submit("a", ONE, texts("x", "y"))
    fair_share.submit("b", TWO, texts("x"))
    assert taken(fair_share, 1) == (ONE, ["x"])
    assert taken(fair_share, 9) == (TWO, ["x"])
    fair_share.solved(TWO, "x", said("sat"))
    assert (collected(fair_share, "a"), collected(fair_share, "b")) == ({}, {"x": "sat"})
    with pytest.raises(ValueError, match="the run a waits under"):
        fair_share.submit("a", TWO, texts("z"))


def test_what_was_taken_and_not_solved_is_the_next() -> None:
    fair_share = FairShare()
    fair_share.submit("a", ONE, texts("x", "y", "z"))
    found = fair_share.take(2, 0.0)
    assert found is not None
    fair_share.solved(ONE, "x", said("unsat"))
    fair_share.give_back(ONE, found.queries[1:])
    assert taken(fair_share, 9) == (ONE, ["y", "z"])


def test_whoever_waits_for_a_text_is_told_why_it_fails_and_nobody_else() -> None:
    fair_share = FairShare()
    fair_share.submit("a", ONE, texts("x"))
    fair_share.submit("b", ONE, texts("x", "y"))
    fair_share.submit("c", ONE, texts("z"))
    fair_share.fail(ONE, ["x"], ZeroDivisionError("by us"))
    for run in ("a", "b"):
        with pytest.raises(ZeroDivisionError):
            fair_share.collect(run, 0.0)
    assert collected(fair_share, "c") == {}


def test_one_that_leaves_takes_along_what_only_it_waits_for() -> None:
    fair_share = FairShare()
    fair_share.submit("a", ONE, texts("x", "y"))
    fair_share.submit("b", ONE, texts("y"))
    fair_share.leave("a")
    fair_share.leave("nobody")
    assert taken(fair_share, 9) == (ONE, ["y"])
    with pytest.raises(KeyError):
        fair_share.collect("a", 0.0)


def test_one_that_is_silent_has_left(monkeypatch: pytest.MonkeyPatch) -> None:
    fair_share = FairShare()
    fair_share.submit("killed", ONE, texts("x"))
    monkeypatch.setattr(desks, "SILENT_SECONDS", -1.0)
    assert fair_share.take(9, 0.0) is None


def test_who_waits_hears_at_once() -> None:
    fair_share = FairShare()
    fair_share.submit("a", ONE, texts("x"))
    threading.Thread(target=lambda: fair_share.solved(ONE, "x", said("unsat"))).start()
    start = time.monotonic()
    assert [key for key, _ in fair_share.collect("a", 60.0)] == ["x"]
    assert time.monotonic() - start < 30
    fair_share.add_known("a", [("y", said("unsat"))])
    assert collected(fair_share, "a") == {"y": "unsat"}
