"""Several runs before one pool: in turn, nothing twice, nothing lost when one of them leaves."""

from __future__ import annotations

import threading
import time

import pytest

from shardproof.cluster.on_ray import fair_share as desks
from shardproof.cluster.on_ray.fair_share import Desk
from shardproof.cluster.settings import Options, Settings
from shardproof.solvers import Query
from tests.cluster.work import said

ONE = Settings(mode="z3", seed=1).options
TWO = Settings(mode="z3", seed=2).options


def texts(*keys: str) -> list[Query]:
    return [Query(key, f"text of {key}", "") for key in keys]


def taken(desk: Desk, most: int) -> tuple[Options, list[str]]:
    found = desk.take(most, 0.0)
    assert found is not None
    return found.options, [query.key for query in found.queries]


def collected(desk: Desk, run: str) -> dict[str, str]:
    return {key: solved.verdict for key, solved in desk.collect(run, 0.0)}


def test_runs_are_served_in_turn_however_much_they_ask() -> None:
    desk = Desk()
    desk.submit("large", ONE, texts(*(f"l{n}" for n in range(100))))
    desk.submit("small", ONE, texts("s0", "s1"))
    assert taken(desk, 6) == (ONE, ["l0", "s0", "l1", "s1", "l2", "l3"])
    assert taken(desk, 2) == (ONE, ["l4", "l5"])


def test_a_text_that_two_runs_wait_for_is_solved_once_for_both() -> None:
    desk = Desk()
    desk.submit("a", ONE, texts("x", "y"))
    desk.submit("b", ONE, texts("x"))
    assert taken(desk, 9) == (ONE, ["x", "y"])
    assert desk.take(9, 0.0) is None
    desk.solved(ONE, "x", said("unsat"))
    assert collected(desk, "a") == collected(desk, "b") == {"x": "unsat"}
    assert collected(desk, "a") == {}, "each verdict is told once"
    desk.solved(ONE, "y", said("sat"))
    assert collected(desk, "b") == {}
    assert collected(desk, "a") == {"y": "sat"}


def test_other_options_are_other_texts_and_take_turns() -> None:
    desk = Desk()
    desk.submit("a", ONE, texts("x", "y"))
    desk.submit("b", TWO, texts("x"))
    assert taken(desk, 1) == (ONE, ["x"])
    assert taken(desk, 9) == (TWO, ["x"])
    desk.solved(TWO, "x", said("sat"))
    assert (collected(desk, "a"), collected(desk, "b")) == ({}, {"x": "sat"})
    with pytest.raises(ValueError, match="the run a waits under"):
        desk.submit("a", TWO, texts("z"))


def test_what_was_taken_and_not_solved_is_the_next() -> None:
    desk = Desk()
    desk.submit("a", ONE, texts("x", "y", "z"))
    found = desk.take(2, 0.0)
    assert found is not None
    desk.solved(ONE, "x", said("unsat"))
    desk.give_back(ONE, found.queries[1:])
    assert taken(desk, 9) == (ONE, ["y", "z"])


def test_whoever_waits_for_a_text_is_told_why_it_fails_and_nobody_else() -> None:
    desk = Desk()
    desk.submit("a", ONE, texts("x"))
    desk.submit("b", ONE, texts("x", "y"))
    desk.submit("c", ONE, texts("z"))
    desk.fail(ONE, ["x"], ZeroDivisionError("by us"))
    for run in ("a", "b"):
        with pytest.raises(ZeroDivisionError):
            desk.collect(run, 0.0)
    assert collected(desk, "c") == {}


def test_one_that_leaves_takes_along_what_only_it_waits_for() -> None:
    desk = Desk()
    desk.submit("a", ONE, texts("x", "y"))
    desk.submit("b", ONE, texts("y"))
    desk.leave("a")
    desk.leave("nobody")
    assert taken(desk, 9) == (ONE, ["y"])
    with pytest.raises(KeyError):
        desk.collect("a", 0.0)


def test_one_that_is_silent_has_left(monkeypatch: pytest.MonkeyPatch) -> None:
    desk = Desk()
    desk.submit("killed", ONE, texts("x"))
    monkeypatch.setattr(desks, "SILENT_SECONDS", -1.0)
    assert desk.take(9, 0.0) is None


def test_who_waits_hears_at_once() -> None:
    desk = Desk()
    desk.submit("a", ONE, texts("x"))
    threading.Thread(target=lambda: desk.solved(ONE, "x", said("unsat"))).start()
    start = time.monotonic()
    assert [key for key, _ in desk.collect("a", 60.0)] == ["x"]
    assert time.monotonic() - start < 30
    desk.found("a", [("y", said("unsat"))])
    assert collected(desk, "a") == {"y": "unsat"}
