"""Sums in parts: products over parts of their inner dimension, and masks that are added twice."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from random import Random

import pytest

from shardproof.checker import check
from shardproof.engine.algebra.affine import Affine, affine
from shardproof.engine.plan.ir import Body, Plan, Program
from shardproof.frontends.builder.builder import ProgramBuilder, along
from shardproof.mutation.edit import Draft
from shardproof.mutation.equivalent import inner_split
from shardproof.mutation.operators import twice as operator_twice
from tests.faults.plans import assert_proved, assert_refuted, edit_body, find, llama, verify


def split(plan: Plan, operator: str, cuts: tuple[tuple[int, int], tuple[int, int]]) -> Plan:
    """The first ``operator`` as two of its kind over [start, start + size) of its inner dimension,
    added."""

    def change(body: Body) -> Body:
        number = find(body, operator)
        made = inner_split(body, number, Random(0))
        assert made is not None
        ops, values = list(made.body.ops), list(made.body.values)
        for i, (start, size) in enumerate(cuts):
            for k in (0, 1):
                op = ops[number + 3 * i + k]
                assert op.name == "slice"
                (out,), dim = op.outputs, op.attrs["dim"]
                assert isinstance(dim, int)
                shape = list(values[out].shape)
                shape[dim] = size
                ops[number + 3 * i + k] = replace(
                    op, attrs={**op.attrs, "start": start, "size": size}
                )
                values[out] = replace(values[out], shape=tuple(shape))
        return replace(made.body, ops=tuple(ops), values=tuple(values))

    return edit_body(plan, 0, "forward", change)


@pytest.mark.parametrize(
    ("operator", "cuts"),
    [
        pytest.param("linear", ((0, 8), (8, 8)), marks=pytest.mark.slow),
        pytest.param("linear", ((8, 8), (0, 8)), marks=pytest.mark.slow),
        pytest.param("linear", ((0, 1), (1, 15)), marks=pytest.mark.slow),
        ("linear", ((5, 11), (0, 5))),
        pytest.param("matmul", ((0, 2), (2, 2)), marks=pytest.mark.slow),
    ],
)
def test_parts_that_are_all_of_it_are_proved(
    operator: str, cuts: tuple[tuple[int, int], tuple[int, int]]
) -> None:
    assert_proved(split(llama(tp=2, microbatches=2), operator, cuts))


@pytest.mark.parametrize(
    ("operator", "cuts"),
    [
        ("linear", ((0, 8), (0, 8))),
        pytest.param("linear", ((0, 8), (7, 8)), marks=pytest.mark.slow),
        ("linear", ((0, 8), (9, 7))),
        ("linear", ((0, 9), (8, 8))),
        pytest.param("linear", ((0, 16), (0, 16)), marks=pytest.mark.slow),
        pytest.param("matmul", ((0, 2), (0, 2)), marks=pytest.mark.slow),
    ],
)
def test_parts_that_overlap_or_leave_a_gap_are_refuted(
    operator: str, cuts: tuple[tuple[int, int], tuple[int, int]]
) -> None:
    assert_refuted(split(llama(tp=2, microbatches=2), operator, cuts), kind="mismatch")


@pytest.mark.slow
def test_what_the_sum_of_parts_rests_on_is_checked_and_holds_for_every_instance(
    tmp_path: Path,
) -> None:
    plan = split(llama(tp=2, microbatches=2), "linear", ((0, 11), (11, 5)))
    assert verify(plan, exhaustive=True, out=tmp_path).verdict == "proved"
    assert [str(p) for p in check(tmp_path).problems] == []


def test_a_mask_that_is_added_twice_is_one() -> None:
    plan = llama(tp=2, microbatches=2)
    assert_proved(edit_body(plan, 0, "forward", lambda body: _again(body, "apply_mask")))
    twice = edit_body(plan, 0, "forward", lambda body: _again(body, "div"))
    assert_refuted(twice, kind="mismatch", layer="layers.0.attention")


def test_a_mask_that_is_multiplied_is_the_mask() -> None:
    """Minus infinity times 2 is minus infinity; what is masked, times 2, is something else."""
    plan = llama(tp=2, microbatches=2)

    def times(factor: int, operand: int) -> Plan:
        def change(body: Body) -> Body:
            number = find(body, "apply_mask")
            draft = Draft(body)
            before = body.ops[number].inputs
            scaled = draft.value(before[operand])
            draft.add(number, "mul", [before[operand]], scaled, {"other": Fraction(factor)})
            inputs = [scaled if i == operand else v for i, v in enumerate(before)]
            draft.change(number + 1, inputs=tuple(inputs))
            return draft.built()

        return edit_body(plan, 0, "forward", change)

    assert_proved(times(2, 1))
    assert_refuted(times(2, 0), kind="mismatch", layer="layers.0.attention")
    assert verify(times(-1, 1)).verdict != "proved"
    assert verify(times(0, 1)).verdict != "proved"


def _again(body: Body, operator: str) -> Body:
    """The first ``operator`` applied to its own result too."""
    made = operator_twice(body, find(body, operator), Random(0))
    assert made is not None
    return made.body


def repeated(start: Affine) -> Plan:
    """Four ranks take three positions each, from ``start`` on, of a tensor that repeats every
    column three times, and gather them."""

    def program(single: bool) -> Program:
        axes = () if single else (("tp", 4, 1),)
        made = ProgramBuilder("single" if single else "ranks", axes=axes)
        weight = made.parameter("w", (2, 12), trainable=False)
        body = made.body("forward")
        (x,) = body.load_batch(("x", (2, 4), "float32"))
        y = body.repeat_interleave(x, 3, 1)
        if not single:
            part = body.op("slice", y, dim=1, start=start, size=3)
            y = body.value((2, 12), "joined")
            body.append("all_gather", [part], [y], {"group": along("tp"), "dim": 1})
        body.loss(body.sum(body.mul(y, body.parameter(weight))))
        made.call(body, (), (made.slot(),), 0)
        return made.build()

    return Plan("repeated", program(True), (program(False),), 1)


def test_blocks_of_equal_columns_are_gathered_in_order() -> None:
    assert_proved(repeated(affine(0, {"tp": 3})))
    assert_refuted(repeated(affine(9, {"tp": -3})), kind="mismatch", operator="all_gather")
    assert_refuted(repeated(affine(0)), kind="mismatch")
