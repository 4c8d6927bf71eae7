"""A loss over a divided vocabulary that compares labels with class numbers, beside one that looks
scores up: a one-hot of labels adds up to 1."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.frontends.hlo.verdicts import verified

ADD = "add {\n  a = f32[] parameter(0)\n  b = f32[] parameter(1)\n  ROOT c = f32[] add(a, b)\n}\n"
HOW = (
    "offset_dims={}, collapsed_slice_dims={1}, start_index_map={1}, operand_batching_dims={0}, "
    "start_indices_batching_dims={0}, index_vector_dim=1, slice_sizes={1,1}"
)
#: The score of each label, and the row sums of what goes back to it.
SINGLE = f"""HloModule m

{ADD}
ENTRY main {{
  s = f32[4,8] parameter(0)
  y = s32[4] parameter(1)
  l = f32[4] parameter(2)
  w = f32[4,8] broadcast(l), dimensions={{0}}
  p = f32[4,8] subtract(s, w)
  i = s32[4,1] reshape(y)
  g = f32[4] gather(p, i), {HOW}
  z = f32[] constant(0)
  e = f32[4,8] broadcast(z), dimensions={{}}
  d = f32[4,8] scatter(e, i, l), update_window_dims={{}}, inserted_window_dims={{1}}, \
scatter_dims_to_operand_dims={{1}}, input_batching_dims={{0}}, \
scatter_indices_batching_dims={{0}}, index_vector_dim=1, to_apply=add
  n = f32[4,8] negate(d)
  t = f32[4] reduce(n, z), dimensions={{1}}, to_apply=add
  ROOT r = (f32[4], f32[4]) tuple(g, t)
}}
"""
PARALLEL = f"""HloModule m, num_partitions=2

{ADD}
ENTRY main {{
  s = f32[4,4] parameter(0)
  y = s32[4] parameter(1)
  l = f32[4] parameter(2)
  k = u32[] partition-id()
  k0 = s32[] convert(k)
  four = s32[] constant(4)
  k1 = s32[] multiply(k0, four)
  first = s32[4,4] broadcast(k1), dimensions={{}}
  o = s32[4,4] iota(), iota_dimension=1
  c = s32[4,4] add(o, first)
  v = s32[4,4] broadcast(y), dimensions={{0}}
  b = pred[4,4] compare(v, c), direction=HOW
  h = f32[4,4] convert(b)
  m = f32[4,4] multiply(s, h)
  z = f32[] constant(0)
  q = f32[4] reduce(m, z), dimensions={{1}}, to_apply=add
  u = f32[4] all-reduce(q), channel_id=1, replica_groups={{{{0,1}}}}, use_global_device_ids=true, \
to_apply=add
  g = f32[4] subtract(u, LESS)
  t = f32[4] negate(LESS)
  ROOT r = (f32[4], f32[4]) tuple(g, t)
}}
"""


@pytest.mark.parametrize(
    ("how", "less", "expected"),
    [("EQ", "l", "proved"), ("LE", "l", "refuted"), ("EQ", "u", "refuted")],
    ids=["the label", "all from the label on", "less another number"],
)
def test_labels_that_are_compared(how: str, less: str, expected: str, tmp_path: Path) -> None:
    verified(SINGLE, PARALLEL.replace("HOW", how).replace("LESS", less), tmp_path, expected)


@pytest.mark.parametrize(
    ("count", "expected"), [(8, "proved"), (4, "refuted")], ids=["every class", "its own classes"]
)
def test_smoothed_labels(count: int, expected: str, tmp_path: Path) -> None:
    """Beside what is scattered there is a number, or something, for every class: label smoothing,
    of which ranks write the gradient by hand."""
    smoothed = """h = f32[] constant(0.25)
  h0 = f32[4,8] broadcast(h), dimensions={}
  d0 = f32[4,8] add(d, h0)
  d1 = f32[4,8] subtract(d0, s)
  n = f32[4,8] negate(d1)"""
    by_hand = f"""a0 = f32[4] reduce(s, z), dimensions={{1}}, to_apply=add
  a1 = f32[4] all-reduce(a0), channel_id=2, replica_groups={{{{0,1}}}}, \
use_global_device_ids=true, to_apply=add
  j = f32[] constant({count * 0.25})
  j0 = f32[4] broadcast(j), dimensions={{}}
  t0 = f32[4] subtract(a1, l)
  t = f32[4] subtract(t0, j0)"""
    right = PARALLEL.replace("HOW", "EQ").replace("LESS", "l")
    single = SINGLE.replace("n = f32[4,8] negate(d)", smoothed)
    verified(single, right.replace("t = f32[4] negate(l)", by_hand), tmp_path, expected)


@pytest.mark.parametrize(
    ("most", "expected"),
    [(23, "proved"), (22, "refuted")],
    ids=["all", "the last as the one before"],
)
def test_every_label_is_tried(most: int, expected: str, tmp_path: Path) -> None:
    right = PARALLEL.replace("HOW", "EQ").replace("LESS", "l")
    wide = right.replace("[4,4]", "[4,12]").replace("constant(4)", "constant(12)")
    bounded = wide.replace(
        "y = s32[4] parameter(1)",
        f"y0 = s32[4] parameter(1)\n  k2 = s32[] constant({most})\n"
        "  k3 = s32[4] broadcast(k2), dimensions={}\n  y = s32[4] minimum(y0, k3)",
    )
    verified(SINGLE.replace("[4,8]", "[4,24]"), bounded, tmp_path, expected)


#: A loss that is no linear function of the logarithm of a label's share, as the focal one.
FOCAL = f"""HloModule m

{ADD}
ENTRY main {{
  s = f32[4,8] parameter(0)
  y = s32[4] parameter(1)
  e = f32[4,8] exponential(s)
  z = f32[] constant(0)
  t = f32[4] reduce(e, z), dimensions={{1}}, to_apply=add
  l = f32[4] log(t)
  w = f32[4,8] broadcast(l), dimensions={{0}}
  p = f32[4,8] subtract(s, w)
  i = s32[4,1] reshape(y)
  g = f32[4] gather(p, i), {HOW}
  x = f32[4] exponential(g)
  ROOT r = f32[4] multiply(x, g)
}}
"""
LOOKED_UP = f"""HloModule m, num_partitions=2

{ADD}
ENTRY main {{
  s = f32[4,4] parameter(0)
  y = s32[4] parameter(1)
  e = f32[4,4] exponential(s)
  z = f32[] constant(0)
  own = f32[4] reduce(e, z), dimensions={{1}}, to_apply=add
  t = f32[4] all-reduce(own), channel_id=1, replica_groups={{{{0,1}}}}, \
use_global_device_ids=true, to_apply=add
  l = f32[4] log(OF)
  k = u32[] partition-id()
  k0 = s32[] convert(k)
  four = s32[] constant(4)
  k1 = s32[] multiply(k0, four)
  first = s32[4] broadcast(k1), dimensions={{}}
  d = s32[4] subtract(y, first)
  none = s32[] constant(0)
  last = s32[] constant(3)
  i = s32[4] clamp(none, d, last)
  j = s32[4,1] reshape(i)
  g0 = f32[4] gather(s, j), {HOW}
  inside = pred[4] compare(d, i), direction=EQ
  zeros = f32[4] broadcast(z), dimensions={{}}
  m = f32[4] select(inside, g0, zeros)
  u = f32[4] all-reduce(m), channel_id=2, replica_groups={{{{0,1}}}}, \
use_global_device_ids=true, to_apply=add
  g = f32[4] subtract(u, l)
  x = f32[4] exponential(g)
  ROOT r = f32[4] multiply(x, g)
}}
"""


@pytest.mark.parametrize(("of", "expected"), [("t", "proved"), ("own", "refuted")])
def test_what_is_no_linear_function_of_a_share(of: str, expected: str, tmp_path: Path) -> None:
    verified(FOCAL, LOOKED_UP.replace("OF", of), tmp_path, expected)


#: The score of each label less a number of its row, and row sums, where both sides have one-hots.
BY_ONE_HOTS = f"""HloModule m

{ADD}
ENTRY main {{
  s = f32[4,8] parameter(0)
  y = s32[4] parameter(1)
  l = f32[4] parameter(2)
  w = f32[4,8] broadcast(l), dimensions={{0}}
  p = f32[4,8] subtract(s, w)
  c = s32[4,8] iota(), iota_dimension=1
  v = s32[4,8] broadcast(y), dimensions={{0}}
  b = pred[4,8] compare(v, c), direction=EQ
  h = f32[4,8] convert(b)
  q = f32[4,8] multiply(h, p)
  z = f32[] constant(0)
  g = f32[4] reduce(q, z), dimensions={{1}}, to_apply=add
  d = f32[4,8] multiply(h, w)
  n = f32[4,8] negate(d)
  t = f32[4] reduce(n, z), dimensions={{1}}, to_apply=add
  ROOT r = (f32[4], f32[4]) tuple(g, t)
}}
"""


@pytest.mark.parametrize(
    ("edits", "expected"),
    [
        ([], "proved"),
        ([("LESS", "u")], "refuted"),
        ([("constant(4)", "constant(3)")], "refuted"),
    ],
    ids=["the label", "less another number", "off by one class"],
)
def test_one_hots_on_both_sides(
    edits: list[tuple[str, str]], expected: str, tmp_path: Path
) -> None:
    parallel = PARALLEL
    for old, new in (*edits, ("HOW", "EQ"), ("LESS", "l")):
        parallel = parallel.replace(old, new)
    verified(BY_ONE_HOTS, parallel, tmp_path, expected)


def test_labels_that_may_be_no_class(tmp_path: Path) -> None:
    """Where the program asks whether a label counts, its one-hot may be 0."""
    marked = BY_ONE_HOTS.replace(
        "  ROOT r = (f32[4], f32[4]) tuple(g, t)",
        """  k = s32[] constant(0)
  k0 = s32[4] broadcast(k), dimensions={}
  some = pred[4] compare(y, k0), direction=GE
  some0 = f32[4] convert(some)
  t0 = f32[4] multiply(t, some0)
  ROOT r = (f32[4], f32[4]) tuple(g, t0)""",
    )
    right = PARALLEL.replace("HOW", "EQ").replace("LESS", "l")
    verified(marked, right, tmp_path, "refuted")
