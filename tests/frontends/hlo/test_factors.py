"""Tables of zeros and one other number, which is another one on ranks with a part of the rows: what
the gradient of a mean over the first column begins with."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.frontends.hlo.verdicts import verified

SINGLE = """HloModule m

ENTRY main {
  x = f32[4,3] parameter(0)
  c = f32[] constant(-0.25)
  b = f32[4,1] broadcast(c), dimensions={}
  z = f32[] constant(0)
  p = f32[4,3] pad(b, z), padding=0_0x0_2
  ROOT y = f32[4,3] add(x, p)
}
"""
#: Half of twice x and the mean of a rank's own rows.
PARALLEL = """HloModule m, num_partitions=2

ENTRY main {
  x = f32[2,3] parameter(0), sharding={devices=[2,1]<=[2]}
  c = f32[] constant(OWN)
  b = f32[2,1] broadcast(c), dimensions={}
  z = f32[] constant(0)
  p = f32[2,3] pad(b, z), padding=0_0xPADDED
  t = f32[2,3] add(x, x)
  s = f32[2,3] add(t, p)
  h = f32[] constant(0.5)
  f = f32[2,3] broadcast(h), dimensions={}
  ROOT y = f32[2,3] multiply(s, f)
}
"""


@pytest.mark.parametrize(
    ("own", "padded", "expected"),
    [("-0.5", "0_2", "proved"), ("-0.5", "1_1", "refuted")],
)
def test_one_number_beside_zeros(own: str, padded: str, expected: str, tmp_path: Path) -> None:
    verified(SINGLE, PARALLEL.replace("OWN", own).replace("PADDED", padded), tmp_path, expected)
