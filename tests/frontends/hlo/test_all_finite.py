"""Steps that are taken where no gradient is infinite, which all ranks ask each other: numbers that
are known on every rank are known behind an all-reduce."""

from __future__ import annotations

from pathlib import Path

import pytest

import shardproof
from shardproof.frontends.hlo import inline, text
from shardproof.frontends.hlo.lower import lower
from tests.frontends.hlo.test_lower import ADD, ALL, MIN, agree
from tests.frontends.hlo.verdicts import verified

STEP = """  finite = pred[4] is-finite(g)
  yes = pred[] constant(true)
  good = pred[] reduce(finite, yes), dimensions={0}, to_apply=all
"""
SINGLE = f"""HloModule m

{ADD}{ALL}
ENTRY main {{
  w = f32[4] parameter(0)
  x = f32[6,4] parameter(1)
  zero = f32[] constant(0)
  g = f32[4] reduce(x, zero), dimensions={{0}}, to_apply=add
{STEP}  next = f32[4] subtract(w, g)
  taken = pred[4] broadcast(good), dimensions={{}}
  ROOT y = f32[4] select(taken, next, w)
}}
"""
LEAST = MIN.replace("f32", "s32")
PARALLEL = f"""HloModule m, num_partitions=2

{ADD}{ALL}{LEAST}
ENTRY main {{
  w = f32[4] parameter(0), sharding={{replicated}}
  x = f32[3,4] parameter(1), sharding={{devices=[2,1]<=[2]}}
  zero = f32[] constant(0)
  own = f32[4] reduce(x, zero), dimensions={{0}}, to_apply=add
  g = f32[4] all-reduce(own), channel_id=1, replica_groups={{{{0,1}}}}, \
use_global_device_ids=true, to_apply=add
{STEP}  flag = s32[] convert(good)
  flags = s32[] all-reduce(flag), channel_id=2, replica_groups={{{{0,1}}}}, \
use_global_device_ids=true, to_apply=min
  none = s32[] constant(BOUND)
  all_good = pred[] compare(flags, none), direction=GT
  next = f32[4] subtract(w, g)
  taken = pred[4] broadcast(all_good), dimensions={{}}
  ROOT y = f32[4] select(taken, next, w)
}}
"""
#: A number that is 1, 2, 3 and 4 on four ranks, over pairs of them.
PAIRS = """HloModule m, num_partitions=4

add {
  a = s32[] parameter(0)
  b = s32[] parameter(1)
  ROOT r = s32[] HOW(a, b)
}
ENTRY main {
  x = f32[2] parameter(0)
  id = u32[] partition-id()
  rank = s32[] convert(id)
  one = s32[] constant(1)
  n = s32[] add(rank, one)
  sum = s32[] all-reduce(n), channel_id=1, replica_groups={{0,2},{1,3}}, \
use_global_device_ids=true, to_apply=add
  f = f32[] convert(sum)
  fs = f32[2] broadcast(f), dimensions={}
  ROOT y = f32[2] multiply(fs, x)
}
"""


@pytest.mark.parametrize(("bound", "expected"), [(0, "proved"), (1, "refuted")])
def test_all_ranks_take_the_step(bound: int, expected: str, tmp_path: Path) -> None:
    verified(SINGLE, PARALLEL.replace("BOUND", str(bound)), tmp_path, expected)


@pytest.mark.parametrize("how", ["add", "maximum", "minimum"])
def test_known_integers_over_groups(how: str) -> None:
    graph = inline.graph(text.parse(PAIRS.replace("HOW", how)))
    agree(graph)
    low, _, _ = lower(graph)
    assert not any(op.name == "all_reduce" for op in low.recorder.ops)


@pytest.mark.parametrize(
    ("function", "twin", "assumed"),
    [("sqrt", False, True), ("sqrt", True, True), ("sine", False, False)],
)
def test_a_question_for_no_number_is_answered_by_an_assumption(
    function: str, twin: bool, assumed: bool, tmp_path: Path
) -> None:
    """``where(isnan(sqrt(x)), 0, x)`` is 0 where x is negative, and x on ranks that do not ask. A
    sine is a number of every number: there nothing is assumed."""
    single = f"""HloModule m

ENTRY main {{
  x = f32[4] parameter(0)
  f = f32[4] {function}(x)
  none = pred[4] compare(f, f), direction=NE
  zero = f32[] constant(0)
  zeros = f32[4] broadcast(zero), dimensions={{}}
  ROOT r = f32[4] select(none, zeros, x)
}}
"""
    ranks = single.replace("m\n", "m, num_partitions=2\n", 1).replace("[4]", "[2]")
    ranks = ranks.replace("parameter(0)", "parameter(0), sharding={devices=[2]<=[2]}")
    if twin:
        ranks = ranks.replace("select(none, zeros, x)", "copy(x)")
    files = tmp_path / "single.hlo", tmp_path / "parallel.hlo"
    for file, made in zip(files, (single, ranks), strict=True):
        file.write_text(made)
    result = shardproof.verify(*files, out=tmp_path / "run", cache=False)
    assert result.verdict == "proved"
    assert any("numbers are finite" in a for a in result.assumptions) == assumed


@pytest.mark.parametrize(
    ("of", "product", "assumed"),
    [("copy(x)", False, True), ("copy(x)", True, True), ("exponential(x)", False, False)],
)
def test_what_a_choice_leaves_out_is_a_number_by_an_assumption(
    of: str, product: bool, assumed: bool, tmp_path: Path
) -> None:
    """``where(x > 0, log(x), 0)`` is 0 where x is negative, and its product with the mask no
    number. The logarithm of an exponential is one everywhere."""
    single = f"""HloModule m

ENTRY main {{
  x = f32[4] parameter(0)
  y = f32[4] {of}
  f = f32[4] log(y)
  zero = f32[] constant(0)
  zeros = f32[4] broadcast(zero), dimensions={{}}
  shown = pred[4] compare(x, zeros), direction=GT
  ROOT r = f32[4] select(shown, f, zeros)
}}
"""
    ranks = single.replace("m\n", "m, num_partitions=2\n", 1).replace("[4]", "[2]")
    ranks = ranks.replace("parameter(0)", "parameter(0), sharding={devices=[2]<=[2]}")
    if product:
        chosen = "ROOT r = f32[2] select(shown, f, zeros)"
        times = "m = f32[2] convert(shown)\n  ROOT r = f32[2] multiply(m, f)"
        ranks = ranks.replace(chosen, times)
    files = tmp_path / "single.hlo", tmp_path / "parallel.hlo"
    for file, made in zip(files, (single, ranks), strict=True):
        file.write_text(made)
    result = shardproof.verify(*files, out=tmp_path / "run", cache=False)
    assert result.verdict == "proved", result.reason
    assert any("a select leaves out" in a for a in result.assumptions) == assumed
