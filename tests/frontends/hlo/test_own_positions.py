"""One position of an axis for each rank, and rows of sums whose operands are no views alike."""

from __future__ import annotations

from pathlib import Path

import pytest

import shardproof

#: The gradient of a softmax has the square of its sum below the line; each rank has one head.
HEADS = """HloModule NAME

ENTRY main {
  a = f32[4,N] parameter(0)SHARDED
  z = f32[4,N] parameter(1)SHARDED
  i = f32[] constant(1)
  ones = f32[4,N] broadcast(i), dimensions={}
  e = f32[4,N] exponential(a)
  s = f32[4,N] add(e, ones)
  q = f32[4,N] divide(z, s)
  m = f32[4,N] multiply(s, BESIDE)
  r = f32[4,N] divide(ones, m)
  t = f32[4,N] multiply(q, r)
  ROOT y = f32[4,N] tanh(t)
}
"""
#: Patches in two dimensions beside positions behind that of a class token.
PATCHES = """HloModule NAME

ENTRY main {
  x = f32[N,2,2] parameter(0)SHARDED
  p = f32[5] parameter(1)
  t = f32[N,2,2] transpose(x), dimensions={0,2,1}
  r = f32[N,4] reshape(t)
  s = f32[4] slice(p), slice={[PLACES]}
  b = f32[N,4] broadcast(s), dimensions={1}
  a = f32[N,4] add(r, b)
  ROOT y = f32[N,4] tanh(a)
}
"""


def verified(folder: Path, text: str, changes: dict[str, tuple[str, str]]) -> str:
    """The verdict of two modules, which differ in words: those of one device, those of a rank."""
    paths = folder / "single.hlo", folder / "parallel.hlo"
    for place, path in enumerate(paths):
        own = text
        for word, ways in changes.items():
            own = own.replace(word, ways[place])
        path.write_text(own)
    out = folder / "run"
    result = shardproof.verify(*paths, out=out, cache=False)
    assert result.verdict != "proved" or shardproof.check(out).ok
    return str(result.verdict)


@pytest.mark.parametrize(("beside", "verdict"), [("s", "proved"), ("e", "refuted")])
def test_one_over_a_square_of_a_head_for_each_rank(
    tmp_path: Path, beside: str, verdict: str
) -> None:
    changes = {
        "NAME": ("single", "parallel, num_partitions=2"),
        "N]": ("2]", "1]"),
        "SHARDED": ("", ", sharding={devices=[1,2]0,1}"),
        "BESIDE": ("s", beside),
    }
    assert verified(tmp_path, HEADS, changes) == verdict


@pytest.mark.parametrize(("places", "verdict"), [("1:5", "proved"), ("0:4", "refuted")])
def test_rows_of_a_sum_of_what_is_grouped_otherwise(
    tmp_path: Path, places: str, verdict: str
) -> None:
    changes = {
        "NAME": ("single", "parallel, num_partitions=2"),
        "[N,": ("[4,", "[2,"),
        "SHARDED": ("", ", sharding={devices=[2,1,1]0,1}"),
        "PLACES": ("1:5", places),
    }
    assert verified(tmp_path, PATCHES, changes) == verdict
