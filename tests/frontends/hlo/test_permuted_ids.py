"""Integers whose dimensions are permuted, as numbers: they were read in the order in which they
lie, and a transposed tensor beside a reshaped one was proved."""

from __future__ import annotations

from pathlib import Path

import pytest

from shardproof.frontends.hlo import inline, text
from tests.frontends.hlo.test_lower import agree
from tests.frontends.hlo.verdicts import verified

SINGLE = """HloModule m

ENTRY main {
  i = s32[3,3] parameter(0)
  x = f32[3,3] parameter(1)
  t = s32[3,3] transpose(i), dimensions={1,0}
  f = f32[3,3] convert(t)
  ROOT y = f32[3,3] multiply(f, x)
}
"""
PARALLEL = (
    SINGLE.replace("HloModule m", "HloModule m, num_partitions=2")
    .replace("(0)", "(0), sharding={replicated}")
    .replace("(1)\n", "(1), sharding={replicated}\n")
)


@pytest.mark.parametrize("moved", ["transpose", "copy"])
def test_a_square_of_integers_is_not_its_transpose(moved: str, tmp_path: Path) -> None:
    parallel = PARALLEL
    if moved == "copy":
        parallel = parallel.replace("transpose(i), dimensions={1,0}", "copy(i)")
    verified(SINGLE, parallel, tmp_path, "proved" if moved == "transpose" else "refuted")


@pytest.mark.parametrize("dims", ["{2,0,1}", "{1,2,0}", "{2,1,0}"])
def test_permuted_integers_are_lowered_to_what_they_are(dims: str) -> None:
    shape = [(2, 3, 4)[int(d)] for d in dims.strip("{}").split(",")]
    of = ",".join(map(str, shape))
    body = (
        f"  i = s32[2,3,4] parameter(0)\n  t = s32[{of}] transpose(i), dimensions={dims}\n"
        f"  p = pred[{of}] compare(t, t), direction=GE\n  ROOT f = f32[{of}] convert(t)\n"
    )
    agree(inline.graph(text.parse(f"HloModule m\n\nENTRY main {{\n{body}}}\n")))
