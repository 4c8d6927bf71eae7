"""Constants that differ by rounding alone: equal under a printed assumption; others never are."""

from __future__ import annotations

import json
import math
import shutil
import struct
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardproof.checker import check
from shardproof.engine.plan.assumption import texts
from shardproof.engine.plan.constants import is_rounding, restored, statement
from shardproof.engine.plan.ir import Plan
from shardproof.engine.plan_files import store
from shardproof.inputs.assume import Assumptions
from shardproof.partition.evidence.rounding import rounded
from shardproof.run import pipeline
from shardproof.run.options import Options
from shardproof.run.progress import Progress
from shardproof.run.result import Result
from tests.faults.plans import llama
from tests.faults.records import LLAMA, LLAMA_222, edited, operand

#: Of `LLAMA_222`: the operator that divides by sqrt(head size); the head size is 128.
SCALE = 24


def single_precision(value: float) -> Fraction:
    """The number nearest to ``value`` in single precision, as a plan writes it down."""
    (found,) = struct.unpack("f", struct.pack("f", value))
    return Fraction(repr(found))


EPSILON, EPSILON_32 = Fraction(1, 100000), single_precision(1e-5)


def with_epsilon(plan: Plan, epsilon: Fraction, layer: str = "layers.0") -> Plan:
    """The plan with another epsilon in the norms of one layer of the parallel side."""

    def other(op: Any) -> Any:
        if op.name != "rms_norm" or op.source.module != layer:
            return op
        return replace(op, attrs={**op.attrs, "eps": epsilon})

    programs = [
        replace(
            program,
            bodies=tuple(
                replace(body, ops=tuple(other(op) for op in body.ops)) for body in program.bodies
            ),
        )
        for program in plan.programs
    ]
    return replace(plan, programs=tuple(programs))


def verified(plan: Plan, out: Path) -> Result:
    options = Options(executor="local", workers=1, cache=False)
    return pipeline.run(
        plan,
        options=options,
        settings=options.settings(),
        out=out,
        assumptions=Assumptions(),
        load_seconds=0.0,
        progress=Progress(),
    )


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run of a small plan whose epsilon is the single-precision one on the parallel side."""
    out = tmp_path_factory.mktemp("rounded")
    result = verified(with_epsilon(llama(tp=2), EPSILON_32), out)
    assert result.verdict == "proved"
    (said,) = [line for line in result.assumptions if "rounding alone" in line]
    assert said.startswith("constants 9.999999747378752e-06 and 1e-05 are equal: they differ by")
    assert [f.operator for f in result.findings] == ["rms_norm", "backward of rms_norm"]
    for finding in result.findings:
        assert (finding.kind, finding.layer) == ("precision", "layers.0")
        assert (finding.expected, finding.actual) == ("1e-05", "9.999999747378752e-06")
    return out


# -- which constants ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (Fraction(repr(1 / math.sqrt(128))), single_precision(1 / math.sqrt(128))),
        (Fraction(repr(1 / math.sqrt(128))), Fraction(repr(math.sqrt(1 / 128)))),
        (Fraction(repr(0.1 * 3)), Fraction(3, 10)),
        (Fraction(1, 3), Fraction(repr(1 / 3))),
        (Fraction(repr(6 * (1 / 6 + 1e-17))), Fraction(repr(1 - 2**-53))),
        (EPSILON, EPSILON_32),
        (-EPSILON, -EPSILON_32),
    ],
)
def test_constants_that_differ_by_rounding(one: Fraction, other: Fraction) -> None:
    assert is_rounding(one, other)
    assert is_rounding(other, one)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (EPSILON, Fraction(2)),
        (EPSILON, Fraction(1, 10**6)),
        (Fraction(repr(math.sqrt(128))), Fraction(4)),
        (EPSILON, EPSILON),
        (EPSILON, -EPSILON_32),
        (Fraction(0), Fraction(1, 10**30)),
        (Fraction(repr(0.1)), Fraction(repr(0.1 * (1 + 3e-7)))),
        # Half precision: its rounding is not taken for granted.
        (Fraction(repr(0.1)), Fraction(repr(0.0999755859375))),
        # Counts, rows of a table, exponents: whole numbers are what they are.
        (1 << 30, (1 << 30) + 1),
        (Fraction(1 << 30), Fraction((1 << 30) + 1)),
        (True, Fraction(repr(0.99999999))),
        ("1e-05", EPSILON_32),
        (None, EPSILON),
    ],
)
def test_constants_that_do_not(one: object, other: object) -> None:
    assert not is_rounding(one, other)
    assert not is_rounding(other, one)


@given(st.floats(1e-30, 1e6))
def test_rounding_to_single_precision_is_rounding(value: float) -> None:
    one, other = Fraction(repr(value)), single_precision(value)
    assert one == other or is_rounding(one, other) or one.denominator == other.denominator == 1
    assert not is_rounding(one, one * Fraction(10**6 + 1, 10**6))


# -- which plans ----------------------------------------------------------------------------------


def test_a_plan_without_such_constants_is_left_alone(tmp_path: Path) -> None:
    plan = llama(tp=2)
    assert rounded(plan) is plan
    result = verified(plan, tmp_path)
    assert result.verdict == "proved"
    assert result.findings == ()
    assert not any("rounding alone" in line for line in result.assumptions)


def test_replacing_and_restoring_are_inverse() -> None:
    plan = with_epsilon(llama(tp=2), EPSILON_32)
    changed = rounded(plan)
    assert [place.value for place in changed.rounded] == [EPSILON_32] * 4
    assert changed.programs == llama(tp=2).programs
    assert restored(changed) == plan
    assert len(statement(changed)) == 1


@pytest.mark.parametrize(
    "epsilon", [Fraction(2), Fraction(1, 10**6), EPSILON * Fraction(100001, 10**5)]
)
def test_another_constant_is_never_rounding(tmp_path: Path, epsilon: Fraction) -> None:
    plan = with_epsilon(llama(tp=2), epsilon)
    assert rounded(plan) is plan
    result = verified(plan, tmp_path)
    assert result.verdict != "proved"
    assert not any("rounding alone" in line for line in result.assumptions)


def test_a_wrong_constant_beside_a_rounded_one_is_refuted(tmp_path: Path) -> None:
    """One layer's epsilon is rounded, the other one's is another number: that is what is wrong."""
    plan = with_epsilon(llama(tp=2, layers=2), EPSILON_32)
    result = verified(with_epsilon(plan, Fraction(2), "layers.1"), tmp_path)
    assert result.verdict == "refuted"
    assert result.findings[0].kind == "mismatch"
    assert result.findings[0].layer == "layers.1"


def test_a_real_plan_with_a_scale_in_single_precision(shared_plans: Path, tmp_path: Path) -> None:
    scale = float(single_precision(math.sqrt(128)))
    result = verified(edited(shared_plans, LLAMA, LLAMA_222, operand(0, SCALE, 1, scale)), tmp_path)
    assert result.verdict == "proved"
    assert [(f.kind, f.ranks, f.operator) for f in result.findings] == [
        ("precision", (0,), "div"),
        ("precision", (0,), "backward of div"),
    ]


# -- the certificate ------------------------------------------------------------------------------


def test_the_certificate_holds(run: Path) -> None:
    found = check(run)
    assert found.ok, found.problems
    named = json.loads((run / "certificate.json").read_text())["assumptions"]
    assert any("differ by rounding alone" in line for line in named)


def test_the_plan_as_it_was_read_is_the_one_of_the_run(run: Path) -> None:
    assert check(run, plan=with_epsilon(llama(tp=2), EPSILON_32)).ok
    other = check(run, plan=llama(tp=2))
    assert [p.kind for p in other.problems] == ["input"]


def test_a_certificate_that_hides_the_assumption_does_not_hold(run: Path, tmp_path: Path) -> None:
    copy = copied(run, tmp_path)
    path = copy / "certificate.json"
    text = json.loads(path.read_text())
    text["assumptions"] = [x for x in text["assumptions"] if "rounding alone" not in x]
    details = text["assumption_details"]
    text["assumption_details"] = [x for x in details if "rounding alone" not in x["text"]]
    path.write_text(json.dumps(text))
    found = check(copy)
    assert not found.ok
    assert "does not name the assumption that constants" in found.problems[0].message


def test_a_replacement_that_is_none_does_not_hold(run: Path, tmp_path: Path) -> None:
    """The run says that what was replaced was 2; the rest of it is as it should be."""
    copy = copied(run, tmp_path)
    plan = store.load(copy / "plan")
    places = tuple(place._replace(value=Fraction(2)) for place in plan.rounded)
    changed = replace(plan, rounded=places)
    store.save(changed, copy / "plan")
    path = copy / "certificate.json"
    text = json.loads(path.read_text())
    text["plan"] = store.digest(changed)
    text["assumptions"] += texts(statement(changed))
    path.write_text(json.dumps(text))
    found = check(copy)
    assert not found.ok
    assert "was 2, which is no rounding of 1/100000" in found.problems[0].message


def copied(run: Path, to: Path) -> Path:
    shutil.copytree(run, to / "run")
    return to / "run"
