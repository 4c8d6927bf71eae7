"""Ranks of which half send and half receive, and which all meet: two programs, each on two ranks."""

from __future__ import annotations

from pathlib import Path

import pytest

from shardproof.frontends.graphs.mesh import Mesh, find
from tests.frontends.hlo.test_lower import ADD
from tests.frontends.hlo.verdicts import verified

ALL, PAIRS = ((0, 1, 2, 3),), ((0, 1), (2, 3))
#: Two ranks send to two others; what all of them have a part of is brought together.
SINGLE = """HloModule m

ENTRY main {
  a = f32[3] parameter(0)
  c = f32[4] parameter(1)
  twice = f32[3] add(a, a)
  e = f32[4] exponential(c)
  ROOT y = (f32[3], f32[4]) tuple(twice, e)
}
"""
PARALLEL = f"""HloModule m, num_partitions=4

{ADD}
ENTRY main {{
  a = f32[3] parameter(0)
  c = f32[1] parameter(1)
  all = f32[4] all-gather(c), channel_id=1, replica_groups={{{{0,1,2,3}}}}, dimensions={{0}}, \
use_global_device_ids=true
  e = f32[4] exponential(all)
  sent = f32[3] collective-permute(a), channel_id=2, source_target_pairs=SENT
  twice = f32[3] all-reduce(sent), channel_id=3, replica_groups={{{{0,1,2,3}}}}, to_apply=add, \
use_global_device_ids=true
  ROOT y = (f32[3], f32[4]) tuple(twice, e)
}}
"""


@pytest.mark.parametrize(
    ("sent", "expected"),
    [("{{0,2},{1,3}}", "proved"), ("{{0,2},{1,3},{2,0},{3,1}}", "refuted")],
)
def test_ranks_of_two_programs_meet(sent: str, expected: str, tmp_path: Path) -> None:
    verified(SINGLE, PARALLEL.replace("SENT", sent), tmp_path, expected)


def test_groups_that_no_collective_may_mix_lie_on_explicit_ranks_alone() -> None:
    halves = [(0, 0, 1, 3)]
    assert find(4, halves, [ALL], []) == Mesh(("axis0", "axis1"), (2, 2), (0,))
    apart = find(4, halves, [ALL], [], apart=[ALL])
    assert apart is not None
    assert not apart.mixes(ALL)
    assert len(apart.bases()) == 4
    pairs = find(4, halves, [PAIRS], [], apart=[PAIRS])
    assert pairs == Mesh(("axis0", "axis1"), (2, 2), (0,))
