"""Computations that join ranks, of which a number chooses one that every rank has: an average every
so many steps, a step that is left out where a norm is too large."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.frontends.hlo.verdicts import verified

ADD = "add {\n  u = f32[] parameter(0)\n  v = f32[] parameter(1)\n  ROOT w = f32[] add(u, v)\n}\n\n"
SINGLE = """HloModule m

ADDkept {
  p = f32[4,3] parameter(0)
  ROOT q = f32[4,3] negate(p)
}

summed {
  p = f32[4,3] parameter(0)
  z = f32[] constant(0)
  s = f32[3] reduce(p, z), dimensions={0}, to_apply=add
  ROOT b = f32[4,3] broadcast(s), dimensions={1}
}

ENTRY main {
  x = f32[4,3] parameter(0)
  n = s32[] parameter(1)
  k = s32[] constant(3)
  c = pred[] compare(n, k), direction=GT
  ROOT r = f32[4,3] conditional(c, x, x), true_computation=summed, false_computation=kept
}
""".replace("ADD", ADD)
PARALLEL = """HloModule m, num_partitions=4

ADDkept {
  p = f32[1,3] parameter(0)
  ROOT q = f32[1,3] negate(p)
}

summed {
  p = f32[1,3] parameter(0)
  ROOT s = f32[1,3] all-reduce(p), channel_id=1, replica_groups={{0,1,2,3}}, \
use_global_device_ids=true, to_apply=add
}

ENTRY main {
  x = f32[1,3] parameter(0), sharding={devices=[4,1]<=[4]}
  n = s32[] parameter(1), sharding={replicated}
  k = s32[] constant(NUMBER)
  z = f32[] constant(0)
  l = f32[] reduce(x, z), dimensions={0,1}, to_apply=add
  t = f32[] all-reduce(l), channel_id=2, replica_groups=GROUPS, use_global_device_ids=true, \
to_apply=add
  a = pred[] compare(n, k), direction=GT
  o = pred[] compare(l, z), direction=GT
  j = pred[] compare(t, z), direction=GT
  r = u32[] partition-id()
  f = u32[] constant(0)
  i = pred[] compare(r, f), direction=EQ
  m = pred[] and(a, i)
  y = f32[1,3] conditional(CHOSEN, x, x), true_computation=summed, false_computation=kept
  ROOT w = f32[4,3] all-gather(y), channel_id=3, replica_groups={{0,1,2,3}}, dimensions={0}, \
use_global_device_ids=true
}
""".replace("ADD", ADD)


def _parallel(chosen: str, number: int = 3, groups: str = "{{0,1,2,3}}") -> str:
    text = PARALLEL.replace("CHOSEN", chosen).replace("NUMBER", str(number))
    return text.replace("GROUPS", groups)


#: What chooses, and the verdict; where ranks may choose unlike computations, there is none.
CASES = {
    "an input": (_parallel("a"), "proved"),
    "another step": (_parallel("a", 4), "refuted"),
    "what a rank has": (_parallel("o"), "inconclusive"),
    "what all have joined": (_parallel("j"), "refuted"),
    "what some have joined": (_parallel("j", 3, "{{0,1},{2,3}}"), "inconclusive"),
    "the rank": (_parallel("m"), "inconclusive"),
}


@pytest.mark.parametrize("name", CASES)
def test_computations_that_join_ranks(name: str, tmp_path: Path) -> None:
    text, expected = CASES[name]
    verified(SINGLE, text, tmp_path, expected)


def test_ranks_that_choose_by_what_they_have_are_told(tmp_path: Path) -> None:
    import shardproof

    files = tmp_path / "single.hlo", tmp_path / "parallel.hlo"
    for file, text in zip(files, (SINGLE, _parallel("o")), strict=True):
        file.write_text(text)
    result = shardproof.verify(*files, out=tmp_path / "run", cache=False)
    assert "of which some join ranks" in (result.reason or "")
