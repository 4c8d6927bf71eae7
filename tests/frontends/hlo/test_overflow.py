"""Arithmetic of predicates is logic, and integers of few bits wrap around."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from shardproof.engine.errors import Unsupported
from shardproof.frontends.hlo import semantics
from tests.frontends.hlo.verdicts import verified

PREDICATES = """HloModule m{parts}

ENTRY main {{
  x = f32[{n}] parameter(0){at}
  y = f32[{n}] parameter(1){at}
  z = f32[] constant(0)
  o = f32[{n}] broadcast(z), dimensions={{}}
  p = pred[{n}] compare(x, o), direction=GT
  q = pred[{n}] compare(y, o), direction=GT
  {rest}
}}
"""
RANKS = ", num_partitions=2"
DIVIDED = ", sharding={devices=[2]0,1}"


def _single(rest: str) -> str:
    return PREDICATES.format(parts="", n=4, at="", rest=rest.replace("[n]", "[4]"))


def _parallel(rest: str) -> str:
    return PREDICATES.format(parts=RANKS, n=2, at=DIVIDED, rest=rest.replace("[n]", "[2]"))


def _logic(word: str) -> str:
    return f"r = pred[n] {word}(p, q)\n  ROOT f = f32[n] convert(r)"


COUNT = "u = f32[n] convert(p)\n  v = f32[n] convert(q)\n  ROOT f = f32[n] add(u, v)"


@pytest.mark.parametrize(("logic", "arithmetic"), [("or", "add"), ("and", "multiply")])
def test_arithmetic_of_predicates_is_logic(logic: str, arithmetic: str, tmp_path: Path) -> None:
    verified(_single(_logic(logic)), _parallel(_logic(arithmetic)), tmp_path, "proved")


def test_a_sum_of_predicates_does_not_count_them(tmp_path: Path) -> None:
    verified(_single(COUNT), _parallel(_logic("add")), tmp_path, "refuted")


def test_a_count_of_predicates_is_their_sum_as_numbers(tmp_path: Path) -> None:
    verified(_single(COUNT), _parallel(COUNT), tmp_path, "proved")


INTEGERS = """HloModule m{parts}

ENTRY main {{
  x = f32[{n}] parameter(0){at}
  i = {dtype}[{n}] parameter(1){at}
  {rest}
  ROOT y = f32[{n}] multiply(x, f)
}}
"""
#: What is taken off before, and after, ids become numbers.
BEFORE = """c = {dtype}[] constant(200)
  d = {dtype}[{n}] broadcast(c), dimensions={{}}
  j = {dtype}[{n}] subtract(i, d)
  f = f32[{n}] convert(j)"""
AFTER = """c = f32[] constant(200)
  d = f32[{n}] broadcast(c), dimensions={{}}
  j = f32[{n}] convert(i)
  f = f32[{n}] subtract(j, d)"""
TWICE_BEFORE = "j = {dtype}[{n}] add(i, i)\n  f = f32[{n}] convert(j)"
TWICE_AFTER = "j = f32[{n}] convert(i)\n  f = f32[{n}] add(j, j)"


@pytest.mark.parametrize(
    ("dtype", "before", "after", "verdict"),
    [
        ("u8", BEFORE, AFTER, "inconclusive"),
        ("s32", BEFORE, AFTER, "proved"),
        ("s8", TWICE_BEFORE, TWICE_AFTER, "inconclusive"),
        ("s32", TWICE_BEFORE, TWICE_AFTER, "proved"),
    ],
)
def test_integers_of_few_bits_wrap_around(
    dtype: str, before: str, after: str, verdict: str, tmp_path: Path
) -> None:
    def text(rest: str, parts: str, n: int, at: str) -> str:
        own = rest.format(dtype=dtype, n=n)
        return INTEGERS.format(parts=parts, n=n, at=at, dtype=dtype, rest=own)

    verified(text(before, "", 4, ""), text(after, RANKS, 2, DIVIDED), tmp_path, verdict)


@pytest.mark.parametrize(("dtype", "verdict"), [("s32", "proved"), ("u8", "inconclusive")])
def test_a_count_of_eight_bits_wraps_around(dtype: str, verdict: str, tmp_path: Path) -> None:
    """256 predicates that hold are counted as 0."""
    add = (
        "add {{\n  a = {0}[] parameter(0)\n  b = {0}[] parameter(1)\n  ROOT c = {0}[] add(a, b)\n}}"
    )
    text = """HloModule m{parts}

{add}

ENTRY main {{
  x = f32[256] parameter(0)
  z = f32[] constant(0)
  o = f32[256] broadcast(z), dimensions={{}}
  p = pred[256] compare(x, o), direction=GT
  u = {dtype}[256] convert(p)
  e = {dtype}[] constant(0)
  s = {dtype}[] reduce(u, e), dimensions={{0}}, to_apply=add
  ROOT f = f32[] convert(s)
}}
"""

    def made(dtype: str, parts: str) -> str:
        return text.format(parts=parts, add=add.format(dtype), dtype=dtype)

    verified(made("f32", ""), made(dtype, RANKS), tmp_path, verdict)


CONSTANTS = """HloModule m{parts}

ENTRY main {{
  x = f32[4] parameter(0)
  a = s32[4] constant({{-7, 7, -8, 8}})
  b = s32[4] constant({{{by}}})
  q = s32[4] {word}(a, b)
  f = f32[4] convert(q)
  ROOT y = f32[4] multiply(x, f)
}}
"""


@pytest.mark.parametrize("word", ["divide", "remainder"])
@pytest.mark.parametrize(("last", "verdict"), [("-3", "proved"), ("0", "inconclusive")])
def test_quotients_of_known_integers_by_zero_are_none(
    word: str, last: str, verdict: str, tmp_path: Path
) -> None:
    """The remainder by zero was 0; XLA leaves it to the device, and its CPU gives the dividend."""
    by = f"2, -2, 3, {last}"
    single = CONSTANTS.format(parts="", word=word, by=by)
    verified(single, CONSTANTS.format(parts=RANKS, word=word, by=by), tmp_path, verdict)


def test_integers_divide_towards_zero() -> None:
    x, y = np.array([-7, 7, -8, 8, 6]), np.array([2, -2, 3, -3, -3])
    assert semantics.apply("divide", {}, [x, y], (5,)).tolist() == [-3, -3, -2, -2, -2]
    large = np.array([(1 << 62) + 1])
    assert semantics.apply("divide", {}, [large, np.array([1])], (1,)).tolist() == large.tolist()
    with pytest.raises(Unsupported, match="overflows"):
        semantics.apply("divide", {}, [np.array([-(1 << 63)]), np.array([-1])], (1,))
