"""Scores that a mask hides are minus infinity: who asks whether they are finite is not told so."""

from __future__ import annotations

from pathlib import Path

import pytest

import shardproof

BODY = """ENTRY main {
  x = f32[4,4] parameter(0)
  k = s32[4,4] iota(), iota_dimension=1
  q = s32[4,4] iota(), iota_dimension=0
  p = pred[4,4] compare(q, k), direction=HOW
  i = f32[] constant(-inf)
  j = f32[4,4] broadcast(i), dimensions={}
  s = f32[4,4] select(p, x, j)
  e = f32[4,4] exponential(s)
  o = f32[] constant(1)
  w = f32[4,4] broadcast(o), dimensions={}
REST}
"""
ALONE = "  ROOT r = f32[4,4] multiply(e, w)\n"
ASKED = {
    "is-finite": "  f = pred[4,4] is-finite(s)\n  ROOT r = f32[4,4] select(f, e, w)\n",
    "is-finite of twice": "  t = f32[4,4] add(s, s)\n  f = pred[4,4] is-finite(t)\n"
    "  ROOT r = f32[4,4] select(f, e, w)\n",
    "equal": "  f = pred[4,4] compare(s, j), direction=EQ\n  ROOT r = f32[4,4] select(f, w, e)\n",
    "greater": "  f = pred[4,4] compare(s, j), direction=GT\n  ROOT r = f32[4,4] select(f, e, w)\n",
    "less, the other way": "  f = pred[4,4] compare(j, s), direction=LT\n"
    "  ROOT r = f32[4,4] select(f, e, w)\n",
}
FINITE = {
    "of an exponential": "  f = pred[4,4] is-finite(e)\n  ROOT r = f32[4,4] select(f, e, w)\n",
    "of an input": "  f = pred[4,4] compare(x, j), direction=GT\n"
    "  ROOT r = f32[4,4] select(f, e, w)\n",
}


def verdict(how: str, rest: str, folder: Path) -> shardproof.Result:
    files = folder / "single.hlo", folder / "parallel.hlo"
    for file, own, ranks in zip(files, (ALONE, rest), (1, 2), strict=True):
        head = f"HloModule m, replica_count={ranks}, num_partitions=1\n\n"
        file.write_text(head + BODY.replace("HOW", how).replace("REST", own))
    return shardproof.verify(*files, out=folder / "run", cache_dir=folder / "cache")


@pytest.mark.parametrize("how", ["GE", "NE"], ids=["causal", "another mask"])
@pytest.mark.parametrize("rest", ASKED)
def test_hidden_scores_are_infinite(how: str, rest: str, tmp_path: Path) -> None:
    """The program gives 1 where a score is hidden, and not 0."""
    result = verdict(how, ASKED[rest], tmp_path)
    assert result.verdict == "inconclusive", result.reason
    assert "may be minus infinity" in result.reason


@pytest.mark.parametrize("how", ["GE", "NE"], ids=["causal", "another mask"])
@pytest.mark.parametrize("rest", FINITE)
def test_what_is_made_of_them_is_finite(how: str, rest: str, tmp_path: Path) -> None:
    result = verdict(how, FINITE[rest], tmp_path)
    assert result.verdict == "proved", result.reason
