"""Weights of a causal ring that are multiplied with their mask once more."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.frontends.hlo.test_lower import ADD, MAX
from tests.frontends.hlo.verdicts import verified

#: Weights of the own keys under a causal mask.
OWN = """
  low = f32[] constant(-1e30)
  lows = f32[SIZE,SIZE] broadcast(low), dimensions={}
  s = f32[SIZE,SIZE] dot(q, k), lhs_contracting_dims={1}, rhs_contracting_dims={1}
  i = s32[SIZE,SIZE] iota(), iota_dimension=0
  j = s32[SIZE,SIZE] iota(), iota_dimension=1
  p = pred[SIZE,SIZE] compare(j, i), direction=LE
  t = f32[SIZE,SIZE] select(p, s, lows)
  endless = f32[] constant(-inf)
  most = f32[SIZE] reduce(t, endless), dimensions={1}, to_apply=max
  mosts = f32[SIZE,SIZE] broadcast(most), dimensions={0}
  d = f32[SIZE,SIZE] subtract(t, mosts)
  e = f32[SIZE,SIZE] exponential(d)
"""
SINGLE = f"""HloModule m

{ADD}{MAX}
ENTRY main {{
  q = f32[8,3] parameter(0)
  k = f32[8,3] parameter(1)
  v = f32[8] parameter(2)
{OWN.replace("SIZE", "8")}
  zero = f32[] constant(0)
  n = f32[8] reduce(e, zero), dimensions={{1}}, to_apply=add
  all = f32[8,8] broadcast(n), dimensions={{0}}
  w = f32[8,8] divide(e, all)
  ROOT y = f32[8] dot(w, v), lhs_contracting_dims={{1}}, rhs_contracting_dims={{0}}
}}
"""
RANKS = f"""HloModule m, num_partitions=2

{ADD}{MAX}
ENTRY main {{
  q = f32[4,3] parameter(0), sharding={{devices=[2,1]<=[2]}}
  k = f32[4,3] parameter(1), sharding={{devices=[2,1]<=[2]}}
  v = f32[4] parameter(2), sharding={{devices=[2]<=[2]}}
{OWN.replace("SIZE", "4")}
  again = pred[4,4] compare(j, i), direction=AGAIN
  m = f32[4,4] convert(again)
  w = f32[4,4] multiply(e, m)
  o = f32[4] dot(w, v), lhs_contracting_dims={{1}}, rhs_contracting_dims={{0}}
  k2 = f32[4,3] collective-permute(k), channel_id=1, source_target_pairs={{{{0,1}},{{1,0}}}}
  v2 = f32[4] collective-permute(v), channel_id=2, source_target_pairs={{{{0,1}},{{1,0}}}}
  s2 = f32[4,4] dot(q, k2), lhs_contracting_dims={{1}}, rhs_contracting_dims={{1}}
  id = u32[] partition-id()
  none = u32[] constant(0)
  behind = pred[] compare(id, none), direction=GT
  some = pred[4,4] broadcast(behind), dimensions={{}}
  t2 = f32[4,4] select(some, s2, lows)
  most2 = f32[4] reduce(t2, endless), dimensions={{1}}, to_apply=max
  every = f32[4] maximum(most, most2)
  everys = f32[4,4] broadcast(every), dimensions={{0}}
  d2 = f32[4,4] subtract(t2, everys)
  e2 = f32[4,4] exponential(d2)
  o2 = f32[4] dot(e2, v2), lhs_contracting_dims={{1}}, rhs_contracting_dims={{0}}
  less = f32[4] subtract(most, every)
  scale = f32[4] exponential(less)
  scaled = f32[4] multiply(o, scale)
  top = f32[4] add(scaled, o2)
  zero = f32[] constant(0)
  n = f32[4] reduce(w, zero), dimensions={{1}}, to_apply=add
  n2 = f32[4] reduce(e2, zero), dimensions={{1}}, to_apply=add
  n3 = f32[4] multiply(n, scale)
  bottom = f32[4] add(n3, n2)
  ROOT y = f32[4] divide(top, bottom)
}}
"""


@pytest.mark.parametrize(("again", "expected"), [("LE", "proved"), ("LT", "refuted")])
def test_weights_that_are_masked_again(again: str, expected: str, tmp_path: Path) -> None:
    verified(SINGLE, RANKS.replace("AGAIN", again), tmp_path, expected)
