"""Coordinates along axes of one position are 0: what is joined inside a body is complete then."""

from __future__ import annotations

from fractions import Fraction

import pytest

from shardproof.frontends.builder.builder import BodyBuilder, along
from tests.partition.formulas import Formula, Given, Weight, not_proved, pair, proved

ROWS, WIDTH = 8, 6
WEIGHTS = {"w": Weight((WIDTH, WIDTH), over=("dp",))}
BATCH = [(ROWS, WIDTH), (ROWS, WIDTH)]


def normalised(group: bool, right: bool = True) -> Formula:
    """sum(t silu(y) / sum over the whole batch of exp(y)): a global normaliser."""

    def formula(b: BodyBuilder, given: Given) -> int:
        x, t = given.batch
        y = b.linear(x, given["w"])
        total = b.sum(b.exp(y), 0, keepdim=True)
        if group and right:
            total = b.all_reduce(total, along("dp"))
        return b.sum(b.op("div", b.mul(t, b.silu(y)), b.op("expand", total, size=b.shape(y))))

    return formula


def contrastive(group: bool, right: bool = True) -> Formula:
    """sum(t exp(x w) . exp(gathered x w)): every row against all rows."""

    def formula(b: BodyBuilder, given: Given) -> int:
        x, t = given.batch
        y = b.exp(b.linear(x, given["w"]))
        every = b.all_gather(y, 0, along("dp")) if group else y
        scores = b.matmul(b.mul(t, y), b.transpose(every, 0, 1))
        return b.mul_constant(b.sum(b.silu(scores)), Fraction(1 if right else 2, 1))

    return formula


@pytest.mark.parametrize("formula", [normalised, contrastive])
@pytest.mark.parametrize("axes", [{"dp": 2}, {"dp": 4, "tp": 1}, {"pod": 1, "dp": 2}])
def test_what_is_joined_inside_a_body(formula, axes: dict[str, int]) -> None:  # type: ignore[no-untyped-def]
    replicas = tuple(a for a in axes if a != "tp")
    proved(pair(formula(False), formula(True), WEIGHTS, BATCH, axes=axes, replicas=replicas))
    not_proved(
        pair(formula(False), formula(True, False), WEIGHTS, BATCH, axes=axes, replicas=replicas)
    )


def test_a_parameter_divided_along_an_axis_of_one_rank() -> None:
    def formula(b: BodyBuilder, given: Given) -> int:
        x, t = given.batch
        return b.sum(b.mul(t, b.silu(b.linear(x, given["w"]))))

    weights = {"w": Weight((WIDTH, WIDTH), {0: "tp"}, over=("dp",))}
    proved(pair(formula, formula, weights, BATCH, axes={"dp": 2, "tp": 1}, replicas=("dp",)))
