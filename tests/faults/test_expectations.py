"""What a plan's table of expectations says is what is proved: no more, no less, nothing vacuously.

Each fault beside its right twin, by the whole way: partition, solvers, simulation, verdict; what is
proved, the checker checks again from the stored plan.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import pytest

from shardproof import checker
from shardproof.engine.algebra.affine import affine
from shardproof.engine.errors import InvalidInput
from shardproof.engine.plan.ir import Expectation, Plan, Program
from shardproof.engine.plan.unrolled import unrolled as taken_apart
from shardproof.engine.plan_files import store, wellformed
from shardproof.engine.reference_runtime import compare as runtime
from shardproof.engine.schedule.unroll import unroll
from shardproof.engine.simulation.simulate import simulate
from shardproof.engine.specification.demands import demands
from shardproof.engine.specification.gradients import derive
from shardproof.run.result import Result
from tests.faults.expected import (
    apart,
    called,
    embedded,
    graded,
    halves,
    linear,
    logarithm,
    passed_on,
    regularised,
    shaped,
    terms,
    two_products,
    two_sums,
)
from tests.faults.plans import edit_op, edit_shard, identity, verify
from tests.faults.small import replicas

HALF, TWO = Fraction(1, 2), Fraction(2)

RIGHT = {
    "outputs: columns, and a sum that is reduced": linear(),
    "a sum that is partial by design": linear(reduced=False, expected="partial"),
    "a sum over ranks, taken by the table": linear(reduced=False, expected="sum"),
    "a mean of copies": linear(expected="mean"),
    "a program for each rank": apart(),
    "a gradient that every rank has in full": graded(),
    "a gradient that is where its parameter is": graded(whole=False),
    "ids with a domain": embedded(),
    "labels of which some count for nothing": embedded(domain=(-100, 32)),
    "terms of the loss on two ranks": terms(),
    "microbatches run by bodies of one name": called(),
    "microbatches run by bodies of other names": called(("forward0", "forward1")),
    "a regulariser in a body of its own": regularised(),
    "a sum of two products that is partial": two_products(),
    "a loss and its all-reduce, both called the loss": passed_on(),
    "two sums over replicas": two_sums(),
    "a loss without dimensions": shaped(()),
    "a loss of one row and column": shaped((1, 1)),
    "a loss without dimensions, in a table": shaped((), own=True),
    "columns, rank by rank": taken_apart(linear(), "tp"),
    "a partial sum, rank by rank": taken_apart(linear(reduced=False, expected="partial"), "tp"),
    "a mean, rank by rank": taken_apart(linear(expected="mean"), "tp"),
    "half gradients, rank by rank": taken_apart(graded(whole=False), "tp"),
    "a regulariser that is part of the loss": regularised(own_body=False),
    "a parameter whole on one rank, in halves on another": halves(),
    "both sides hold a parameter in halves": halves(single=True, ranks="halves"),
    "a logarithm of what may be negative": logarithm(),
    "a logarithm of what is positive": logarithm(1, square=True),
}

#: Right and wrong conclusions are of the kind and name, and say this.
WRONG = {
    "columns of another rank": (linear(offset={"tp": 4}), "another part of it"),
    "the same columns on every rank": (linear(offset={}), "another part of it"),
    "a sum that is not reduced": (
        linear(reduced=False),
        "a reduction is missing; summed along tp it is the single-device output",
    ),
    "a sum that is reduced and summed again": (linear(expected="sum"), "is 2 times"),
    "a scaled output": (linear(factor=TWO), "is 2 times"),
    "an output that is wrong on the second rank": (apart(wrong=1), "rank 1: output z"),
    "a shard of other rows": (apart(starts=(0, 4)), "rank 1: output y is another part"),
    "the other half of a gradient": (graded(whole=False, told="other"), "another part of it"),
    "a scaled gradient": (graded(scale=HALF), "is 1/2 times the single-device gradient"),
    "rows of a table from another id on": (embedded(start=8), "output y"),
    "an embedding that is not reduced": (embedded(reduced=False), "a reduction is missing"),
    "terms with other weights": (terms(weights=(Fraction(1), Fraction(1))), "do not add up"),
    "terms of which each is called the loss": (terms(told=False), "do not add up"),
    "a microbatch's loss twice": (called(("a", "b"), factor=TWO), "the losses over 2 slices"),
    "a regulariser twice": (regularised(factor=TWO), "the losses over 2 slices"),
    "halves that overlap": (halves(start=4), "rank 1"),
    "halves on both sides that overlap": (halves(single=True, ranks="halves", start=4), "rank 1"),
    "a loss without dimensions, scaled": (shaped((), factor=TWO), "the losses over 2 slices"),
    "a loss without dimensions, scaled, in a table": (
        shaped((), own=True, factor=TWO),
        "do not add up",
    ),
    "one of two products twice": (two_products(factor=TWO), "is not the single-device output"),
    "a product of something else": (two_products(swapped=True), "is not the single-device output"),
    "two products that are not added up": (
        two_products(expected="equal"),
        "summed along tp it is the single-device output",
    ),
    "a loss that is there twice": (passed_on(twice=True), "the losses over 1 slices"),
    "one of two sums twice": (two_sums(factor=TWO), "do not add up"),
    "one of two sums left out": (two_sums(terms_of=1), "do not add up"),
    "columns of another rank, rank by rank": (
        taken_apart(linear(offset={"tp": 4}), "tp"),
        "rank 1: output y is another part of it",
    ),
    "a sum that is not reduced, rank by rank": (
        taken_apart(linear(reduced=False), "tp"),
        "rank 0: output norm is a partial sum",
    ),
    "a scaled logarithm": (logarithm(factor=TWO), "is 2 times the single-device output"),
}


@pytest.mark.parametrize("name", RIGHT)
def test_right_plans_are_proved_and_checked(name: str, tmp_path: Path) -> None:
    found = verify(RIGHT[name], out=tmp_path)
    assert found.verdict == "proved", (found.reason, [c for c in found.conclusions if not c.holds])
    assert found.conclusions
    assert all(c.holds for c in found.conclusions)
    again = checker.check(tmp_path)
    assert again.ok, again.problems


def defined(names: Iterable[str]) -> list[str]:
    """Without those that the judge below gives inputs outside of their domain."""
    outside = ("a logarithm of what may be negative", "a scaled logarithm")
    return [name for name in names if name not in outside]


@pytest.mark.parametrize("name", defined(RIGHT))
def test_ranks_of_right_plans_end_with_what_is_expected(name: str) -> None:
    """Every rank by itself, at true size, by another reading of the table."""
    error, where = runtime.worst(RIGHT[name], 0)
    assert error < 1e-9, where


@pytest.mark.parametrize("name", defined(WRONG))
def test_ranks_of_wrong_plans_do_not(name: str) -> None:
    assert runtime.worst(WRONG[name][0], 0)[0] > 1e-6


@pytest.mark.parametrize("name", WRONG)
def test_wrong_plans_are_refuted(name: str) -> None:
    plan, says = WRONG[name]
    found = verify(plan)
    assert found.verdict == "refuted", found.reason
    assert any(says in c.message for c in found.conclusions if not c.holds)


def test_a_simulation_compares_the_box_that_the_table_says() -> None:
    """Where a loss is wrong, a gradient whose box is not its parameter's is no second
    difference."""
    plan = graded()
    wrong = edit_op(plan, "all_reduce", identity, body="step")
    found = verify(wrong)
    assert found.verdict == "refuted"
    assert [c.kind for c in found.conclusions if not c.holds] == ["loss"]
    single = derive(wrong, unroll([wrong.single], 1))
    compared = simulate(wrong, single, unroll(wrong.programs, 1)).comparisons
    assert {c.demand.kind for c in compared if c.differs} == {"loss"}
    assert {c.demand.kind for c in compared} == {"loss", "gradient"}


# -- nothing holds vacuously -----------------------------------------------------------------------


def test_what_has_no_counterpart_fails() -> None:
    found = verify(graded(told="nothing"))
    assert found.verdict == "refuted"
    messages = [c.message for c in found.conclusions if not c.holds]
    assert "the single-device gradient w has no counterpart" in messages


def test_an_output_of_which_a_part_is_on_no_rank_fails() -> None:
    plan = apart()
    rows = tuple(r for r in plan.expectations if (r.name, r.parallel[0].program) != ("y", 1))
    bodies = (replace(plan.programs[1].bodies[0], results=(rows[-1].parallel[0].value,)),)
    second = replace(plan.programs[1], bodies=bodies)
    found = verify(replace(plan, expectations=rows, programs=(plan.programs[0], second)))
    assert found.verdict == "inconclusive"
    failed = [(c.kind, c.name) for c in found.conclusions if not c.holds]
    assert failed == [("output coverage", "y")]


def test_a_gap_fails_the_rows_that_depend_on_it() -> None:
    """An operator without a meaning, on both sides: nothing that depends on it is equal."""
    plan = linear()

    def without(program: Program) -> Program:
        body = program.bodies[0]
        ops = tuple(replace(op, name="mystery") if op.name == "linear" else op for op in body.ops)
        return replace(program, bodies=(replace(body, ops=ops),))

    found = verify(
        replace(plan, single=without(plan.single), programs=tuple(map(without, plan.programs)))
    )
    assert found.verdict == "inconclusive"
    assert "mystery" in found.reason
    outputs = [c for c in found.conclusions if c.kind == "output"]
    assert outputs
    assert not any(c.holds for c in outputs)


def test_a_rank_with_a_part_of_a_parameter_needs_a_row_for_its_gradient() -> None:
    """Two ranks as programs of their own; the gradient of one of them is in no row."""
    plan = graded()
    (row,) = [r for r in plan.expectations if r.kind == "gradient"]
    second = replace(plan.programs[0], name="another", base=7)
    moved = [
        replace(r, parallel=tuple(replace(a, program=1) for a in r.parallel))
        for r in plan.expectations
        if r.kind == "loss"
    ]
    body = replace(second.bodies[0], results=(moved[0].parallel[0].value,))
    more = replace(
        plan,
        programs=(plan.programs[0], replace(second, bodies=(body,))),
        expectations=(*plan.expectations, *moved),
    )
    wellformed.check(more)
    single = derive(more, unroll([more.single], 1))
    found = demands(more, single, unroll(more.programs, 1))
    assert [(d.name, d.program, d.problem) for d in found if d.problem] == [
        (row.name, 1, "is expected nowhere, though a part of the parameter is held")
    ]


def test_a_program_that_is_defined_nowhere_is_not_proved() -> None:
    """The logarithm of -x^2 - 1, on both sides: equal terms, and no number on any input."""
    for factor in (Fraction(1), TWO):
        found = verify(logarithm(-1, -1, square=True, factor=factor))
        assert found.verdict == "inconclusive"
        assert "undefined on all inputs that were tried" in found.reason


def test_optional_rows_do_not_prevent_a_proof() -> None:
    plan = linear(reduced=False)
    rows = tuple(replace(r, required=r.name != "norm") for r in plan.expectations)
    found = verify(replace(plan, expectations=rows))
    assert found.verdict == "proved"
    assert not any(c.name == "norm" for c in found.conclusions)
    assert [f.message for f in found.findings if f.kind == "not required"]


# -- what is no table ------------------------------------------------------------------------------


def changed(plan: Plan, number: int, **fields: object) -> Plan:
    rows = list(plan.expectations)
    rows[number] = replace(rows[number], **fields)  # type: ignore[arg-type]
    return replace(plan, expectations=tuple(rows))


def without_required(plan: Plan) -> Plan:
    return replace(plan, expectations=tuple(replace(r, required=False) for r in plan.expectations))


def first_held(plan: Plan, **fields: object) -> Plan:
    (addend,) = plan.expectations[0].parallel
    return changed(plan, 0, parallel=(replace(addend, **fields),))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("plan", "says"),
    [
        (without_required(linear()), "nothing would be proved"),
        (changed(linear(), 0, offset=()), "is all of"),
        (changed(linear(), 0, offset=(affine(0), affine(9))), "does not lie in"),
        (changed(linear(), 0, offset=(affine(0), affine(0, {"dp": 8}))), "do not tell its place"),
        (changed(linear(), 0, kind="coverage"), "expected another word"),
        (changed(linear(), 0, single=()), "no single-device value"),
        (changed(linear(), 1, name="y"), "another single-device value"),
        (first_held(linear(), program=3), "program 3 of 1"),
        (first_held(linear(), value=0), "is no result of"),
        (first_held(linear(), over=(("dp", "sum"),)), "over axes"),
        (first_held(linear(), over=(("tp", "max"),)), "combines by"),
        (first_held(linear(), weight=Fraction(0)), "weight 0"),
        (replace(linear(), expectations=linear().expectations[:1]), "is in no expectation"),
        (replace(linear(), expectations=()), "no table"),
        (graded(whole=False, told="whole"), "is all of"),
        (apart(left_out=1), "is in no expectation"),
        (edit_shard(embedded(), 0, "ids", lambda s: replace(s, domain=(0, 8))), "elsewhere"),
        (edit_shard(embedded(), 0, "ids", lambda s: replace(s, domain=(8, 8))), "domain"),
        (edit_shard(embedded(), 0, "ids", lambda s: replace(s, kind="thing")), "expected one of"),
    ],
)
def test_what_is_no_table_is_refused(plan: Plan, says: str) -> None:
    with pytest.raises(InvalidInput, match=says):
        wellformed.check(plan)


# -- on disk ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", RIGHT)
def test_plans_are_stored_and_read_again(name: str, tmp_path: Path) -> None:
    plan = RIGHT[name]
    digest = store.save(plan, tmp_path / "plan")
    assert store.load(tmp_path / "plan") == plan
    assert store.from_bytes(store.to_bytes(plan)) == plan
    assert store.digest(plan) == digest


def without_lines(plan: Plan) -> Plan:
    """The plan as the builder wrote it before it noted its caller's lines."""

    def program(held: Program) -> Program:
        bodies = [
            replace(
                body,
                ops=tuple(replace(op, source=replace(op.source, location="")) for op in body.ops),
            )
            for body in held.bodies
        ]
        return replace(held, bodies=tuple(bodies))

    return replace(plan, single=program(plan.single), programs=tuple(map(program, plan.programs)))


def test_a_plan_without_a_table_is_stored_as_before(tmp_path: Path) -> None:
    """In the version of the format that has none, with the digest that it had there."""
    plan = without_lines(replicas())
    store.save(plan, tmp_path / "plan")
    assert not (tmp_path / "plan" / "expectations.arrow").exists()
    assert store.digest(plan) == (
        "ec5667f8a6e472321f1f29dca994287797f0a3f394d8d8082d3774a8519faddb"
    )


def test_a_table_that_is_taken_away_is_noticed(tmp_path: Path) -> None:
    store.save(linear(), tmp_path / "plan")
    for name in ("expectations", "addends"):
        (tmp_path / "plan" / f"{name}.arrow").unlink()
    with pytest.raises(InvalidInput):
        store.load(tmp_path / "plan")


def test_every_row_of_a_table_counts_in_the_digest() -> None:
    plan = linear()
    digests = {store.digest(plan), store.digest(changed(plan, 1, required=False))}
    digests.add(store.digest(first_held(plan, weight=TWO)))
    digests.add(store.digest(changed(plan, 0, offset=(affine(0), affine(4)))))
    digests.add(store.digest(replace(plan, expectations=plan.expectations[::-1])))
    assert len(digests) == 5


# -- assumptions -----------------------------------------------------------------------------------


def assumed(found: Result) -> str:
    return "\n".join(found.assumptions)


def test_what_a_table_takes_for_granted_is_said() -> None:
    ids = assumed(verify(RIGHT["labels of which some count for nothing"]))
    assert "every entry of ids is an integer from -100 to 31" in ids
    assert "no gradients are compared" in ids
    partial = assumed(verify(RIGHT["a sum that is partial by design"]))
    assert "output norm is partial along tp: nothing in the plan adds it up" in partial
    recorded = assumed(verify(graded()))
    assert "gradients are held against those that the single-device program computes" in recorded
    assert "no gradients are compared" not in recorded


def test_rows_are_plain_data() -> None:
    """The example of the builder's docstring and the rows that it makes."""
    rows = linear(reduced=False, expected="partial").expectations
    assert [(r.kind, r.name) for r in rows] == [("output", "y"), ("output", "norm")]
    assert isinstance(rows[0], Expectation)
    assert rows[0].offset == (affine(0), affine(0, {"tp": 8}))
    assert rows[1].parallel[0].over == (("tp", "partial"),)


@pytest.mark.parametrize(
    ("plan", "name", "ranks"),
    [
        # Every rank's columns are said to be the first ones: those of rank 0 are.
        (linear(offset={}), "y", (1,)),
        (linear(offset={"tp": 4}), "y", (1,)),
        (linear(reduced=False), "norm", (0, 1)),
        (linear(factor=TWO), "norm", (0, 1)),
        (apart(wrong=1), "z", (1,)),
    ],
)
def test_what_fails_names_all_ranks_on_which_it_does(
    plan: Plan, name: str, ranks: tuple[int, ...]
) -> None:
    (failed,) = (c for c in verify(plan).conclusions if c.name == name and not c.holds and c.ranks)
    assert failed.ranks == ranks
    assert failed.message.startswith(f"rank {ranks[0]}: ")
    (other,) = {c.ranks for c in verify(linear()).conclusions if c.name == "norm" and c.ranks}
    assert other == (0,)
