"""Maxima over values side by side of which one is a number times what the program computes."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path

import pytest

from shardproof.checker import check
from shardproof.frontends.builder.builder import BodyBuilder
from tests.faults.plans import verify
from tests.faults.test_operands import Compute, plan


def beside_scaled(factor: Fraction) -> Compute:
    """The maximum of rows beside others times a factor, which is a maximum of maxima."""

    def compute(b: BodyBuilder, x: int, w: int) -> int:
        scaled = b.op("mul", b.linear(x, w), other=factor)
        return b.add(x, b.amax(b.op("concat", x, scaled, dim=1), 1, keepdim=True))

    return compute


@pytest.mark.parametrize("factor", [Fraction(1, 100), Fraction(3), Fraction(-1, 3)])
def test_a_maximum_of_unlike_factors_is_proved(factor: Fraction, tmp_path: Path) -> None:
    right = verify(plan(beside_scaled(factor)), out=tmp_path)
    assert right.verdict == "proved", right.reason
    assert [str(problem) for problem in check(tmp_path).problems] == []
    wrong = plan(beside_scaled(factor), beside_scaled(2 * factor))
    assert verify(wrong).verdict == "refuted"
