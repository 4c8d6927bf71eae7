"""Programs that lie on the mesh alike meet, however each of them writes its axes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from shardproof.engine.plan.ir import Group, Plan, Program
from shardproof.engine.reference_runtime import compare as runtime
from shardproof.frontends.builder.builder import ProgramBuilder
from tests.faults.communication import assert_checked
from tests.faults.plans import assert_refuted, attrs, edit_op
from tests.faults.small import WIDTH


def staged(
    first: tuple[tuple[str, int, int], ...], second: tuple[tuple[str, int, int], ...]
) -> Plan:
    """Two pipeline stages of a layer each, with replicas along dp and rows of weights over tp."""

    def stage(number: int, axes: tuple[tuple[str, int, int], ...]) -> Program:
        made = ProgramBuilder(f"stage {number}", 4 * number, axes)
        body = made.body("forward")
        if number == 0:
            (x,) = body.load_batch(("x", (2, WIDTH), "float32"))
            weight = made.parameter("w1", (8, WIDTH), {0: "tp"}, trainable=False)
            y = body.linear(x, body.parameter(weight))
            body.send(y, 4)
        else:
            y = body.recv((2, 4), 0, gradient=False)
            weight = made.parameter("w2", (WIDTH, 8), {1: "tp"}, trainable=False)
            total = body.all_reduce(body.linear(y, body.parameter(weight)), Group(axes=("tp",)))
            body.loss(body.sum(total))
        made.call(body, (), tuple(made.slot() for _ in body.outputs), 0 if number == 0 else -1)
        return made.build()

    single = ProgramBuilder("single")
    body = single.body("forward")
    (x,) = body.load_batch(("x", (4, WIDTH), "float32"))
    w1 = single.parameter("w1", (8, WIDTH), trainable=False)
    w2 = single.parameter("w2", (WIDTH, 8), trainable=False)
    body.loss(body.sum(body.linear(body.linear(x, body.parameter(w1)), body.parameter(w2))))
    single.call(body, (), (single.slot(),), 0)
    programs = (stage(0, first), stage(1, second))
    return Plan("staged", single.build(), programs, 1, ("dp",))


TP, DP, ONE = ("tp", 2, 1), ("dp", 2, 2), ("cp", 1, 1)


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ((TP, DP), (TP, DP)),
        ((TP, DP), (DP, TP)),
        ((TP, ONE, DP), (TP, DP)),
        ((DP, TP), (("ep", 1, 4), TP, DP)),
    ],
)
def test_stages_that_lie_alike_may_say_so_otherwise(
    first: Any, second: Any, tmp_path: Path
) -> None:
    plan = staged(first, second)
    assert_checked(plan, tmp_path)
    assert runtime.worst(plan, 0)[0] < 1e-12


def test_stages_that_do_not_lie_alike_are_refuted() -> None:
    assert_refuted(
        staged((TP, DP), (("tp", 2, 2), ("dp", 2, 1))), kind="peer", says="laid out otherwise"
    )


def test_an_axis_of_one_position_is_no_axis_of_a_group(tmp_path: Path) -> None:
    plan = staged((TP, DP), (TP, ONE, DP))
    both = edit_op(plan, "all_reduce", attrs(group=Group(axes=("tp", "cp"))), program=1)
    assert_checked(both, tmp_path)
