"""Entries and rows that several ids choose together, and one of them beside known ones."""

from __future__ import annotations

from pathlib import Path

import pytest

from shardproof.frontends.hlo import read
from tests.frontends.hlo.test_lower import agree
from tests.frontends.hlo.verdicts import verified

ADD = "add {\n  u = f32[] parameter(0)\n  v = f32[] parameter(1)\n  ROOT w = f32[] add(u, v)\n}\n\n"
LAST = "last {\n  u = f32[] parameter(0)\n  ROOT v = f32[] parameter(1)\n}\n\n"
#: ``t[i, j]``: index vectors of two ids.
TWO = """  i = s32[2,4] parameter(1)
  j = s32[2,4] parameter(2)
  i1 = s32[2,4,1] reshape(i)
  j1 = s32[2,4,1] reshape(j)
  v = s32[2,4,2] concatenate(i1, j1), dimensions={2}
"""
#: ``t[i, NUMBER]``.
COLUMN = """  i = s32[2,4] parameter(1)
  i1 = s32[2,4,1] reshape(i)
  n = s32[] constant(NUMBER)
  j1 = s32[2,4,1] broadcast(n), dimensions={}
  v = s32[2,4,2] concatenate(i1, j1), dimensions={2}
"""
#: ``(p, 0)`` of each row: a position, and all that lies there.
PLACE = """  p = s32[4,1] parameter(1)
  c = s32[] constant(0)
  o = s32[4,1] broadcast(c), dimensions={}
  v = s32[4,2] concatenate(p, o), dimensions={1}
"""
PROGRAMS = {
    "entries": f"""  t = f32[5,7] parameter(0)
{TWO}  ROOT g = f32[2,4] gather(t, v), offset_dims={{}}, collapsed_slice_dims={{0,1}}, \
start_index_map={{0,1}}, index_vector_dim=2, slice_sizes={{1,1}}""",
    "rows": f"""  t = f32[5,3,7] parameter(0)
{TWO}  ROOT g = f32[2,4,3] gather(t, v), offset_dims={{2}}, collapsed_slice_dims={{0,2}}, \
start_index_map={{0,2}}, index_vector_dim=2, slice_sizes={{1,3,1}}""",
    "rows in front, the second id first": f"""  t = f32[5,3,7] parameter(0)
{TWO}  ROOT g = f32[3,2,4] gather(t, v), offset_dims={{0}}, collapsed_slice_dims={{0,2}}, \
start_index_map={{2,0}}, index_vector_dim=2, slice_sizes={{1,3,1}}""",
    "of each table": f"""  t = f32[2,5,7,3] parameter(0)
{TWO}  ROOT g = f32[2,4,3] gather(t, v), offset_dims={{2}}, collapsed_slice_dims={{1,2}}, \
start_index_map={{1,2}}, operand_batching_dims={{0}}, start_indices_batching_dims={{0}}, \
index_vector_dim=2, slice_sizes={{1,1,1,3}}""",
    "added entries": f"""  t = f32[5,7] parameter(0)
{TWO}  u = f32[2,4] parameter(3)
  ROOT s = f32[5,7] scatter(t, v, u), update_window_dims={{}}, inserted_window_dims={{0,1}}, \
scatter_dims_to_operand_dims={{0,1}}, index_vector_dim=2, to_apply=add""",
    "added rows, the second id first": f"""  t = f32[5,3,7] parameter(0)
{TWO}  u = f32[2,3,4] parameter(3)
  ROOT s = f32[5,3,7] scatter(t, v, u), update_window_dims={{1}}, inserted_window_dims={{0,2}}, \
scatter_dims_to_operand_dims={{2,0}}, index_vector_dim=2, to_apply=add""",
    "entries of a known column": f"""  t = f32[5,7] parameter(0)
{COLUMN}  ROOT g = f32[2,4] gather(t, v), offset_dims={{}}, collapsed_slice_dims={{0,1}}, \
start_index_map={{0,1}}, index_vector_dim=2, slice_sizes={{1,1}}""".replace("NUMBER", "2"),
    "added to a known column": f"""  t = f32[5,7] parameter(0)
{COLUMN}  u = f32[2,4] parameter(2)
  ROOT s = f32[5,7] scatter(t, v, u), update_window_dims={{}}, inserted_window_dims={{0,1}}, \
scatter_dims_to_operand_dims={{0,1}}, index_vector_dim=2, to_apply=add""".replace("NUMBER", "2"),
    "a position of each row": f"""  t = f32[4,6,3] parameter(0)
{PLACE}  ROOT g = f32[4,1,3] gather(t, v), offset_dims={{1,2}}, collapsed_slice_dims={{}}, \
start_index_map={{1,2}}, operand_batching_dims={{0}}, start_indices_batching_dims={{0}}, \
index_vector_dim=1, slice_sizes={{1,1,3}}""",
    "written to a position of each row": f"""  t = f32[4,6,3] parameter(0)
{PLACE}  u = f32[4,1,3] parameter(2)
  ROOT s = f32[4,6,3] scatter(t, v, u), update_window_dims={{1,2}}, inserted_window_dims={{}}, \
scatter_dims_to_operand_dims={{1,2}}, input_batching_dims={{0}}, \
scatter_indices_batching_dims={{0}}, index_vector_dim=1, to_apply=last""",
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_what_ids_choose_together_is_what_is_computed(name: str) -> None:
    graph = read.parsed(f"HloModule m\n\n{ADD}{LAST}ENTRY main {{\n{PROGRAMS[name]}\n}}\n")
    for seed in range(3):
        agree(graph, None, seed)


#: The transitions of a conditional random field, twice: their sum is differentiated by hand.
STEP = """  t = f32[3,3] parameter(0)
  i = s32[ROWS,4] parameter(1)SHARDED
  j = s32[ROWS,4] parameter(2)SHARDED
  i1 = s32[ROWS,4,1] reshape(i)
  j1 = s32[ROWS,4,1] reshape(j)
  v = s32[ROWS,4,2] concatenate(i1, j1), dimensions={2}
  w = s32[ROWS,4,2] concatenate(FIRST, SECOND), dimensions={2}
  g = f32[ROWS,4] gather(t, v), offset_dims={}, collapsed_slice_dims={0,1}, \
start_index_map={0,1}, index_vector_dim=2, slice_sizes={1,1}
  e = f32[ROWS,4] exponential(g)
  z = f32[] constant(0)
  o = f32[3,3] broadcast(z), dimensions={}
"""
SCATTER = """scatter(o, w, e), update_window_dims={}, inserted_window_dims={0,1}, \
scatter_dims_to_operand_dims={0,1}, index_vector_dim=2, to_apply=add"""


@pytest.mark.parametrize(
    ("order", "expected"), [(("i1", "j1"), "proved"), (("j1", "i1"), "refuted")], ids=str
)
def test_entries_of_a_table_by_two_ids(
    order: tuple[str, str], expected: str, tmp_path: Path
) -> None:
    one = STEP.replace("ROWS", "4").replace("SHARDED", "")
    one = one.replace("FIRST", "i1").replace("SECOND", "j1")
    single = f"HloModule m\n\n{ADD}ENTRY main {{\n{one}  ROOT s = f32[3,3] {SCATTER}\n}}\n"
    own = STEP.replace("ROWS", "2").replace("SHARDED", ", sharding={devices=[2,1]<=[2]}")
    own = own.replace("FIRST", order[0]).replace("SECOND", order[1])
    parallel = f"""HloModule m, num_partitions=2

{ADD}ENTRY main {{
{own}  s = f32[3,3] {SCATTER}
  ROOT a = f32[3,3] all-reduce(s), channel_id=1, replica_groups={{{{0,1}}}}, \
use_global_device_ids=true, to_apply=add
}}
"""
    verified(single, parallel, tmp_path, expected)


@pytest.mark.parametrize(("column", "expected"), [("2", "proved"), ("1", "refuted")])
def test_entries_of_a_known_column(column: str, expected: str, tmp_path: Path) -> None:
    body = """  t = f32[5,3] parameter(0)
  i = s32[ROWS,1] parameter(1)SHARDED
  n = s32[] constant(NUMBER)
  j = s32[ROWS,1] broadcast(n), dimensions={}
  v = s32[ROWS,2] concatenate(i, j), dimensions={1}
  g = f32[ROWS] gather(t, v), offset_dims={}, collapsed_slice_dims={0,1}, \
start_index_map={0,1}, index_vector_dim=1, slice_sizes={1,1}
  e = f32[ROWS] exponential(g)
"""
    one = body.replace("ROWS", "4").replace("SHARDED", "").replace("NUMBER", "2")
    own = body.replace("ROWS", "2").replace("SHARDED", ", sharding={devices=[2,1]<=[2]}")
    own = own.replace("NUMBER", column)
    single = f"HloModule m\n\nENTRY main {{\n{one}  ROOT z = f32[4] copy(e)\n}}\n"
    parallel = f"""HloModule m, num_partitions=2

ENTRY main {{
{own}  ROOT z = f32[4] all-gather(e), channel_id=1, replica_groups={{{{0,1}}}}, \
dimensions={{0}}, use_global_device_ids=true
}}
"""
    verified(single, parallel, tmp_path, expected)
