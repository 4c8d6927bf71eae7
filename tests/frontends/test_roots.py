"""Square roots of numbers, exactly, in plans that are written by hand."""

from __future__ import annotations

from fractions import Fraction

import pytest

from shardproof.engine.errors import InvalidInput
from shardproof.engine.plan.ir import Plan, Program
from shardproof.frontends.builder.builder import ProgramBuilder, Sqrt, along
from tests.faults.plans import assert_proved, verify


def side(program: ProgramBuilder, rows: int, divided_by: Sqrt | Fraction) -> Program:
    weight = program.parameter("w", (6, 8))
    body = program.body("forward")
    (x,) = body.load_batch(("x", (rows, 8), "float32"))
    y = body.div_constant(body.linear(x, body.parameter(weight)), divided_by)
    body.loss(body.sum(body.mul_constant(body.mul(y, y), Sqrt(Fraction(9, 4)))))
    program.schedule(body, body.backward(), 1)
    if "dp" in program.extents:
        program.reduce([(weight, along("dp"))])
    return program.build()


def plan(single: Sqrt | Fraction, parallel: Sqrt | Fraction) -> Plan:
    ranks = ProgramBuilder("ranks", axes=(("dp", 2, 1),))
    return Plan(
        "roots",
        side(ProgramBuilder("single"), 4, single),
        (side(ranks, 2, parallel),),
        microbatches=1,
        replica_axes=("dp",),
    )


@pytest.mark.parametrize(
    ("single", "parallel"),
    [(Sqrt(8), Sqrt(8)), (Sqrt(64), Fraction(8)), (Fraction(2, 3), Sqrt(Fraction(4, 9)))],
)
def test_the_same_root_is_proved(single: Sqrt | Fraction, parallel: Sqrt | Fraction) -> None:
    assert_proved(plan(single, parallel))


@pytest.mark.parametrize("parallel", [Sqrt(4), Fraction(283, 100), Sqrt(2)])
def test_another_root_or_its_decimal_is_not(parallel: Sqrt | Fraction) -> None:
    """The head dimension of one rank instead of the model's, for instance."""
    assert verify(plan(Sqrt(8), parallel)).verdict == "refuted"


@pytest.mark.parametrize("of", [0, -2, 2.0])
def test_what_has_no_root_is_refused(of: float) -> None:
    with pytest.raises(InvalidInput, match="expected a positive integer or fraction"):
        plan(Sqrt(of), Sqrt(2))  # type: ignore[arg-type]
