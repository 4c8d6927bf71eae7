"""Products over parts of their inner dimension, added up: right only if every position is in one."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest

from engine.ir import Body, Plan
from shardproof.mutation.equivalent import inner_split
from tests.faults.plans import edit_body, find, llama, proved, refuted, verify


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
        ("linear", ((0, 8), (8, 8))),
        ("linear", ((8, 8), (0, 8))),
        ("linear", ((0, 1), (1, 15))),
        ("linear", ((0, 11), (11, 5))),
        ("matmul", ((0, 2), (2, 2))),
    ],
)
def test_parts_that_are_all_of_it_are_proved(
    operator: str, cuts: tuple[tuple[int, int], tuple[int, int]]
) -> None:
    proved(split(llama(tp=2, microbatches=2), operator, cuts))


@pytest.mark.parametrize(
    ("operator", "cuts"),
    [
        ("linear", ((0, 8), (0, 8))),
        ("linear", ((0, 8), (7, 8))),
        ("linear", ((0, 8), (9, 7))),
        ("linear", ((0, 9), (8, 8))),
        ("linear", ((0, 16), (0, 16))),
        ("matmul", ((0, 2), (0, 2))),
    ],
)
def test_parts_that_overlap_or_leave_a_gap_are_refuted(
    operator: str, cuts: tuple[tuple[int, int], tuple[int, int]]
) -> None:
    refuted(split(llama(tp=2, microbatches=2), operator, cuts), kind="mismatch")


def test_what_the_sum_of_parts_rests_on_is_stated_for_every_instance() -> None:
    plan = split(llama(tp=2, microbatches=2), "linear", ((0, 11), (11, 5)))
    assert verify(plan, exhaustive=True).verdict == "proved"
