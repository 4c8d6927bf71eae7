"""The gradient of ``softplus``: an exponential whose exponent has a logarithm, on rows of a rank."""

from __future__ import annotations

from pathlib import Path

import pytest

import shardproof

PROGRAM = """HloModule m, replica_count=RANKS, num_partitions=1

ENTRY main {
  x = f32[ROWS,4] parameter(0)
  z = f32[] constant(0)
  w = f32[ROWS,4] broadcast(z), dimensions={}
  m = f32[ROWS,4] maximum(x, w)
  a = f32[ROWS,4] abs(x)
  n = f32[ROWS,4] negate(a)
  e = f32[ROWS,4] exponential(n)
  l = f32[ROWS,4] log-plus-one(e)
  s = f32[ROWS,4] add(m, l)
  d = f32[ROWS,4] subtract(FROM, s)
  ROOT r = f32[ROWS,4] exponential(d)
}
"""


@pytest.mark.parametrize(("of", "expected"), [("x", "proved"), ("a", "refuted")])
def test_the_gradient_of_softplus(of: str, expected: str, tmp_path: Path) -> None:
    files = tmp_path / "single.hlo", tmp_path / "parallel.hlo"
    for file, rows, ranks, read in zip(files, (8, 4), (1, 2), ("x", of), strict=True):
        file.write_text(
            PROGRAM.replace("ROWS", str(rows)).replace("RANKS", str(ranks)).replace("FROM", read)
        )
    result = shardproof.verify(*files, out=tmp_path / "run", cache_dir=tmp_path / "cache")
    assert result.verdict == expected, result.reason
