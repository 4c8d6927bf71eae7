"""Losses whose labels are positions: each rank picks the entries of its rows on a diagonal."""

from __future__ import annotations

from pathlib import Path

import pytest

from shardproof.frontends.hlo import inline, text
from tests.frontends.hlo.test_lower import ADD, agree
from tests.frontends.hlo.verdicts import verified

PICK = (
    "offset_dims={}, collapsed_slice_dims={1}, start_index_map={1}, operand_batching_dims={0}, "
    "start_indices_batching_dims={0}, index_vector_dim=1, slice_sizes={1,1}"
)
PUT = (
    "update_window_dims={}, inserted_window_dims={1}, scatter_dims_to_operand_dims={1}, "
    "input_batching_dims={0}, scatter_indices_batching_dims={0}, index_vector_dim=1, to_apply=add"
)
#: The sum of each row's logarithm of its sum less its label's score, and the gradient of that with
#: respect to what all columns are made of.
LOSS = f"""  s = f32[ROWS,72] dot(u, all), lhs_contracting_dims={{1}}, rhs_contracting_dims={{1}}
  e = f32[ROWS,72] exponential(s)
  zero = f32[] constant(0)
  n = f32[ROWS] reduce(e, zero), dimensions={{1}}, to_apply=add
  l = f32[ROWS] log(n)
  own = f32[ROWS] gather(s, label), {PICK}
  loss = f32[ROWS] subtract(l, own)
  one = f32[] constant(1)
  ones = f32[ROWS] broadcast(one), dimensions={{}}
  zeros = f32[ROWS,72] broadcast(zero), dimensions={{}}
  placed = f32[ROWS,72] scatter(zeros, label, ones), {PUT}
  many = f32[ROWS,72] broadcast(n), dimensions={{0}}
  soft = f32[ROWS,72] divide(e, many)
  ds = f32[ROWS,72] subtract(soft, placed)
  dall = f32[72,3] dot(ds, u), lhs_contracting_dims={{0}}, rhs_contracting_dims={{0}}
  total = f32[] reduce(loss, zero), dimensions={{0}}, to_apply=add
"""
SINGLE = f"""HloModule m

{ADD}
ENTRY main {{
  u = f32[72,3] parameter(0)
  all = f32[72,3] parameter(1)
  label = s32[72,1] iota(), iota_dimension=0
{LOSS.replace("ROWS", "72")}  ROOT y = (f32[], f32[72,3]) tuple(total, dall)
}}
"""
PARALLEL = f"""HloModule m, num_partitions=4

{ADD}
ENTRY main {{
  u = f32[18,3] parameter(0), sharding={{devices=[4,1]<=[4]}}
  v = f32[18,3] parameter(1), sharding={{devices=[4,1]<=[4]}}
  all = f32[72,3] all-gather(v), channel_id=1, replica_groups={{{{0,1,2,3}}}}, dimensions={{0}}, \
use_global_device_ids=true
  id = u32[] partition-id()
  rank = s32[] convert(id)
  size = s32[] constant(STEP)
  start = s32[] multiply(rank, size)
  starts = s32[18,1] broadcast(start), dimensions={{}}
  at = s32[18,1] iota(), iota_dimension=0
  label = s32[18,1] add(starts, at)
{LOSS.replace("ROWS", "18")}  totals = f32[] all-reduce(total), channel_id=2, \
replica_groups={{{{0,1,2,3}}}}, use_global_device_ids=true, to_apply=add
  dalls = f32[72,3] all-reduce(dall), channel_id=3, replica_groups={{{{0,1,2,3}}}}, \
use_global_device_ids=true, to_apply=add
  ROOT y = (f32[], f32[72,3]) tuple(totals, dalls)
}}
"""


@pytest.mark.parametrize(("step", "expected"), [(18, "proved"), (17, "refuted")])
def test_labels_that_are_positions(step: int, expected: str, tmp_path: Path) -> None:
    verified(SINGLE, PARALLEL.replace("STEP", str(step)), tmp_path, expected)


#: A gather or scatter-add of entries of ``x = f32[3,5]`` by ``i``, or of two indices.
ENTRIES = {
    "clamped": (3, 1, f"f32[3] gather(x, i), {PICK}"),
    "dropped": (3, 1, f"f32[3,5] scatter(x, i, u), {PUT}"),
    "both indices": (
        3,
        2,
        "f32[3] gather(x, i), offset_dims={}, collapsed_slice_dims={0,1}, start_index_map={0,1}, "
        "index_vector_dim=1, slice_sizes={1,1}",
    ),
    "both indices of a sum": (
        3,
        2,
        "f32[3,5] scatter(x, i, u), update_window_dims={}, inserted_window_dims={0,1}, "
        "scatter_dims_to_operand_dims={0,1}, index_vector_dim=1, to_apply=add",
    ),
}


@pytest.mark.parametrize("name", ENTRIES)
@pytest.mark.parametrize("first", [0, 3])
def test_picked_entries_are_lowered_to_what_they_are(name: str, first: int) -> None:
    """From 3 on the last one is out of bounds: it clamps, or is dropped."""
    rows, width, op = ENTRIES[name]
    body = "  r = s32[3,1] iota(), iota_dimension=0\n"
    body += f"  c = s32[] constant({first})\n  b = s32[3,1] broadcast(c), dimensions={{}}\n"
    body += f"  {'k' if width == 2 else 'i'} = s32[3,1] add(r, b)\n"
    body += "  i = s32[3,2] concatenate(r, k), dimensions={1}\n" if width == 2 else ""
    text_ = (
        f"HloModule m\n\n{ADD}\nENTRY main {{\n  x = f32[{rows},5] parameter(0)\n"
        f"  u = f32[3] parameter(1)\n{body}  ROOT y = {op}\n}}\n"
    )
    agree(inline.graph(text.parse(text_)))
