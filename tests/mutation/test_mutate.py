"""Mutants: labels by evaluation alone, the same ones for the same seed, disagreements found."""

from __future__ import annotations

import json
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from random import Random

import pytest
from click.testing import CliRunner

from shardproof.commands.mutate import mutate
from shardproof.engine.plan.ir import Plan
from shardproof.engine.plan.unrolled import separable, unrolled
from shardproof.engine.plan_files import store
from shardproof.frontends.zoo import build
from shardproof.mutation import campaign
from shardproof.mutation.edit import Draft, one_call
from shardproof.mutation.evaluate import uncovered
from shardproof.mutation.label import Labelled, label
from shardproof.run import mutant
from shardproof.run.mutant import verify
from tests.faults.plans import (
    attrs,
    edit_calls,
    edit_op,
    edit_shard,
    llama,
    named,
    swapped_calls,
)


@pytest.fixture(scope="module")
def plan() -> Plan:
    return llama(tp=2, microbatches=2, layers=1, sequence=4, ffn=8)


def divided_gradients() -> Plan:
    """Replicas that own a part of every gradient each."""
    sizes = {"hidden": 16, "heads": 4, "kv_heads": 2, "vocabulary": 32, "ffn": 8}
    return build("llama3-8b", dp=2, zero=1, layers=1, sequence=4, **sizes)


def test_gradients_that_are_divided_are_equivalent() -> None:
    assert label(divided_gradients()).label == "equivalent"


def test_a_right_plan_is_equivalent_in_both_arithmetics(plan: Plan) -> None:
    found = label(plan)
    assert (found.label, found.field) == ("equivalent", "same")


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("all_reduce", named("identity")),
        ("rms_norm", attrs(eps=Fraction(1, 10))),
        ("matmul", lambda op: replace(op, inputs=(op.inputs[1], op.inputs[0]))),
    ],
)
def test_a_wrong_plan_is_different_or_invalid(plan: Plan, name: str, change: object) -> None:
    wrong = edit_op(plan, name, change)  # type: ignore[arg-type]
    if name == "all_reduce":
        wrong = edit_op(wrong, "identity", attrs())
        wrong = replace(wrong, programs=tuple(_without_attrs(wrong)))
    assert label(wrong).label in ("different", "invalid")


def _without_attrs(plan: Plan) -> list[object]:
    """Identities have no group."""
    programs = []
    for program in plan.programs:
        bodies = tuple(
            replace(
                body,
                ops=tuple(replace(o, attrs={}) if o.name == "identity" else o for o in body.ops),
            )
            for body in program.bodies
        )
        programs.append(replace(program, bodies=bodies))
    return programs  # type: ignore[return-value]


def test_a_constant_that_is_off_by_rounding_is_different_but_for_that(plan: Plan) -> None:
    """What a proof then assumes in so many words, the label says."""
    off = edit_op(plan, "div", lambda op: replace(op, attrs=_nearly(op.attrs, 10**8)))
    found = label(off)
    assert found.label == "rounded"
    assert 0 < found.error < 1e-6
    assert found.field == "differs"
    assert verify(off)[0] == "proved"


def test_a_constant_that_is_off_by_little_is_different_by_the_field(plan: Plan) -> None:
    off = edit_op(plan, "rms_norm", lambda op: replace(op, attrs=_nearly(op.attrs, 1000, "eps")))
    found = label(off)
    assert found.label == "different"
    assert found.error < 1e-6
    assert found.field == "differs"


def _nearly(held: object, part: int, key: str = "other") -> dict[str, object]:
    assert isinstance(held, dict)
    return {**held, key: held[key] * (1 + Fraction(1, part))}


def test_an_order_that_waits_for_ever_is_invalid() -> None:
    plan = llama(pp=2, microbatches=2, layers=2, sequence=4, ffn=8)
    assert label(plan).label == "equivalent"
    stuck = edit_calls(plan, 1, swapped_calls(0, 1))
    assert label(stuck).label == "invalid"


def test_parts_of_a_parameter_on_no_rank_are_found(plan: Plan) -> None:
    name = "layers.0.feed_forward.w1.weight"
    assert uncovered(plan, [name]) == []
    same = edit_shard(
        plan, 0, name, lambda s: replace(s, offset=tuple(o.fix("tp", 0) for o in s.offset))
    )
    assert uncovered(same, [name]) == [f"gradient of {name}: a part of it is on no rank"]


def test_ranks_and_microbatches_taken_apart_are_the_same_plan(plan: Plan) -> None:
    assert separable(plan) == ["tp"]
    assert label(unrolled(plan, "tp")).label == "equivalent"
    copied = one_call(plan, 0, 0, Random(1))
    assert copied is not None
    assert len(copied[0].programs[0].bodies) == len(plan.programs[0].bodies) + 2
    assert label(copied[0]).label == "equivalent"


def test_new_values_have_nothing_on_record(plan: Plan) -> None:
    body = plan.programs[0].bodies[0]
    held = replace(body, claims=(None,) * len(body.values))
    draft = Draft(held)
    draft.value(0)
    assert len(draft.built().claims) == len(draft.values) == len(body.values) + 1
    assert Draft(body).built() == body


def test_every_mutator_changes_some_plan_and_says_what() -> None:
    plans = [
        llama(dp=2, tp=2, pp=2, microbatches=2, layers=2, sequence=4, ffn=8),
        llama(tp=2, sequence_parallel=True, layers=1, sequence=4, ffn=8),
        divided_gradients(),
    ]
    idle = []
    for mutator in campaign.MUTATORS:
        made = [mutator.apply(p, Random(seed)) for p in plans for seed in range(12)]
        changed = [m for m, p in zip(made, [p for p in plans for _ in range(12)], strict=True) if m]
        assert all(m.what for m in changed)
        if not changed:
            idle.append(mutator.name)
    # These need ranks with programs of their own, or bodies that hand several tensors of one shape
    # on, as nnScaler's plans have.
    assert set(idle) <= {"peers exchanged", "another view", "ends of a body exchanged"}


@pytest.mark.slow
def test_mutators_that_keep_keep() -> None:
    """Rewrites are equivalent, but for collectives changed on one rank only (those are caught by
    their label)."""
    plan = llama(tp=2, layers=1, sequence=4, ffn=8)
    keeping = [m for m in campaign.MUTATORS if m.keeps and "communication" not in m.name]
    for mutator in keeping:
        if mutator.name == "scattered and gathered":
            continue
        made = mutator.apply(plan, Random(3))
        if made is not None:
            found = label(made.plan)
            assert found.label == "equivalent", (mutator.name, made.what, found)


def test_a_number_is_one_mutant(plan: Plan) -> None:
    first, again = (campaign.derive(plan, 7, 5) for _ in range(2))
    assert first is not None
    assert again is not None
    assert first[1].plan == again[1].plan
    assert first[1].what == again[1].what


@pytest.mark.parametrize(
    ("found", "verdict", "said"),
    [
        ("different", "proved", "proved, and it is different"),
        ("different", "refuted", ""),
        ("different", "inconclusive", ""),
        ("invalid", "proved", "proved, and it is invalid"),
        ("invalid", "rejected", ""),
        ("equivalent", "proved", ""),
        ("equivalent", "inconclusive", ""),
        ("equivalent", "refuted", "refuted, and it is equivalent"),
        ("equivalent", "rejected", "rejected, and it is equivalent"),
        ("undecided", "proved", ""),
        ("undecided", "internal error", "it ended in an internal error"),
    ],
)
def test_disagreements(found: str, verdict: str, said: str) -> None:
    labelled = Labelled(found)  # type: ignore[arg-type]
    outcome = campaign.Outcome(0, "m", "k", "w", labelled, verdict, "", 0.0)
    assert outcome.disagreement == said


def test_the_command_counts_and_agrees(plan: Plan, tmp_path: Path) -> None:
    store.save(plan, tmp_path / "plan")
    made = CliRunner().invoke(
        mutate, [str(tmp_path / "plan"), "--count", "4", "--json"], standalone_mode=False
    )
    assert made.return_value == 0, made.output
    document = json.loads(made.stdout)
    assert document["mutants"] == sum(sum(row.values()) for row in document["totals"].values()) > 0
    assert document["disagreements"] == []
    assert all(outcome["what"] for outcome in document["outcomes"])


def test_the_command_keeps_what_disagrees(
    plan: Plan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.save(plan, tmp_path / "plan")
    monkeypatch.setattr(mutant, "verify", lambda plan, *known: ("proved", ""))
    number = next(
        n
        for n in range(40)
        if (made := campaign.derive(plan, 1, n)) and label(made[1].plan).label == "different"
    )
    args = [str(tmp_path / "plan"), "--only", str(number), "--out", str(tmp_path / "out")]
    made = CliRunner().invoke(mutate, args, standalone_mode=False)
    assert made.return_value == 1
    assert f"mutant {number}: proved, and it is different" in made.output
    kept = store.load(tmp_path / "out" / f"mutant-{number}")
    derived = campaign.derive(plan, 1, number)
    assert derived is not None
    assert kept.programs == derived[1].plan.programs
