"""Rows and features that are picked one by one, and tables of several sizes, over two ranks."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.frontends.hlo.verdicts import verified

HEAD = "HloModule m, entry_computation_layout={(%s)->%s}%s\n\nENTRY e {\n"
PICKED = """  x = f32[{n},3] parameter(0){at}
  w = f32[3,5] parameter(1){all}
  e = f32[{n},3] exponential(x)
  a = f32[{n},1] slice(x), slice={{[0:{n}], [0:1]}}
  h = f32[{n},1] slice(x), slice={{[0:{n}], [1:2]}}
  k = f32[1,{n}] reshape(h)
  b = f32[{n},1] slice(e), slice={{[0:{n}], [{last}:{next}]}}
  c = f32[1,{n}] reshape(a)
  d = f32[1,{n}] reshape(b)
  g = f32[3,{n}] concatenate(c, k, d), dimensions={{0}}
  t = f32[{n},5] dot(g, w), lhs_contracting_dims={{0}}, rhs_contracting_dims={{0}}
  ROOT y = f32[{n},5] tanh(t)
}}
"""
TABLES = """  x = f32[{n},4] parameter(0){at}
  c = f32[4,4] constant({{{{1, 2, 0, 0}}, {{2, 1, 2, 0}}, {{0, 2, 1, 2}}, {{0, 0, 2, 1}}}})
  d = f32[2,2] constant({{{{1, 2}}, {{2, {last}}}}})
  y = f32[{n},4] dot(x, c), lhs_contracting_dims={{1}}, rhs_contracting_dims={{0}}
  s = f32[{n},2] slice(y), slice={{[0:{n}], [0:2]}}
  ROOT z = f32[{n},2] dot(s, d), lhs_contracting_dims={{1}}, rhs_contracting_dims={{0}}
}}
"""
AT = ", sharding={devices=[2,1]<=[2]}"
ALL = ", sharding={replicated}"


def sides(body: str, inputs: str, result: str, last: int, other: int) -> tuple[str, str]:
    """The single side with ``last``, and the ranks' with ``other``."""
    one, two = (
        HEAD % (inputs.format(n=n), result.format(n=n), more)
        for n, more in ((4, ""), (2, ", num_partitions=2"))
    )
    return (
        one + body.format(n=4, at="", all="", last=last, next=last + 1),
        two + body.format(n=2, at=AT, all=ALL, last=other, next=other + 1),
    )


@pytest.mark.parametrize(("other", "verdict"), [(2, "proved"), (1, "refuted")])
def test_picked_features_of_a_part_of_the_batch(other: int, verdict: str, tmp_path: Path) -> None:
    shapes = "f32[{n},3]{{1,0}}, f32[3,5]{{1,0}}", "f32[{n},5]{{1,0}}"
    verified(*sides(PICKED, *shapes, 2, other), tmp_path, verdict)


@pytest.mark.parametrize(("other", "verdict"), [(1, "proved"), (5, "refuted")])
def test_a_small_table_is_no_corner_of_a_larger_one(
    other: int, verdict: str, tmp_path: Path
) -> None:
    shapes = "f32[{n},4]{{1,0}}", "f32[{n},2]{{1,0}}"
    verified(*sides(TABLES, *shapes, 1, other), tmp_path, verdict)
