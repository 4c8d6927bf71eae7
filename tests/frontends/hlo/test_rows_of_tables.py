"""Each rank's own row of a table that the single side reads whole: what comes before a rank."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.frontends.hlo.test_lower import ADD
from tests.frontends.hlo.verdicts import verified

#: Of two halves of the rows, what the halves before each add up to.
SINGLE = f"""HloModule m, entry_computation_layout={{(f32[4,3]{{1,0}})->f32[2,3]}}

{ADD}
ENTRY e {{
  x = f32[4,3] parameter(0)
  h = f32[2,2,3] reshape(x)
  z = f32[] constant(0)
  s = f32[2,3] reduce(h, z), dimensions={{1}}, to_apply=add
  t = f32[2,2] constant({{ {{0, 0}}, {{1, 0}} }})
  ROOT r = f32[2,3] dot(t, s), lhs_contracting_dims={{1}}, rhs_contracting_dims={{0}}
}}
"""
#: The same where each of two ranks has one half and takes its row of the table ``ROWS``.
PARALLEL = f"""HloModule m, entry_computation_layout={{(f32[2,3]{{1,0}})->f32[2,3]}}, num_partitions=2

{ADD}
ENTRY e {{
  x = f32[2,3] parameter(0), sharding={{devices=[2,1]<=[2]}}
  z = f32[] constant(0)
  s = f32[3] reduce(x, z), dimensions={{0}}, to_apply=add
  o = f32[1,3] reshape(s)
  a = f32[2,3] all-gather(o), channel_id=1, replica_groups={{{{0,1}}}}, dimensions={{0}}, use_global_device_ids=true
  t = f32[2,2] constant({{ ROWS }})
  p = u32[] partition-id()
  n = u32[] constant(0)
  w = f32[1,2] dynamic-slice(t, p, n), dynamic_slice_sizes={{1,2}}
  v = f32[2] reshape(w)
  d = f32[3] dot(v, a), lhs_contracting_dims={{0}}, rhs_contracting_dims={{0}}
  b = f32[1,3] reshape(d)
  ROOT r = f32[2,3] all-gather(b), channel_id=2, replica_groups={{{{0,1}}}}, dimensions={{0}}, use_global_device_ids=true
}}
"""


@pytest.mark.parametrize(
    ("rows", "expected"), [("{0, 0}, {1, 0}", "proved"), ("{1, 0}, {0, 0}", "refuted")]
)
def test_a_rank_has_its_row_of_a_table(rows: str, expected: str, tmp_path: Path) -> None:
    verified(SINGLE, PARALLEL.replace("ROWS", rows), tmp_path, expected)
