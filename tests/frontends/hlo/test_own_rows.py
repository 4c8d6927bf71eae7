"""Known rows of a table that ranks divide: looked up, clamped, under a mask; and their gradient."""

from __future__ import annotations

from pathlib import Path

import pytest

from shardproof.frontends.hlo import inline, text
from tests.frontends.hlo.test_lower import ADD, agree
from tests.frontends.hlo.verdicts import verified

#: Rows of a table of six by positions, and what comes back to them.
SINGLE = f"""HloModule m, entry_computation_layout={{(f32[6,4]{{1,0}}, f32[6,4]{{1,0}})->(f32[6,4], f32[6,4])}}

{ADD}
ENTRY e {{
  t = f32[6,4] parameter(0)
  d = f32[6,4] parameter(1)
  n = s32[6] iota(), iota_dimension=0
  i = s32[6,1] reshape(n)
  g = f32[6,4] gather(t, i), offset_dims={{1}}, collapsed_slice_dims={{0}}, start_index_map={{0}}, index_vector_dim=1, slice_sizes={{1,4}}
  h = f32[6,4] tanh(g)
  z = f32[] constant(0)
  b = f32[6,4] broadcast(z), dimensions={{}}
  s = f32[6,4] scatter(b, i, d), update_window_dims={{1}}, inserted_window_dims={{0}}, scatter_dims_to_operand_dims={{0}}, index_vector_dim=1, to_apply=add
  ROOT r = (f32[6,4], f32[6,4]) tuple(h, s)
}}
"""
#: The same on two ranks with three rows each; ``FIRST``: the first row of rank 1.
PARALLEL = f"""HloModule m, entry_computation_layout={{(f32[3,4]{{1,0}}, f32[6,4]{{1,0}})->(f32[6,4], f32[3,4])}}, num_partitions=2

{ADD}
ENTRY e {{
  t = f32[3,4] parameter(0), sharding={{devices=[2,1]<=[2]}}
  d = f32[6,4] parameter(1), sharding={{replicated}}
  n = s32[6] iota(), iota_dimension=0
  p = u32[] partition-id()
  c = s32[2] constant({{0, FIRST}})
  a = s32[1] dynamic-slice(c, p), dynamic_slice_sizes={{1}}
  f = s32[] reshape(a)
  o = s32[6] broadcast(f), dimensions={{}}
  j = s32[6] subtract(n, o)
  i = s32[6,1] reshape(j)
  g = f32[6,4] gather(t, i), offset_dims={{1}}, collapsed_slice_dims={{0}}, start_index_map={{0}}, index_vector_dim=1, slice_sizes={{1,4}}
  y = s32[] constant(0)
  u = s32[6] broadcast(y), dimensions={{}}
  x = s32[] constant(3)
  v = s32[6] broadcast(x), dimensions={{}}
  k = pred[6] compare(j, u), direction=GE
  l = pred[6] compare(j, v), direction=LT
  m = pred[6] and(k, l)
  w = pred[6,4] broadcast(m), dimensions={{0}}
  z = f32[] constant(0)
  b = f32[6,4] broadcast(z), dimensions={{}}
  q = f32[6,4] select(w, g, b)
  e = f32[6,4] all-reduce(q), channel_id=1, replica_groups={{{{0,1}}}}, use_global_device_ids=true, to_apply=add
  h = f32[6,4] tanh(e)
  zz = f32[3,4] broadcast(z), dimensions={{}}
  s = f32[3,4] scatter(zz, i, d), update_window_dims={{1}}, inserted_window_dims={{0}}, scatter_dims_to_operand_dims={{0}}, index_vector_dim=1, to_apply=add
  ROOT r = (f32[6,4], f32[3,4]) tuple(h, s)
}}
"""


@pytest.mark.parametrize("first", [3, 2, 4])
def test_rows_of_a_rank_are_lowered_to_what_they_are(first: int) -> None:
    agree(inline.graph(text.parse(PARALLEL.replace("FIRST", str(first)))))


@pytest.mark.parametrize(("first", "expected"), [(3, "proved"), (2, "refuted")])
def test_positions_whose_rows_are_divided(first: int, expected: str, tmp_path: Path) -> None:
    verified(SINGLE, PARALLEL.replace("FIRST", str(first)), tmp_path, expected)
