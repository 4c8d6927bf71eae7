"""The word behind a rank's last one comes from the next rank, and is an id still; which positions
have none is a mark that differs by rank.  Ids that ranks exchange are ids, too."""

from __future__ import annotations

from pathlib import Path

import pytest

from shardproof.frontends.hlo import inline, text
from tests.frontends.hlo.test_lower import ADD, agree
from tests.frontends.hlo.verdicts import verified

ROWS = (
    "offset_dims={1}, collapsed_slice_dims={0}, start_index_map={0}, index_vector_dim=1, "
    "slice_sizes={1,3}"
)
SINGLE = f"""HloModule m

{ADD}
ENTRY main {{
  t = f32[9,3] parameter(0)
  x = f32[8,3] parameter(1)
  i = s32[8] parameter(2)
  next = s32[7] slice(i), slice={{[1:8]}}
  g = f32[7,3] gather(t, next), {ROWS}
  own = f32[7,3] slice(x), slice={{[0:7], [0:3]}}
  p = f32[7,3] multiply(own, g)
  zero = f32[] constant(0)
  ROOT y = f32[3] reduce(p, zero), dimensions={{0}}, to_apply=add
}}
"""
PARALLEL = f"""HloModule m, num_partitions=2

{ADD}
ENTRY main {{
  t = f32[9,3] parameter(0), sharding={{replicated}}
  x = f32[4,3] parameter(1), sharding={{devices=[2,1]<=[2]}}
  i = s32[4] parameter(2), sharding={{devices=[2]<=[2]}}
  head = s32[1] slice(i), slice={{[0:1]}}
  came = s32[1] collective-permute(head), channel_id=1, source_target_pairs=PAIRS
  tail = s32[3] slice(i), slice={{[1:4]}}
  next = s32[4] concatenate(tail, came), dimensions={{0}}
  g = f32[4,3] gather(t, next), {ROWS}
  p = f32[4,3] multiply(x, g)
  id = u32[] partition-id()
  rank = s32[] convert(id)
  size = s32[] constant(4)
  start = s32[] multiply(rank, size)
  starts = s32[4] broadcast(start), dimensions={{}}
  n = s32[4] iota(), iota_dimension=0
  at = s32[4] add(starts, n)
  last = s32[] constant(LAST)
  lasts = s32[4] broadcast(last), dimensions={{}}
  has = pred[4] compare(at, lasts), direction=LT
  mark = pred[4,3] broadcast(has), dimensions={{0}}
  zero = f32[] constant(0)
  zeros = f32[4,3] broadcast(zero), dimensions={{}}
  kept = f32[4,3] select(mark, p, zeros)
  part = f32[3] reduce(kept, zero), dimensions={{0}}, to_apply=add
  ROOT y = f32[3] all-reduce(part), channel_id=2, replica_groups={{{{0,1}}}}, \
use_global_device_ids=true, to_apply=add
}}
"""
CELLS = (
    "offset_dims={2}, collapsed_slice_dims={0}, start_index_map={0}, index_vector_dim=2, "
    "slice_sizes={1,3}"
)
CHOSEN = """HloModule m%s

ENTRY main {
  t = f32[9,3] parameter(0)
  i = s32[%d,2] parameter(1)
%s}
"""
ALL = f"""  g = f32[4,2,3] gather(t, i), {CELLS}
  ROOT y = f32[4,2,3] exponential(g)
"""
EXCHANGED = f"""  j = s32[2,2] all-to-all(i), channel_id=1, replica_groups={{{{0,1}}}}, dimensions={{1}}
  g = f32[2,2,3] gather(t, j), {CELLS}
  e = f32[2,2,3] exponential(g)
  ROOT y = f32[2,2,3] all-to-all(e), channel_id=2, replica_groups={{{{0,1}}}}, dimensions={{BACK}}
"""


def handed_on(pairs: str = "{{0,1},{1,0}}", last: int = 7) -> str:
    return PARALLEL.replace("PAIRS", pairs).replace("LAST", str(last))


@pytest.mark.parametrize(("last", "expected"), [(7, "proved"), (8, "refuted")])
def test_the_next_word_of_the_last_position(last: int, expected: str, tmp_path: Path) -> None:
    verified(SINGLE, handed_on(last=last), tmp_path, expected)


def test_a_rank_that_keeps_its_own_word(tmp_path: Path) -> None:
    verified(SINGLE, handed_on("{{0,0},{1,1}}"), tmp_path, "refuted")


@pytest.mark.parametrize(("back", "expected"), [("1", "proved"), ("0", "refuted")])
def test_rows_by_exchanged_ids(back: str, expected: str, tmp_path: Path) -> None:
    ranks = CHOSEN % (", num_partitions=2", 2, EXCHANGED.replace("BACK", back))
    verified(CHOSEN % ("", 4, ALL), ranks, tmp_path, expected)


@pytest.mark.parametrize("ranks", [handed_on(), CHOSEN % (", num_partitions=2", 2, EXCHANGED)])
def test_ids_of_other_ranks_are_lowered_to_what_they_compute(ranks: str) -> None:
    at = 2 if "LAST" not in ranks and "next" in ranks else 1
    agree(inline.graph(text.parse(ranks.replace("BACK", "1"))), {at: (0, 9)})
