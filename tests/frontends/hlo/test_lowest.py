"""Values that are minus infinity on some ranks: a block of scores that a causal ring hides."""

from __future__ import annotations

from pathlib import Path

import pytest

from shardproof.frontends.hlo import inline, text
from shardproof.frontends.hlo.lower import lower
from tests.frontends.hlo.test_lower import ADD, MAX, agree
from tests.frontends.hlo.verdicts import verified

SINGLE = """HloModule m

ENTRY main {
  x = f32[4] parameter(0)
  z = f32[4] parameter(1)
  m = f32[4] maximum(x, z)
  d = f32[4] subtract(x, m)
  ROOT e = f32[4] exponential(d)
}
"""
HEAD = f"""HloModule m, num_partitions=2

{ADD}
{MAX}
ENTRY main {{
  x = f32[4] parameter(0)
  z = f32[4] parameter(1)
  low = f32[] constant(-inf)
  lows = f32[4] broadcast(low), dimensions={{}}
  rank = u32[] partition-id()
  bound = u32[] constant(BOUND)
  one = pred[] compare(rank, bound), direction=LT
  some = pred[4] broadcast(one), dimensions={{}}
  t = f32[4] select(some, x, lows)
"""
RING = (
    HEAD
    + """  m = f32[4] maximum(t, z)
  d = f32[4] subtract(t, m)
  e = f32[4] exponential(d)
  ROOT y = f32[4] all-reduce(e), channel_id=1, replica_groups={{0,1}}, to_apply=add, \
use_global_device_ids=true
}
"""
)


@pytest.mark.parametrize(("bound", "expected"), [(1, "proved"), (2, "refuted")])
def test_a_block_that_is_hidden_from_a_rank(bound: int, expected: str, tmp_path: Path) -> None:
    verified(SINGLE, RING.replace("BOUND", str(bound)), tmp_path, expected)


@pytest.mark.parametrize(
    "body",
    [
        "  ROOT y = f32[4] exponential(t)",
        "  s = f32[4] add(z, t)\n  ROOT y = f32[4] exponential(s)",
        "  s = f32[4] subtract(t, z)\n  ROOT y = f32[4] exponential(s)",
        "  h = f32[] constant(0.5)\n  w = f32[4] broadcast(h), dimensions={}\n"
        "  s = f32[4] multiply(t, w)\n  ROOT y = f32[4] exponential(s)",
        "  s = f32[2,2] reshape(t)\n  q = f32[2] reduce(s, low), dimensions={1}, to_apply=max\n"
        "  ROOT y = f32[2] exponential(q)",
        "  ROOT y = f32[4] maximum(z, t)",
        "  s = f32[4] maximum(lows, t)\n  ROOT y = f32[4] exponential(s)",
        "  u = f32[4] select(some, lows, z)\n  ROOT y = f32[4] maximum(t, u)",
        "  u = f32[4] select(some, z, lows)\n  s = f32[4] maximum(t, u)\n"
        "  ROOT y = f32[4] exponential(s)",
        "  u = f32[4] select(some, lows, t)\n  s = f32[4] maximum(u, x)\n  ROOT y = f32[4] negate(s)",
        "  k = bf16[4] convert(t)\n  ROOT y = bf16[4] exponential(k)",
    ],
)
def test_it_is_computed_with_as_arithmetic_of_infinities_does(body: str) -> None:
    agree(inline.graph(text.parse(f"{HEAD.replace('BOUND', '1')}{body}\n}}\n")))


@pytest.mark.parametrize(
    ("body", "why"),
    [
        ("  ROOT y = f32[4] subtract(t, t)", "subtract of HLO (a difference of minus infinities, "),
        ("  ROOT y = f32[4] subtract(z, t)", "subtract of HLO (a difference of minus infinities, "),
        ("  ROOT y = f32[4] tanh(t)", "tanh of HLO (tanh of what is minus infinity on some ranks)"),
        ("  ROOT y = f32[4] multiply(t, z)", "multiply of HLO (multiply of what is minus "),
        ("  l = f32[4] exponential(t)\n  k = f32[4] log(l)\n  ROOT y = f32[4] subtract(t, k)",
         "subtract of HLO (a sum with minus infinity of what may be minus infinity "),
    ],
)  # fmt: skip
def test_what_gives_no_number_is_refused_by_name(body: str, why: str) -> None:
    low, _, _ = lower(inline.graph(text.parse(f"{HEAD.replace('BOUND', '1')}{body}\n}}\n")))
    refused = [op.name for op in low.recorder.ops if "of HLO" in op.name]
    assert [name[: len(why)] for name in refused] == [why]
