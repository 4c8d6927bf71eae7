"""Bits of random generators: equal expressions are equal numbers, on whichever side they are."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import shardproof
from shardproof.frontends.hlo import evaluate, inline, text
from shardproof.frontends.hlo.expressions import Expressions
from shardproof.frontends.hlo.items import Bits
from shardproof.frontends.hlo.lower import lower

#: A round of a generator: the bits of a position, of a key's two halves.
ROUND = """  key = u32[2] parameter(0)
  a = u32[1] slice(key), slice={[0:1]}
  b = u32[1] slice(key), slice={[1:2]}
  c = u32[] reshape(a)
  d = u32[] reshape(b)
  e = u32[COUNT] broadcast(c), dimensions={}
  f = u32[COUNT] broadcast(d), dimensions={}
  g = u32[COUNT] add(at, e)
  n = u32[] constant(13)
  m = u32[COUNT] broadcast(n), dimensions={}
  h = u32[COUNT] shift-left(g, m)
  i = u32[COUNT] xor(h, f)
"""
#: A number between 0 and 1 of them, and what is kept of x.
KEPT = """  k = u32[] constant(9)
  l = u32[COUNT] broadcast(k), dimensions={}
  o = u32[COUNT] shift-right-logical(i, l)
  p = u32[] constant(1065353216)
  q = u32[COUNT] broadcast(p), dimensions={}
  r = u32[COUNT] or(o, q)
  s = f32[COUNT] bitcast-convert(r)
  t = f32[] constant(1)
  u = f32[COUNT] broadcast(t), dimensions={}
  v = f32[COUNT] subtract(s, u)
  w = f32[] constant(RATE)
  y = f32[COUNT] broadcast(w), dimensions={}
  z = pred[COUNT] compare(v, y), direction=LT
  x = f32[COUNT] parameter(1)
  aa = f32[] constant(0)
  bb = f32[COUNT] broadcast(aa), dimensions={}
  ROOT cc = f32[COUNT] select(z, x, bb)
"""
SINGLE = (
    "HloModule m\n\nENTRY e {\n  at = u32[8] iota(), iota_dimension=0\n"
    + (ROUND + KEPT).replace("COUNT", "8").replace("RATE", "0.75")
    + "}\n"
)


def ranks(first: str, rate: str = "0.75") -> str:
    """Two ranks, of which each draws four numbers from its own position on."""
    return (
        "HloModule m, num_partitions=2\n\nENTRY e {\n  own = u32[4] iota(), iota_dimension=0\n"
        f"  me = u32[] partition-id()\n  starts = u32[2] constant({first})\n"
        "  start = u32[1] dynamic-slice(starts, me), dynamic_slice_sizes={1}\n"
        "  first = u32[] reshape(start)\n  off = u32[4] broadcast(first), dimensions={}\n"
        "  at = u32[4] add(own, off)\n"
        + (ROUND + KEPT).replace("COUNT", "4").replace("RATE", rate)
        + "}\n"
    )


def verdict(parallel: str, folder: Path) -> shardproof.Result:
    one, many = folder / "single.hlo", folder / "parallel.hlo"
    one.write_text(SINGLE)
    many.write_text(parallel)
    return shardproof.verify(one, many, out=folder / "run", cache=False)


def test_a_rank_that_draws_its_part_is_proved(tmp_path: Path) -> None:
    result = verdict(ranks("{0, 4}"), tmp_path)
    assert result.verdict == "proved", result.reason
    assert any("random generator" in a for a in result.assumptions)


def test_a_rank_that_keeps_more_is_refuted(tmp_path: Path) -> None:
    assert verdict(ranks("{0, 4}", "0.25"), tmp_path).verdict == "refuted"


@pytest.mark.parametrize(("rate", "expected"), [("0.75", "proved"), ("0.25", "refuted")])
def test_a_key_may_be_one_number(rate: str, expected: str, tmp_path: Path) -> None:
    begin, end = ROUND.index("  key"), ROUND.index("  e = ")
    parts = ROUND[begin:end], "  c = u32[] parameter(0)\n  d = u32[] add(c, c)\n"
    files = tmp_path / "single.hlo", tmp_path / "parallel.hlo"
    for file, body in zip(files, (SINGLE, ranks("{0, 4}", rate)), strict=True):
        file.write_text(body.replace(*parts))
    result = shardproof.verify(*files, out=tmp_path / "run", cache=False)
    assert result.verdict == expected, result.reason


#: A key as it is made of a seed, or of a step: its high bits, and its low ones.
MADE = """  step = s32[] parameter(0)
  all = u32[] convert(step)
  width = u32[] constant(32)
  c = u32[] shift-right-logical(all, width)
  mask = u32[] constant(4294967295)
  d = u32[] and(all, mask)
"""
#: A known key beside a number that is mixed into it.
MIXED = """  step = s32[] parameter(0)
  c = u32[] constant(3405691582)
  all = u32[] convert(step)
  d = u32[] xor(c, all)
"""


@pytest.mark.parametrize(
    ("key", "rate", "other", "expected"),
    [
        (MADE, "0.75", False, "proved"),
        (MADE, "0.25", False, "refuted"),
        (MADE, "0.75", True, "inconclusive"),
        (MIXED, "0.75", False, "proved"),
    ],
    ids=["right", "rate", "next", "mixed"],
)
def test_a_key_may_be_made_of_a_step(
    key: str, rate: str, other: bool, expected: str, tmp_path: Path
) -> None:
    """``fold_in(key, step)`` and ``PRNGKey(seed)`` were refused by name, for an integer that is
    shifted by all of its bits; ranks that take another step draw other numbers."""
    begin, end = ROUND.index("  key"), ROUND.index("  e = ")
    later = key.replace("convert(step)", "convert(next)").replace(
        "  all", "  next = s32[] add(step, step)\n  all", 1
    )
    files = tmp_path / "single.hlo", tmp_path / "parallel.hlo"
    bodies = (SINGLE, key), (ranks("{0, 4}", rate), later if other else key)
    for file, (body, made) in zip(files, bodies, strict=True):
        file.write_text(body.replace(ROUND[begin:end], made))
    result = shardproof.verify(*files, out=tmp_path / "run", cache=False)
    assert result.verdict == expected, result.reason
    if other:
        assert "random numbers that the single side does not hold" in result.reason


def test_an_exclusive_or_of_ids_that_were_looked_up_is_refused() -> None:
    """Nothing says what number it is, and it is no expression of inputs alone."""
    text_of = """HloModule m

ENTRY e {
  x = f32[4] parameter(0)
  y = s32[4] convert(x)
  z = u32[4] convert(y)
  a = u32[] constant(7)
  b = u32[4] broadcast(a), dimensions={}
  ROOT c = u32[4] xor(z, b)
}
"""
    lowering, _, _ = lower(inline.graph(text.parse(text_of)))
    assert any("xor of HLO" in op.name for op in lowering.recorder.ops)


@pytest.mark.parametrize("first", ["{0, 0}", "{4, 0}", "{0, 5}"])
def test_other_numbers_are_not_taken_for_these(first: str, tmp_path: Path) -> None:
    assert verdict(ranks(first), tmp_path).verdict != "proved"


def test_equal_expressions_are_equal_numbers() -> None:
    """The judge computes the bits; elements of one expression agree for every key."""
    body = (
        "HloModule m\n\nENTRY e {\n  j = u32[6] iota(), iota_dimension=0\n"
        "  two = u32[] constant(2)\n  pair = u32[6] broadcast(two), dimensions={}\n"
        "  at = u32[6] divide(j, pair)\n" + ROUND.replace("COUNT", "6") + "  ROOT out = u32[12] "
        "concatenate(i, g), dimensions={0}\n}\n"
    )
    graph = inline.graph(text.parse(body))
    lowering, _, _ = lower(graph, None, frozenset(), Expressions())
    item = lowering.items[graph.outputs[0].value]
    assert isinstance(item, Bits)
    numbers = item.arrays[0]
    assert len(set(numbers.tolist())) == 6
    rng = np.random.default_rng(0)
    for _ in range(5):
        key = rng.integers(0, 1 << 32, 2, dtype="uint32")
        bits = evaluate.run(graph, [[key]])[0][0]
        for number in np.unique(numbers):
            assert len(np.unique(bits[numbers == number])) == 1
        assert len(np.unique(bits)) == 6


def test_a_float_of_any_bits_is_refused() -> None:
    body = SINGLE.replace(
        "ROOT cc = f32[8] select(z, x, bb)", "ROOT cc = f32[8] bitcast-convert(i)"
    )
    graph = inline.graph(text.parse(body))
    lowering, _, _ = lower(graph)
    assert any("bitcast-convert of HLO" in op.name for op in lowering.recorder.ops)


def test_many_bits_are_refused() -> None:
    body = SINGLE.replace("u32[8] iota", "u32[200000] iota").replace("[8]", "[200000]")
    graph = inline.graph(text.parse(body))
    lowering, _, _ = lower(graph)
    assert any("random bits of 200000 numbers" in op.name for op in lowering.recorder.ops)


@pytest.mark.parametrize(
    ("operator", "number", "expected"),
    [
        ("remainder", 12, (0, 12)),
        ("and", 255, (0, 256)),
        ("shift-right-logical", 20, (0, 1 << 12)),
        ("xor", 255, (0, 1 << 32)),
        ("add", 1, (0, 1 << 32)),
    ],
)
def test_whole_numbers_lie_where_their_expressions_say(
    operator: str, number: int, expected: tuple[int, int]
) -> None:
    """For any key, by the judge; what may overflow is anything that its type has."""
    body = (
        "HloModule m\n\nENTRY e {\n  at = u32[6] iota(), iota_dimension=0\n"
        + ROUND.replace("COUNT", "6")
        + f"  k = u32[] constant({number})\n  l = u32[6] broadcast(k), dimensions={{}}\n"
        f"  ROOT out = u32[6] {operator}(i, l)\n}}\n"
    )
    graph = inline.graph(text.parse(body))
    known = Expressions()
    lowering, _, _ = lower(graph, None, frozenset(), known)
    item = lowering.items[graph.outputs[0].value]
    assert isinstance(item, Bits)
    assert {known.interval(int(n)) for n in item.arrays[0]} == {expected}
    rng = np.random.default_rng(1)
    for _ in range(5):
        key = rng.integers(0, 1 << 32, 2, dtype="uint32")
        bits = evaluate.run(graph, [[key]])[0][0]
        assert expected[0] <= bits.min() <= bits.max() < expected[1]


WHOLE = """  k = u32[] constant(SPAN)
  l = u32[8] broadcast(k), dimensions={}
  o = u32[8] remainder(i, l)
  s = f32[8] convert(o)
  x = f32[8] parameter(1)
  ROOT y = f32[8] multiply(x, s)
}
"""


@pytest.mark.parametrize("span", ["12", "4000000000"])
def test_bits_are_whole_numbers_of_an_interval_only_where_they_are_bounded(
    span: str, tmp_path: Path
) -> None:
    """Otherwise any numbers, of which a proof says more."""
    head = "HloModule m\n\nENTRY e {\n  at = u32[8] iota(), iota_dimension=0\n"
    path = tmp_path / "one.hlo"
    path.write_text(head + ROUND.replace("COUNT", "8") + WHOLE.replace("SPAN", span))
    result = shardproof.verify(path, path, out=tmp_path / "run", cache=False)
    assert result.verdict == "proved", result.reason
    told = [a for a in result.assumptions if "every entry of random 0" in a]
    assert told == (["every entry of random 0 is an integer from 0 to 11"] if span == "12" else [])
