"""The largest scores of a vocabulary that ranks divide, of each rank's largest, and where they
are."""

from __future__ import annotations

from pathlib import Path

import pytest

from shardproof.frontends.hlo import read
from tests.frontends.hlo.test_lower import agree
from tests.frontends.hlo.verdicts import verified

#: The larger of two scores and where it is; of equal ones the first.
BEST = """best {
  a = f32[] parameter(0)
  c = s32[] parameter(1)
  b = f32[] parameter(2)
  d = s32[] parameter(3)
  g = pred[] compare(a, b), direction=GT
  e = pred[] compare(a, b), direction=EQ
  l = pred[] compare(c, d), direction=LT
  m = pred[] and(e, l)
  o = pred[] or(g, m)
  v = f32[] select(g, a, b)
  w = s32[] select(o, c, d)
  ROOT r = (f32[], s32[]) tuple(v, w)
}
"""
LEAST = "  low = f32[] constant(-inf)\n  zero = s32[] constant(0)\n"
SINGLE = f"""HloModule m

{BEST}
ENTRY main {{
  z = f32[4,8] parameter(0)
{LEAST}  i = s32[4,8] iota(), iota_dimension=1
  r = (f32[4], s32[4]) reduce(z, i, low, zero), dimensions={{1}}, to_apply=best
  ROOT y = s32[4] get-tuple-element(r), index=1
}}
"""
GATHER = "replica_groups={{0,1,2,3}}, use_global_device_ids=true, dimensions={1}"
#: Each rank's largest score and its place among all, as XLA's partitioner gathers them.
OWN = f"""HloModule m, num_partitions=4

{BEST}
ENTRY main {{
  z = f32[4,2] parameter(0), sharding={{devices=[1,4]<=[4]}}
  x = f32[4,2] multiply(z, FACTOR)
{LEAST}  j = s32[4,2] iota(), iota_dimension=1
  two = s32[] constant(SIZE)
  p = u32[] partition-id()
  q = s32[] convert(p)
  s = s32[] multiply(q, two)
  sb = s32[4,2] broadcast(s), dimensions={{}}
  i = s32[4,2] add(j, sb)
  r = (f32[4], s32[4]) reduce(x, i, low, zero), dimensions={{1}}, to_apply=best
  v = f32[4] get-tuple-element(r), index=0
  w = s32[4] get-tuple-element(r), index=1
  vr = f32[4,1] reshape(v)
  wr = s32[4,1] reshape(w)
  vs = f32[4,4] all-gather(vr), channel_id=1, {GATHER}
  ws = s32[4,4] all-gather(wr), channel_id=2, {GATHER}
"""
CHOSEN = """  t = (f32[4], s32[4]) reduce(vs, ws, low, zero), dimensions={1}, to_apply=best
  ROOT y = s32[4] get-tuple-element(t), index=1
}
"""
#: The rank whose score is the largest, and the place that it gave.
LOOKED_UP = """  k = s32[4,4] iota(), iota_dimension=1
  t = (f32[4], s32[4]) reduce(vs, k, low, zero), dimensions={1}, to_apply=best
  n = s32[4] get-tuple-element(t), index=1
  nr = s32[4,1] reshape(n)
  ROOT y = s32[4] gather(ws, nr), offset_dims={}, collapsed_slice_dims={1}, start_index_map={1}, \
operand_batching_dims={0}, start_indices_batching_dims={0}, index_vector_dim=1, slice_sizes={1,1}
}
"""


def ranks(rest: str, factor: str = "one", size: int = 2) -> str:
    """What a rank runs; ``factor``: what its scores are multiplied by."""
    one = "  c1 = f32[] constant(1)\n  one = f32[4,2] broadcast(c1), dimensions={}\n"
    text = OWN.replace("FACTOR", factor).replace("SIZE", str(size))
    return text.replace("  x = ", one + "  x = ") + rest


@pytest.mark.parametrize(
    ("rest", "factor", "size", "expected"),
    [
        (CHOSEN, "one", 2, "proved"),
        (CHOSEN, "z", 2, "refuted"),
        (LOOKED_UP, "one", 2, "proved"),
        (LOOKED_UP, "one", 0, "refuted"),
    ],
    ids=["chosen", "of squares", "looked up", "places on the rank"],
)
def test_where_the_largest_score_of_all_is(
    rest: str, factor: str, size: int, expected: str, tmp_path: Path
) -> None:
    verified(SINGLE, ranks(rest, factor, size), tmp_path, expected)


@pytest.mark.parametrize("rest", [CHOSEN, LOOKED_UP], ids=["chosen", "looked up"])
def test_places_are_those_that_the_ranks_compute(rest: str) -> None:
    agree(read.parsed(ranks(rest)))


@pytest.mark.parametrize("size", [0, 1, 3])
def test_other_places_are_none_of_all(size: int) -> None:
    """Of two scores on each rank, rank 1 begins at place 2."""
    with pytest.raises(AssertionError):
        agree(read.parsed(ranks(CHOSEN, size=size)))


MOST = """HloModule m

ENTRY main {
  z = f32[4,8] parameter(0)
  t = (f32[4,2], s32[4,2]) topk(z), k=2, largest=true
  ROOT y = f32[4,2] get-tuple-element(t), index=0
}
"""
MOST_OF_RANKS = f"""HloModule m, num_partitions=4

ENTRY main {{
  z = f32[4,2] parameter(0), sharding={{devices=[1,4]<=[4]}}
  t = (f32[4,COUNT], s32[4,COUNT]) topk(z), k=COUNT, largest=true
  v = f32[4,COUNT] get-tuple-element(t), index=0
  vs = f32[4,ALL] all-gather(v), channel_id=1, {GATHER}
  u = (f32[4,2], s32[4,2]) topk(vs), k=2, largest=true
  ROOT y = f32[4,2] get-tuple-element(u), index=0
}}
"""


@pytest.mark.parametrize(("count", "expected"), [(2, "proved"), (1, "refuted")])
def test_the_largest_of_the_largest(count: int, expected: str, tmp_path: Path) -> None:
    ranks = MOST_OF_RANKS.replace("COUNT", str(count)).replace("ALL", str(4 * count))
    verified(MOST, ranks, tmp_path, expected)
