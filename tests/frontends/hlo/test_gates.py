"""Rows of labels that do not count, which are read all the same and multiplied by zero."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.frontends.hlo.verdicts import verified

TOTAL = (
    "total {\n  a = f32[] parameter(0)\n  b = f32[] parameter(1)\n  ROOT c = f32[] add(a, b)\n}\n"
)
#: The scores of labels that count, added up, and where each one's gradient goes.
BODY = """ENTRY main {
  x = f32[ROWS,5] parameter(0)
  y = s32[ROWS] parameter(1)
  n = s32[] constant(0)
  l = s32[ROWS] broadcast(n), dimensions={}
  p = pred[ROWS] compare(y, l), direction=GE
  q = pred[ROWS] compare(y, l), direction=HOW
  s = s32[ROWS] select(p, y, l)
  i = s32[ROWS,1] reshape(s)
  g = f32[ROWS] gather(x, i), offset_dims={}, collapsed_slice_dims={1}, start_index_map={1}, \
operand_batching_dims={0}, start_indices_batching_dims={0}, index_vector_dim=1, slice_sizes={1,1}
  f = f32[ROWS] convert(q)
  o = f32[] constant(1)
  w = f32[ROWS] broadcast(o), dimensions={}
  h = f32[ROWS] add(g, w)
  m = f32[ROWS] multiply(h, f)
  z = f32[] constant(0)
  own = f32[] reduce(m, z), dimensions={0}, to_apply=total
  e = f32[ROWS,5] broadcast(z), dimensions={}
  c = f32[ROWS] convert(p)
  u = f32[ROWS] negate(c)
  d = f32[ROWS,5] scatter(e, i, u), update_window_dims={}, inserted_window_dims={1}, \
scatter_dims_to_operand_dims={1}, input_batching_dims={0}, scatter_indices_batching_dims={0}, \
index_vector_dim=1, to_apply=total
REST}
"""
ALONE = "  ROOT r = (f32[], f32[ROWS,5]) tuple(own, d)\n"
JOINED = "  sum = f32[] all-reduce(own), replica_groups={{0,1}}, to_apply=total\n" + ALONE.replace(
    "own", "sum"
)


def program(rows: int, how: str, rest: str, ranks: int) -> str:
    body = (TOTAL + BODY.replace("REST", rest)).replace("HOW", how).replace("ROWS", str(rows))
    return f"HloModule m, replica_count={ranks}, num_partitions=1\n\n{body}"


@pytest.mark.parametrize(
    ("how", "expected"), [("GE", "proved"), ("GT", "refuted")], ids=["the same", "0 left out"]
)
def test_labels_that_do_not_count(how: str, expected: str, tmp_path: Path) -> None:
    verified(program(8, "GE", ALONE, 1), program(4, how, JOINED, 2), tmp_path, expected)


#: Scores less nine tenths at the labels, of all classes and of a rank's.
ALL = """HloModule m, replica_count=1, num_partitions=1

ENTRY main {
  x = f32[4,8] parameter(0)
  y = s32[4] parameter(1)
  b = s32[4,8] broadcast(y), dimensions={0}
  k = s32[4,8] iota(), iota_dimension=1
  p = pred[4,8] compare(b, k), direction=EQ
  h = f32[4,8] convert(p)
  c = f32[] constant(0.9)
  d = f32[4,8] broadcast(c), dimensions={}
  m = f32[4,8] multiply(h, d)
  ROOT r = f32[4,8] subtract(x, m)
}
"""
OWN = """HloModule m, replica_count=2, num_partitions=1

ENTRY main {
  x = f32[4,4] parameter(0)
  y = s32[4] parameter(1)
  u = u32[] replica-id()
  i = s32[] convert(u)
  four = s32[] constant(4)
  w = s32[] multiply(i, four)
  v = s32[4] broadcast(w), dimensions={}
  o = s32[4] subtract(y, v)
  nil = s32[] constant(0)
  n = s32[4] broadcast(nil), dimensions={}
  last = s32[] constant(3)
  g = pred[4] compare(o, n), direction=GE
  e = s32[4] broadcast(BOUND), dimensions={}
  l = pred[4] compare(o, e), direction=LT
  a = pred[4] and(g, l)
  t = s32[4] clamp(nil, o, last)
  b = s32[4,4] broadcast(t), dimensions={0}
  k = s32[4,4] iota(), iota_dimension=1
  p = pred[4,4] compare(b, k), direction=EQ
  h = f32[4,4] convert(p)
  f = pred[4,4] broadcast(a), dimensions={0}
  z = f32[] constant(0)
  s = f32[4,4] broadcast(z), dimensions={}
  q = f32[4,4] select(f, h, s)
  c = f32[] constant(0.9)
  d = f32[4,4] broadcast(c), dimensions={}
  m = f32[4,4] multiply(q, d)
  j = f32[4,4] negate(m)
  ROOT r = f32[4,4] add(x, j)
}
"""


@pytest.mark.parametrize(("bound", "expected"), [("four", "proved"), ("last", "refuted")])
def test_clamped_labels_of_a_rank(bound: str, expected: str, tmp_path: Path) -> None:
    """Where a label is of another rank, the clamped one's place is hidden, and what is made of it
    by a number."""
    verified(ALL, OWN.replace("BOUND", bound), tmp_path, expected)
