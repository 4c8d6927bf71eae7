"""One number that is written wherever an id is (tokens that were seen, labels of which a row has
several), and rows that are written to places none of which is twice."""

from __future__ import annotations

from pathlib import Path

import pytest

from shardproof.frontends.hlo import read
from shardproof.frontends.hlo.lower import lower
from tests.frontends.hlo.test_lower import agree
from tests.frontends.hlo.verdicts import verified

LAST = "last {\n  u = f32[] parameter(0)\n  ROOT v = f32[] parameter(1)\n}\n\n"
ORDER = """rising {
  p = f32[] parameter(0)
  q = f32[] parameter(1)
  i = s32[] parameter(2)
  j = s32[] parameter(3)
  ROOT r = pred[] compare(p, q), direction=LT
}

"""
ENTRY = "update_window_dims={}, inserted_window_dims={1}, scatter_dims_to_operand_dims={1}, \
input_batching_dims={0}, scatter_indices_batching_dims={0}, index_vector_dim=2, to_apply=last"
#: ``WHAT`` is written in each row at all of its ids.
SEEN = """  x = f32[ROWS,5] parameter(0)SHARDED
  i = s32[ROWS,3] parameter(1)SHARDED
  j = s32[ROWS,3,1] reshape(i)
  c = f32[] constant(WHAT)
  u = f32[ROWS,3] broadcast(c), dimensions={}
  s = f32[ROWS,5] scatter(x, j, u), ENTRY
""".replace("ENTRY", ENTRY)
TWO = """  x = f32[5,7] parameter(0)
  i = s32[4,1] parameter(1)
  j = s32[4,1] parameter(2)
  v = s32[4,2] concatenate(i, j), dimensions={1}
  c = f32[] constant(2)
  u = f32[4] broadcast(c), dimensions={}
  ROOT s = f32[5,7] scatter(x, v, u), update_window_dims={}, inserted_window_dims={0,1}, \
scatter_dims_to_operand_dims={0,1}, index_vector_dim=1, to_apply=last"""
#: The first places of the order of ``y`` have rows of their own.
KEPT = """  x = f32[ROWS,5,3] parameter(0)SHARDED
  y = f32[ROWS,5] parameter(1)SHARDED
  h = f32[ROWS,2,3] parameter(2)SHARDED
  n = s32[ROWS,5] iota(), iota_dimension=1
  o = (f32[ROWS,5], s32[ROWS,5]) sort(y, n), dimensions={1}, is_stable=true, to_apply=rising
  p = s32[ROWS,5] get-tuple-element(o), index=1
  k = s32[ROWS,2] slice(p), slice={[0:ROWS], [FIRST:LAST]}
  j = s32[ROWS,2,1] reshape(k)
  s = f32[ROWS,5,3] scatter(x, j, h), update_window_dims={2}, inserted_window_dims={1}, \
scatter_dims_to_operand_dims={1}, input_batching_dims={0}, scatter_indices_batching_dims={0}, \
index_vector_dim=2, to_apply=last
"""
GATHER = "channel_id=1, replica_groups={{0,1}}, dimensions={0}, use_global_device_ids=true"


def _kept(rows: int, sharded: str, first: int) -> str:
    body = KEPT.replace("ROWS", str(rows)).replace("SHARDED", sharded)
    return body.replace("FIRST", str(first)).replace("LAST", str(first + 2))


def _pair(single: str, parallel: str, shape: str) -> tuple[str, str]:
    return (
        f"HloModule m\n\n{LAST}{ORDER}ENTRY main {{\n{single}  ROOT z = f32[4,{shape}] copy(s)\n}}\n",
        f"HloModule m, num_partitions=2\n\n{LAST}{ORDER}ENTRY main {{\n{parallel}"
        f"  ROOT z = f32[4,{shape}] all-gather(s), {GATHER}\n}}\n",
    )


def _seen(rows: int, sharded: str, what: str) -> str:
    body = SEEN.replace("ROWS", str(rows)).replace("SHARDED", sharded)
    return body.replace("WHAT", what)


SHARDED = ", sharding={devices=[2,1]<=[2]}"


@pytest.mark.parametrize(
    "body",
    [
        _seen(4, "", "2").replace("  s = ", "  ROOT s = "),
        TWO,
        _kept(4, "", 1).replace("  s = ", "  ROOT s = "),
    ],
    ids=["a number", "at several ids", "rows in order"],
)
def test_what_is_written_is_what_is_computed(body: str) -> None:
    graph = read.parsed(f"HloModule m\n\n{LAST}{ORDER}ENTRY main {{\n{body}\n}}\n")
    for seed in range(4):
        agree(graph, None, seed)


@pytest.mark.parametrize(("what", "expected"), [("2", "proved"), ("1", "refuted")])
def test_a_number_wherever_an_id_is(what: str, expected: str, tmp_path: Path) -> None:
    pair = _pair(_seen(4, "", "2"), _seen(2, SHARDED, what), "5")
    verified(*pair, tmp_path, expected)


@pytest.mark.parametrize(("first", "expected"), [(0, "proved"), (1, "refuted")])
def test_rows_at_the_first_places_of_an_order(first: int, expected: str, tmp_path: Path) -> None:
    cube = ", sharding={devices=[2,1,1]<=[2]}"
    own = KEPT.replace("y = f32[ROWS,5] parameter(1)SHARDED", f"y = f32[2,5] parameter(1){SHARDED}")
    own = own.replace("ROWS", "2").replace("SHARDED", cube)
    own = own.replace("FIRST", str(first)).replace("LAST", str(first + 2))
    verified(*_pair(_kept(4, "", 0), own, "5,3"), tmp_path, expected)


#: As JAX differentiates ``x.at[places].set(h)``: numbers of updates tell which of them was the last.
MARKED = """  x = f32[ROWS,5] parameter(0)SHARDED
  y = f32[ROWS,5] parameter(1)SHARDED
  h = f32[ROWS,2] parameter(2)SHARDED
  n = s32[ROWS,5] iota(), iota_dimension=1
  o = (f32[ROWS,5], s32[ROWS,5]) sort(y, n), dimensions={1}, is_stable=true, to_apply=rising
  p = s32[ROWS,5] get-tuple-element(o), index=1
  k = s32[ROWS,2] slice(p), slice={[0:ROWS], [0:2]}
  j = s32[ROWS,2,1] reshape(k)
  c = u32[COUNT] iota(), iota_dimension=0
  d = u32[ROWS,2] reshape(c)
  one = u32[] constant(1)
  e = u32[ROWS,2] broadcast(one), dimensions={}
  u = u32[ROWS,2] add(d, e)
  zero = u32[] constant(0)
  q = u32[ROWS,5] broadcast(zero), dimensions={}
  m = u32[ROWS,5] scatter(q, j, u), ENTRYlast
  g = u32[ROWS,2] gather(m, j), offset_dims={}, collapsed_slice_dims={1}, start_index_map={1}, \
operand_batching_dims={0}, start_indices_batching_dims={0}, index_vector_dim=2, slice_sizes={1,1}
  l = pred[ROWS,2] compare(g, u), direction=EQ
  w = pred[ROWS,5] compare(m, q), direction=HOW
  f = f32[] constant(0)
  fs = f32[ROWS,2] broadcast(f), dimensions={}
  fx = f32[ROWS,5] broadcast(f), dimensions={}
  a = f32[ROWS,2] select(l, h, fs)
  b = f32[ROWS,5] select(w, x, fx)
  s = f32[ROWS,5] scatter(b, j, a), ENTRYadd
""".replace("ENTRY", ENTRY.removesuffix("last"))
ADD = "add {\n  u = f32[] parameter(0)\n  v = f32[] parameter(1)\n  ROOT w = f32[] add(u, v)\n}\n\n"
LAST_MARK = LAST.replace("f32[]", "u32[]").replace("last {", "mark {")


def _marked(rows: int, sharded: str, how: str) -> str:
    body = MARKED.replace("COUNT", str(2 * rows)).replace("ROWS", str(rows))
    body = body.replace("SHARDED", sharded).replace("HOW", how)
    return body.replace("to_apply=last", "to_apply=mark", 1)


@pytest.mark.parametrize(("how", "expected"), [("EQ", "proved"), ("NE", "refuted")])
def test_numbers_that_tell_which_write_was_the_last(
    how: str, expected: str, tmp_path: Path
) -> None:
    pair = _pair(_marked(4, "", "EQ"), _marked(2, SHARDED, how), "5")
    before = ADD + LAST_MARK + LAST
    verified(*(text.replace(LAST, before) for text in pair), tmp_path, expected)


def test_what_is_written_as_jax_differentiates_it_is_what_is_computed() -> None:
    body = _marked(4, "", "EQ").replace("  s = ", "  ROOT s = ")
    before = ADD + LAST_MARK + LAST + ORDER
    graph = read.parsed(f"HloModule m\n\n{before}ENTRY main {{\n{body}\n}}\n")
    for seed in range(4):
        agree(graph, None, seed)


def test_places_that_are_made_one_tell_nothing() -> None:
    """Half of each place: several updates may have one, so that not every one is the last."""
    halved = """  two = s32[] constant(2)
  twos = s32[4,2] broadcast(two), dimensions={}
  half = s32[4,2] divide(k, twos)
  j = s32[4,2,1] reshape(half)"""
    body = _marked(4, "", "EQ").replace("  j = s32[4,2,1] reshape(k)", halved)
    before = ADD + LAST_MARK + LAST + ORDER
    body = body.replace("  s = ", "  ROOT s = ")
    graph = read.parsed(f"HloModule m\n\n{before}ENTRY main {{\n{body}\n}}\n")
    lowering, _, _ = lower(graph)
    assert any("scatter of HLO" in op.name for op in lowering.recorder.ops)
    assert not lowering.marks
