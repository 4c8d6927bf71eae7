"""Ids that ranks hand to each other are ids still; numbers and places that are known."""

from __future__ import annotations

from pathlib import Path

import pytest

from shardproof.frontends.hlo import inline, text
from shardproof.frontends.hlo.lower import lower
from tests.frontends.hlo.test_lower import ADD, agree
from tests.frontends.hlo.verdicts import verified

ROWS = (
    "offset_dims={1}, collapsed_slice_dims={0}, start_index_map={0}, index_vector_dim=1, "
    "slice_sizes={1,3}"
)
SINGLE = f"""HloModule m

ENTRY main {{
  t = f32[9,3] parameter(0)
  i = s32[8] parameter(1)
  g = f32[8,3] gather(t, i), {ROWS}
  ROOT y = f32[8,3] exponential(g)
}}
"""
PARALLEL = f"""HloModule m, num_partitions=2

ENTRY main {{
  t = f32[9,3] parameter(0)
  i = s32[4] parameter(1)
  o = s32[] constant(2)
  w = s32[4] broadcast(o), dimensions={{}}
  a = s32[4] add(i, w)
  p = s32[4] collective-permute(a), channel_id=1, source_target_pairs={{{{0,1}},{{1,0}}}}
  b = s32[4] collective-permute(p), channel_id=3, source_target_pairs=PAIRS
  j = s32[8] all-gather(b), channel_id=2, replica_groups={{{{0,1}}}}, dimensions={{0}}, \
use_global_device_ids=true
  v = s32[8] broadcast(o), dimensions={{}}
  k = s32[8] subtract(j, v)
  g = f32[8,3] gather(t, k), {ROWS}
  ROOT y = f32[8,3] exponential(g)
}}
"""


@pytest.mark.parametrize(
    ("pairs", "expected"),
    [("{{0,1},{1,0}}", "proved"), ("{{0,0},{1,1}}", "refuted")],
    ids=["back again", "exchanged"],
)
def test_rows_by_ids_of_all_ranks(pairs: str, expected: str, tmp_path: Path) -> None:
    verified(SINGLE, PARALLEL.replace("PAIRS", pairs), tmp_path, expected)


def test_ids_between_ranks_are_lowered_to_what_they_compute() -> None:
    agree(inline.graph(text.parse(PARALLEL.replace("PAIRS", "{{0,1},{1,0}}"))), {1: (0, 9)})


def test_ids_where_nobody_sends_are_no_ids() -> None:
    """There zeros arrive, whatever is computed of the ids."""
    low, _, _ = lower(inline.graph(text.parse(PARALLEL.replace("PAIRS", "{{0,1}}"))))
    assert [op.name for op in low.recorder.ops if "of HLO" in op.name] == [
        "gather of HLO (rows chosen by computed numbers)"
    ]


def test_a_number_of_each_rank() -> None:
    body = (
        "ENTRY e {\n  x = f32[4] parameter(0)\n  r = u32[] partition-id()\n  c = u32[] constant(2)\n"
        "  p = pred[] compare(r, c), direction=LT\n  o = f32[] constant(0.25)\n"
        "  z = f32[] constant(0)\n  s = f32[] select(p, o, z)\n"
        "  b = f32[4] broadcast(s), dimensions={}\n  ROOT y = f32[4] multiply(b, x)\n}\n"
    )
    agree(inline.graph(text.parse("HloModule m, num_partitions=4\n" + body)))


def test_entries_added_to_a_known_place_of_each_row() -> None:
    """What is out of bounds is dropped: the last row's place is 5."""
    body = (
        "ENTRY e {\n  x = f32[4,5] parameter(0)\n  i = s32[4,1,1] iota(), iota_dimension=0\n"
        "  o = s32[] constant(2)\n  v = s32[4,1,1] broadcast(o), dimensions={}\n"
        "  k = s32[4,1,1] add(i, v)\n  u = f32[4,1] parameter(1)\n"
        "  ROOT y = f32[4,5] scatter(x, k, u), update_window_dims={}, inserted_window_dims={1}, "
        "scatter_dims_to_operand_dims={1}, input_batching_dims={0}, "
        "scatter_indices_batching_dims={0}, index_vector_dim=2, to_apply=add\n}\n"
    )
    agree(inline.graph(text.parse("HloModule m\n" + ADD + body)))


#: Words of both columns of a batch, one column of which each of two ranks looks up.
COLUMNS = f"""HloModule m

ENTRY main {{
  t = f32[9,3] parameter(0)
  i = s32[4,2] parameter(1)
  a = s32[8] reshape(i)
  g = f32[8,3] gather(t, a), {ROWS}
  w = f32[4,2,3] reshape(g)
  ROOT y = f32[4,2,3] exponential(w)
}}
"""
OWN_COLUMN = f"""HloModule m, num_partitions=2

ENTRY main {{
  t = f32[9,3] parameter(0)
  i = s32[4,2] parameter(1)
  r = u32[] partition-id()
  s = s32[] convert(r)
  n = s32[] constant(1)
  o = s32[] subtract(n, s)
  c = s32[1] reshape(NUMBER)
  k = s32[4] gather(i, c), offset_dims={{0}}, collapsed_slice_dims={{1}}, \
start_index_map={{1}}, index_vector_dim=0, slice_sizes={{4,1}}
  g = f32[4,3] gather(t, k), {ROWS}
  e = f32[4,3] exponential(g)
  b = f32[4,1,3] reshape(e)
  ROOT y = f32[4,2,3] all-gather(b), channel_id=1, replica_groups={{{{0,1}}}}, dimensions={{1}}, \
use_global_device_ids=true
}}
"""


@pytest.mark.parametrize(
    ("number", "expected"), [("s", "proved"), ("o", "refuted")], ids=["its own", "the other's"]
)
def test_rows_by_a_known_column_of_ids(number: str, expected: str, tmp_path: Path) -> None:
    verified(COLUMNS, OWN_COLUMN.replace("NUMBER", number), tmp_path, expected)


@pytest.mark.parametrize(
    "chosen",
    [
        "k = s32[3] slice(j), slice={[1:6:2]}",
        "k = s32[6] reverse(j), dimensions={0}",
        "k = s32[6] reshape(j)",
        "c = s32[4,1] constant({{5}, {0}, {0}, {9}})\n  k = s32[4] gather(j, c), offset_dims={}, "
        "collapsed_slice_dims={0}, start_index_map={0}, index_vector_dim=1, slice_sizes={1}",
        "c = s32[2,1] constant({{3}, {1}})\n  k = s32[2,2] gather(j, c), offset_dims={1}, "
        "collapsed_slice_dims={}, start_index_map={0}, index_vector_dim=1, slice_sizes={2}",
    ],
    ids=["every other one", "in reverse order", "all", "some", "two pairs"],
)
def test_chosen_ids_are_ids(chosen: str) -> None:
    """So is what is computed of each of them: the row before its own."""
    shape = chosen.split("k = s32")[1].split(" ")[0]
    wide = f"[{shape[1:-1]},3]"
    dims = "{1}" if "," not in shape else "{2}"
    body = (
        "ENTRY e {\n  t = f32[9,3] parameter(0)\n  i = s32[6] parameter(1)\n"
        "  o = s32[] constant(1)\n  v = s32[6] broadcast(o), dimensions={}\n"
        f"  j = s32[6] subtract(i, v)\n  {chosen}\n"
        f"  ROOT y = f32{wide} gather(t, k), offset_dims={dims}, collapsed_slice_dims={{0}}, "
        f"start_index_map={{0}}, index_vector_dim={dims[1]}, slice_sizes={{1,3}}\n}}\n"
    )
    agree(inline.graph(text.parse("HloModule m\n\n" + body)), {1: (0, 9)})
