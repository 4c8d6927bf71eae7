"""Results side by side of which one is parts of sums beside other values: words decoded one after
the other, behind a cache into which a key is written."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.frontends.hlo.reductions import REDUCTIONS
from tests.frontends.hlo.verdicts import verified

#: The logarithm of a softmax.
SOFTMAX = """  low = f32[] constant(-inf)
  m = f32[] reduce(z, low), dimensions={0}, to_apply=most
  m5 = f32[5] broadcast(m), dimensions={}
  d = f32[5] subtract(z, m5)
  ex = f32[5] exponential(d)
  zero = f32[] constant(0)
  n = f32[] reduce(ex, zero), dimensions={0}, to_apply=total
  l = f32[] log(n)
  l5 = f32[5] broadcast(l), dimensions={}
  r = f32[5] subtract(d, l5)
"""
#: Of rows of a cache, of which row 2 is new, the sum by weights; that behind a matrix, as
#: logarithms of a softmax, beside others.
SINGLE = f"""HloModule m

{REDUCTIONS}ENTRY main {{
  kept = f32[4,6] parameter(0)
  new = f32[4,1] parameter(1)
  p = f32[6] parameter(2)
  w = f32[4,5] parameter(3)
  before = f32[4,2] slice(kept), slice={{[0:4], [0:2]}}
  behind = f32[4,3] slice(kept), slice={{[0:4], [3:6]}}
  all = f32[4,6] concatenate(before, new, behind), dimensions={{1}}
  e = f32[4,6] exponential(all)
  s = f32[4] dot(e, p), lhs_contracting_dims={{1}}, rhs_contracting_dims={{0}}
  z = f32[5] dot(s, w), lhs_contracting_dims={{0}}, rhs_contracting_dims={{0}}
{SOFTMAX}  z1 = f32[1,5] reshape(r)
  x = f32[5] parameter(4)
  x1 = f32[1,5] reshape(x)
  ROOT y = f32[2,5] concatenate(z1, x1), dimensions={{0}}
}}
"""
RANKS = f"""HloModule m, num_partitions=4

{REDUCTIONS}ENTRY main {{
  kept = f32[1,6] parameter(0), sharding={{devices=[4,1]<=[4]}}
  new = f32[1,1] parameter(1), sharding={{devices=[4,1]<=[4]}}
  p = f32[6] parameter(2), sharding={{replicated}}
  w = f32[1,5] parameter(3), sharding={{devices=[4,1]<=[4]}}
  before = f32[1,2] slice(kept), slice={{[0:1], [0:2]}}
  behind = f32[1,3] slice(kept), slice={{[0:1], [3:6]}}
  all = f32[1,6] concatenate(ORDER), dimensions={{1}}
  e = f32[1,6] exponential(all)
  s = f32[1] dot(e, p), lhs_contracting_dims={{1}}, rhs_contracting_dims={{0}}
  z0 = f32[5] dot(s, w), lhs_contracting_dims={{0}}, rhs_contracting_dims={{0}}
  z = f32[5] all-reduce(z0), channel_id=1, replica_groups={{{{0,1,2,3}}}}, use_global_device_ids=true, to_apply=total
{SOFTMAX}  z1 = f32[1,5] reshape(r)
  x = f32[5] parameter(4), sharding={{replicated}}
  x1 = f32[1,5] reshape(x)
  ROOT y = f32[2,5] concatenate(z1, x1), dimensions={{0}}
}}
"""


@pytest.mark.parametrize(
    ("order", "expected"),
    [("before, new, behind", "proved"), ("new, before, behind", "refuted")],
)
def test_results_of_which_one_is_parts_of_sums(order: str, expected: str, tmp_path: Path) -> None:
    verified(SINGLE, RANKS.replace("ORDER", order), tmp_path, expected)
