"""Differences that only some inputs show: first steps, negative numbers, a table's own numbers."""

from __future__ import annotations

from pathlib import Path

import pytest

import shardproof
from tests.frontends.hlo.verdicts import verified

MODULE = """HloModule NAME

add {
  p = f32[] parameter(0)
  q = f32[] parameter(1)
  ROOT r = f32[] add(p, q)
}

ENTRY main {
  BODY
}
"""
#: Adam's correction of a moment, and the count of steps.
CORRECTED = """k = s32[] parameter(0)
  m = f32[4,3] parameter(1)
  one = s32[] constant(1)
  next = s32[] add(k, one)
  n = f32[] convert(USED)
  b = f32[] constant(0.9)
  power = f32[] power(b, n)
  ones = f32[] constant(1)
  left = f32[] subtract(ones, power)
  c = f32[4,3] broadcast(left), dimensions={}
  y = f32[4,3] divide(m, c)
  ROOT t = (s32[], f32[4,3]) tuple(next, y)"""
#: A gradient behind a rectifier, by the root of a second moment.
RECTIFIED = """v = f32[4,3] parameter(0)
  x = f32[4,3] parameter(1)
  z = f32[] constant(0)
  zeros = f32[4,3] broadcast(z), dimensions={}
  g = f32[4,3] RECTIFIER
  r = f32[4,3] sqrt(v)
  w = f32[4,3] exponential(r)
  ROOT y = f32[4,3] divide(g, w)"""

#: How many numbers are positive, as a one-hot of 0 to 4, by which rows are chosen.
COUNTED = """x = f32[ROWS] parameter(0)
  w = f32[5,3] parameter(1)
  z = f32[] constant(0)
  zeros = f32[ROWS] broadcast(z), dimensions={}
  p = pred[ROWS] compare(x, zeros), direction=GT
  c = f32[ROWS] convert(p)
  m = f32[] reduce(c, z), dimensions={0}, to_apply=add
  n = f32[] WHOLE
  b = f32[5] broadcast(n), dimensions={}
  k = f32[5] constant({0, 1, 2, 3, 4})
  e = pred[5] compare(b, k), direction=EQ
  h = f32[5] convert(e)
  ROOT y = f32[3] dot(h, w), lhs_contracting_dims={0}, rhs_contracting_dims={0}"""
SUM = (
    "all-reduce(m), channel_id=1, replica_groups={{0,1}}, use_global_device_ids=true, to_apply=add"
)


def module(name: str, body: str, **words: str) -> str:
    for old, new in words.items():
        body = body.replace(old, new)
    return MODULE.replace("NAME", name).replace("BODY", body)


TWO = "parallel, num_partitions=2"


@pytest.mark.parametrize(
    ("single", "parallel", "expected"),
    [
        (module("m", CORRECTED, USED="next"), module(TWO, CORRECTED, USED="next"), "proved"),
        (module("m", CORRECTED, USED="next"), module(TWO, CORRECTED, USED="k"), "refuted"),
        (
            module("m", RECTIFIED, RECTIFIER="maximum(x, zeros)"),
            module(TWO, RECTIFIED, RECTIFIER="maximum(x, zeros)"),
            "proved",
        ),
        (
            module("m", RECTIFIED, RECTIFIER="maximum(x, zeros)"),
            module(TWO, RECTIFIED, RECTIFIER="copy(x)"),
            "refuted",
        ),
        (
            module("m", COUNTED, ROWS="4", WHOLE="copy(m)"),
            module(TWO, COUNTED, ROWS="2", WHOLE=SUM),
            "proved",
        ),
        (
            module("m", COUNTED, ROWS="4", WHOLE="copy(m)"),
            module(TWO, COUNTED, ROWS="2", WHOLE="copy(m)"),
            "refuted",
        ),
    ],
    ids=["count", "count behind", "rectifier", "no rectifier", "table", "own count in a table"],
)
def test_inputs_that_show_a_difference(
    single: str, parallel: str, expected: str, tmp_path: Path
) -> None:
    files = tmp_path / "single.hlo", tmp_path / "parallel.hlo"
    files[0].write_text(single)
    files[1].write_text(parallel)
    result = shardproof.verify(*files, out=tmp_path / "run", cache_dir=tmp_path / "cache")
    assert result.verdict == expected, result.reason


def test_rows_of_which_some_are_zero_are_divided_by(tmp_path: Path) -> None:
    """What is divided by has no addends there: it ended with an error of its own."""
    single = """HloModule m

ENTRY main {
  x = f32[4,3] parameter(0)
  e = f32[4,3] exponential(x)
  one = f32[] constant(1)
  ones = f32[4,3] broadcast(one), dimensions={}
  ROOT y = f32[4,3] divide(ones, e)
}
"""
    ranks = """HloModule m, num_partitions=2

ENTRY main {
  x = f32[2,3] parameter(0), sharding={devices=[2,1]<=[2]}
  e = f32[2,3] exponential(x)
  zero = f32[] constant(0)
  some = f32[1,3] slice(e), slice={[0:1], [0:3]}
  none = f32[1,3] broadcast(zero), dimensions={}
  k = f32[2,3] concatenate(some, none), dimensions={0}
  one = f32[] constant(1)
  ones = f32[2,3] broadcast(one), dimensions={}
  ROOT y = f32[2,3] divide(ones, k)
}
"""
    verified(single, ranks, tmp_path, "refuted")
