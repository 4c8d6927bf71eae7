"""Factors that are roots but for rounding are one number, and others are themselves."""

from __future__ import annotations

import math
from fractions import Fraction

import pytest

from shardproof.frontends.aten.irrational import quotient, rooted


def double(number: float) -> Fraction:
    return Fraction(repr(number))


@pytest.mark.parametrize("size", [2, 3, 8, 12, 32, 80, 96, 128, 192, 2048, 4096])
def test_one_over_a_root_is_one_number(size: int) -> None:
    ways = [
        double(1 / math.sqrt(size)),
        1 / double(math.sqrt(size)),
        double(size**-0.5),
        double(math.sqrt(1 / size)),
    ]
    (one,) = {rooted(way) for way in ways}
    assert abs(one * one * size - 1) < Fraction(1, 10**14)
    assert {rooted(-way) for way in ways} == {-one}


@pytest.mark.parametrize("number", [0.3, 0.1, 1.4142, 0.7071068, 0.70710678, 3.0, 0.0])
def test_short_decimals_are_themselves(number: float) -> None:
    assert rooted(double(number)) == double(number)


def test_other_numbers_are_themselves() -> None:
    near = double(1 / math.sqrt(8)) * (1 + Fraction(1, 10**12))
    for number in (near, double(math.pi), double(math.e), Fraction(1, 3)):
        assert rooted(number) == number


def test_a_third_in_floating_point_is_a_third() -> None:
    assert rooted(double(1 / 3)) == Fraction(1, 3)


def test_what_two_roundings_leave_is_a_quotient() -> None:
    twice = 0.1 * 12 / 11
    assert twice != 6 / 55
    assert quotient(twice) == quotient(6 / 55) == Fraction(6, 55)
    far = 6 / 55 * (1 + 2**-49)
    assert quotient(far) == Fraction(repr(far))
