"""What a rank with one row computes in another order, sums of many parts, classes in blocks."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.frontends.hlo.verdicts import verified

#: Rows over two ranks, one each, and sums of products over two: three parts are added up at once.
ROW_OF_TWO = """HloModule single

ENTRY main {
  a = f32[2,4] parameter(0)
  b = f32[2,4] parameter(1)
  c = f32[2,4] parameter(2)
  w = f32[4,3] parameter(3)
  z = f32[2,3] parameter(4)
  e = f32[2,4] exponential(b)
  t = f32[2,4] tanh(c)
  p = f32[2,3] dot(a, w), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  q = f32[2,3] dot(e, w), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  r = f32[2,3] dot(t, w), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  s = f32[2,3] add(p, q)
  u = f32[2,3] add(s, r)
  x = f32[2,3] exponential(u)
  ROOT y = f32[2,3] multiply(x, z)
}
"""
ONE_ROW = """HloModule parallel, num_partitions=4

add {
  p = f32[] parameter(0)
  q = f32[] parameter(1)
  ROOT r = f32[] add(p, q)
}

ENTRY main {
  a = f32[1,2] parameter(0), sharding={devices=[2,2]0,1,2,3}
  b = f32[1,2] parameter(1), sharding={devices=[2,2]0,1,2,3}
  c = f32[1,2] parameter(2), sharding={devices=[2,2]0,1,2,3}
  w = f32[2,3] parameter(3), sharding={devices=[2,1,2]0,2,1,3 last_tile_dim_replicate}
  z = f32[1,3] parameter(4), sharding={devices=[2,1,2]0,1,2,3 last_tile_dim_replicate}
  e = f32[1,2] exponential(b)
  t = f32[1,2] tanh(c)
  f = f32[2] reshape(a)
  g = f32[2] reshape(e)
  h = f32[2] reshape(t)
  i = f32[3] dot(f, w), lhs_contracting_dims={0}, rhs_contracting_dims={0}
  j = f32[3] dot(g, w), lhs_contracting_dims={0}, rhs_contracting_dims={0}
  k = f32[3] dot(h, w), lhs_contracting_dims={0}, rhs_contracting_dims={0}
  s = f32[3] add(i, j)
  l = f32[3] add(s, LAST)
  u = f32[3] all-reduce(l), channel_id=1, replica_groups={{0,1},{2,3}}, \
use_global_device_ids=true, to_apply=add
  v = f32[1,3] reshape(u)
  x = f32[1,3] exponential(v)
  ROOT y = f32[1,3] multiply(x, z)
}
"""
#: A product with rows that are made in five ways is a sum of five parts on every rank.
FIVE = """HloModule NAME

add {
  p = f32[] parameter(0)
  q = f32[] parameter(1)
  ROOT r = f32[] add(p, q)
}

ENTRY main {
  x = f32[5,ROWS] parameter(0)
  z = f32[5,ROWS,3] parameter(1)
  a = f32[1,ROWS] slice(x), slice={[0:1], [0:ROWS]}
  b = f32[1,ROWS] slice(x), slice={[1:2], [0:ROWS]}
  c = f32[1,ROWS] slice(x), slice={[2:3], [0:ROWS]}
  d = f32[1,ROWS] slice(x), slice={[3:4], [0:ROWS]}
  e = f32[1,ROWS] slice(x), slice={[4:5], [0:ROWS]}
  b1 = f32[1,ROWS] exponential(b)
  c1 = f32[1,ROWS] tanh(c)
  d1 = f32[1,ROWS] logistic(d)
  e1 = f32[1,ROWS] exponential(d1)
  y = f32[5,ROWS] concatenate(a, b1, c1, d1, e1), dimensions={0}
  v = f32[5,ROWS,1] reshape(y)
  g = f32[1,3] dot(v, z), lhs_contracting_dims={0,1}, rhs_contracting_dims={0,1}
  t = f32[3,1] transpose(g), dimensions={1,0}
  END
}
"""
SUMMED = "ROOT u = f32[3,1] all-reduce(t), channel_id=1, replica_groups={{0,1}}, \
use_global_device_ids=true, to_apply=add"
#: One-hots of own rows for all classes, exchanged for those of all rows for own classes.
CLASSES = """HloModule single

ENTRY main {
  i = s32[4] parameter(0)
  w = f32[6,3] parameter(1)
  n = s32[4,6] broadcast(i), dimensions={0}
  k = s32[4,6] iota(), iota_dimension=1
  p = pred[4,6] compare(n, k), direction=EQ
  h = f32[4,6] convert(p)
  ROOT y = f32[4,3] dot(h, w), lhs_contracting_dims={1}, rhs_contracting_dims={0}
}
"""
IN_BLOCKS = """HloModule parallel, num_partitions=2

add {
  p = f32[] parameter(0)
  q = f32[] parameter(1)
  ROOT r = f32[] add(p, q)
}

ENTRY main {
  i = s32[2] parameter(0), sharding={devices=[2]0,1}
  w = f32[3,3] parameter(1), sharding={devices=[2,1]0,1}
  n = s32[2,6] broadcast(i), dimensions={0}
  k = s32[2,6] iota(), iota_dimension=1
  p = pred[2,6] compare(n, k), direction=EQ
  h = f32[2,6] convert(p)
  b = f32[2,2,3] reshape(h)
  t = f32[2,2,3] transpose(b), dimensions={1,0,2}
  a = f32[2,2,3] EXCHANGED
  m = f32[4,3] reshape(a)
  g = f32[4,3] dot(m, w), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  ROOT y = f32[4,3] all-reduce(g), channel_id=2, replica_groups={{0,1}}, \
use_global_device_ids=true, to_apply=add
}
"""
EXCHANGE = "all-to-all(t), channel_id=1, replica_groups={{0,1}}, dimensions={0}"

#: Positions as floats: what they are multiplied by are no whole numbers.
PLACES = """HloModule single

ENTRY main {
  x = f32[8,3] parameter(0)
  i = f32[8] iota(), iota_dimension=0
  f = f32[3] constant({0.5, 0.25, 0.1})
  r = f32[8,3] broadcast(i), dimensions={0}
  c = f32[8,3] broadcast(f), dimensions={1}
  m = f32[8,3] multiply(r, c)
  s = f32[8,3] cosine(m)
  ROOT y = f32[8,3] multiply(x, s)
}
"""
OWN_PLACES = """HloModule parallel, num_partitions=2

ENTRY main {
  x = f32[4,3] parameter(0), sharding={devices=[2,1]0,1}
  p = u32[] partition-id()
  n = s32[] convert(p)
  k = s32[] constant(STEP)
  b = s32[] multiply(n, k)
  g = f32[] convert(b)
  h = f32[4] broadcast(g), dimensions={}
  j = f32[4] iota(), iota_dimension=0
  i = f32[4] add(h, j)
  f = f32[3] constant({0.5, 0.25, 0.1})
  r = f32[4,3] broadcast(i), dimensions={0}
  c = f32[4,3] broadcast(f), dimensions={1}
  m = f32[4,3] multiply(r, c)
  s = f32[4,3] cosine(m)
  ROOT y = f32[4,3] multiply(x, s)
}
"""


def five(name: str, rows: int, end: str) -> str:
    return FIVE.replace("NAME", name).replace("ROWS", str(rows)).replace("END", end)


ALONE = five("single", 4, "ROOT u = f32[3,1] copy(t)")


@pytest.mark.parametrize(
    ("single", "parallel", "expected"),
    [
        (ROW_OF_TWO, ONE_ROW.replace("LAST", "k"), "proved"),
        (ROW_OF_TWO, ONE_ROW.replace("LAST", "j"), "refuted"),
        (ALONE, five("parallel, num_partitions=2", 2, SUMMED), "proved"),
        (ALONE, five("parallel, num_partitions=2", 2, "ROOT u = f32[3,1] copy(t)"), "refuted"),
        (CLASSES, IN_BLOCKS.replace("EXCHANGED", EXCHANGE), "proved"),
        (CLASSES, IN_BLOCKS.replace("EXCHANGED", "copy(t)"), "refuted"),
        (PLACES, OWN_PLACES.replace("STEP", "4"), "proved"),
        (PLACES, OWN_PLACES.replace("STEP", "3"), "refuted"),
    ],
    ids=[
        "one row, three parts",
        "one row, a part twice",
        "five parts",
        "five parts, no sum",
        "classes exchanged",
        "classes kept",
        "positions as floats",
        "positions three apart",
    ],
)
def test_other_routes(single: str, parallel: str, expected: str, tmp_path: Path) -> None:
    verified(single, parallel, tmp_path, expected)


def stacked(ranks: int, last: str) -> str:
    """Twenty layers' values side by side, of which a sum of squares is taken entry by entry."""
    rows, count = 8 // ranks, 20
    names = [f"y{i}" for i in range(count)]
    lines = [f"HloModule m, replica_count={ranks}, num_partitions=1\n\nENTRY main {{"]
    lines += [f"  x{i} = f32[1,{rows}] parameter({i})" for i in range(count)]
    for i, name in enumerate(names):
        lines.append(f"  {name} = f32[1,{rows}] {'tanh' if i % 2 else 'exponential'}(x{i})")
    whole = f"f32[{count},{rows}]"
    lines.append(f"  c = {whole} concatenate({', '.join(names)}), dimensions={{0}}")
    lines.append(f"  ROOT r = {whole} {last}(c, c)\n}}\n")
    return "\n".join(lines)


@pytest.mark.parametrize(("last", "expected"), [("multiply", "proved"), ("add", "refuted")])
def test_squares_of_many_layers_side_by_side(last: str, expected: str, tmp_path: Path) -> None:
    """400 choices of two of them, of which 20 meet."""
    verified(stacked(1, "multiply"), stacked(2, last), tmp_path, expected)


#: Entries of two inputs in turn: between zeros, and added up.
IN_TURN = """HloModule m
ENTRY main {
  a = f32[4,3] parameter(0)
  b = f32[4,3] parameter(1)
  z = f32[] constant(0)
  even = f32[4,6] pad(a, z), padding=0_0x0_1_1
  odd = f32[4,6] pad(b, z), padding=0_0x1_0_1
  ROOT y = f32[4,6] add(even, odd)
}
"""
PAIRS = """HloModule m, num_partitions=2
ENTRY main {
  a = f32[2,3] parameter(0)
  b = f32[2,3] parameter(1)
  a0 = f32[2,3,1] reshape(a)
  b0 = f32[2,3,1] reshape(b)
  c = f32[2,3,2] concatenate(FIRST), dimensions={2}
  ROOT y = f32[2,6] reshape(c)
}
"""


@pytest.mark.parametrize(
    ("first", "expected"), [("a0, b0", "proved"), ("b0, a0", "refuted")], ids=["in turn", "turned"]
)
def test_what_lies_between_zeros(first: str, expected: str, tmp_path: Path) -> None:
    """As the parts of an associative scan are put together."""
    verified(IN_TURN, PAIRS.replace("FIRST", first), tmp_path, expected)
