"""What a reducer reads and replaces: a gradient that is not there yet is zero, and one body does
not add to what it replaces.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from shardproof.checker import check
from shardproof.engine.errors import InvalidInput
from shardproof.engine.plan.ir import Body, Plan, Program
from shardproof.engine.reference_runtime import compare as runtime
from shardproof.frontends.builder.builder import ProgramBuilder, along
from tests.checker.conftest import parts_of
from tests.faults.communication import assert_checked
from tests.faults.plans import assert_proved, edit_body, edit_program, verify
from tests.faults.small import layer, replicas


def spared(*, reduces: bool) -> Plan:
    """Replicas of a layer beside a parameter that the loss does not depend on, whose gradient is
    all-reduced all the same."""

    def program(single: bool) -> Program:
        made = ProgramBuilder("side", axes=() if single else (("dp", 2, 1),))
        weight, spare = made.parameter("w", (16, 8)), made.parameter("spare", (16, 8))
        body = made.body("forward")
        (x,) = body.load_batch(("x", (8 if single else 2, 8), "float32"))
        body.loss(layer(body, weight, x))
        made.schedule(body, body.backward(), 1 if single else 2)
        if not single:
            held = [(weight, along("dp")), *([(spare, along("dp"))] if reduces else [])]
            made.reduce(held)
        return made.build()

    return Plan("spared", program(True), (program(False),), 2, ("dp",))


@pytest.mark.parametrize("reduces", [False, True])
def test_the_gradient_of_what_has_none_is_zero(reduces: bool, tmp_path: Path) -> None:
    plan = spared(reduces=reduces)
    assert_checked(plan, tmp_path)
    assert runtime.worst(plan, 0)[0] < 1e-12


def test_a_sum_of_nothing_is_nothing_else(tmp_path: Path) -> None:
    """A run that says that the parameter itself is its gradient."""
    run = parts_of(spared(reduces=True)).copy()
    instances = run.sides["parallel"].instances
    (nothing,) = (
        instance for instance in instances if instance.kind == "accumulate" and not instance.inputs
    )
    (own,) = (
        instance for instance in instances if instance.kind == "shard" and instance.name == "w"
    )
    run.parallel[nothing.outputs[0]] = run.parallel[own.outputs[0]]
    run.store(tmp_path)
    found = check(tmp_path)
    assert not found.ok
    assert any("accumulate spare" in problem.message for problem in found.problems), found.problems


def test_a_gradient_that_is_reduced_before_it_is_there_is_refuted() -> None:
    """The reducer sees nought, and what comes later is the rank's own."""

    def early(program: Program) -> Program:
        *calls, last = program.calls
        return replace(program, calls=(last, *calls))

    wrong = edit_program(replicas(), 0, early)
    found = verify(wrong)
    assert found.verdict == "refuted"
    assert runtime.worst(wrong, 0)[0] > 0.1
    assert_proved(replicas())


def test_a_body_does_not_add_to_what_it_replaces() -> None:
    plan = replicas()
    reducer = plan.programs[0].bodies[-1]
    (read, written, shard) = reducer.reduced[0]

    def both(body: Body) -> Body:
        return replace(body, gradients=((written, shard),))

    def twice(body: Body) -> Body:
        return replace(
            body,
            values=(*body.values, body.values[read]),
            reduced=(*body.reduced, (len(body.values), written, shard)),
        )

    for change, says in ((both, "adds to it as well"), (twice, "does so twice")):
        with pytest.raises(InvalidInput, match=rf"gradient of shard {shard} \(w\), and {says}"):
            verify(edit_body(plan, 0, reducer.name, change))
    assert_proved(plan)
