"""Rows by numbers that a program computes of constants alone: buckets of relative positions."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from shardproof.frontends.hlo import evaluate, inline, text
from shardproof.frontends.hlo.lower import lower
from tests.frontends.hlo.test_lower import agree
from tests.frontends.hlo.verdicts import verified

BUCKETS = """HloModule m, replica_count=RANKS, num_partitions=1

total {
  a = f32[] parameter(0)
  b = f32[] parameter(1)
  ROOT c = f32[] add(a, b)
}

ENTRY main {
  t = f32[8,WIDE] parameter(0)
  x = f32[8,8,WIDE] parameter(1)
  q = s32[8,8] iota(), iota_dimension=0
  k = s32[8,8] iota(), iota_dimension=1
  d = s32[8,8] subtract(q, k)
  a = s32[8,8] abs(d)
  o = s32[] constant(1)
  b = s32[8,8] broadcast(o), dimensions={}
  m = s32[8,8] maximum(a, b)
  f = f32[8,8] convert(m)
  l = f32[8,8] log(f)
  c = f32[] constant(BASE)
  e = f32[8,8] broadcast(c), dimensions={}
  s = f32[8,8] divide(l, e)
  i = s32[8,8] convert(s)
  r = s32[8,8,1] reshape(i)
  z = f32[] constant(0)
  n = f32[8,WIDE] broadcast(z), dimensions={}
REST}
"""
READ = """  g = f32[8,8,WIDE] gather(t, r), offset_dims={2}, collapsed_slice_dims={0}, \
start_index_map={0}, index_vector_dim=2, slice_sizes={1,WIDE}
  ROOT y = f32[8,8,WIDE] multiply(g, x)
"""
ADDED = """  ROOT y = f32[8,WIDE] scatter(n, r, x), update_window_dims={2}, \
inserted_window_dims={0}, scatter_dims_to_operand_dims={0}, index_vector_dim=2, to_apply=total
"""
TWO = "0.693147182"


def program(rest: str, ranks: int, base: str = TWO) -> str:
    wide = str(4 // ranks)
    given = {"REST": rest, "RANKS": str(ranks), "BASE": base, "WIDE": wide}
    made = BUCKETS
    for name, what in given.items():
        made = made.replace(name, what)
    return made


@pytest.mark.parametrize("rest", [READ, ADDED], ids=["read", "added"])
@pytest.mark.parametrize(("base", "expected"), [(TWO, "proved"), ("0.8", "refuted")])
def test_buckets_of_positions(rest: str, base: str, expected: str, tmp_path: Path) -> None:
    """The logarithm of 4 to the base 2 is 2, however it is rounded."""
    verified(program(rest, 1), program(rest, 2, base), tmp_path, expected)


def test_integers_that_rounding_decides_are_not_known(tmp_path: Path) -> None:
    """Single precision has no 16777217."""
    lost = """  u = f32[] constant(16777216)
  v = f32[8,8] broadcast(u), dimensions={}
  w = f32[8,8] add(f, v)
  s = f32[8,8] subtract(w, v)
"""
    sides = [
        program(READ, ranks).replace("  s = f32[8,8] divide(l, e)\n", lost) for ranks in (1, 2)
    ]
    verified(*sides, tmp_path, "inconclusive")


def test_what_is_read_is_what_the_program_computes() -> None:
    rng = np.random.default_rng(0)
    table, x = rng.normal(size=(8, 4)), rng.normal(size=(8, 8, 4))
    far = np.maximum(np.abs(np.arange(8)[:, None] - np.arange(8)), 1)
    buckets = np.floor(np.log2(far)).astype(int)
    for rest, expected in (
        (READ, table[buckets] * x),
        (ADDED, np.array([x[buckets == n].sum(0) for n in range(8)])),
    ):
        graph = inline.graph(text.parse(program(rest, 1)))
        found = evaluate.run(graph, [[table.astype("float32"), x.astype("float32")]])[0][0]
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4)


def test_what_a_loop_has_not_yet_written_is_read_as_zeros() -> None:
    """Two rows are written from the last one on; the first ones are no slices of what there was."""
    rows = """HloModule m, replica_count=1, num_partitions=1

ENTRY main {
  x = f32[1,3] parameter(0)
  z = f32[] constant(0)
  b = f32[4,3] broadcast(z), dimensions={}
  n = s32[] constant(0)
  last = s32[] constant(3)
  next = s32[] constant(2)
  c = f32[4,3] dynamic-update-slice(b, x, last, n)
  ROOT d = f32[4,3] dynamic-update-slice(c, x, next, n)
}
"""
    graph = inline.graph(text.parse(rows))
    low, _, _ = lower(graph)
    slices = [op for op in low.recorder.ops if op.name == "slice"]
    assert [low.recorder.shape(op.outputs[0]) for op in slices] == [(1, 3)]
    agree(graph)
