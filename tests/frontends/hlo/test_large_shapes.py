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


#: What is made of a one-hot of 65,536 classes, times an entry of a table of all pairs of these.
CHOSEN = """HloModule m

add {
  a = f32[] parameter(0)
  b = f32[] parameter(1)
  ROOT r = f32[] add(a, b)
}

ENTRY main {
  s = f32[65536,64] parameter(0)
  t = f32[65536,64] parameter(1)
  i = s32[16] parameter(2)
  z = f32[65536,65536] dot(s, t), lhs_contracting_dims={1}, rhs_contracting_dims={1}
  c = s32[65536] iota(), iota_dimension=0
  b = s32[16,65536] broadcast(i), dimensions={0}
  d = s32[16,65536] broadcast(c), dimensions={1}
  q = pred[16,65536] compare(b, d), direction=EQ
  h = f32[16,65536] convert(q)
  x = f32[16,65536] dot(h, z), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  y = f32[16,65536] multiply(x, h)
  o = f32[] constant(0)
  w = f32[16] reduce(y, o), dimensions={1}, to_apply=add
  one = f32[] constant(1)
  f = f32[16] broadcast(one), dimensions={}
  e = f32[16] exponential(f)
  COUNT
  ROOT r = f32[16] multiply(w, k)
}
"""
#: The sum of the exponentials of a one-hot, as a sum and as e + 65535.
SUMMED = """g = f32[16,65536] exponential(h)
  k = f32[16] reduce(g, o), dimensions={1}, to_apply=add"""
WRITTEN = """n = f32[] constant(NUMBER)
  l = f32[16] broadcast(n), dimensions={}
  k = f32[16] add(e, l)"""


@pytest.mark.parametrize(("number", "expected"), [("65535", "inconclusive"), ("65536", "refuted")])
def test_functions_of_one_hots_count_every_class(
    number: str, expected: str, tmp_path: Path
) -> None:
    """The right one was refuted: each of few classes stood for others in the one-hot, too."""
    text = CHOSEN.replace("COUNT", WRITTEN.replace("NUMBER", number))
    text = text.replace("m\n", "m, num_partitions=2\n", 1)
    verified(CHOSEN.replace("COUNT", SUMMED), text, tmp_path, expected)


#: The sum of a triangle of ones, as a sum and as a number.
TRIANGLE = """rows = s32[1024,1024] iota(), iota_dimension=0
  keys = s32[1024,1024] iota(), iota_dimension=1
  low = pred[1024,1024] compare(rows, keys), direction=GE
  ones = f32[1024,1024] broadcast(one), dimensions={}
  zeros = f32[1024,1024] broadcast(o), dimensions={}
  lower = f32[1024,1024] select(low, ones, zeros)
  total = f32[] reduce(lower, o), dimensions={0,1}, to_apply=add
  k = f32[16] broadcast(total), dimensions={}"""
TOTAL = """n = f32[] constant(524800)
  k = f32[16] broadcast(n), dimensions={}"""


@pytest.mark.parametrize("swapped", [False, True])
def test_a_table_that_one_side_alone_has_refutes_nothing(swapped: bool, tmp_path: Path) -> None:
    one, other = (CHOSEN.replace("COUNT", text) for text in (TRIANGLE, TOTAL))
    verified(*((other, one) if swapped else (one, other)), tmp_path, "inconclusive")
