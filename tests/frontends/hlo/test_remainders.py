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


@pytest.mark.parametrize(
    ("divisor", "changes", "expected"),
    [
        ("2", (("divide", "shift-right-arithmetic"),), "proved"),
        ("3", (("divide", "shift-right-logical"),), "refuted"),
        ("-4", (), "inconclusive"),
    ],
)
def test_how_often_steps_have_a_number(
    divisor: str, changes: tuple[tuple[str, str], ...], expected: str, tmp_path: Path
) -> None:
    single = SINGLE.replace("remainder", "divide")
    text = single.replace("m\n", "m, num_partitions=2\n", 1).replace("f32[4]", "f32[2]")
    text = text.replace("parameter(0)", "parameter(0), sharding={devices=[2]<=[2]}")
    for old, new in changes:
        text = text.replace(old, new)
    numbers = single.replace("DIVISOR", "4"), text.replace("DIVISOR", divisor)
    verified(*numbers, tmp_path, expected)


@pytest.mark.parametrize(
    ("before", "expected"), [("", "inconclusive"), ("remainder", "proved"), ("logical", "proved")]
)
def test_arithmetic_shifts_take_the_first_bit_for_a_sign(
    before: str, expected: str, tmp_path: Path
) -> None:
    """XLA's arithmetic shift of 200 by 1 is 228 as ``u8``, a logical one 100; of 100 both are 50.
    A program without an arithmetic one is its twin."""
    step = "k = u8[] parameter(1)"
    if before == "remainder":
        step = "i = u8[] parameter(1)\n  h = u8[] constant(128)\n  k = u8[] remainder(i, h)"
    text = f"""HloModule m

ENTRY main {{
  x = f32[4] parameter(0)
  {step}
  d = u8[] constant(1)
  r = u8[] shift-right-logical(k, d)
  f = f32[] convert(r)
  b = f32[4] broadcast(f), dimensions={{}}
  ROOT z = f32[4] multiply(x, b)
}}
"""
    ranks = text.replace("m\n", "m, num_partitions=2\n", 1).replace("f32[4]", "f32[2]")
    ranks = ranks.replace("parameter(0)", "parameter(0), sharding={devices=[2]<=[2]}")
    arithmetic = ranks.replace("logical", "arithmetic")
    verified(text, ranks if before == "logical" else arithmetic, tmp_path, expected)


@pytest.mark.parametrize(("least", "expected"), [("0", "proved"), ("1", "refuted")])
def test_large_integers_are_no_less_divisible(least: str, expected: str, tmp_path: Path) -> None:
    """What 4 leaves of a step is not below 0 (``jnp.remainder`` asks), however large the step; 0 is
    below 1."""
    single = """HloModule m

ENTRY main {
  x = f32[4,6] parameter(0)
  k = s32[4,6] parameter(1)
  j = s32[6] parameter(2)
  three = s32[] constant(3)
  bits = s32[4,6] broadcast(three), dimensions={}
  r = s32[4,6] and(k, bits)
  b = s32[4,6] broadcast(j), dimensions={1}
  s = s32[4,6] multiply(r, b)
  f = f32[4,6] convert(s)
  ROOT y = f32[4,6] multiply(x, f)
}
"""
    ranks = single.replace("m\n", "m, num_partitions=2\n", 1).replace("[4,6]", "[2,6]")
    for n in (0, 1):
        placed = f"parameter({n}), sharding={{devices=[2,1]<=[2]}}"
        ranks = ranks.replace(f"parameter({n})", placed)
    ranks = ranks.replace(
        "s = s32[2,6] multiply(r, b)",
        f"""o = s32[] constant({least})
  least = s32[2,6] broadcast(o), dimensions={{}}
  p = pred[2,6] compare(r, least), direction=LT
  more = s32[2,6] add(r, bits)
  chosen = s32[2,6] select(p, more, r)
  s = s32[2,6] multiply(chosen, b)""",
    )
    verified(single, ranks, tmp_path, expected)


#: The largest of six scores of two beams with three words each, and what of its beam's state: the
#: quotient by 3, rounded down as JAX writes it.
BEAMS = """HloModule m

ENTRY main {
  x = f32[4,6] parameter(0)
  s = f32[4,2] parameter(1)
  t = (f32[4,1], s32[4,1]) topk(x), k=1, largest=true
  p = s32[4,1] get-tuple-element(t), index=1
  i = s32[4] reshape(p)
  n = s32[] constant(3)
  w = s32[4] broadcast(n), dimensions={}
  o = s32[] constant(1)
  one = s32[4] broadcast(o), dimensions={}
  z = s32[] constant(0)
  zero = s32[4] broadcast(z), dimensions={}
  q = s32[4] divide(i, w)
  a = s32[4] sign(i)
  b = s32[4] sign(w)
  c = pred[4] compare(a, b), direction=NE
  r = s32[4] remainder(i, w)
  d = pred[4] compare(r, zero), direction=NE
  e = pred[4] and(c, d)
  less = s32[4] subtract(q, one)
  beam = s32[4] select(e, less, q)
  v = s32[4,2] broadcast(beam), dimensions={0}
  k = s32[4,2] iota(), iota_dimension=1
  h = pred[4,2] compare(v, k), direction=EQ
  g = f32[4,2] convert(h)
  y = f32[4,2] multiply(g, s)
  m = s32[4] negate(r)
  l = s32[4] abs(m)
  f = f32[4] convert(l)
  u = f32[4,2] broadcast(f), dimensions={0}
  ROOT sum = f32[4,2] add(y, u)
}
"""


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ("", "", "proved"),
        ("select(e, less, q)", "add(zero, r)", "refuted"),
        ("abs(m)", "negate(q)", "refuted"),
    ],
)
def test_the_beam_of_a_place(old: str, new: str, expected: str, tmp_path: Path) -> None:
    parallel = BEAMS.replace("HloModule m", "HloModule m, num_partitions=2")
    for n in (0, 1):
        parallel = parallel.replace(f"({n})\\n", f"({n}), sharding={{devices=[2,1]<=[2]}}\\n", 1)
    parallel = parallel.replace("[4,", "[2,").replace("[4]", "[2]").replace(old or "??", new)
    verified(BEAMS, parallel, tmp_path, expected)
