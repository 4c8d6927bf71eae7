"""Constants that have the numbers of boxes of several tables: of a contrastive loss a rank's rows of
the positive pairs are other rows of the mask of each one itself."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.frontends.hlo.verdicts import verified

ADD = "add {\n  u = f32[] parameter(0)\n  v = f32[] parameter(1)\n  ROOT w = f32[] add(u, v)\n}\n\n"


def losses(name: str, rows: int, scores: str, first: str, pair: str) -> str:
    """Scores of rows from ``first`` on, those with themselves hidden, and the sum of those of the
    pairs, from ``pair`` on, squared."""
    n, x = rows, name
    return f"""
  i{x} = s32[{n}] iota(), iota_dimension=0
  f{x} = s32[{n}] broadcast({first}), dimensions={{}}
  r{x} = s32[{n}] add(i{x}, f{x})
  rr{x} = s32[{n},8] broadcast(r{x}), dimensions={{0}}
  j{x} = s32[{n},8] iota(), iota_dimension=1
  m{x} = pred[{n},8] compare(rr{x}, j{x}), direction=EQ
  c{x} = f32[] constant(-1e9)
  b{x} = f32[{n},8] broadcast(c{x}), dimensions={{}}
  h{x} = f32[{n},8] select(m{x}, b{x}, {scores})
  g{x} = s32[{n}] broadcast({pair}), dimensions={{}}
  a{x} = s32[{n}] add(i{x}, g{x})
  e{x} = s32[{n}] broadcast(eight), dimensions={{}}
  p{x} = s32[{n}] remainder(a{x}, e{x})
  q{x} = s32[{n},1] reshape(p{x})
  t{x} = f32[{n}] gather(h{x}, q{x}), offset_dims={{}}, collapsed_slice_dims={{1}}, start_index_map={{1}}, operand_batching_dims={{0}}, start_indices_batching_dims={{0}}, index_vector_dim=1, slice_sizes={{1,1}}
  k{x} = f32[{n}] multiply(t{x}, t{x})
  l{x} = f32[] reduce(k{x}, z), dimensions={{0}}, to_apply=add
"""


HEAD = """  s = f32[8,8] parameter(0)
  z = f32[] constant(0)
  zero = s32[] constant(0)
  four = s32[] constant(4)
  eight = s32[] constant(8)
"""
SINGLE = f"""HloModule m

{ADD}ENTRY main {{
{HEAD}{losses("0", 8, "s", "zero", "four")}
  ROOT y = f32[] copy(l0)
}}
"""


def parallel(pair: str) -> str:
    """Every rank has two rows of either half."""
    return f"""HloModule m, num_partitions=2

{ADD}ENTRY main {{
{HEAD}
  d = u32[] partition-id()
  me = s32[] convert(d)
  two = s32[] constant(2)
  first = s32[] multiply(me, two)
  second = s32[] add(first, four)
  sa = f32[2,8] dynamic-slice(s, first, zero), dynamic_slice_sizes={{2,8}}
  sb = f32[2,8] dynamic-slice(s, second, zero), dynamic_slice_sizes={{2,8}}
{losses("1", 2, "sa", "first", "second")}{losses("2", 2, "sb", "second", pair)}
  own = f32[] add(l1, l2)
  ROOT y = f32[] all-reduce(own), channel_id=1, replica_groups={{{{0,1}}}}, use_global_device_ids=true, to_apply=add
}}
"""


@pytest.mark.parametrize(
    ("pair", "expected"), [("first", "proved"), ("zero", "refuted")], ids=["right", "of rank 0"]
)
def test_pairs_of_a_contrastive_loss(pair: str, expected: str, tmp_path: Path) -> None:
    verified(SINGLE, parallel(pair), tmp_path, expected)


#: Two factors of each column; ranks compute the second one of the first.
QUANTILES = """HloModule m, num_partitions=RANKS

ENTRY main {
  x = f32[ROWS,3] parameter(0)SHARDED
  q = f32[3] constant({0.1, 0.5, 0.9})
  c = f32[] constant(NUMBER)
  cb = f32[3] broadcast(c), dimensions={}
  p = f32[3] subtract(q, cb)
  r = f32[3] SECOND
  qb = f32[ROWS,3] broadcast(q), dimensions={1}
  rb = f32[ROWS,3] broadcast(r), dimensions={1}
  a = f32[ROWS,3] multiply(qb, x)
  b = f32[ROWS,3] multiply(rb, x)
  ROOT y = f32[ROWS,3] maximum(a, b)
}
"""


def _quantiles(ranks: int, number: str, second: str) -> str:
    sharded = f", sharding={{devices=[{ranks},1]<=[{ranks}]}}" if ranks > 1 else ""
    text = QUANTILES.replace("RANKS", str(ranks)).replace("ROWS", str(4 // ranks))
    return text.replace("SHARDED", sharded).replace("NUMBER", number).replace("SECOND", second)


@pytest.mark.parametrize(("number", "expected"), [("1", "proved"), ("0.75", "refuted")])
def test_a_table_that_ranks_compute_of_another_one(
    number: str, expected: str, tmp_path: Path
) -> None:
    """JAX computes ``q - 1`` of a constant by itself, but for what is in ``shard_map``."""
    single = _quantiles(1, "1", "constant({-0.9, -0.5, -0.100000024})")
    verified(single, _quantiles(2, number, "copy(p)"), tmp_path, expected)
