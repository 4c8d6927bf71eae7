"""Means over the labels that count, whose gradients are sums that are divided at the end."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.frontends.hlo.test_lower import ADD
from tests.frontends.hlo.verdicts import verified

PUT = (
    "update_window_dims={}, inserted_window_dims={1}, scatter_dims_to_operand_dims={1}, "
    "input_batching_dims={0}, scatter_indices_batching_dims={0}, index_vector_dim=1, to_apply=add"
)
#: The gradient of a cross-entropy with respect to the first of two matrices; ``each``: the weight
#: of each label.
GRADIENT = f"""  h = f32[ROWS,3] dot(x, v), lhs_contracting_dims={{1}}, rhs_contracting_dims={{0}}
  z = f32[ROWS,5] dot(h, w), lhs_contracting_dims={{1}}, rhs_contracting_dims={{0}}
  e = f32[ROWS,5] exponential(z)
  s = f32[ROWS] reduce(e, zero), dimensions={{1}}, to_apply=add
  zeros = f32[ROWS,5] broadcast(zero), dimensions={{}}
  label = s32[ROWS,1] reshape(y)
  put = f32[ROWS,5] scatter(zeros, label, each), {PUT}
  q = f32[ROWS] reduce(put, zero), dimensions={{1}}, to_apply=add
  r = f32[ROWS] divide(q, s)
  rs = f32[ROWS,5] broadcast(r), dimensions={{0}}
  soft = f32[ROWS,5] multiply(e, rs)
  dz = f32[ROWS,5] subtract(put, soft)
  dh = f32[ROWS,3] dot(dz, w), lhs_contracting_dims={{1}}, rhs_contracting_dims={{1}}
  dv = f32[4,3] dot(x, dh), lhs_contracting_dims={{0}}, rhs_contracting_dims={{0}}
"""
INPUTS = """  x = f32[ROWS,4] parameter(0)AT2
  v = f32[4,3] parameter(1)ALL
  w = f32[3,5] parameter(2)ALL
  y = s32[ROWS] parameter(3)AT1
  m = f32[ROWS] parameter(4)AT1
  zero = f32[] constant(0)
  n = f32[] reduce(m, zero), dimensions={0}, to_apply=add
"""
SINGLE = f"""HloModule m

{ADD}
ENTRY main {{
{INPUTS.replace("AT1", "").replace("AT2", "").replace("ALL", "")}
  ns = f32[ROWS] broadcast(n), dimensions={{}}
  each = f32[ROWS] divide(m, ns)
{GRADIENT}  ROOT all = f32[4,3] copy(dv)
}}
""".replace("ROWS", "8")
DIVIDED = {
    "AT1": ", sharding={devices=[2]<=[2]}",
    "AT2": ", sharding={devices=[2,1]<=[2]}",
    "ALL": ", sharding={replicated}",
}
PARALLEL = f"""HloModule m, num_partitions=2

{ADD}
ENTRY main {{
{INPUTS}
  each = f32[ROWS] copy(m)
{GRADIENT}  sum = f32[4,3] all-reduce(dv), channel_id=1, replica_groups={{{{0,1}}}}, \
use_global_device_ids=true, to_apply=add
  count = f32[] all-reduce(n), channel_id=2, replica_groups={{{{0,1}}}}, \
use_global_device_ids=true, to_apply=add
  counts = f32[4,3] broadcast(COUNT), dimensions={{}}
  ROOT all = f32[4,3] divide(sum, counts)
}}
""".replace("ROWS", "4")


@pytest.mark.parametrize(("count", "expected"), [("count", "proved"), ("n", "refuted")])
def test_sums_that_are_divided_at_the_end(count: str, expected: str, tmp_path: Path) -> None:
    ranks = PARALLEL
    for place, sharding in DIVIDED.items():
        ranks = ranks.replace(place, sharding)
    verified(SINGLE, ranks.replace("COUNT", count), tmp_path, expected)
