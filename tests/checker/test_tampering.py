"""Every way of changing a proved run that we could think of is rejected, by name.

The changes are made to what is stored, and everything is stored again with fresh digests: what
rejects them is the argument, not a checksum.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest

from shardproof.checker import check
from shardproof.engine.algebra.affine import affine
from shardproof.engine.lineage.expressions import Input
from shardproof.engine.records.certificate import Certificate
from tests.checker.changes import (
    Change,
    another_conclusion,
    change_atom,
    change_node,
    change_output,
    change_part,
    change_plan,
    change_stage,
    change_template,
    claim_on_shard,
    claimed,
    drop_all_reduce_stage,
    drop_conclusion,
    drop_stage,
    extra_template,
    frozen,
    in_place_of_function,
    is_partial,
    is_shard,
    nonlinear,
    operator,
    other_node,
    other_template,
    part_of_a_sum,
    rename_conclusion,
    repeat_conclusion,
    repeat_stage,
    scale_addend,
    self_reference,
    shift_shard,
    swap_inputs,
    swap_shards,
    swap_texts,
    token,
    with_term,
    without_last_reduction,
    without_reduction,
)

TAMPERINGS: dict[str, tuple[Change, str]] = {
    # texts
    "a text that is false by itself": (
        change_template(
            5, linear=lambda t: t.linear.replace("(assert (not", "(assert false)\n(assert (not")
        ),
        r"its obligation, stated again, is not the text of template 5",
    ),
    "a text with another goal": (
        change_template(7, linear="(set-logic QF_UFLRA)\n(assert false)\n(check-sat)\n"),
        r"its obligation, stated again, is not the text of template 7",
    ),
    "the text of the second rung": (nonlinear, r"is not the text of template \d+"),
    "two texts swapped": (swap_texts, r"is not the text of template 3"),
    # stages
    "a stage dropped": (drop_stage, r"rank 0: .* is in no stage"),
    "a reduction dropped": (drop_all_reduce_stage, r"rank 0: all_reduce .*is in no stage"),
    "a stage twice": (repeat_stage, r"rank 0: .* is in two stages"),
    "a stage with another template": (other_template, r"rank \d: .* is not the text of template"),
    "a stage of another row": (
        change_stage(claimed, row=10**6),
        r"a stage for row 1000000 of the parallel side",
    ),
    "a live stage called dead": (
        change_stage(claimed, live=False),
        r"is called dead, but a conclusion depends on it",
    ),
    "a stage without a template": (
        change_stage(claimed, template=-1),
        r"has no obligation, but a conclusion depends on it",
    ),
    "a stage with a problem": (
        change_stage(claimed, template=-1, problem="too large"),
        r"has no obligation: too large",
    ),
    "an assumption with a template": (claim_on_shard, r"has a template, but it claims nothing"),
    "an extra template": (extra_template, r"template \d+ is not the claim of row"),
    "a template of another row": (
        change_template(5, row=0),
        r"template 5 is not the claim of row 0",
    ),
    "a template of another side": (
        change_template(5, side="parallel"),
        r"template 5 is not the claim of row",
    ),
    # boxes
    "a widened box": (
        change_atom(operator("linear"), lambda a: a.size > 2, lambda a: {"size": a.size + 1}),
        r"rank 0: .*: atoms of sizes \[\d+\] for a dimension of \d+",
    ),
    "a shifted box": (
        change_atom(
            operator("linear"),
            lambda a: a.start.coefficient("tp") != 0,
            lambda a: {"start": affine(a.size, {"tp": -a.size})},
        ),
        r"rank 0: .*(is not the text of template|cannot be stated)",
    ),
    "a box that leaves its axis": (
        change_atom(
            operator("linear"), lambda a: not a.full, lambda a: {"start": a.start + a.extent}
        ),
        r"rank 0: .* is not inside \[0, \d+\)",
    ),
    "a box at another stride": (
        change_atom(operator("linear"), lambda a: a.full, lambda a: {"stride": 2}),
        r"rank 0: .*stride 2 over \d+ positions of an axis of \d+",
    ),
    "a box of another axis": (
        change_atom(operator("linear"), lambda a: True, lambda a: {"axis": 9}),
        r"rank 0: .*axis 9 of a node with \d+",
    ),
    "a box over an axis of the mesh that is not there": (
        change_atom(
            operator("linear"),
            lambda a: a.full and a.size > 1,
            lambda a: {"start": affine(0, {"ep": 1})},
        ),
        r"rank 0: .*is over the axis ep, which does not exist here",
    ),
    "a replica's box for all replicas": (frozen("dp"), r"rank 0: .*(template|is sat|stated)"),
    "a microbatch's box for all": (frozen("mb"), r"rank 0: .*(template|is sat|stated)"),
    # terms
    "a term left out": (
        change_output(operator("linear"), lambda _, x: x._replace(addends=())),
        r"rank 0: linear .*(is not the text of template|cannot be stated)",
    ),
    "a term twice": (
        change_output(operator("linear"), lambda _, x: x._replace(addends=x.addends * 2)),
        r"rank 0: linear .*(is not the text of template|cannot be stated)",
    ),
    "another factor": (
        change_output(operator("linear"), lambda _, x: with_term(x, factor=Fraction(2))),
        r"rank 0: linear .* is not the text of template",
    ),
    "another node": (
        change_output(operator("linear"), other_node),
        r"rank 0: linear .*(is not the text of template|cannot be stated)",
    ),
    "a lineage left out": (
        change_output(operator("linear"), lambda _, x: None),
        r"has a template, but a tensor of it has no lineage",
    ),
    "a lineage of another shape": (
        change_output(operator("linear"), lambda _, x: x._replace(shape=(*x.shape, 1))),
        r"has shape \[.*\], its lineage \[.*\]",
    ),
    # partial sums
    "a part of another interval": (
        change_part(lambda p: {"start": affine(0)}),
        r"rank 0: .*(template|is sat|stated)",
    ),
    "a part that leaves its range": (
        change_part(lambda p: {"size": p.extent + 1}),
        r"is not inside \[0, \d+\)",
    ),
    "a part of another range": (
        change_part(lambda p: {"extent": p.extent * 2}),
        r"a part of \d+ positions, \d+ are",
    ),
    "a partial sum called complete": (
        change_output(is_partial, lambda _, x: with_term(x, partials=())),
        r"rank 0: .*(template|stated)",
    ),
    "a part of another sum": (token(where=77), r"label 77 is not reduced"),
    "a part of another node": (token(node=0), r"a part of node 0"),
    "a part of what is not summed": (part_of_a_sum, r"a partial sum of a node of kind combine"),
    "a partial sum called a maximum": (token(kind="max"), r"a partial max of a node of kind"),
    # nodes
    "a node of itself": (
        change_node("einsum", self_reference),
        r"is defined by node \d+, which is not before it",
    ),
    "another number in a definition": (
        change_node("combine", scale_addend),
        r"(its obligation is sat|is not the text of template)",
    ),
    "another function": (
        change_node("unary", in_place_of_function("tanh")),
        r"its obligation is sat|its obligation, stated again, is not the text",
    ),
    "an unknown function": (
        change_node("unary", in_place_of_function("magic")),
        r"there is no function magic",
    ),
    "other extents": (
        change_node("einsum", lambda _, n: n._replace(extents=(n.extents[0] + 1, *n.extents[1:]))),
        r"has extents \[.*\], its definition \[.*\]",
    ),
    "other coordinates": (
        change_node("einsum", lambda _, n: n._replace(coordinates=frozenset({"tp"}))),
        r"depends on \[\], stored are \['tp'\]",
    ),
    "an input that does not exist": (
        change_node("input", lambda _, n: n._replace(definition=Input("nothing"))),
        r"the plan has no input nothing",
    ),
    "two inputs swapped": (swap_inputs, r"is not what the plan says"),
    # assumptions
    "tensor-parallel shards swapped": (
        change_atom(is_shard, lambda a: a.start.coefficient("tp") != 0, swap_shards),
        r"rank 0: shard .*: the lineage of .* is not what the plan says",
    ),
    "a scaled parameter": (
        change_output(is_shard, lambda _, x: with_term(x, factor=Fraction(1, 2))),
        r"rank 0: shard .*: the lineage of .* is not what the plan says",
    ),
    "another parameter": (
        change_output(is_shard, other_node),
        r"rank 0: shard .*: the lineage of .* is not what the plan says",
    ),
    "another slice of the batch": (
        change_atom(
            lambda instance, _: instance.kind == "load",
            lambda a: bool(a.start.terms),
            lambda a: {"start": affine(0, {"dp": a.size, "mb": 2 * a.size})},
        ),
        r"rank 0: load .*: the lineage of .* is not what the plan says",
    ),
    "another share of the loss": (
        change_output(
            lambda instance, _: instance.kind == "seed",
            lambda _, x: with_term(x, factor=Fraction(1, 3)),
        ),
        r"rank 0: seed .*: the lineage of loss gradient is not what the plan says",
    ),
    # conclusions
    "a conclusion dropped": (drop_conclusion, r"is missing from the run, or another"),
    "a conclusion twice": (repeat_conclusion, r"a conclusion is listed twice"),
    "a conclusion of nothing": (another_conclusion, r"gradient nothing .* is not a conclusion of"),
    "a conclusion of another name": (rename_conclusion, r"something .*is not a conclusion of"),
    # the plan
    "a reduction that is none": (
        change_plan(without_reduction),
        r"(is not the text of template|cannot be stated|is not the claim|in no stage)",
    ),
    "a last reduction that is none": (
        change_plan(without_last_reduction),
        r"(is not the text of template|cannot be stated|is not the claim|in no stage)",
    ),
    "another mean": (
        change_plan(lambda plan: replace(plan, loss="mean" if plan.loss == "sum" else "sum")),
        r"is not what the plan says",
    ),
    "more microbatches": (
        change_plan(lambda plan: replace(plan, microbatches=4)),
        r"(load|seed) .*is not what the plan says|is not inside|lineages for the \d+ tensors",
    ),
    "other replicas": (
        change_plan(lambda plan: replace(plan, replica_axes=())),
        r"is not what the plan says",
    ),
    "another shard": (change_plan(shift_shard), r"is not what the plan says"),
}


@pytest.fixture(scope="module")
def as_it_was(proved: Any, tmp_path_factory: pytest.TempPathFactory) -> Certificate:
    certificate: Certificate = proved.copy().store(tmp_path_factory.mktemp("run"))
    return certificate


@pytest.mark.parametrize("name", TAMPERINGS)
def test_a_changed_run_is_rejected_by_name(
    name: str, proved: Any, as_it_was: Certificate, tmp_path: Path
) -> None:
    change, message = TAMPERINGS[name]
    parts = proved.copy()
    parts = change(parts) or parts
    changed = parts.store(tmp_path)
    assert (changed.files, changed.plan) != (as_it_was.files, as_it_was.plan), "nothing changed"
    found = check(tmp_path)
    assert not found.ok
    messages = [str(problem) for problem in found.problems]
    assert any(re.search(message, line) for line in messages), messages


def test_the_run_as_it_was_is_accepted(proved: Any, tmp_path: Path) -> None:
    proved.copy().store(tmp_path)
    found = check(tmp_path)
    assert found.problems == ()
    assert found.ok
    assert found.verdict == "proved"


def test_a_thorough_check_says_the_same(proved: Any, tmp_path: Path) -> None:
    proved.copy().store(tmp_path)
    found = check(tmp_path, thorough=True)
    assert found.problems == ()
    assert found.counts["rebuilt"] > check(tmp_path).counts["rebuilt"]


def test_a_proved_run_is_not_refuted(proved: Any, tmp_path: Path) -> None:
    proved.copy(verdict="refuted").store(tmp_path)
    found = check(tmp_path)
    assert [p.message for p in found.problems] == [
        "the certificate says refuted, but everything is proved"
    ]


def test_a_weaker_verdict_stands(proved: Any, tmp_path: Path) -> None:
    proved.copy(verdict="inconclusive", reasons=("--strict: it rests on",)).store(tmp_path / "why")
    found = check(tmp_path / "why")
    assert found.ok
    assert found.notes[-1].startswith("everything in the run is proved; it is inconclusive for")
    assert found.notes[-1].endswith("--strict: it rests on")
    proved.copy(verdict="inconclusive").store(tmp_path / "none")
    assert [p.message for p in check(tmp_path / "none").problems] == [
        "the certificate says inconclusive and gives no reason, but everything is proved"
    ]


# -- pipelines
# --------------------------------------------------------------------------------------


def test_a_pipelined_run_is_accepted(pipelined: Any, tmp_path: Path) -> None:
    pipelined.copy().store(tmp_path)
    assert check(tmp_path).problems == ()


def test_a_received_value_is_its_source(pipelined: Any, tmp_path: Path) -> None:
    parts = pipelined.copy()
    change_output(
        lambda instance, _: instance.kind == "recv", lambda _, x: with_term(x, factor=Fraction(2))
    )(parts)
    parts.store(tmp_path)
    messages = [p.message for p in check(tmp_path).problems]
    assert any("recv" in m and "is not its source's" in m for m in messages), messages


# -- refuted runs
# -----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def refuted(proved: Any, make_parts: Callable[..., Any]) -> Any:
    return make_parts(without_last_reduction(proved.plan), "refuted")


def test_a_refuted_run_is_accepted(refuted: Any, tmp_path: Path) -> None:
    refuted.copy().store(tmp_path)
    found = check(tmp_path)
    assert found.ok
    assert {p.kind for p in found.problems} == {"unproved"}


def test_a_refuted_run_is_not_proved(refuted: Any, tmp_path: Path) -> None:
    refuted.copy(verdict="proved").store(tmp_path)
    found = check(tmp_path)
    assert not found.ok
    assert any("a reduction is missing" in p.message for p in found.problems), found.problems


def test_a_failed_conclusion_cannot_be_called_held(refuted: Any, tmp_path: Path) -> None:
    parts = refuted.copy(verdict="proved")
    parts.conclusions[:] = [c._replace(holds=True, message="") for c in parts.conclusions]
    parts.store(tmp_path)
    kinds = {p.kind for p in check(tmp_path).problems}
    assert {"unproved", "conclusion"} <= kinds


def test_a_failed_gradient_cannot_be_given_the_right_lineage(refuted: Any, tmp_path: Path) -> None:
    """Whoever writes the expected lineages over the wrong gradients makes the last step false."""
    parts = refuted.copy(verdict="proved")
    unrolled = parts.sides["parallel"]
    for conclusion in parts.conclusions:
        if not conclusion.holds and conclusion.value >= 0:
            lineage = parts.parallel[conclusion.value]
            parts.parallel[conclusion.value] = with_term(lineage, partials=())
    assert len(unrolled.tensors) == len(parts.parallel)
    parts.conclusions[:] = [c._replace(holds=True, message="") for c in parts.conclusions]
    parts.store(tmp_path)
    found = check(tmp_path)
    assert not found.ok
    assert any(p.kind in ("obligation", "unproved", "solver") for p in found.problems)
