"""The fourteen real plans with a bug put in: place and repair of each, and how many tries it took;
two bugs in one plan; a plan that holds under another order of its groups."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import pytest

from shardproof.diagnosis.outcome import diagnosed
from shardproof.diagnosis.repair.edits import with_program
from shardproof.diagnosis.repair.trial import holds
from shardproof.diagnosis.search import MOST_TRIES, Diagnosis
from shardproof.engine.plan.ir import Op, Plan
from shardproof.inputs.assume import Assumptions
from shardproof.inputs.load import load_plan
from shardproof.partition.evidence.rounding import without_rounding
from shardproof.partition.stages.partition import partition

SINGLE = "llama3_default_dp1_pp1_tp1_nm1_gbs512_ly2_h32_hi4096_sq128.pkl"
NAMES = "bugs/llama3_br{}_dp2_pp2_tp2_nm2_gbs512_ly2_h32_hi4096_sq128.pkl"

#: Bug: (operator, part of the layer, ranks, part of the repair).
EXPECTED: dict[str, tuple[str, str, tuple[int, ...], str]] = {
    "01": ("add", "layers.0", (0, 1), "an all-reduce over ranks [0, 1] in place of identity"),
    "02": ("add", "layers.0", (0, 1), "an all-reduce over ranks [0, 1] inserted after linear"),
    "03": ("add", "layers.0", (0, 1), "an all-reduce over ranks [0, 1] in place of all-gather"),
    "04": ("all_reduce", "layers.1", (2, 3), "an all-gather of dimension 2 over ranks [2, 3]"),
    "05": ("backward of mul", "layers.1.ffn_norm", (2, 3), "an all-reduce over ranks [2, 3]"),
    "06": ("all_gather", "between layers.0 and layers.1", (2, 3), "1 to 3 and 0 to 2"),
    "07": ("add", "layers.0.attention_norm", (0,), "other about 1e-05 in place of 2"),
    "08": ("pow", "layers.0.ffn_norm", (0,), "exponent 2 in place of 1"),
    "09": ("add", "layers.1.attention_norm", (0, 1), "other about 1e-05 in place of 2"),
    "10": ("add_n", "layers.1.attention_norm", (2,), "added once, not twice"),
    "11": ("backward of apply_rotary_emb", "layers.1.attention", (2,), "in the other order"),
    "12": ("div", "layers.0.attention", (0,), "in place of 4"),
    "13": ("div", "layers.0.attention", (0, 1), "in place of 4"),
    "14": ("segment 269", "layers.1.attention_norm", (0,), "called for microbatch 1 too"),
}
QUICK = ("06", "14")


@pytest.mark.parametrize(
    "bug", [b if b in QUICK else pytest.param(b, marks=pytest.mark.slow) for b in EXPECTED]
)
def test_place_and_repair_of_real_bugs(bug: str, shared_plans: Path) -> None:
    operator, layer, ranks, repair = EXPECTED[bug]
    plan = load_plan(shared_plans / SINGLE, shared_plans / NAMES.format(bug), Assumptions())
    result = without_rounding(partition(plan))
    told: list[tuple[int, int]] = []
    first = diagnosed(result, None, tell=lambda *counts: told.append(counts))[0]
    assert [done for done, _ in told] == list(range(len(told)))
    assert told
    assert first.operator == operator
    assert layer in first.layer
    assert first.ranks == ranks
    assert repair in first.repair
    assert first.microbatches == ((1,) if bug == "14" else ())
    search = Diagnosis(result)
    assert search.run()
    assert search.tries <= 3
    assert all(c.holds for c in partition(search.state.plan).conclusions)


def edited(plan: Plan, change: Callable[[Op], Op | None], programs: Sequence[int]) -> Plan:
    """The plan with ``change`` of every operator of some programs (None: gone)."""
    for number in programs:
        bodies = [
            replace(body, ops=tuple(new for op in body.ops if (new := change(op)) is not None))
            for body in plan.programs[number].bodies
        ]
        plan = with_program(plan, number, replace(plan.programs[number], bodies=tuple(bodies)))
    return plan


def bug(number: str, shared_plans: Path) -> Plan:
    return load_plan(shared_plans / SINGLE, shared_plans / NAMES.format(number), Assumptions())


def epsilon(op: Op) -> Op:
    """Bug 09: of layer 1."""
    wrong = op.name == "add" and op.source.module == "layers.1.attention_norm"
    return replace(op, attrs={**op.attrs, "other": Fraction(2)}) if wrong else op


def unreduced(op: Op) -> Op:
    """Bug 01: of layer 0."""
    return replace(op, name="identity", attrs={}) if op.source.cell == "adapter 987" else op


@pytest.mark.parametrize(
    ("one", "other", "repairs"),
    [
        ("07", epsilon, ("other about 1e-05 in place of 2", "other about 1e-05 in place of 2")),
        pytest.param(
            "09",
            unreduced,
            ("an all-reduce over ranks [0, 1]", "other about 1e-05 in place of 2"),
            marks=pytest.mark.slow,
        ),
    ],
)
def test_two_bugs_at_different_layers_are_two_causes(
    one: str, other: Callable[[Op], Op], repairs: tuple[str, str], shared_plans: Path
) -> None:
    """Also where the second one is the same constant, on other ranks."""
    plan = edited(bug(one, shared_plans), other, (0, 1))
    found = diagnosed(without_rounding(partition(plan)), None)
    causes = [f for f in found if f.kind == "mismatch"]
    assert [f.group for f in causes] == [1, 2], found
    assert ["layers.0" in f.layer for f in causes] == [True, False]
    assert "layers.1.attention_norm" in causes[1].layer
    assert "is put right" in causes[1].message
    assert all(says in f.repair for f, says in zip(causes, repairs, strict=True))


def test_two_structural_bugs_are_two_causes(shared_plans: Path) -> None:
    """Bug 14 (a missing call), and bug 02's (an adapter that writes nothing)."""
    plan = edited(
        bug("14", shared_plans), lambda op: None if op.source.cell == "adapter 987" else op, (0, 1)
    )
    found = diagnosed(without_rounding(partition(plan)), None)
    causes = {f.group: f for f in reversed(found)}
    assert [causes[n].kind for n in (1, 2)] == ["missing call", "read before write"], found
    assert "called for microbatch 1 too" in causes[1].repair
    assert "an all-reduce over ranks [0, 1] inserted after linear" in causes[2].repair


@pytest.mark.slow
def test_an_order_of_groups_that_the_plan_records_is_the_repair(shared_plans: Path) -> None:
    parallel = "llama3_default_dp2_pp4_tp8_nm8_gbs512_ly2_h32_hi4096_sq128.pkl"
    files = shared_plans / SINGLE, shared_plans / parallel
    result = without_rounding(partition(load_plan(*files, Assumptions())))
    recorded = Assumptions(groups="as recorded")
    found = diagnosed(result, None, lambda: load_plan(*files, recorded))
    first = found[0]
    assert first.operator == "all_gather"
    assert first.ranks == tuple(range(8, 16))
    assert first.cause == "order of process groups"
    assert first.repair.startswith('holds with the assumption groups = "as recorded"')
    evidence = [f for f in found if f.kind == "chunk position"]
    assert evidence
    assert {f.group for f in evidence} == {1}
    assert f"{len(evidence)} chunks" in first.message
    # Under that order there is nothing to be repaired, and without it no such repair is shown.
    assert holds(partition(load_plan(*files, recorded)))
    search = Diagnosis(result, lambda: None)
    search.tries = MOST_TRIES
    assert not search.run()
