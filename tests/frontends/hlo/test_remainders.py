"""Remainders of steps, and integers that a comparison of another integer chooses."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.frontends.hlo.verdicts import verified

SINGLE = """HloModule m

ENTRY main {
  x = f32[4] parameter(0)
  k = s32[] parameter(1)
  n = s32[] parameter(2)
  d = s32[] constant(DIVISOR)
  one = s32[] constant(1)
  j = s32[] add(k, one)
  r = s32[] remainder(j, d)
  p = pred[] compare(k, one), direction=EQ
  m = s32[] add(n, one)
  s = s32[] select(p, m, n)
  f = f32[] convert(r)
  g = f32[] convert(s)
  b = f32[4] broadcast(f), dimensions={}
  c = f32[4] broadcast(g), dimensions={}
  y = f32[4] multiply(x, b)
  ROOT z = f32[4] add(y, c)
}
"""


def parallel(divisor: str, *changes: tuple[str, str]) -> str:
    text = SINGLE.replace("m\n", "m, num_partitions=2\n", 1).replace("f32[4]", "f32[2]")
    text = text.replace("parameter(0)", "parameter(0), sharding={devices=[2]<=[2]}")
    for old, new in (("DIVISOR", divisor), *changes):
        assert old in text
        text = text.replace(old, new)
    return text


@pytest.mark.parametrize(
    ("single", "divisor", "changes", "expected"),
    [
        ("4", "4", (), "proved"),
        ("4", "3", (("remainder", "and"),), "proved"),
        ("4", "5", (), "refuted"),
        ("4", "1", (("remainder", "and"),), "refuted"),
        ("4", "5", (("remainder", "and"),), "inconclusive"),
        ("4", "0", (), "inconclusive"),
        ("3", "3", (("select(p, m, n)", "select(p, n, m)"),), "refuted"),
    ],
)
def test_what_steps_leave(
    single: str, divisor: str, changes: tuple[tuple[str, str], ...], expected: str, tmp_path: Path
) -> None:
    verified(SINGLE.replace("DIVISOR", single), parallel(divisor, *changes), tmp_path, expected)


@pytest.mark.parametrize(("first", "expected"), [("-10", "inconclusive"), ("0", "proved")])
def test_the_remainder_of_what_may_be_negative_is_refused(
    first: str, expected: str, tmp_path: Path
) -> None:
    """A step less 10 may be, a step may not."""
    change = "j = s32[] add(k, one)", f"o = s32[] constant({first})\n  j = s32[] add(k, o)"
    single = SINGLE.replace(*change).replace("DIVISOR", "3")
    verified(single, parallel("3", change), tmp_path, expected)
