"""The derivative of a reciprocal root as autodiff has it, beside the cube that norms by hand write."""

from __future__ import annotations

from pathlib import Path

import pytest

from shardproof.frontends.hlo import inline, text
from tests.frontends.hlo.test_lower import agree
from tests.frontends.hlo.verdicts import verified

#: What goes back through ``x * rsqrt(v)`` to ``v``, with the derivative ``-1/2 rsqrt(v) / v``.
PROGRAM = """HloModule m, num_partitions=COUNT

ENTRY main {
  x = f32[ROWS,4] parameter(0)PLACED
  v = f32[ROWS,4] parameter(1)PLACED
  s = f32[ROWS,4] multiply(v, v)
  one = f32[] constant(1)
  ones = f32[ROWS,4] broadcast(one), dimensions={}
  e = f32[ROWS,4] add(s, ones)
  r = f32[ROWS,4] rsqrt(e)
  BACK
  ROOT y = f32[ROWS,4] multiply(x, c)
}
"""
AUTODIFF = "c = f32[ROWS,4] divide(r, e)"
CUBE = "q = f32[ROWS,4] multiply(r, r)\n  c = f32[ROWS,4] multiply(q, r)"


def program(back: str, ranks: int = 1) -> str:
    placed = ", sharding={devices=[2,1]<=[2]}" if ranks > 1 else ""
    body = PROGRAM.replace("BACK", back).replace("PLACED", placed)
    return body.replace("COUNT", str(ranks)).replace("ROWS", str(4 // ranks))


@pytest.mark.parametrize("back", [AUTODIFF, CUBE])
def test_it_is_lowered_to_what_it_is(back: str) -> None:
    agree(inline.graph(text.parse(program(back))))


@pytest.mark.parametrize(
    ("back", "expected"),
    [
        (CUBE, "proved"),
        ("c = f32[ROWS,4] multiply(r, r)", "refuted"),
        ("c = f32[ROWS,4] divide(r, s)", "refuted"),
    ],
)
def test_a_cube_beside_autodiff(back: str, expected: str, tmp_path: Path) -> None:
    verified(program(AUTODIFF), program(back, 2), tmp_path, expected)
