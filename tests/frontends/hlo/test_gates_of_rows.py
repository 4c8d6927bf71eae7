"""Functions of rows that a predicate of ids keeps, of the same rows made zero elsewhere before."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.frontends.hlo.verdicts import verified

#: Rows of ROWS times two matrices with a function between them, where a label counts.
BODY = """HloModule m, replica_count=RANKS, num_partitions=1

ENTRY main {
  x = f32[ROWS,3] parameter(0)
  y = s32[ROWS] parameter(1)
  v = f32[3,5] parameter(2)
  w = f32[5,2] parameter(3)
  n = s32[] constant(0)
  l = s32[ROWS] broadcast(n), dimensions={}
  p = pred[ROWS] compare(y, l), direction=GE
  q = pred[ROWS] compare(y, l), direction=LT
  f = f32[ROWS] convert(p)
  g = f32[ROWS] convert(BEFORE)
  i = f32[ROWS,3] broadcast(g), dimensions={0}
  k = f32[ROWS,3] multiply(x, i)
  a = f32[ROWS,5] dot(GIVEN, v), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  t = f32[5,ROWS] transpose(a), dimensions={1,0}
  c = f32[5,ROWS] FUNCTION(t)
  s = f32[ROWS,5] transpose(c), dimensions={1,0}
  d = f32[ROWS,2] dot(s, w), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  h = f32[ROWS,2] broadcast(f), dimensions={0}
  ROOT r = f32[ROWS,2] multiply(d, h)
}
"""


def program(rows: int, given: str, before: str = "p", function: str = "cosine") -> str:
    text = BODY.replace("GIVEN", given).replace("BEFORE", before).replace("FUNCTION", function)
    return text.replace("ROWS", str(rows)).replace("RANKS", str(8 // rows))


@pytest.mark.parametrize(
    ("before", "expected"), [("p", "proved"), ("q", "refuted")], ids=["the same", "the others"]
)
def test_rows_that_are_zero_where_they_do_not_count(
    before: str, expected: str, tmp_path: Path
) -> None:
    verified(program(8, "x"), program(4, "k", before), tmp_path, expected)


def test_functions_that_are_not_defined_everywhere_are_left(tmp_path: Path) -> None:
    """The logarithm of a row that was made zero is no number, and no less so times zero."""
    verified(program(8, "x", function="log"), program(4, "k", function="log"), tmp_path, "refuted")
