"""Convolutions of images whose rows ranks divide: edges of neighbours, and what comes back."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.frontends.hlo.verdicts import verified

ON, BACK = "{{0,1},{1,2},{2,3}}", "{{1,0},{2,1},{3,2}}"
FORWARD = "dim_labels=b01f_01io->b01f"
BACKWARD = "rhs_reversal=1x1}, dim_labels=b01f_01oi->b01f"


def single(rows: int) -> str:
    return f"""HloModule one
ENTRY e {{
  x = f32[2,{rows},4,2] parameter(0)
  w = f32[3,3,2,2] parameter(1)
  y = f32[2,{rows},4,2] convolution(x, w), window={{size=3x3 pad=1_1x1_1}}, {FORWARD}
  t = f32[2,{rows},4,2] tanh(y)
  d = f32[2,{rows},4,2] convolution(t, w), window={{size=3x3 pad=1_1x1_1 {BACKWARD}
  ROOT r = (f32[2,{rows},4,2], f32[2,{rows},4,2]) tuple(t, d)
}}
"""


def row(name: str, of: str, at: int, pairs: str) -> str:
    """A row that a neighbour sends."""
    shape = "f32[2,1,4,2]"
    return (
        f"  {name}c = {shape} slice({of}), slice={{[0:2], [{at}:{at + 1}], [0:4], [0:2]}}\n"
        f"  {name} = {shape} collective-permute({name}c), channel_id=1, "
        f"source_target_pairs={pairs}\n"
    )


def parallel(rows: int, *, right: bool) -> str:
    """Each of four ranks has a quarter of the rows; a wrong one exchanges what comes back."""
    own = rows // 4
    shape, wide = f"f32[2,{own},4,2]", f"f32[2,{own + 2},4,2]"
    inner = f"f32[2,{own - 2},4,2]"
    edges = row("lo", "x", own - 1, ON) + row("hi", "x", 0, BACK)
    returned = row("up", "k", own + 1, ON) + row("down", "k", 0, BACK)
    order = ("up", "zero", "down") if right else ("down", "zero", "up")
    return f"""HloModule m, num_partitions=4
ENTRY e {{
  x = {shape} parameter(0), sharding={{devices=[1,4,1,1]<=[4]}}
  w = f32[3,3,2,2] parameter(1), sharding={{replicated}}
{edges}
  h = {wide} concatenate(lo, x, hi), dimensions={{1}}
  y = {shape} convolution(h, w), window={{size=3x3 pad=0_0x1_1}}, {FORWARD}
  t = {shape} tanh(y)
  k = {wide} convolution(t, w), window={{size=3x3 pad=2_2x1_1 {BACKWARD}
{returned}
  m = {shape} slice(k), slice={{[0:2], [1:{own + 1}], [0:4], [0:2]}}
  n = f32[] constant(0)
  zero = {inner} broadcast(n), dimensions={{}}
  b = {shape} concatenate({", ".join(order)}), dimensions={{1}}
  d = {shape} add(m, b)
  ROOT r = ({shape}, {shape}) tuple(t, d)
}}
"""


@pytest.mark.parametrize("right", [True, False])
def test_rows_beside_a_seam_are_of_both_ranks(right: bool, tmp_path: Path) -> None:
    verdict = "proved" if right else "refuted"
    verified(single(16), parallel(16, right=right), tmp_path, verdict)


def test_rows_beside_a_seam_at_size(tmp_path: Path) -> None:
    verified(single(8192), parallel(8192, right=True), tmp_path, "proved")
