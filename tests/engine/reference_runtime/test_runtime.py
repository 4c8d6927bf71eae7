"""Plans run rank by rank: the second opinion on what a mutant is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from shardproof.engine.errors import ShapeMismatch
from shardproof.engine.plan.ir import Plan, Program
from shardproof.engine.reference_runtime import compare as runtime
from shardproof.engine.reference_runtime.exchange import Stuck
from shardproof.mutation import label as labels
from shardproof.mutation.label import Labelled, label
from tests.faults.plans import attrs, edit_calls, edit_op, edit_program, llama, swapped_calls
from tests.faults.small import PASS, parts, replicas, segments


def twice(plan: Plan) -> Plan:
    """The reducer runs in every microbatch."""

    def change(program: Program) -> Program:
        *calls, last = program.calls
        both = (replace(last, microbatch=0), replace(last, microbatch=1))
        return replace(program, calls=(*calls, *both))

    return edit_program(plan, 0, change)


@pytest.mark.parametrize(
    "make", [replicas, parts, lambda: segments([(name, m) for name in PASS for m in (0, 1)]), llama]
)
def test_right_plans_agree_to_rounding(make: Callable[[], Plan]) -> None:
    plan = make()
    assert runtime.fits(plan)
    assert runtime.worst(plan, 0)[0] < 1e-12


def test_what_differs_is_named() -> None:
    error, where = runtime.worst(twice(replicas()), 0)
    assert error > 0.1
    assert where.startswith("gradient of w on rank ")
    assert runtime.worst(parts(starts=(4, 0)), 0)[0] > 0.1


def test_ranks_that_cannot_go_on_are_stuck() -> None:
    plan = llama(pp=2, microbatches=2, layers=2, sequence=4, ffn=8)
    assert runtime.worst(plan, 0)[0] < 1e-12
    with pytest.raises(Stuck, match="which nothing has written"):
        runtime.worst(edit_calls(plan, 1, swapped_calls(0, 1)), 0)
    with pytest.raises(Stuck, match="wait for each other"):
        runtime.worst(edit_calls(plan, 0, lambda calls: calls[:1]), 0)
    with pytest.raises(Stuck, match="join in different collectives"):
        runtime.worst(edit_op(parts(), "all_gather", attrs(dim=0), program=1), 0)


def test_parts_that_do_not_fit_are_a_mismatch() -> None:
    with pytest.raises(ShapeMismatch):
        runtime.worst(parts((3, 5), (0, 3)), 0)


def test_a_label_is_no_better_than_what_ranks_do(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the evaluation that the prover shares sees nothing, this still does."""
    assert label(replicas()).ranks == "same"
    monkeypatch.setattr(labels, "_evaluated", lambda plan: Labelled("equivalent"))
    found = label(twice(replicas()))
    assert (found.label, found.ranks) == ("different", "differs")
    found = label(parts((3, 5), (0, 3)))
    assert (found.label, found.ranks) == ("invalid", "stuck")
