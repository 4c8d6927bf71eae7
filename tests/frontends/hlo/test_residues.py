"""Rows of a table that a remainder of an integer chooses (hashed ids): how large integers are nobody
says."""

from __future__ import annotations

from pathlib import Path

import pytest

import shardproof
from shardproof.frontends.hlo import inline, text
from shardproof.frontends.hlo.residues import narrowed

ADD = "add {\n  a = f32[] parameter(0)\n  b = f32[] parameter(1)\n  ROOT c = f32[] add(a, b)\n}\n"
GATHER = (
    "offset_dims={1}, collapsed_slice_dims={0}, start_index_map={0}, index_vector_dim=1, "
    "slice_sizes={1,3}"
)
ROW = """  y = s32[4] parameter(1)
  n = s32[] constant(DIVISOR)
  ns = s32[4] broadcast(n), dimensions={}
  row = s32[4] HOW
"""
SINGLE = f"""HloModule m

{ADD}
ENTRY main {{
  t = f32[8,3] parameter(0)
{ROW}  i = s32[4,1] reshape(row)
  ROOT g = f32[4,3] gather(t, i), {GATHER}
}}
"""
PARALLEL = f"""HloModule m, num_partitions=2

{ADD}
ENTRY main {{
  t = f32[4,3] parameter(0)
{ROW}  k = u32[] partition-id()
  k0 = s32[] convert(k)
  four = s32[] constant(4)
  k1 = s32[] multiply(k0, four)
  first = s32[4] broadcast(k1), dimensions={{}}
  own = s32[4] subtract(row, first)
  zero = s32[] constant(0)
  low = s32[4] broadcast(zero), dimensions={{}}
  fours = s32[4] broadcast(four), dimensions={{}}
  p = pred[4] compare(own, low), direction=GE
  q = pred[4] compare(own, fours), direction=LT
  in = pred[4] and(p, q)
  safe = s32[4] select(in, own, low)
  i = s32[4,1] reshape(safe)
  g = f32[4,3] gather(t, i), {GATHER}
  m = pred[4,3] broadcast(in), dimensions={{0}}
  z = f32[] constant(0)
  o = f32[4,3] broadcast(z), dimensions={{}}
  v = f32[4,3] select(m, g, o)
  ROOT u = f32[4,3] all-reduce(v), channel_id=1, replica_groups={{{{0,1}}}}, \
use_global_device_ids=true, to_apply=add
}}
"""


def _with(program: str, how: str, divisor: int) -> str:
    return program.replace("HOW", how).replace("DIVISOR", str(divisor))


REMAINDER, BITS = "remainder(y, ns)", "and(y, ns)"
CASES = {
    "a remainder": (REMAINDER, 8, REMAINDER, 8, "proved"),
    "bits": (BITS, 7, BITS, 7, "proved"),
    "a remainder beside bits": (REMAINDER, 8, BITS, 7, "proved"),
    "by another number": (REMAINDER, 8, REMAINDER, 4, "refuted"),
    "by half, where all of it is read": (REMAINDER, 4, REMAINDER, 8, "refuted"),
}


@pytest.mark.parametrize("name", CASES)
def test_rows_of_remainders(name: str, tmp_path: Path) -> None:
    how, divisor, others, another, expected = CASES[name]
    files = tmp_path / "single.hlo", tmp_path / "parallel.hlo"
    files[0].write_text(_with(SINGLE, how, divisor))
    files[1].write_text(_with(PARALLEL, others, another))
    result = shardproof.verify(*files, out=tmp_path / "run", cache=False)
    assert result.verdict == expected, result.reason
    assert any("of which only remainders are used" in text for text in result.assumptions)


GIVEN_BACK = f"""  g = f32[4,3] gather(t, i), {GATHER}
  ROOT r = (f32[4,3], s32[4]) tuple(g, y)
"""
CHANGED = {
    "a remainder alone": ("", "", (0, 8)),
    "negative": ("remainder(y, ns)", "negate(y)", None),
    "too many": ("constant(8)", "constant(8192)", None),
    "less another": (
        "row = s32[4] remainder(y",
        "e = s32[4] subtract(y, ns)\n  row = s32[4] remainder(e",
        None,
    ),
    "given back": (f"  ROOT g = f32[4,3] gather(t, i), {GATHER}\n", GIVEN_BACK, None),
}


@pytest.mark.parametrize("name", CHANGED)
def test_an_input_that_is_read_otherwise_has_no_domain(name: str) -> None:
    old, new, domain = CHANGED[name]
    alone = _with(SINGLE, REMAINDER, 8)
    assert old in alone
    changed = alone.replace(old, new) if old else alone
    parallel = inline.graph(text.parse(_with(PARALLEL, REMAINDER, 8)))
    made, assumed = narrowed(inline.graph(text.parse(changed)), parallel)
    assert made.inputs[1].domain == domain
    assert len(assumed) == (domain is not None)
