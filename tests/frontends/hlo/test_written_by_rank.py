"""A softmax over a cache that ranks divide along its positions, the last of which one rank writes
(flash decoding): of one rank the largest score is that of two values."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.frontends.hlo.reductions import REDUCTIONS
from tests.frontends.hlo.verdicts import verified

#: A softmax over twelve scores, the last of which is new, and what it weighs.
SINGLE = f"""HloModule m

{REDUCTIONS}ENTRY main {{
  s = f32[3,12] parameter(0)
  new = f32[3,1] parameter(1)
  v = f32[12] parameter(2)
  old = f32[3,11] slice(s), slice={{[0:3], [0:11]}}
  all = f32[3,12] concatenate(old, new), dimensions={{1}}
  low = f32[] constant(-inf)
  m = f32[3] reduce(all, low), dimensions={{1}}, to_apply=most
  wide = f32[3,12] broadcast(m), dimensions={{0}}
  d = f32[3,12] subtract(all, wide)
  e = f32[3,12] exponential(d)
  z = f32[] constant(0)
  n = f32[3] reduce(e, z), dimensions={{1}}, to_apply=total
  o = f32[3] dot(e, v), lhs_contracting_dims={{1}}, rhs_contracting_dims={{0}}
  ROOT y = f32[3] divide(o, n)
}}
"""
RANKS = f"""HloModule m, num_partitions=COUNT

{REDUCTIONS}ENTRY main {{
  s = f32[3,EACH] parameter(0), sharding={{devices=[1,COUNT]<=[COUNT]}}
  new = f32[3,1] parameter(1), sharding={{replicated}}
  v = f32[EACH] parameter(2), sharding={{devices=[COUNT]<=[COUNT]}}
  id = u32[] partition-id()
  last = u32[] constant(WRITER)
  p = pred[] compare(id, last), direction=EQ
  w = pred[3,EACH] broadcast(p), dimensions={{}}
  old = f32[3,LESS] slice(s), slice={{[0:3], [0:LESS]}}
  put = f32[3,EACH] concatenate(old, new), dimensions={{1}}
  all = f32[3,EACH] select(w, put, s)
  low = f32[] constant(-inf)
  m = f32[3] reduce(all, low), dimensions={{1}}, to_apply=most
  wide = f32[3,EACH] broadcast(m), dimensions={{0}}
  d = f32[3,EACH] subtract(all, wide)
  e = f32[3,EACH] exponential(d)
  z = f32[] constant(0)
  n = f32[3] reduce(e, z), dimensions={{1}}, to_apply=total
  o = f32[3] dot(e, v), lhs_contracting_dims={{1}}, rhs_contracting_dims={{0}}
  top = f32[3] all-reduce(m), channel_id=1, replica_groups={{{{GROUP}}}}, use_global_device_ids=true, to_apply=most
  less = f32[3] subtract(m, top)
  scale = f32[3] exponential(less)
  os = f32[3] multiply(o, SCALED)
  ns = f32[3] multiply(n, scale)
  oa = f32[3] all-reduce(os), channel_id=2, replica_groups={{{{GROUP}}}}, use_global_device_ids=true, to_apply=total
  na = f32[3] all-reduce(ns), channel_id=3, replica_groups={{{{GROUP}}}}, use_global_device_ids=true, to_apply=total
  ROOT y = f32[3] divide(oa, na)
}}
"""


def of(text: str, count: int, scaled: str = "scale") -> str:
    """The program of so many ranks, of which the last one writes."""
    given = {
        "COUNT": count, "EACH": 12 // count, "LESS": 12 // count - 1, "WRITER": count - 1,
        "GROUP": ",".join(map(str, range(count))), "SCALED": scaled,
    }  # fmt: skip
    for name, what in given.items():
        text = text.replace(name, str(what))
    return text


@pytest.mark.parametrize(
    ("count", "scaled", "expected"),
    [(2, "scale", "proved"), (4, "scale", "proved"), (2, "n", "refuted")],
)
def test_a_softmax_over_what_one_rank_writes(
    count: int, scaled: str, expected: str, tmp_path: Path
) -> None:
    verified(SINGLE, of(RANKS, count, scaled), tmp_path, expected)
