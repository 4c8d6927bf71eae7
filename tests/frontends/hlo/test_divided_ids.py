"""Rows that remainders and quotients of integers choose, where the integers are read as numbers too:
the slot of a rolling cache, a hashed word, one row for two words."""

from __future__ import annotations

from pathlib import Path

import pytest

from shardproof.frontends.hlo import inline, text
from shardproof.frontends.hlo.lower import lower
from tests.frontends.hlo.test_lower import agree
from tests.frontends.hlo.verdicts import verified

LAST = "last {\n  u = f32[] parameter(0)\n  ROOT v = f32[] parameter(1)\n}\n\n"
BODY = """  t = f32[4,WIDTH] parameter(0)SHARDED
  p = s32[5] parameter(1)
  n = s32[] constant(4)
  ns = s32[5] broadcast(n), dimensions={}
  one = s32[] constant(3)
  ones = s32[5] broadcast(one), dimensions={}
  more = s32[5] add(p, ones)
  thrice = s32[5] multiply(p, ones)
  i0 = s32[] constant(1)
  is = s32[5] broadcast(i0), dimensions={}
  left = s32[5] shift-left(more, is)
  r = s32[5] HOW
  i = s32[5,1] reshape(r)
  g = f32[5,WIDTH] gather(t, i), offset_dims={1}, collapsed_slice_dims={0}, \
start_index_map={0}, index_vector_dim=1, slice_sizes={1,WIDTH}
  q = f32[5] convert(p)
  b = f32[5,WIDTH] broadcast(q), dimensions={0}
  y = f32[5,WIDTH] multiply(g, b)
"""
GATHERED = "all-gather(y), channel_id=1, replica_groups={{0,1}}, dimensions={1}, \
use_global_device_ids=true"
#: What chooses the rows, and what a wrong program has of it.
WAYS = {
    "a remainder": ("remainder(p, ns)", "remainder(more, ns)"),
    "a hash": ("remainder(thrice, ns)", "remainder(p, ns)"),
    "a quotient": ("divide(p, ns)", "divide(p, ones)"),
    "bits to the left": ("remainder(left, ns)", "remainder(p, ns)"),
}


def _single(how: str) -> str:
    body = BODY.replace("WIDTH", "6").replace("SHARDED", "").replace("HOW", how)
    return f"HloModule m\n\nENTRY main {{\n{body}  ROOT z = f32[5,6] copy(y)\n}}\n"


def _parallel(how: str) -> str:
    body = BODY.replace("WIDTH", "3").replace("HOW", how)
    body = body.replace("SHARDED", ", sharding={devices=[1,2]<=[2]}")
    head = "HloModule m, num_partitions=2\n\n"
    return f"{head}ENTRY main {{\n{body}  ROOT z = f32[5,6] {GATHERED}\n}}\n"


@pytest.mark.parametrize("way", WAYS)
def test_rows_by_what_a_division_leaves(way: str) -> None:
    graph = inline.graph(text.parse(_single(WAYS[way][0])))
    for seed in range(3):
        agree(graph, None, seed)


def test_rows_by_quotients_say_how_large_integers_are() -> None:
    """Four rows, of four integers each, from 3 less than nothing on."""
    graph = inline.graph(text.parse(_single("divide(p, ns)")))
    assert lower(graph)[2] == {1: (0, 16)}
    graph = inline.graph(text.parse(_single("divide(more, ns)")))
    assert lower(graph)[2] == {1: (0, 13)}


@pytest.mark.parametrize("wrong", [False, True], ids=["alike", "wrong"])
@pytest.mark.parametrize("way", WAYS)
def test_ranks_choose_rows_as_one_device(way: str, wrong: bool, tmp_path: Path) -> None:
    right = WAYS[way][0]
    expected = "refuted" if wrong else "proved"
    verified(_single(right), _parallel(WAYS[way][wrong]), tmp_path, expected)


#: A rolling cache: the newest key at ``position % 4``, all positions up to it count.
CACHE = """  c = f32[4,WIDTH] parameter(0)SHARDED
  p = s32[] parameter(1)
  k = f32[WIDTH] parameter(2)OWN
  n = s32[] constant(4)
  r = s32[] remainder(p, n)
  i = s32[1] reshape(r)
  w = f32[4,WIDTH] scatter(c, i, k), update_window_dims={0}, inserted_window_dims={0}, \
scatter_dims_to_operand_dims={0}, index_vector_dim=0, to_apply=last
  o = s32[4] iota(), iota_dimension=0
  ps = s32[4] broadcast(HOW), dimensions={}
  m = pred[4] compare(o, ps), direction=LE
  f = f32[4] convert(m)
  b = f32[4,WIDTH] broadcast(f), dimensions={0}
  y = f32[4,WIDTH] multiply(w, b)
"""


@pytest.mark.parametrize(("how", "expected"), [("p", "proved"), ("r", "refuted")])
def test_a_rolling_cache(how: str, expected: str, tmp_path: Path) -> None:
    one = CACHE.replace("WIDTH", "6").replace("SHARDED", "").replace("OWN", "")
    one = one.replace("HOW", "p")
    own = CACHE.replace("WIDTH", "3").replace("SHARDED", ", sharding={devices=[1,2]<=[2]}")
    own = own.replace("OWN", ", sharding={devices=[2]<=[2]}").replace("HOW", how)
    single = f"HloModule m\n\n{LAST}ENTRY main {{\n{one}  ROOT z = f32[4,6] copy(y)\n}}\n"
    head = f"HloModule m, num_partitions=2\n\n{LAST}"
    gathered = GATHERED.replace("f32[5,6]", "f32[4,6]")
    parallel = f"{head}ENTRY main {{\n{own}  ROOT z = f32[4,6] {gathered}\n}}\n"
    verified(single, parallel, tmp_path, expected)
