"""Programs that are run at few positions: numbers that fill a tensor, and rows of many."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.frontends.hlo.verdicts import verified

#: Rows of a vocabulary, gates of 32,768 features, and back: 134 million numbers a tensor.
SINGLE = """HloModule m

add {
  a = f32[] parameter(0)
  b = f32[] parameter(1)
  ROOT r = f32[] add(a, b)
}

ENTRY main {
  t = f32[131072,1024] parameter(0)
  i = s32[4096] parameter(1)
  w = f32[1024,32768] parameter(2)
  v = f32[32768,1024] parameter(3)
  k = s32[4096,1] reshape(i)
  x = f32[4096,1024] gather(t, k), offset_dims={1}, collapsed_slice_dims={0}, \
start_index_map={0}, index_vector_dim=1, slice_sizes={1,1024}
  h = f32[4096,32768] dot(x, w), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  m = f32[4096,32768] negate(h)
  e = f32[4096,32768] exponential(m)
  c = f32[] constant(ONE)
  one = f32[4096,32768] broadcast(c), dimensions={}
  d = f32[4096,32768] add(one, e)
  g = f32[4096,32768] divide(one, d)
  ROOT y = f32[4096,1024] dot(g, v), lhs_contracting_dims={1}, rhs_contracting_dims={0}
}
"""


def parallel(one: str) -> str:
    """On two ranks, each with half of the features."""
    text = SINGLE.replace("m\n", "m, num_partitions=2\n", 1).replace("32768", "16384")
    text = text.replace("parameter(2)", "parameter(2), sharding={devices=[1,2]<=[2]}")
    text = text.replace("parameter(3)", "parameter(3), sharding={devices=[2,1]<=[2]}")
    text = text.replace("ROOT y = f32[4096,1024] dot", "p = f32[4096,1024] dot")
    last = "  ROOT y = f32[4096,1024] all-reduce(p), replica_groups={{0,1}}, channel_id=1, "
    text = text[:-2] + last + "use_global_device_ids=true, to_apply=add\n}\n"
    return text.replace("ONE", one)


@pytest.mark.parametrize(("one", "expected"), [("1", "proved"), ("2", "refuted")])
def test_what_fills_a_tensor_is_run_at_few_positions(
    one: str, expected: str, tmp_path: Path
) -> None:
    """The wrong one was inconclusive: 134 million numbers were not run."""
    verified(SINGLE.replace("ONE", "1"), parallel(one), tmp_path, expected)
