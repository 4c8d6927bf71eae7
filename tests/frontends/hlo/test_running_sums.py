"""Running sums over positions that ranks divide: their own, and totals of the blocks before."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from shardproof.frontends.graphs.recorder import Recorder
from shardproof.frontends.hlo import orders
from tests.frontends.hlo.test_lower import ADD
from tests.frontends.hlo.verdicts import verified

#: What a rank has of tensors with a row for each block, of which it takes those that WHICH says.
BEFORE = """
  id = u32[] partition-id()
  own = s32[] convert(id)
  mine = s32[2] broadcast(own), dimensions={}
  block = s32[2] iota(), iota_dimension=0
  which = pred[2] compare(block, mine), direction=WHICH
  zero = f32[] constant(0)
  zeros = f32[2,3] broadcast(zero), dimensions={}
  chosen = pred[2,3] broadcast(which), dimensions={0}
  all = f32[2,3] all-gather(row), channel_id=1, replica_groups={{0,1}}, dimensions={0}, \
use_global_device_ids=true
  kept = f32[2,3] select(chosen, all, zeros)
  before = f32[3] reduce(kept, zero), dimensions={0}, to_apply=add
"""

SUMS = f"""HloModule m

{ADD}
ENTRY main {{
  x = f32[8,3] parameter(0)
  t = f32[8,3] tanh(x)
  z = f32[] constant(0)
  ROOT y = f32[8,3] reduce-window(t, z), window={{size=8x1 pad=PAD}}, to_apply=add
}}
"""
SUMS_OF_RANKS = f"""HloModule m, num_partitions=2

{ADD}
ENTRY main {{
  x = f32[4,3] parameter(0), sharding={{devices=[2,1]<=[2]}}
  t = f32[4,3] tanh(x)
  z = f32[] constant(0)
  w = f32[4,3] reduce-window(t, z), window={{size=4x1 pad=PAD}}, to_apply=add
  total = f32[3] reduce(t, z), dimensions={{0}}, to_apply=add
  row = f32[1,3] reshape(total)
{BEFORE}
  b = f32[4,3] broadcast(before), dimensions={{1}}
  ROOT y = f32[4,3] add(w, b)
}}
"""

#: Scores that count up to each position, times values of one number.
LINEAR = """
  s = f32[SIZE,SIZE] dot(q, k), lhs_contracting_dims={1}, rhs_contracting_dims={1}
  i = s32[SIZE,SIZE] iota(), iota_dimension=0
  j = s32[SIZE,SIZE] iota(), iota_dimension=1
  p = pred[SIZE,SIZE] compare(j, i), direction=SHOWN
  m = f32[SIZE,SIZE] convert(p)
  a = f32[SIZE,SIZE] multiply(s, m)
  o = f32[SIZE] dot(a, v), lhs_contracting_dims={1}, rhs_contracting_dims={0}
"""
ATTENTION = f"""HloModule m

ENTRY main {{
  q = f32[8,3] parameter(0)
  k = f32[8,3] parameter(1)
  v = f32[8] parameter(2)
{LINEAR}
  ROOT y = f32[8] add(o, o)
}}
"""
ATTENTION_OF_RANKS = f"""HloModule m, num_partitions=2

{ADD}
ENTRY main {{
  q = f32[4,3] parameter(0), sharding={{devices=[2,1]<=[2]}}
  k = f32[4,3] parameter(1), sharding={{devices=[2,1]<=[2]}}
  v = f32[4] parameter(2), sharding={{devices=[2]<=[2]}}
{LINEAR}
  state = f32[3] dot(v, k), lhs_contracting_dims={{0}}, rhs_contracting_dims={{0}}
  row = f32[1,3] reshape(state)
{BEFORE}
  b = f32[4] dot(q, before), lhs_contracting_dims={{1}}, rhs_contracting_dims={{0}}
  total = f32[4] add(o, b)
  ROOT y = f32[4] add(total, total)
}}
"""


@pytest.mark.parametrize(
    ("pads", "which", "expected"),
    [
        (("7_0x0_0", "3_0x0_0"), "LT", "proved"),
        (("7_0x0_0", "3_0x0_0"), "LE", "refuted"),
        (("0_7x0_0", "0_3x0_0"), "GT", "proved"),
        (("0_7x0_0", "0_3x0_0"), "LT", "refuted"),
    ],
    ids=["up to each", "the own block twice", "from each on", "blocks before"],
)
def test_sums_of_blocks(pads: tuple[str, str], which: str, expected: str, tmp_path: Path) -> None:
    single, ranks = (
        text.replace("PAD", pad).replace("WHICH", which)
        for text, pad in zip((SUMS, SUMS_OF_RANKS), pads, strict=True)
    )
    verified(single, ranks, tmp_path, expected)


@pytest.mark.parametrize(
    ("shown", "which", "expected"),
    [("LE", "LT", "proved"), ("LE", "LE", "refuted"), ("LT", "LT", "refuted")],
    ids=["states of blocks before", "the own state too", "without the position itself"],
)
def test_attention_without_exponentials(
    shown: str, which: str, expected: str, tmp_path: Path
) -> None:
    single = ATTENTION.replace("SIZE", "8").replace("SHOWN", "LE")
    ranks = ATTENTION_OF_RANKS.replace("SIZE", "4").replace("SHOWN", shown)
    verified(single, ranks.replace("WHICH", which), tmp_path, expected)


def test_triangles() -> None:
    """Known as such, with their diagonal or without, and written as blocks of one order."""
    ones = np.ones((3, 3))
    triangle = orders.Triangle
    assert orders.triangle_of(np.tril(ones)) == triangle(3, 0)
    assert orders.triangle_of(np.tril(ones, -1)) == triangle(3, -1)
    assert orders.triangle_of(np.triu(ones, 1)) == triangle(3, -1, upper=True)
    assert orders.triangle_of(np.tril(ones, 1)) is None
    assert orders.triangle_of(np.tril(2 * ones)) is None
    assert orders.triangle_of(np.tril(ones)[:2]) is None


@pytest.mark.parametrize(("count", "divided"), [(8, True), (6, False), (4, False), (2, False)])
def test_ranks_divide_a_triangle_of_more_positions(count: int, divided: bool) -> None:
    single, ranks = Recorder(1), Recorder(2)
    single.constant([np.tril(np.ones((count, count)))])
    ranks.constant([np.tril(np.ones((4, 4)))])
    assert orders.is_divided(single, ranks) == divided


@pytest.mark.parametrize(
    ("marks", "expected"),
    [
        (([0, 0, 0], [1, 1, 0]), [(0, 2), (2, 1)]),
        (([0, 1, 1],), None),
        (([0, 2], [1, 0]), None),
    ],
)
def test_stretches_of_marks_that_differ_by_rank(
    marks: tuple[list[int], ...], expected: list[tuple[int, int]] | None
) -> None:
    assert orders.stretches([np.array(own) for own in marks]) == expected
