"""Words that a loop keeps, round by round, and a later one reads: they were numbers, and rows that
are added at them were refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from shardproof.frontends.hlo import inline, text
from tests.frontends.hlo.test_lower import agree
from tests.frontends.hlo.verdicts import verified

TOTAL = """total {
  a = f32[] parameter(0)
  b = f32[] parameter(1)
  ROOT c = f32[] add(a, b)
}

"""
ADDED = (
    "update_window_dims={1}, inserted_window_dims={0}, scatter_dims_to_operand_dims={0}, "
    "index_vector_dim=1, to_apply=total"
)
#: The gradient of a table, over two microbatches one after the other.
SINGLE = f"""HloModule m

{TOTAL}ENTRY main {{
  i = s32[2,4] parameter(0)
  x = f32[2,4,3] parameter(1)
  z = f32[] constant(0)
  n = f32[8,3] broadcast(z), dimensions={{}}
  i0 = s32[1,4] slice(i), slice={{[0:1], [0:4]}}
  j0 = s32[4] reshape(i0)
  x0 = f32[1,4,3] slice(x), slice={{[0:1], [0:4], [0:3]}}
  y0 = f32[4,3] reshape(x0)
  i1 = s32[1,4] slice(i), slice={{[1:2], [0:4]}}
  j1 = s32[4] reshape(i1)
  x1 = f32[1,4,3] slice(x), slice={{[1:2], [0:4], [0:3]}}
  y1 = f32[4,3] reshape(x1)
  g0 = f32[8,3] scatter(n, j0, y0), {ADDED}
  g1 = f32[8,3] scatter(n, j1, y1), {ADDED}
  ROOT g = f32[8,3] add(g0, g1)
}}
"""
#: Words are written into a buffer, one microbatch after the other, and read from it backwards.
RANKS = f"""HloModule m, num_partitions=2

{TOTAL}ENTRY main {{
  i = s32[2,2] parameter(0), sharding={{devices=[1,2]<=[2]}}
  x = f32[2,2,3] parameter(1), sharding={{devices=[1,2,1]<=[2]}}
  z = f32[] constant(0)
  n = f32[8,3] broadcast(z), dimensions={{}}
  zero = s32[] constant(0)
  one = s32[] constant(1)
  kept = s32[2,2] broadcast(zero), dimensions={{}}
  i0 = s32[1,2] slice(i), slice={{[0:1], [0:2]}}
  kept0 = s32[2,2] dynamic-update-slice(kept, i0, zero, zero)
  i1 = s32[1,2] slice(i), slice={{[1:2], [0:2]}}
  kept1 = s32[2,2] dynamic-update-slice(kept0, i1, WRITTEN, zero)
  k1 = s32[1,2] dynamic-slice(kept1, one, zero), dynamic_slice_sizes={{1,2}}
  j1 = s32[2] reshape(k1)
  x1 = f32[1,2,3] slice(x), slice={{[1:2], [0:2], [0:3]}}
  y1 = f32[2,3] reshape(x1)
  k0 = s32[1,2] slice(kept1), slice={{[0:1], [0:2]}}
  j0 = s32[2] reshape(k0)
  x0 = f32[1,2,3] slice(x), slice={{[0:1], [0:2], [0:3]}}
  y0 = f32[2,3] reshape(x0)
  g1 = f32[8,3] scatter(n, j1, y1), {ADDED}
  g0 = f32[8,3] scatter(n, j0, y0), {ADDED}
  g = f32[8,3] add(g0, g1)
  ROOT a = f32[8,3] all-reduce(g), replica_groups={{{{0,1}}}}, use_global_device_ids=true, channel_id=1, to_apply=total
}}
"""


@pytest.mark.parametrize(("written", "expected"), [("one", "proved"), ("zero", "refuted")])
def test_words_are_read_as_they_were_kept(written: str, expected: str, tmp_path: Path) -> None:
    verified(SINGLE, RANKS.replace("WRITTEN", written), tmp_path, expected)


@pytest.mark.parametrize("read", ["[1:2], [0:3]", "[0:1], [0:3]", "[1:2], [1:3]", "[0:2], [1:2]"])
def test_what_is_read_is_what_was_written_last(read: str) -> None:
    bounds = [b.strip("[] ").split(":") for b in read.split(",")]
    shape = ",".join(str(int(high) - int(low)) for low, high in bounds)
    body = f"""  i = s32[2,3] parameter(0)
  one = s32[] constant(1)
  zero = s32[] constant(0)
  b = s32[3,3] broadcast(one), dimensions={{}}
  i0 = s32[1,3] slice(i), slice={{[0:1], [0:3]}}
  i1 = s32[1,3] slice(i), slice={{[1:2], [0:3]}}
  u = s32[3,3] dynamic-update-slice(b, i0, one, zero)
  v = s32[3,3] dynamic-update-slice(u, i1, one, zero)
  w = s32[3,3] dynamic-update-slice(v, b2, zero, zero)
  r = s32[{shape}] slice(w), slice={{{read}}}
  ROOT f = f32[{shape}] convert(r)
"""
    body = body.replace("  w =", "  b2 = s32[1,3] broadcast(one), dimensions={}\n  w =")
    agree(inline.graph(text.parse(f"HloModule m\n\nENTRY main {{\n{body}}}\n")))


@pytest.mark.parametrize("kept", ["maximum", "subtract"])
def test_what_is_computed_of_ids_is_cut_as_they_are(kept: str) -> None:
    """All of a buffer is what was written, where a loop has one round."""
    body = f"""  i = s32[2,3] parameter(0)
  two = s32[] constant(2)
  zero = s32[] constant(0)
  wide = s32[2,3] broadcast(two), dimensions={{}}
  m = s32[2,3] {kept}(i, wide)
  b = s32[2,3] broadcast(zero), dimensions={{}}
  w = s32[2,3] dynamic-update-slice(b, m, zero, zero)
  r = s32[1,2] dynamic-slice(w, zero, two), dynamic_slice_sizes={{1,2}}
  p = pred[1,2] compare(r, r2), direction=GE
  ROOT f = f32[1,2] convert(p)
"""
    body = body.replace("  p =", "  r2 = s32[1,2] broadcast(two), dimensions={}\n  p =")
    agree(inline.graph(text.parse(f"HloModule m\n\nENTRY main {{\n{body}}}\n")))
