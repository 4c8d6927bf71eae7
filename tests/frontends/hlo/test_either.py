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
