"""Integers of which a mask says which of two they are: words that are hidden, labels that are
dropped."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.frontends.hlo.verdicts import verified

ADD = "add {\n  a = f32[] parameter(0)\n  b = f32[] parameter(1)\n  ROOT c = f32[] add(a, b)\n}\n"
GATHER = (
    "offset_dims={1}, collapsed_slice_dims={0}, start_index_map={0}, index_vector_dim=1, "
    "slice_sizes={1,2}"
)
SCATTER = (
    "update_window_dims={1}, inserted_window_dims={0}, scatter_dims_to_operand_dims={0}, "
    "index_vector_dim=1, to_apply=add"
)
SUM = "channel_id=1, replica_groups={{0,1}}, use_global_device_ids=true, to_apply=add"
#: Rows of words, or of word HIDDEN where a number is not positive; what goes back to the table.
STEP = f"""ENTRY main {{
  e = f32[5,2] parameter(0)SHARED
  y = s32[ROWS] parameter(1)DIVIDED
  x = f32[ROWS] parameter(2)DIVIDED
  g = f32[ROWS,2] parameter(3)DIVIDED
  z = f32[] constant(0)
  a = f32[] constant(0)
  o = f32[ROWS] broadcast(a), dimensions={{}}
  m = pred[ROWS] compare(x, o), direction=GT
  n = s32[] constant(HIDDEN)
  w = s32[ROWS] broadcast(n), dimensions={{}}
  i = s32[ROWS] select(m, y, w)
  u = s32[] constant(0)
  v = s32[ROWS] broadcast(u), dimensions={{}}
  b = pred[ROWS] compare(i, v), direction=LT
  f = s32[] constant(5)
  h = s32[ROWS] broadcast(f), dimensions={{}}
  j = s32[ROWS] add(i, h)
  k = s32[ROWS] select(b, j, i)
  l = s32[ROWS,1] reshape(k)
  r = f32[ROWS,2] gather(e, l), {GATHER}
  p = f32[ROWS,2] multiply(r, r)
  c = f32[5,2] broadcast(z), dimensions={{}}
  d = f32[5,2] scatter(c, l, g), {SCATTER}
"""
SINGLE = f"""HloModule m

{ADD}
{STEP}  ROOT t = (f32[4,2], f32[5,2]) tuple(p, d)
}}
"""
PARALLEL = f"""HloModule m, num_partitions=2

{ADD}
{STEP}  s = f32[5,2] all-reduce(d), {SUM}
  ROOT t = (f32[2,2], f32[5,2]) tuple(p, s)
}}
"""


def written(text: str, rows: int, hidden: int) -> str:
    placed = rows < 4
    shared = ", sharding={replicated}" if placed else ""
    divided = ", sharding={devices=[2]<=[2]}" if placed else ""
    wide = ", sharding={devices=[2,1]<=[2]}" if placed else ""
    text = text.replace("parameter(3)DIVIDED", f"parameter(3){wide}").replace("SHARED", shared)
    text = text.replace("DIVIDED", divided).replace("ROWS", str(rows))
    return text.replace("HIDDEN", str(hidden))


@pytest.mark.parametrize(
    ("mask", "wrong"), [("f32", ""), ("f32", "what counts"), ("s32", "another word")]
)
def test_words_that_a_mask_hides(mask: str, wrong: str, tmp_path: Path) -> None:
    """A mask of numbers, or of integers; the other word is that of ranks alone."""
    texts = [written(SINGLE, 4, 4), written(PARALLEL, 2, 3 if wrong == "another word" else 4)]
    if wrong == "what counts":
        texts[1] = texts[1].replace("direction=GT", "direction=LE")
    if mask == "s32":
        texts = [re.sub(r"f32(?=(\[[24]\] |\[\] constant\(0\)\n  o))", "s32", t) for t in texts]
    verified(*texts, tmp_path, "refuted" if wrong else "proved")


#: Rows of words, or of word HIDDEN, and what goes back to the table.
WORDS = """ENTRY main {
  e = f32[ROWS,2] parameter(0)PLACED
  y = s32[4] parameter(1)
  x = f32[4] parameter(2)
  back = f32[4,2] parameter(3)
  z = f32[] constant(0)
  o = f32[4] broadcast(z), dimensions={}
  m = pred[4] compare(x, o), direction=GT
  n = s32[] constant(HIDDEN)
  w = s32[4] broadcast(n), dimensions={}
  i = s32[4] select(m, y, w)
"""
WHOLE = f"""HloModule m

{ADD}
{WORDS}  l = s32[4,1] reshape(i)
  r = f32[4,2] gather(e, l), {GATHER}
  c = f32[6,2] broadcast(z), dimensions={{}}
  d = f32[6,2] scatter(c, l, back), {SCATTER}
  ROOT t = (f32[4,2], f32[6,2]) tuple(r, d)
}}
"""
HALF = f"""HloModule m, num_partitions=2

{ADD}
{WORDS}  me = u32[] partition-id()
  rank = s32[] convert(me)
  three = s32[] constant(3)
  first = s32[] multiply(rank, three)
  firsts = s32[4] broadcast(first), dimensions={{}}
  own = s32[4] subtract(i, firsts)
  none = s32[] constant(0)
  low = s32[4] broadcast(none), dimensions={{}}
  high = s32[4] broadcast(three), dimensions={{}}
  p = pred[4] compare(own, low), direction=GE
  q = pred[4] compare(own, high), direction=LT
  in = pred[4] and(p, q)
  j = s32[4] select(in, own, low)
  l = s32[4,1] reshape(j)
  g = f32[4,2] gather(e, l), {GATHER}
  k = pred[4,2] broadcast(in), dimensions={{0}}
  b = f32[4,2] broadcast(z), dimensions={{}}
  v = f32[4,2] select(k, g, b)
  r = f32[4,2] all-reduce(v), {SUM}
  u = f32[4,2] select(k, back, b)
  c = f32[3,2] broadcast(z), dimensions={{}}
  d = f32[3,2] scatter(c, l, u), {SCATTER}
  ROOT t = (f32[4,2], f32[3,2]) tuple(r, d)
}}
"""


@pytest.mark.parametrize(("hidden", "expected"), [(4, "proved"), (5, "refuted")])
def test_words_that_a_mask_hides_in_a_divided_table(
    hidden: int, expected: str, tmp_path: Path
) -> None:
    """The row of the other word, which one rank has, was a sum over the one-hots of all words."""
    placed = ", sharding={devices=[2,1]<=[2]}"
    alone = WHOLE.replace("ROWS", "6").replace("PLACED", "").replace("HIDDEN", "4")
    ranks = HALF.replace("ROWS", "3").replace("PLACED", placed)
    verified(alone, ranks.replace("HIDDEN", str(hidden)), tmp_path, expected)
