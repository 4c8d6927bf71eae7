"""Columns that each rank writes at its own place among zeros, before they are added up."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.frontends.hlo.verdicts import verified

ADD = "add {\n  u = f32[] parameter(0)\n  v = f32[] parameter(1)\n  ROOT w = f32[] add(u, v)\n}\n\n"
DOT = "lhs_contracting_dims={1}, rhs_contracting_dims={0}"
SINGLE = f"""HloModule m

{ADD}ENTRY main {{
  x = f32[4,3] parameter(0)
  u = f32[3,4] parameter(1)
  q = f32[4,4] parameter(2)
  w = f32[4,5] parameter(3)
  g = f32[4,4] dot(x, u), {DOT}
  h = f32[4,4] multiply(g, q)
  n = f32[] constant(0)
  t = f32[4] reduce(h, n), dimensions={{1}}, to_apply=add
  b = f32[4,4] broadcast(t), dimensions={{0}}
  c = f32[4,4] subtract(g, b)
  d = f32[4,4] multiply(c, q)
  ROOT y = f32[4,5] dot(d, w), {DOT}
}}
"""
#: As the gradient of a softmax does of a router of which every rank has some experts.
PARALLEL = f"""HloModule m, num_partitions=2

{ADD}ENTRY main {{
  x = f32[4,3] parameter(0), sharding={{replicated}}
  u = f32[3,2] parameter(1), sharding={{devices=[1,2]<=[2]}}
  q = f32[4,4] parameter(2), sharding={{replicated}}
  w = f32[4,5] parameter(3), sharding={{replicated}}
  g = f32[4,2] dot(x, u), {DOT}
  r = u32[] partition-id()
  me = s32[] convert(r)
  two = s32[] constant(2)
  one = s32[] constant(1)
  other = s32[] subtract(one, me)
  at = s32[] multiply(WHO, two)
  zero = s32[] constant(0)
  z = f32[] constant(0)
  zeros = f32[4,4] broadcast(z), dimensions={{}}
  wide = f32[4,4] dynamic-update-slice(zeros, g, zero, at)
  h = f32[4,4] multiply(wide, q)
  t = f32[4] reduce(h, z), dimensions={{1}}, to_apply=add
  b = f32[4,4] broadcast(t), dimensions={{0}}
  c = f32[4,4] subtract(wide, b)
  d = f32[4,4] multiply(c, q)
  part = f32[4,5] dot(d, w), {DOT}
  ROOT y = f32[4,5] all-reduce(part), channel_id=1, replica_groups={{{{0,1}}}}, \
use_global_device_ids=true, to_apply=add
}}
"""


@pytest.mark.parametrize(
    ("who", "expected"), [("me", "proved"), ("other", "refuted")], ids=["own place", "another's"]
)
def test_columns_at_the_place_of_each_rank(who: str, expected: str, tmp_path: Path) -> None:
    verified(SINGLE, PARALLEL.replace("WHO", who), tmp_path, expected)
