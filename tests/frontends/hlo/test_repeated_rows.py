"""Rows of a divided table where several ids choose one row, or ranks choose in other ways."""

from __future__ import annotations

from pathlib import Path

import pytest

from shardproof.frontends.builder import piecewise
from shardproof.frontends.hlo.repeats import Part, parts
from tests.frontends.hlo.verdicts import verified

HOW = (
    "offset_dims={1}, collapsed_slice_dims={0}, start_index_map={0}, index_vector_dim=1, "
    "slice_sizes={1,3}"
)
ADD = "add {\n  a = f32[] parameter(0)\n  b = f32[] parameter(1)\n  ROOT c = f32[] add(a, b)\n}\n"
WRITTEN = (
    "update_window_dims={1}, inserted_window_dims={0}, scatter_dims_to_operand_dims={0}, "
    "index_vector_dim=1, to_apply=add"
)
SINGLE = f"""HloModule m

{ADD}
ENTRY main {{
  t = f32[8,3] parameter(0)
  i = s32[5] parameter(1)
  x = f32[5,3] parameter(2)
  g = f32[5,3] gather(t, i), {HOW}
  ROOT r = f32[5,3] add(g, x)
}}
"""
#: Where HOW is LE, id 4 counts on both ranks: as the last row of the one, the first of the other.
PARALLEL = f"""HloModule m, num_partitions=2

{ADD}
ENTRY main {{
  t = f32[4,3] parameter(0)
  i = s32[5] parameter(1)
  x = f32[5,3] parameter(2)
  n = u32[] partition-id()
  s = s32[] convert(n)
  four = s32[] constant(4)
  first = s32[] multiply(s, four)
  f = s32[5] broadcast(first), dimensions={{}}
  l = s32[5] subtract(i, f)
  zero = s32[] constant(0)
  low = s32[5] broadcast(zero), dimensions={{}}
  behind = s32[5] broadcast(four), dimensions={{}}
  three = s32[] constant(3)
  last = s32[5] broadcast(three), dimensions={{}}
  c = s32[5] clamp(low, l, last)
  p = pred[5] compare(l, low), direction=GE
  q = pred[5] compare(l, behind), direction=HOW
  m = pred[5] and(p, q)
  w = pred[5,3] broadcast(m), dimensions={{0}}
  g = f32[5,3] gather(t, c), {HOW}
  z = f32[] constant(0)
  y = f32[5,3] broadcast(z), dimensions={{}}
  h = f32[5,3] select(w, g, y)
  o = f32[5,3] all-reduce(h), channel_id=1, replica_groups={{{{0,1}}}}, \
use_global_device_ids=true, to_apply=add
  ROOT r = f32[5,3] add(o, x)
}}
"""


#: What else is read by id 4 on the first rank is taken off again: its last row, or (wrong) on the
#: rank where it is the first.
LESS = """e = pred[5] compare(l, EDGE), direction=EQ
  d = pred[5,3] broadcast(e), dimensions={0}
  k = f32[5,3] select(d, g, y)
  v = f32[5,3] subtract(h, k)
  o = f32[5,3] all-reduce(v)"""


#: Ids 0 and 1 choose row LOW, all others row 2.
BOTH = f"""HloModule m, num_partitions=RANKS

{ADD}
ENTRY main {{
  t = f32[4,3] parameter(0)
  i = s32[ROWS] parameter(1)
  x = f32[ROWS,3] parameter(2)
  one = s32[] constant(LOW)
  low = s32[ROWS] broadcast(one), dimensions={{}}
  two = s32[] constant(2)
  high = s32[ROWS] broadcast(two), dimensions={{}}
  c = s32[ROWS] clamp(low, i, high)
  g = f32[ROWS,3] gather(t, c), {HOW}
  z = f32[] constant(0)
  e = f32[4,3] broadcast(z), dimensions={{}}
  d = f32[4,3] scatter(e, c, x), {WRITTEN}
  REST
  ROOT r = (f32[ROWS,3], f32[4,3]) tuple(g, s)
}}
"""
SUM = (
    "s = f32[4,3] all-reduce(d), channel_id=1, replica_groups={{0,1}}, "
    "use_global_device_ids=true, to_apply=add"
)


def both(ranks: int, low: int) -> str:
    rest = SUM if ranks > 1 else "s = f32[4,3] copy(d)"
    text = BOTH.replace("REST", rest).replace("RANKS", str(ranks)).replace("LOW", str(low))
    return text.replace("ROWS", str(6 // ranks))


@pytest.mark.parametrize(
    ("how", "expected"), [("LT", "proved"), ("LE", "refuted")], ids=["once", "twice"]
)
def test_a_row_that_two_ranks_read(how: str, expected: str, tmp_path: Path) -> None:
    verified(SINGLE, PARALLEL.replace("HOW", how), tmp_path, expected)


@pytest.mark.parametrize(
    ("edge", "expected"), [("behind", "proved"), ("low", "refuted")], ids=["last", "first"]
)
def test_a_row_that_one_rank_takes_off(edge: str, expected: str, tmp_path: Path) -> None:
    """Which rows are read depends on the rank: `check` states the claim at every one of them."""
    read = PARALLEL.replace("HOW", "LE").replace("o = f32[5,3] all-reduce(h)", LESS)
    verified(SINGLE, read.replace("EDGE", edge), tmp_path, expected)


@pytest.mark.parametrize(
    ("low", "expected"), [(1, "proved"), (0, "refuted")], ids=["the same", "another one"]
)
def test_a_row_of_several_ids(low: int, expected: str, tmp_path: Path) -> None:
    verified(both(1, 1), both(2, low), tmp_path, expected)


def test_parts_by_rank() -> None:
    ids = piecewise.identity(0, 24)
    own = [
        piecewise.combine("minimum", ids, piecewise.constant(ids, 11)),
        piecewise.combine("subtract", ids, piecewise.constant(ids, 12)),
    ]
    live = [
        piecewise.compare("LE", ids, piecewise.constant(ids, 14)),
        piecewise.compare("GE", ids, piecewise.constant(ids, 12)),
    ]
    assert parts(own, live, 12) == [
        Part((0, 12), 0, 12, False),
        Part((12, 24), 11, 3, True),
    ]
