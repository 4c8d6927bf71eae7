"""Masks of positions on ranks are parts of the single device's mask, where their positions say."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from shardproof.frontends.hlo import known, origins
from shardproof.frontends.hlo.known import Known, fold
from shardproof.frontends.hlo.module import Type
from tests.frontends.hlo.verdicts import verified

ADD = "add {\n  u = f32[] parameter(0)\n  v = f32[] parameter(1)\n  ROOT w = f32[] add(u, v)\n}\n\n"
SINGLE = f"""HloModule m

{ADD}ENTRY main {{
  q = f32[4,2] parameter(0)
  k = f32[4,2] parameter(1)
  s = f32[4,4] dot(q, k), lhs_contracting_dims={{1}}, rhs_contracting_dims={{1}}
  i = s32[4,4] iota(), iota_dimension=0
  j = s32[4,4] iota(), iota_dimension=1
  m = pred[4,4] compare(i, j), direction=GE
  c = f32[] constant(-1e30)
  f = f32[4,4] broadcast(c), dimensions={{}}
  h = f32[4,4] select(m, s, f)
  e = f32[4,4] exponential(h)
  z = f32[] constant(0)
  ROOT y = f32[4] reduce(e, z), dimensions={{1}}, to_apply=add
}}
"""
#: Every rank has two rows; keys come from itself, then from the other one.
PARALLEL = f"""HloModule m, num_partitions=2

{ADD}ENTRY main {{
  q = f32[2,2] parameter(0)
  k = f32[2,2] parameter(1)
  o = f32[2,2] collective-permute(k), channel_id=1, source_target_pairs={{{{0,1}},{{1,0}}}}
  r = u32[] partition-id()
  me = s32[] convert(r)
  one = s32[] constant(1)
  other = s32[] subtract(one, me)
  two = s32[] constant(2)
  first = s32[] multiply(me, two)
  after = s32[] multiply(OTHER, two)
  n = s32[2] iota(), iota_dimension=0
  b = s32[2] broadcast(first), dimensions={{}}
  rows = s32[2] add(b, n)
  d = s32[2] broadcast(after), dimensions={{}}
  columns = s32[2] add(d, n)
  i = s32[2,2] broadcast(rows), dimensions={{0}}
  j = s32[2,2] broadcast(rows), dimensions={{1}}
  l = s32[2,2] broadcast(columns), dimensions={{1}}
  own = pred[2,2] compare(i, j), direction=GE
  far = pred[2,2] compare(i, l), direction=GE
  c = f32[] constant(-1e30)
  f = f32[2,2] broadcast(c), dimensions={{}}
  s = f32[2,2] dot(q, k), lhs_contracting_dims={{1}}, rhs_contracting_dims={{1}}
  t = f32[2,2] dot(q, o), lhs_contracting_dims={{1}}, rhs_contracting_dims={{1}}
  g = f32[2,2] select(own, s, f)
  h = f32[2,2] select(far, t, f)
  e = f32[2,2] exponential(g)
  x = f32[2,2] exponential(h)
  z = f32[] constant(0)
  u = f32[2] reduce(e, z), dimensions={{1}}, to_apply=add
  v = f32[2] reduce(x, z), dimensions={{1}}, to_apply=add
  ROOT y = f32[2] add(u, v)
}}
"""


@pytest.mark.parametrize(
    ("other", "expected"), [("other", "proved"), ("me", "refuted")], ids=["right", "own twice"]
)
def test_blocks_of_keys_that_are_visible_altogether_or_not_at_all(
    other: str, expected: str, tmp_path: Path
) -> None:
    """Rank 1 sees all keys of rank 0, which sees none of its."""
    verified(SINGLE, PARALLEL.replace("OTHER", other), tmp_path, expected)


def test_where_a_mask_begins() -> None:
    """Rows 4 to 7 beside columns 0 to 3 less a number that all ranks have."""
    four = Type((4,), "int32")
    columns = known.iota(four, 0)
    rows = fold("add", {}, [columns, known.constant(np.full(4, 4), four)], four)
    assert rows is not None
    square = Type((4, 4), "int32")
    down = fold("broadcast", {"dimensions": (0,)}, [rows], square)
    across = fold("broadcast", {"dimensions": (1,)}, [columns], square)
    assert down is not None
    assert across is not None
    apart = fold("subtract", {}, [down, across], square)
    assert apart is not None
    assert apart.begins == ((4, 0),)
    turned = fold("transpose", {"dimensions": (1, 0)}, [apart], square)
    assert turned is not None
    assert turned.begins == ((0, 4),)
    meeting = fold("add", {}, [apart, turned], square)
    assert meeting is not None
    assert meeting.begins == ()


def test_one_number_says_nothing_of_where_positions_begin() -> None:
    """Whether it is round 2 of a pipeline, as one of its rounds: zeros that it chooses were said to
    begin at the positions of a number, which has none, and the program ended in an exception."""
    line, one, flag = Type((1,), "int32"), Type((), "int32"), Type((), "bool")
    matrix, wide = Type((2, 3), "float32"), Type((1, 2, 3), "float32")
    round_ = fold("reshape", {}, [known.iota(line, 0)], one)
    assert round_ is not None
    assert round_.begins == ()
    first = fold("compare", {"direction": "EQ"}, [round_, known.ranks([0, 1], one)], flag)
    assert first is not None
    zeros = known.constant(np.zeros((2, 3), "float32"), matrix)
    chosen = fold("select", {}, [first, zeros, zeros], matrix)
    assert chosen is not None
    again = fold("broadcast", {"dimensions": (1, 2)}, [chosen], wide)
    assert again is not None
    assert again.begins == ()


def test_parts_of_tables_have_their_numbers() -> None:
    triangle = np.tril(np.ones((4, 4)))
    ones, zeros = np.ones((2, 2)), np.zeros((2, 2))
    mask = Known((zeros, ones), "float32", ((0, 2), (2, 0)))
    parts = origins.parts(mask, [triangle])
    assert parts is not None
    assert [block.begins for block in parts.blocks] == [((0, 2), (2, 0))]
    assert origins.parts(Known((ones, zeros), "float32", ((0, 2), (2, 0))), [triangle]) is None
    assert origins.parts(Known((zeros, ones), "float32"), [triangle]) is None
    assert origins.parts(Known((zeros, ones), "float32", ((0, 3), (2, 0))), [triangle]) is None


def blocked(rows: int, sharded: str, number: int) -> str:
    """A block of keys that is hidden from the first queries, and a causal mask of all keys."""
    ranks = ", num_partitions=2" if sharded else ""
    return f"""HloModule m{ranks}

ENTRY main {{
  x = f32[{rows},4,2] parameter(0){sharded}
  y = f32[{rows},4,4] parameter(1){sharded}
  i = s32[4,2] iota(), iota_dimension=0
  j = s32[4,2] iota(), iota_dimension=1
  n = s32[] constant({number})
  b = s32[4,2] broadcast(n), dimensions={{}}
  k = s32[4,2] add(j, b)
  m = pred[4,2] compare(i, k), direction=GE
  u = s32[4,4] iota(), iota_dimension=0
  v = s32[4,4] iota(), iota_dimension=1
  o = pred[4,4] compare(u, v), direction=GE
  z = f32[] constant(0)
  p = pred[{rows},4,2] broadcast(m), dimensions={{1,2}}
  q = pred[{rows},4,4] broadcast(o), dimensions={{1,2}}
  g = f32[{rows},4,2] broadcast(z), dimensions={{}}
  h = f32[{rows},4,4] broadcast(z), dimensions={{}}
  a = f32[{rows},4,2] select(p, x, g)
  c = f32[{rows},4,4] select(q, y, h)
  d = f32[{rows},4,2] exponential(a)
  e = f32[{rows},4,4] exponential(c)
  ROOT r = (f32[{rows},4,2], f32[{rows},4,4]) tuple(d, e)
}}
"""


@pytest.mark.parametrize(("number", "expected"), [(2, "proved"), (1, "refuted")])
def test_a_block_that_both_sides_have_beside_a_mask_that_holds_it(
    number: int, expected: str, tmp_path: Path
) -> None:
    parallel = blocked(1, ", sharding={devices=[2,1,1]<=[2]}", number)
    verified(blocked(2, "", 2), parallel, tmp_path, expected)
