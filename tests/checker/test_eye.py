"""The checker's own eye: plans as they are, at small sizes, and with fewer replicas and rounds."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from shardproof.checker.result import Problems
from shardproof.checker.runtime import rank_by_rank
from shardproof.checker.values.sides import Side, check_members
from shardproof.engine.plan.ir import MICROBATCH, Call, Group, Plan
from shardproof.engine.reference_runtime import lots
from shardproof.engine.reference_runtime.reduced import reduced
from shardproof.engine.schedule.unroll import unroll
from shardproof.frontends.zoo import build
from tests.faults.plans import attrs, edit_calls, edit_op
from tests.faults.small import parts, replicas

SIZES: dict[str, Any] = {
    "hidden": 8,
    "heads": 4,
    "kv_heads": 2,
    "ffn": 12,
    "vocabulary": 16,
    "sequence": 8,
    "layers": 2,
}
DEGREES: dict[str, Any] = {"dp": 4, "tp": 2, "pp": 2, "microbatches": 6}


def plan(model: str = "llama3-8b", **changes: Any) -> Plan:
    return build(model, **{**SIZES, **DEGREES, **changes})


def seen(of: Plan) -> tuple[list[str], tuple[str, ...]]:
    problems = Problems()
    notes = rank_by_rank.look(of, problems)
    return [str(problem) for problem in problems.all()], notes


@pytest.fixture(params=["as it is", "small", "reduced"])
def how(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """The eye that a plan of some size is looked at with."""
    if request.param != "as it is":
        monkeypatch.setattr(rank_by_rank, "fits", lambda plan: False)
    if request.param == "reduced":
        monkeypatch.setattr(rank_by_rank, "WHOLE", 0)
    return str(request.param)


def test_a_right_plan_and_what_was_left_out(how: str) -> None:
    problems, notes = seen(plan())
    assert problems == []
    if how == "reduced":
        assert notes == (
            "run rank by rank without 2 of 4 positions along dp and 4 of 6 microbatches: these "
            "were not looked at that way",
        )
    else:
        assert notes == ()


@pytest.mark.parametrize(
    ("model", "changes"),
    [
        ("llama3-8b", {"zero": 3, "tp": 1}),
        ("llama3-8b", {"cp": 2, "dp": 2}),
        ("llama3-8b", {"virtual_stages": 2, "layers": 4, "loss": "mean"}),
        ("llama3-8b", {"sequence_parallel": True, "loss": "sum"}),
    ],
)
def test_other_right_plans(how: str, model: str, changes: dict[str, Any]) -> None:
    assert seen(plan(model, **changes))[0] == []


def test_wrong_plans_differ(how: str) -> None:
    """One fault in each: an all-reduce that takes the maximum, one that is over other ranks, and a
    reducer that does not run."""
    faults = [
        edit_op(plan(), "all_reduce", attrs(op="max")),
        edit_op(plan(), "all_reduce", attrs(group=Group(axes=("dp",)))),
        replace(
            plan(),
            programs=tuple(
                replace(p, calls=tuple(c for c in p.calls if not p.bodies[c.body].reduced))
                for p in plan().programs
            ),
        ),
    ]
    for fault in faults:
        problems, _ = seen(fault)
        assert len(problems) == 1
        assert problems[0].startswith("runtime: run rank by rank: ")


def test_attributes_of_communication_are_known() -> None:
    problems, notes = seen(edit_op(parts(), "all_gather", attrs(scale=2)))
    assert problems == []
    assert notes == (
        "not run rank by rank: all_gather has the attribute scale, which means nothing there",
    )
    assert seen(parts())[0] == []


def test_what_can_be_left_out() -> None:
    found = reduced(plan())
    assert found.kept == {"dp": 2, MICROBATCH: 2}
    assert found.plan.ranks == 2 * 2 * 2
    assert [p.bodies for p in found.plan.programs] == [p.bodies for p in plan().programs]
    # Positions of what is divided over replicas, and rounds that are not all alike, stay.
    assert reduced(plan(zero=3, tp=1)).kept == {MICROBATCH: 2}
    again = edit_calls(plan(), 0, lambda calls: [*calls, calls[-1]])
    assert MICROBATCH not in reduced(edit_calls(again, 0, repeated)).kept
    assert reduced(replicas()).kept == {}


def repeated(calls: Any) -> list[Call]:
    """A body is called once more than there are microbatches."""
    return [*calls, calls[0]]


def test_a_plan_that_is_too_large_is_not_covered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rank_by_rank, "fits", lambda plan: False)
    monkeypatch.setattr(rank_by_rank, "MOST", 10)
    assert seen(plan()) == ([], ("not run rank by rank: 16 of 16 ranks have too much to do",))


def test_arrays_that_cannot_be_held_are_not_covered(monkeypatch: pytest.MonkeyPatch) -> None:
    """A limit on arrays, and what the machine itself refuses, end the look and not the check."""
    monkeypatch.setattr(rank_by_rank, "fits", lambda plan: False)
    monkeypatch.setattr(lots, "MOST_HELD", 15)
    problems, (note,) = seen(plan())
    assert problems == []
    assert note.endswith("is too large to be run")
    wrong = edit_op(plan(), "all_reduce", attrs(op="max"))
    assert seen(wrong) == ([], (note,))
    monkeypatch.setattr(lots, "MOST_HELD", 1 << 26)
    assert len(seen(wrong)[0]) == 1

    def none_left(*plans: Plan) -> Any:
        raise MemoryError

    monkeypatch.setattr(rank_by_rank, "shapes_of", none_left)
    assert seen(plan()) == ([], ("not run rank by rank: its arrays do not fit into memory",))


def test_members_are_those_of_the_group() -> None:
    held = parts()
    unrolled = unroll(held.programs, 1)

    def said(**changed: Any) -> list[str]:
        instances = [
            instance._replace(**changed) if instance.kind == "all_gather" else instance
            for instance in unrolled.instances
        ]
        side = Side(
            "parallel",
            held,
            held.programs,
            replace(unrolled, instances=instances),
            [None] * len(unrolled.tensors),
            1,
            frozenset(),
            {},
        )
        problems = Problems()
        for number in range(len(instances)):
            check_members(side, number, problems)
        return [str(problem) for problem in problems.all()]

    assert said() == []
    for changed in ({"programs": (0,)}, {"over": (("dp", 2),)}):
        assert len(said(**changed)) == 1
        assert "joins ranks" in said(**changed)[0]
