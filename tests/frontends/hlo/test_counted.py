"""Running sums of integers that ids make: segments of packed documents, places of what a mask
keeps."""

from __future__ import annotations

from pathlib import Path

import pytest

from shardproof.frontends.hlo import inline, text
from tests.frontends.hlo.test_lower import agree
from tests.frontends.hlo.verdicts import verified

ADD = "add {\n  u = s32[] parameter(0)\n  v = s32[] parameter(1)\n  ROOT w = s32[] add(u, v)\n}\n\n"
#: How many of the words up to each one are word 1.
SINGLE = f"""HloModule m

{ADD}ENTRY main {{
  i = s32[4,3] parameter(0)
  x = f32[4,3] parameter(1)
  c = s32[] constant(1)
  b = s32[4,3] broadcast(c), dimensions={{}}
  p = pred[4,3] compare(i, b), direction=EQ
  n = s32[4,3] convert(p)
  z = s32[] constant(0)
  s = s32[4,3] reduce-window(n, z), window={{size=1x3 pad=0_0x2_0}}, to_apply=add
  f = f32[4,3] convert(s)
  ROOT y = f32[4,3] multiply(f, x)
}}
"""
HALVES = ", sharding={devices=[2,1]<=[2]}"
PARALLEL = (
    SINGLE.replace("HloModule m", "HloModule m, num_partitions=2")
    .replace("[4", "[2")
    .replace("i = s32[2,3] parameter(0)", f"i = s32[2,3] parameter(0){HALVES}")
    .replace("x = f32[2,3] parameter(1)", f"x = f32[2,3] parameter(1){HALVES}")
)


@pytest.mark.parametrize(("word", "expected"), [("1", "proved"), ("2", "refuted")])
def test_words_that_are_counted(word: str, expected: str, tmp_path: Path) -> None:
    verified(SINGLE, PARALLEL.replace("constant(1)", f"constant({word})"), tmp_path, expected)


def test_counts_are_lowered_to_what_they_are() -> None:
    agree(inline.graph(text.parse(SINGLE)))
