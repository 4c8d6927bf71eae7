"""A sum of two sums beside the sum of what ranks add up first: the search for windows over divided
positions ended with `IndexError`."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.frontends.hlo.verdicts import verified

PROGRAM = """HloModule m, num_partitions=RANKS

total {
  a = f32[] parameter(0)
  b = f32[] parameter(1)
  ROOT c = f32[] add(a, b)
}

ENTRY main {
  x = f32[ROWS,6,5] parameter(0), sharding=PLACED
  y = f32[ROWS,6,5] parameter(1), sharding=PLACED
  e = f32[ROWS,6,5] multiply(x, y)
  f = f32[ROWS,6,5] multiply(y, y)
  z = f32[] constant(0)
"""
ALONE = """  s = f32[5] reduce(e, z), dimensions={0,1}, to_apply=total
  t = f32[5] reduce(f, z), dimensions={0,1}, to_apply=total
  ROOT g = f32[5] add(s, t)
}
"""
TOGETHER = """  d = f32[ROWS,6,5] add(e, OTHER)
  s = f32[5] reduce(d, z), dimensions={0,1}, to_apply=total
  ROOT g = f32[5] all-reduce(s), channel_id=1, replica_groups={{0,1}}, \
use_global_device_ids=true, to_apply=total
}
"""


def program(ranks: int, end: str, other: str = "f") -> str:
    placed = "{replicated}" if ranks == 1 else "{devices=[2,1,1]<=[2]}"
    given = {"ROWS": 4 // ranks, "RANKS": ranks, "PLACED": placed, "OTHER": other}
    text = PROGRAM + end
    for name, what in given.items():
        text = text.replace(name, str(what))
    return text


@pytest.mark.parametrize(("other", "expected"), [("f", "proved"), ("e", "refuted")])
def test_what_is_added_up_before_it_is_summed(other: str, expected: str, tmp_path: Path) -> None:
    verified(program(1, ALONE), program(2, TOGETHER, other), tmp_path, expected)
