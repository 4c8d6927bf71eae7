"""Differences that only some inputs show: first steps, and negative numbers."""

from __future__ import annotations

from pathlib import Path

import pytest

import shardproof

MODULE = """HloModule NAME

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
    ],
    ids=["count", "count behind", "rectifier", "no rectifier"],
)
def test_inputs_that_show_a_difference(
    single: str, parallel: str, expected: str, tmp_path: Path
) -> None:
    files = tmp_path / "single.hlo", tmp_path / "parallel.hlo"
    files[0].write_text(single)
    files[1].write_text(parallel)
    result = shardproof.verify(*files, out=tmp_path / "run", cache_dir=tmp_path / "cache")
    assert result.verdict == expected, result.reason
