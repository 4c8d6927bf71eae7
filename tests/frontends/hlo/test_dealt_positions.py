"""Causal attention of which each rank has an early and a late stretch of positions: masks by the
positions that it says, and keys as they were gathered."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import shardproof
from shardproof.frontends.hlo import origins
from shardproof.frontends.hlo.known import Known
from tests.frontends.hlo.verdicts import verified

REDUCE = """add {
  u = f32[] parameter(0)
  v = f32[] parameter(1)
  ROOT w = f32[] add(u, v)
}

most {
  u = f32[] parameter(0)
  v = f32[] parameter(1)
  ROOT w = f32[] maximum(u, v)
}

"""


def attention(queries: int, hidden: str) -> str:
    """Softmax over eight keys ``kk`` of scores that a mask ``m`` shows."""
    n = queries
    return f"""
  s = f32[{n},8] dot(qq, kk), lhs_contracting_dims={{1}}, rhs_contracting_dims={{1}}
  c = f32[] constant({hidden})
  f = f32[{n},8] broadcast(c), dimensions={{}}
  h = f32[{n},8] select(m, s, f)
  inf = f32[] constant(-inf)
  t = f32[{n}] reduce(h, inf), dimensions={{1}}, to_apply=most
  tt = f32[{n},8] broadcast(t), dimensions={{0}}
  x = f32[{n},8] subtract(h, tt)
  e = f32[{n},8] exponential(x)
  z = f32[] constant(0)
  d = f32[{n}] reduce(e, z), dimensions={{1}}, to_apply=add
  dd = f32[{n},8] broadcast(d), dimensions={{0}}
  p = f32[{n},8] divide(e, dd)
  o = f32[{n},2] dot(p, kk), lhs_contracting_dims={{1}}, rhs_contracting_dims={{0}}
"""


def single(hidden: str) -> str:
    return f"""HloModule m

{REDUCE}ENTRY main {{
  qq = f32[8,2] parameter(0)
  kk = f32[8,2] parameter(1)
  i = s32[8,8] iota(), iota_dimension=0
  j = s32[8,8] iota(), iota_dimension=1
  m = pred[8,8] compare(i, j), direction=GE
{attention(8, hidden)}
  ROOT y = f32[8,2] copy(o)
}}
"""


def parallel(hidden: str, late: str, gathered: str) -> str:
    """``late``: of how many stretches of two the later one of a rank is the last but its number;
    ``gathered``: the keys' positions."""
    return f"""HloModule m, num_partitions=2

{REDUCE}ENTRY main {{
  q = f32[8,2] parameter(0)
  k = f32[8,2] parameter(1)
  r = u32[] partition-id()
  me = s32[] convert(r)
  two = s32[] constant(2)
  zero = s32[] constant(0)
  last = s32[] constant(3)
  behind = s32[] constant({late})
  other = s32[] subtract(last, me)
  told = s32[] subtract(behind, me)
  a = s32[] multiply(me, two)
  b = s32[] multiply(other, two)
  b2 = s32[] multiply(told, two)
  q1 = f32[2,2] dynamic-slice(q, a, zero), dynamic_slice_sizes={{2,2}}
  q2 = f32[2,2] dynamic-slice(q, b, zero), dynamic_slice_sizes={{2,2}}
  k1 = f32[2,2] dynamic-slice(k, a, zero), dynamic_slice_sizes={{2,2}}
  k2 = f32[2,2] dynamic-slice(k, b, zero), dynamic_slice_sizes={{2,2}}
  qq = f32[4,2] concatenate(q1, q2), dimensions={{0}}
  own = f32[4,2] concatenate(k1, k2), dimensions={{0}}
  kk = f32[8,2] all-gather(own), channel_id=1, dimensions={{0}}, replica_groups={{{{0,1}}}}, use_global_device_ids=true
  n = s32[2] iota(), iota_dimension=0
  aa = s32[2] broadcast(a), dimensions={{}}
  bb = s32[2] broadcast(b2), dimensions={{}}
  r1 = s32[2] add(aa, n)
  r2 = s32[2] add(bb, n)
  rows = s32[4] concatenate(r1, r2), dimensions={{0}}
  columns = s32[8] {gathered}
  i = s32[4,8] broadcast(rows), dimensions={{0}}
  j = s32[4,8] broadcast(columns), dimensions={{1}}
  m = pred[4,8] compare(i, j), direction=GE
{attention(4, hidden)}
  all = f32[8,2] all-gather(o), channel_id=2, dimensions={{0}}, replica_groups={{{{0,1}}}}, use_global_device_ids=true
  y0 = f32[2,2] slice(all), slice={{[0:2], [0:2]}}
  y1 = f32[2,2] slice(all), slice={{[4:6], [0:2]}}
  y2 = f32[2,2] slice(all), slice={{[6:8], [0:2]}}
  y3 = f32[2,2] slice(all), slice={{[2:4], [0:2]}}
  ROOT y = f32[8,2] concatenate(y0, y1, y2, y3), dimensions={{0}}
}}
"""


TOLD = (
    "all-gather(rows), channel_id=3, dimensions={0}, replica_groups={{0,1}}, "
    "use_global_device_ids=true"
)
IN_ORDER = "iota(), iota_dimension=0"


@pytest.mark.parametrize("hidden", ["-inf", "-1e30"])
@pytest.mark.parametrize(
    ("late", "gathered", "expected"),
    [("3", TOLD, "proved"), ("2", TOLD, "refuted"), ("3", IN_ORDER, "refuted")],
    ids=["right", "one stretch early", "keys in order"],
)
def test_queries_and_keys_in_a_zigzag(
    hidden: str, late: str, gathered: str, expected: str, tmp_path: Path
) -> None:
    verified(single(hidden), parallel(hidden, late, gathered), tmp_path, expected)


def test_stretches_of_positions_are_parts_of_a_table() -> None:
    """Rows 0, 1, 6 and 7 on rank 0, and 2 to 5 on rank 1."""
    triangle = np.tril(np.ones((8, 8)))
    begins = (((0, 1, 6, 7), 0), (2, 0))
    rows = tuple(triangle[own] for own in ([0, 1, 6, 7], [2, 3, 4, 5]))
    parts = origins.parts(Known(rows, "float32", begins), [triangle])
    assert parts is not None
    assert parts.sizes == ((2, 2), (8,))
    assert [block.begins for block in parts.blocks] == [((0, 0), (2, 0)), ((6, 0), (4, 0))]
    assert origins.parts(Known(rows[::-1], "float32", begins), [triangle]) is None


MERGED = f"""HloModule m, num_partitions=2

{REDUCE}ENTRY main {{
  q = f32[4,2] parameter(0), sharding={{devices=[2,1]<=[2]}}
  k = f32[8,2] parameter(1), sharding={{replicated}}
  k1 = f32[4,2] slice(k), slice={{[0:4], [0:2]}}
  k2 = f32[4,2] slice(k), slice={{[4:8], [0:2]}}
  r = u32[] partition-id()
  me = s32[] convert(r)
  four = s32[] constant(4)
  a = s32[] multiply(me, four)
  n = s32[4] iota(), iota_dimension=0
  aa = s32[4] broadcast(a), dimensions={{}}
  rows = s32[4] add(aa, n)
  i = s32[4,4] broadcast(rows), dimensions={{0}}
  j1 = s32[4,4] iota(), iota_dimension=1
  j2 = s32[4,4] iota(), iota_dimension=1
  ff = s32[4,4] broadcast(four), dimensions={{}}
  j3 = s32[4,4] add(j2, ff)
  m1 = pred[4,4] compare(i, j1), direction=GE
  m2 = pred[4,4] compare(i, j3), direction=GE
  s1 = f32[4,4] dot(q, k1), lhs_contracting_dims={{1}}, rhs_contracting_dims={{1}}
  s2 = f32[4,4] dot(q, k2), lhs_contracting_dims={{1}}, rhs_contracting_dims={{1}}
  c = f32[] constant(-inf)
  f = f32[4,4] broadcast(c), dimensions={{}}
  h1 = f32[4,4] select(m1, s1, f)
  h2 = f32[4,4] select(m2, s2, f)
  t1 = f32[4] reduce(h1, c), dimensions={{1}}, to_apply=most
  t2 = f32[4] reduce(h2, c), dimensions={{1}}, to_apply=most
  t = f32[4] maximum(t1, t2)
  tt = f32[4,4] broadcast(t), dimensions={{0}}
  x1 = f32[4,4] subtract(h1, tt)
  x2 = f32[4,4] subtract(h2, tt)
  e1 = f32[4,4] exponential(x1)
  e2 = f32[4,4] exponential(x2)
  z = f32[] constant(0)
  d1 = f32[4] reduce(e1, z), dimensions={{1}}, to_apply=add
  d2 = f32[4] reduce(e2, z), dimensions={{1}}, to_apply=add
  d = f32[4] add(d1, d2)
  dd = f32[4,2] broadcast(d), dimensions={{0}}
  o1 = f32[4,2] dot(e1, k1), lhs_contracting_dims={{1}}, rhs_contracting_dims={{0}}
  o2 = f32[4,2] dot(e2, k2), lhs_contracting_dims={{1}}, rhs_contracting_dims={{0}}
  o = f32[4,2] add(o1, o2)
  ROOT y = f32[4,2] divide(o, dd)
}}
"""


def test_a_block_that_no_query_sees(tmp_path: Path) -> None:
    """The largest of scores that are all minus infinity is no number: a right program was refuted
    while inference took such a block for one of the causal mask."""
    files = tmp_path / "single.hlo", tmp_path / "parallel.hlo"
    for file, text in zip(files, (single("-inf"), MERGED), strict=True):
        file.write_text(text)
    assert shardproof.verify(*files, out=tmp_path / "run", cache=False).verdict != "refuted"
