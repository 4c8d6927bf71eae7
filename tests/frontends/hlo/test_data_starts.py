"""Slices and updates of several positions, or along several dimensions, that begin where data says:
the keys of several words written to a cache, a crop of a picture."""

from __future__ import annotations

from pathlib import Path

import pytest

from shardproof.frontends.hlo import read
from tests.frontends.hlo.test_lower import ADD, LAST, agree
from tests.frontends.hlo.verdicts import verified

#: ``START`` begins two positions of six; all columns of a rank belong to them.
WRITTEN = """  x = f32[6,COLUMNS] parameter(0)SHARDED
  u = f32[2,COLUMNS] parameter(1)SHARDED
  p = s32[] parameter(2)
  one = s32[] constant(1)
  q = s32[] add(p, one)
  o = s32[] constant(0)
  y = f32[6,COLUMNS] dynamic-update-slice(x, u, START, o)
"""
READ = """  x = f32[6,COLUMNS] parameter(0)SHARDED
  p = s32[] parameter(1)
  one = s32[] constant(1)
  q = s32[] add(p, one)
  o = s32[] constant(0)
  r = f32[2,COLUMNS] dynamic-slice(x, START, o), dynamic_slice_sizes={2,COLUMNS}
  y = f32[2,COLUMNS] multiply(r, r)
"""
PROGRAMS = {
    "written": WRITTEN.replace("START", "p"),
    "read": READ.replace("START", "q"),
    "a crop": """  x = f32[6,7,3] parameter(0)
  p = s32[] parameter(1)
  q = s32[] parameter(2)
  o = s32[] constant(1)
  y = f32[2,3,2] dynamic-slice(x, p, q, o), dynamic_slice_sizes={2,3,2}
""",
    "one entry": """  x = f32[6,7] parameter(0)
  p = s32[] parameter(1)
  q = s32[] parameter(2)
  y = f32[1,1] dynamic-slice(x, p, q), dynamic_slice_sizes={1,1}
""",
    "a patch, beside a known place": """  x = f32[6,7,3] parameter(0)
  u = f32[2,3,1] parameter(1)
  p = s32[] parameter(2)
  q = s32[] parameter(3)
  o = s32[] constant(0)
  y = f32[6,7,3] dynamic-update-slice(x, u, p, q, o)
""",
}
GATHER = "channel_id=1, replica_groups={{0,1}}, dimensions={1}, use_global_device_ids=true"


@pytest.mark.parametrize("name", PROGRAMS)
def test_what_begins_at_ids_is_what_is_computed(name: str) -> None:
    body = PROGRAMS[name].replace("COLUMNS", "4").replace("SHARDED", "")
    body = body.replace("  y = ", "  ROOT y = ")
    graph = read.parsed(f"HloModule m\n\nENTRY main {{\n{body}\n}}\n")
    for seed in range(4):
        agree(graph, None, seed)


@pytest.mark.parametrize("wrong", [False, True], ids=["alike", "one later"])
@pytest.mark.parametrize(("program", "rows"), [(WRITTEN, 6), (READ, 2)], ids=["written", "read"])
def test_positions_from_an_id_on(program: str, rows: int, wrong: bool, tmp_path: Path) -> None:
    one = program.replace("COLUMNS", "4").replace("SHARDED", "").replace("START", "p")
    own = program.replace("COLUMNS", "2").replace("SHARDED", ", sharding={devices=[1,2]<=[2]}")
    own = own.replace("START", "q" if wrong else "p")
    single = f"HloModule m\n\nENTRY main {{\n{one}  ROOT z = f32[{rows},4] copy(y)\n}}\n"
    parallel = f"""HloModule m, num_partitions=2

ENTRY main {{
{own}  ROOT z = f32[{rows},4] all-gather(y), {GATHER}
}}
"""
    verified(single, parallel, tmp_path, "refuted" if wrong else "proved")


#: A crop of each picture, as ``vmap(lax.dynamic_slice)`` makes them.
CROPS = """  x = f32[ROWS,6,7] parameter(0)SHARDED
  p = s32[ROWS,1] parameter(1)OWN
  q = s32[ROWS,1] parameter(2)OWN
  v = s32[ROWS,2] concatenate(FIRST, q), dimensions={1}
  y = f32[ROWS,2,3] gather(x, v), offset_dims={1,2}, collapsed_slice_dims={}, \
start_index_map={1,2}, operand_batching_dims={0}, start_indices_batching_dims={0}, \
index_vector_dim=1, slice_sizes={1,2,3}
"""


def _crops(rows: int, first: str, sharded: str = "", own: str = "") -> str:
    body = CROPS.replace("ROWS", str(rows)).replace("FIRST", first)
    return body.replace("SHARDED", sharded).replace("OWN", own)


def test_crops_are_what_is_computed() -> None:
    body = _crops(4, "p").replace("  y = ", "  ROOT y = ")
    graph = read.parsed(f"HloModule m\n\nENTRY main {{\n{body}}}\n")
    for seed in range(4):
        agree(graph, None, seed)


@pytest.mark.parametrize(("first", "expected"), [("p", "proved"), ("q", "refuted")])
def test_a_crop_of_each_picture(first: str, expected: str, tmp_path: Path) -> None:
    single = f"HloModule m\n\nENTRY main {{\n{_crops(4, 'p')}  ROOT z = f32[4,2,3] copy(y)\n}}\n"
    halves = ", sharding={devices=[2,1,1]<=[2]}", ", sharding={devices=[2,1]<=[2]}"
    parallel = f"""HloModule m, num_partitions=2

ENTRY main {{
{_crops(2, first, *halves)}  ROOT z = f32[4,2,3] all-gather(y), \
{GATHER.replace("{1}", "{0}")}
}}
"""
    verified(single, parallel, tmp_path, expected)


#: The keys of two words, written to each row of a cache, as ``vmap(lax.dynamic_update_slice)`` does.
CACHE = """  x = f32[ROWS,6,3] parameter(0)SHARDED
  u = f32[ROWS,2,3] parameter(1)SHARDED
  p = s32[ROWS] parameter(2)OWN
  one = s32[] constant(BY)
  b = s32[ROWS] broadcast(one), dimensions={}
  a = s32[ROWS] add(p, b)
  low = s32[] constant(0)
  high = s32[] constant(4)
  c = s32[ROWS] clamp(low, a, high)
  q = s32[ROWS,1] reshape(c)
  k = s32[ROWS,1] iota(), iota_dimension=0
  v = s32[ROWS,2] concatenate(k, q), dimensions={1}
  y = f32[ROWS,6,3] scatter(x, v, u), update_window_dims={1,2}, inserted_window_dims={0}, \
scatter_dims_to_operand_dims={0,1}, index_vector_dim=1, to_apply=HOW
"""


def _cache(rows: int, by: int, how: str = "last", sharded: str = "", own: str = "") -> str:
    body = CACHE.replace("ROWS", str(rows)).replace("BY", str(by)).replace("HOW", how)
    return body.replace("SHARDED", sharded).replace("OWN", own)


@pytest.mark.parametrize("how", ["last", "add"])
@pytest.mark.parametrize("by", [0, 1])
def test_words_written_to_a_cache_are_what_is_computed(by: int, how: str) -> None:
    body = _cache(4, by, how).replace("  y = ", "  ROOT y = ")
    graph = read.parsed(f"HloModule m\n\n{ADD}{LAST}ENTRY main {{\n{body}}}\n")
    for seed in range(4):
        agree(graph, {2: (0, 4)}, seed)


@pytest.mark.parametrize(("by", "expected"), [(0, "proved"), (1, "refuted")])
def test_words_written_to_each_row_of_a_cache(by: int, expected: str, tmp_path: Path) -> None:
    single = (
        f"HloModule m\n\n{LAST}ENTRY main {{\n{_cache(4, 0)}  ROOT z = f32[4,6,3] copy(y)\n}}\n"
    )
    halves = ", sharding={devices=[2,1,1]<=[2]}", ", sharding={devices=[2]<=[2]}"
    parallel = f"""HloModule m, num_partitions=2

{LAST}
ENTRY main {{
{_cache(2, by, "last", *halves)}  ROOT z = f32[4,6,3] all-gather(y), \
{GATHER.replace("{1}", "{0}")}
}}
"""
    verified(single, parallel, tmp_path, expected)
