"""Casts to integers of few bits, and to those that have no sign: what a type has no number for was
taken for itself, and a cast to another type was proved."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from shardproof.frontends.hlo import inline, semantics, text
from tests.frontends.hlo.test_lower import agree
from tests.frontends.hlo.verdicts import verified

SINGLE = """HloModule m

ENTRY main {
  x = f32[4] parameter(0)
  y = f32[4] parameter(1)
  m = f32[4] subtract(x, y)
  h = f32[] constant(100)
  b = f32[4] broadcast(h), dimensions={}
  s = f32[4] multiply(m, b)
  i = OF[4] convert(s)
  j = TO[4] convert(i)
  ROOT f = f32[4] convert(j)
}
"""
PARALLEL = (
    SINGLE.replace("HloModule m", "HloModule m, num_partitions=2")
    .replace("[4]", "[2]")
    .replace("(0)", "(0), sharding={devices=[2]0,1}")
    .replace("(1)", "(1), sharding={devices=[2]0,1}")
)


def cast(module: str, of: str, to: str) -> str:
    return module.replace("OF", of).replace("TO", to)


@pytest.mark.parametrize(
    ("single", "parallel", "verdict"),
    [
        (("u8", "s32"), ("u8", "s32"), "proved"),
        (("u8", "s32"), ("s32", "s32"), "refuted"),
        (("s8", "s32"), ("u8", "s32"), "refuted"),
        (("s32", "s8"), ("s32", "s8"), "proved"),
        (("s32", "u8"), ("s32", "s8"), "refuted"),
        (("s8", "s32"), ("s8", "s16"), "proved"),
    ],
)
def test_a_type_has_its_own_numbers(
    single: tuple[str, str], parallel: tuple[str, str], verdict: str, tmp_path: Path
) -> None:
    verified(cast(SINGLE, *single), cast(PARALLEL, *parallel), tmp_path, verdict)


@pytest.mark.parametrize("of", ["u8", "s8", "u32", "s32", "s16"])
@pytest.mark.parametrize("to", ["u8", "s8", "s32"])
def test_casts_are_lowered_to_what_they_are(of: str, to: str) -> None:
    agree(inline.graph(text.parse(cast(SINGLE, of, to))))


@pytest.mark.parametrize(
    ("numbers", "dtype", "expected"),
    [
        ([-1.5, 300.0, 7.9], "uint8", [0, 255, 7]),
        ([-200.0, 200.0, -7.9], "int8", [-128, 127, -7]),
        ([1e30, -1e30, 2.5], "int64", [2**63 - 1, -(2**63), 2]),
    ],
)
def test_floats_are_the_nearest_integers_of_a_type(
    numbers: list[float], dtype: str, expected: list[int]
) -> None:
    got: Any = semantics.apply("convert", {"dtype": dtype}, [np.array(numbers)], (3,))
    assert (got.dtype, got.tolist()) == (dtype, expected)


@pytest.mark.parametrize("dtype", ["bool", "uint8", "int8"])
def test_the_largest_of_integers_is_the_first_one(dtype: str) -> None:
    """The opposite number of a predicate is none, that of 0 as ``u8`` is the least."""
    x = np.array([0, 1, 0, 1] if dtype != "int8" else [-128, 127, 0, 127]).astype(dtype)
    values, places = semantics.several("topk", {"k": 2}, [x], [(2,), (2,)])
    assert places.tolist() == [1, 3]
    assert values.tolist() == x[[1, 3]].tolist()


@pytest.mark.parametrize(
    ("dtype", "numbers", "places", "expected"),
    [
        ("uint8", [254, 126, 255, 255], [1, 1, 8, 0], [255, 63, 255, 255]),
        ("int8", [-2, 126, -1, 100], [1, 1, 9, -1], [-1, 63, -1, 0]),
    ],
)
def test_the_first_bit_comes_in(
    dtype: str, numbers: list[int], places: list[int], expected: list[int]
) -> None:
    """Also of a type without a sign: zeros came in, as by a logical shift."""
    x, y = (np.array(n).astype(dtype) for n in (numbers, places))
    got = semantics.apply("shift-right-arithmetic", {}, [x, y], (4,))
    assert (got.dtype, got.tolist()) == (dtype, expected)
