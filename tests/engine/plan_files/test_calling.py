"""Calls that are alike are looked at once, and nothing that differs is taken for alike."""

from __future__ import annotations

from fractions import Fraction

from shardproof.engine.plan_files.calling import Calls


def test_equal_attributes_are_one_object() -> None:
    calls = Calls()
    first, wrong = calls.of("softmax", [0], 1, {"dim": 1})
    again, _ = calls.of("softmax", [7], 1, {"dim": 1})
    assert again is first
    assert wrong == ""


def test_what_is_equal_to_python_alone_stays_apart() -> None:
    calls = Calls()
    kinds = [1, True, Fraction(1), (1,), (True,), (Fraction(1),)]
    given = [calls.of("f", [0], 1, {"x": kind})[0]["x"] for kind in kinds]
    assert list(map(repr, given)) == list(map(repr, kinds))


def test_each_kind_of_call_is_looked_at() -> None:
    calls = Calls()
    assert calls.of("linear", [0, 1], 1, {})[1] == ""
    assert "takes 2 to 3 operands" in calls.of("linear", [0], 1, {})[1]
    assert calls.of("linear", [0, 1], 2, {})[1] == "gives 1 outputs, found 2"
    assert calls.of("linear", [0, 1], 1, {}, backward=True)[1] != ""
