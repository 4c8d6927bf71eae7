"""Random numbers that each rank draws for itself, beside a single side that draws them in turn."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.frontends.hlo.verdicts import verified

#: Numbers between 1 and 2 of a key and of positions from FIRST on.
DRAWN = """  X = u32[4] broadcast(FIRST), dimensions={}
  Xi = u32[4] iota(), iota_dimension=0
  Xp = u32[4] add(Xi, X)
  Xb = u32[4] xor(k, Xp)
  Xs = u32[4] shift-right-logical(Xb, nine)
  Xo = u32[4] or(Xs, ones)
  Xf = f32[4] bitcast-convert(Xo)
"""
KEY = """  key = u32[1] parameter(0)
  key0 = u32[] reshape(key)
  k = u32[4] broadcast(key0), dimensions={}
  n9 = u32[] constant(9)
  nine = u32[4] broadcast(n9), dimensions={}
  n1 = u32[] constant(1065353216)
  ones = u32[4] broadcast(n1), dimensions={}
"""
SINGLE = f"""HloModule m

ENTRY main {{
{KEY}  x = f32[8] parameter(1)
  none = u32[] constant(0)
  hundred = u32[] constant(100)
{DRAWN.replace("X", "a").replace("FIRST", "none")}{DRAWN.replace("X", "b").replace("FIRST", "hundred")}\
  xa = f32[4] slice(x), slice={{[0:4]}}
  xb = f32[4] slice(x), slice={{[4:8]}}
  ya = f32[4] multiply(xa, af)
  yb = f32[4] multiply(xb, bf)
  ROOT r = f32[8] concatenate(ya, yb), dimensions={{0}}
}}
"""
PARALLEL = f"""HloModule m, num_partitions=2

ENTRY main {{
{KEY}  x = f32[4] parameter(1)
  n = u32[] partition-id()
  by = u32[] constant(100)
  own = u32[] multiply(n, by)
  none = u32[] constant(0)
  other = u32[] subtract(by, own)
{DRAWN.replace("X", "a")}  ROOT r = f32[4] multiply(x, af)
}}
"""


@pytest.mark.parametrize(
    ("first", "expected"), [("own", "proved"), ("none", "refuted"), ("other", "refuted")]
)
def test_every_rank_draws_its_own(first: str, expected: str, tmp_path: Path) -> None:
    verified(SINGLE, PARALLEL.replace("FIRST", first), tmp_path, expected)


#: Both blocks are drawn at once, as ``vmap`` over the ranks' numbers does.
AT_ONCE = f"""HloModule m

ENTRY main {{
{KEY.replace("u32[4]", "u32[2,4]")}  x = f32[8] parameter(1)
  i = u32[2,4] iota(), iota_dimension=0
  by = u32[] constant(100)
  bys = u32[2,4] broadcast(by), dimensions={{}}
  own = u32[2,4] multiply(i, bys)
  j = u32[2,4] iota(), iota_dimension=1
  p = u32[2,4] add(j, own)
  b = u32[2,4] xor(k, p)
  s = u32[2,4] shift-right-logical(b, nine)
  o = u32[2,4] or(s, ones)
  f = f32[2,4] bitcast-convert(o)
  m = f32[8] reshape(f)
  ROOT r = f32[8] multiply(x, m)
}}
"""


@pytest.mark.parametrize(("first", "expected"), [("own", "proved"), ("other", "refuted")])
def test_all_blocks_are_drawn_at_once(first: str, expected: str, tmp_path: Path) -> None:
    verified(AT_ONCE, PARALLEL.replace("FIRST", first), tmp_path, expected)
