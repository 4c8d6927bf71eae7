"""Attention over blocks of keys that are merged by the logarithms of their sums: each block is
divided by its own sum first."""

from __future__ import annotations

from pathlib import Path

import pytest

from shardproof.frontends.hlo import inline, text
from tests.frontends.hlo.test_lower import ADD, agree
from tests.frontends.hlo.verdicts import verified

MOST = (
    "most {\n  a = f32[] parameter(0)\n  b = f32[] parameter(1)\n"
    "  ROOT c = f32[] maximum(a, b)\n}\n"
)
LEAST = "  low = f32[] constant(-inf)\n  zero = f32[] constant(0)\n"
#: Attention over ``KEYS`` keys of scores ``z`` and values ``v``; ``l`` is the logarithm of its sum.
BLOCK = """  m = f32[3] reduce(z, low), dimensions={1}, to_apply=most
  mb = f32[3,KEYS] broadcast(m), dimensions={0}
  d = f32[3,KEYS] subtract(z, mb)
  e = f32[3,KEYS] exponential(d)
  s = f32[3] reduce(e, zero), dimensions={1}, to_apply=add
  g = f32[3] log(s)
  l = f32[3] add(m, g)
  sb = f32[3,KEYS] broadcast(s), dimensions={0}
  p = f32[3,KEYS] divide(e, sb)
  o = f32[3,5] dot(p, v), lhs_contracting_dims={1}, rhs_contracting_dims={0}
"""
SINGLE = (
    "HloModule m\n"
    + ADD
    + MOST
    + "ENTRY main {\n  z = f32[3,8] parameter(0)\n  v = f32[8,5] parameter(1)\n"
    + LEAST
    + BLOCK.replace("KEYS", "8").replace("  o = ", "  ROOT o = ")
    + "}\n"
)
OVER = "replica_groups={{0,1,2,3}}, use_global_device_ids=true"
#: Weights by the largest logarithm, as flash decoding has them.
BY_LARGEST = f"""  t = f32[3] all-reduce(l), channel_id=1, {OVER}, to_apply=most
  c = f32[3] subtract(l, t)
  w = f32[3] exponential(c)
  wb = f32[3,5] broadcast(w), dimensions={{0}}
  x = f32[3,5] multiply(wb, o)
  n = f32[3,5] all-reduce(x), channel_id=2, {OVER}, to_apply=add
  k = f32[3] all-reduce(OF), channel_id=3, {OVER}, to_apply=add
  kb = f32[3,5] broadcast(k), dimensions={{0}}
  ROOT y = f32[3,5] divide(n, kb)
"""
#: Their softmax, of what all ranks gave.
BY_SOFTMAX = f"""  lr = f32[1,3] reshape(l)
  a = f32[4,3] all-gather(lr), channel_id=1, {OVER}, dimensions={{0}}
  t = f32[3] reduce(a, low), dimensions={{0}}, to_apply=most
  tb = f32[4,3] broadcast(t), dimensions={{1}}
  c = f32[4,3] subtract(a, tb)
  w = f32[4,3] exponential(c)
  u = f32[3] reduce(w, zero), dimensions={{0}}, to_apply=add
  ub = f32[4,3] broadcast(u), dimensions={{1}}
  q = f32[4,3] divide(w, ub)
  r = f32[1,3,5] reshape(o)
  b = f32[4,3,5] all-gather(r), channel_id=2, {OVER}, dimensions={{0}}
  qb = f32[4,3,5] broadcast(OF), dimensions={{0,1}}
  x = f32[4,3,5] multiply(qb, b)
  ROOT y = f32[3,5] reduce(x, zero), dimensions={{0}}, to_apply=add
"""


#: ``jnp.logaddexp`` of a rank's own logarithm and that of the other one.
BY_LOGADDEXP = """  h = f32[3] collective-permute(l), channel_id=1, source_target_pairs={{0,1},{1,0}}
  x = f32[3,5] collective-permute(o), channel_id=2, source_target_pairs={{0,1},{1,0}}
  t = f32[3] maximum(l, h)
  c = f32[3] subtract(l, h)
  k = f32[3] abs(c)
  n = f32[3] negate(k)
  w = f32[3] exponential(n)
  q = f32[3] log-plus-one(w)
  u = f32[3] add(t, q)
  i = f32[3] subtract(l, OF)
  ie = f32[3] exponential(i)
  ib = f32[3,5] broadcast(ie), dimensions={0}
  j = f32[3] subtract(h, OF)
  je = f32[3] exponential(j)
  jb = f32[3,5] broadcast(je), dimensions={0}
  a = f32[3,5] multiply(o, ib)
  b = f32[3,5] multiply(x, jb)
  ROOT y = f32[3,5] add(a, b)
"""


def ranks(merged: str, count: int = 4) -> str:
    """What four (or so many) ranks run, each of which has some of eight keys."""
    keys = str(8 // count)
    return (
        f"HloModule m, num_partitions={count}\n"
        + ADD
        + MOST
        + f"ENTRY main {{\n  z = f32[3,{keys}] parameter(0), "
        + f"sharding={{devices=[1,{count}]<=[{count}]}}\n"
        + f"  v = f32[{keys},5] parameter(1), sharding={{devices=[{count},1]<=[{count}]}}\n"
        + LEAST
        + BLOCK.replace("KEYS", keys)
        + merged
        + "}\n"
    )


@pytest.mark.parametrize(
    ("merged", "of", "expected"),
    [
        (BY_LARGEST, "w", "proved"),
        (BY_LARGEST, "s", "refuted"),
        (BY_SOFTMAX, "q", "proved"),
        (BY_SOFTMAX, "w", "refuted"),
    ],
    ids=["the largest", "the largest, by their sums", "softmax", "not divided"],
)
def test_blocks_are_weighed_by_logarithms(
    merged: str, of: str, expected: str, tmp_path: Path
) -> None:
    verified(SINGLE, ranks(merged.replace("OF", of)), tmp_path, expected)


@pytest.mark.parametrize(
    ("of", "expected"), [("u", "proved"), ("t", "refuted")], ids=["logaddexp", "the largest"]
)
def test_two_blocks_are_merged_by_logaddexp(of: str, expected: str, tmp_path: Path) -> None:
    verified(SINGLE, ranks(BY_LOGADDEXP.replace("OF", of), 2), tmp_path, expected)


@pytest.mark.parametrize("of", ["u", "t"])
def test_logaddexp_is_what_it_computes(of: str) -> None:
    agree(inline.graph(text.parse(ranks(BY_LOGADDEXP.replace("OF", of), 2))))
