"""Signs of numbers that one side has so many times as large, and bounds on either side."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.frontends.hlo.verdicts import verified

PROGRAM = """HloModule m, replica_count=RANKS, num_partitions=1

ENTRY main {
  x = f32[ROWS,4] parameter(0)
  w = f32[4,4] parameter(1)
  y = f32[ROWS,4] dot(x, w), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  o = f32[] constant(FIRST)
  c = f32[ROWS,4] broadcast(o), dimensions={}
  t = f32[] constant(SIZE)
  n = f32[ROWS,4] broadcast(t), dimensions={}
  z = f32[ROWS,4] multiply(y, n)
  MADE
  ROOT r = f32[ROWS,4] tanh(m)
}
"""


FLOAT = "m = f32[ROWS,4] {}"
FLAG = "p = pred[ROWS,4] compare(z, c), direction=GT\n  m = f32[ROWS,4] convert(p)"
Made = tuple[str, float, float]


def side(made: Made, rows: int, ranks: int) -> str:
    what, first, size = made
    text = PROGRAM.replace("MADE", FLAG if what == "larger" else FLOAT.format(what))
    for name, number in (("FIRST", first), ("SIZE", size), ("ROWS", rows), ("RANKS", ranks)):
        text = text.replace(name, str(number))
    return text


def sides(single: Made, parallel: Made) -> tuple[str, str]:
    return side(single, 8, 1), side(parallel, 4, 2)


@pytest.mark.parametrize(
    ("single", "parallel", "expected"),
    [
        (("sign(z)", 1, 1), ("sign(z)", 1, 8), "proved"),
        (("sign(z)", 1, 1), ("sign(z)", 1, -8), "refuted"),
        (("larger", 0.5, 1), ("larger", 2, 4), "proved"),
        (("larger", 0.5, 1), ("larger", 1, 4), "refuted"),
    ],
    ids=["signs", "other signs", "comparisons", "another bound"],
)
def test_the_sign_of_a_multiple(
    single: Made, parallel: Made, expected: str, tmp_path: Path
) -> None:
    """A sum over ranks has the sign of their mean (Lion, signs of gradients)."""
    verified(*sides(single, parallel), tmp_path, expected)


@pytest.mark.parametrize(
    ("parallel", "expected"),
    [
        (("maximum(c, z)", 0.5, 1), "proved"),
        (("maximum(c, z)", 0.25, 1), "refuted"),
        (("minimum(c, z)", 0.5, 1), "refuted"),
    ],
    ids=["the other way", "another bound", "the smaller one"],
)
def test_a_bound_is_either_operand(parallel: Made, expected: str, tmp_path: Path) -> None:
    verified(*sides(("maximum(z, c)", 0.5, 1), parallel), tmp_path, expected)
