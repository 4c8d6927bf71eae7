"""Literals that rounding leaves of decimals and quotients."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest

from shardproof.frontends.aten.singles import meant
from tests.frontends.hlo.verdicts import verified


@pytest.mark.parametrize(
    ("number", "fraction"),
    [(1 / 24, "1/24"), (0.1, "1/10"), (1e-8, "1/100000000"), (0.999, "999/1000"), (5 / 12, "5/12")],
)
def test_a_float_is_the_number_that_is_rounded_to_it(number: float, fraction: str) -> None:
    assert meant(float(np.float32(number))) == Fraction(fraction)


def test_no_two_floats_are_one_number() -> None:
    rng = np.random.default_rng(0)
    floats = {float(np.float32(x)) for x in rng.uniform(1e-6, 1, 2000)}
    floats |= {float(np.nextafter(np.float32(1 / n), np.float32(1))) for n in range(2, 400)}
    floats |= {float(np.float32(1 / n)) for n in range(2, 400)}
    assert len({meant(x) for x in floats}) == len(floats)
    assert all(np.float32(float(meant(x))) == np.float32(x) for x in floats)


def test_whole_numbers_and_others_are_themselves() -> None:
    for number in (float(np.float32(-1e30)), 3.0, float(np.float32(0.7071067690849304))):
        assert meant(number) == Fraction(number)


ONE = """HloModule one, entry_computation_layout={(f32[6]{0})->f32[6]{0}}

ENTRY e {
  x = f32[6] parameter(0)
  c = f32[] constant(0.166666672)
  b = f32[6] broadcast(c), dimensions={}
  ROOT y = f32[6] multiply(x, b)
}
"""
OTHER = """HloModule two, entry_computation_layout={(f32[3]{0})->f32[3]{0}}, num_partitions=2

ENTRY e {
  x = f32[3] parameter(0), sharding={devices=[2]<=[2]}
  c = f32[] constant(%s)
  b = f32[3] broadcast(c), dimensions={}
  ROOT y = f32[3] divide(x, b)
}
"""


def test_a_mean_divides_on_one_side_and_multiplies_on_the_other(tmp_path: Path) -> None:
    verified(ONE, OTHER % "6", tmp_path, "proved")


def test_another_count_is_refuted(tmp_path: Path) -> None:
    verified(ONE, OTHER % "7", tmp_path, "refuted")
