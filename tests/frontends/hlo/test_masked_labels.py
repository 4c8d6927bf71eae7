"""Labels that do not count, beside a divided vocabulary: masked after the ranks' sum."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.frontends.hlo.verdicts import verified

ADD = "add {\n  a = f32[] parameter(0)\n  b = f32[] parameter(1)\n  ROOT c = f32[] add(a, b)\n}\n"
GATHER = (
    "offset_dims={}, collapsed_slice_dims={1}, start_index_map={1}, operand_batching_dims={0}, "
    "start_indices_batching_dims={0}, index_vector_dim=1, slice_sizes={1,1}"
)
SCATTER = (
    "update_window_dims={}, inserted_window_dims={1}, scatter_dims_to_operand_dims={1}, "
    "input_batching_dims={0}, scatter_indices_batching_dims={0}, index_vector_dim=1, to_apply=add"
)
SUM = "channel_id=1, replica_groups={{0,1}}, use_global_device_ids=true, to_apply=add"
#: Scores of labels other than -100, of which 0 is read instead; and what goes back to them.
LABELS = """  y = s32[4] parameter(1)
  l = f32[4] parameter(2)
  mark = s32[] constant(-100)
  marks = s32[4] broadcast(mark), dimensions={}
  on = pred[4] compare(y, marks), direction=NE
  none = s32[] constant(0)
  low = s32[4] broadcast(none), dimensions={}
  safe = s32[4] select(on, y, low)
  z = f32[] constant(0)
  o = f32[4] broadcast(z), dimensions={}
  back = f32[4] select(on, l, o)
"""
SINGLE = f"""HloModule m

{ADD}
ENTRY main {{
  s = f32[4,8] parameter(0)
{LABELS}  i = s32[4,1] reshape(safe)
  g = f32[4] gather(s, i), {GATHER}
  e = f32[4,8] broadcast(z), dimensions={{}}
  d = f32[4,8] scatter(e, i, back), {SCATTER}
  m = f32[4] select(on, g, o)
  ROOT r = (f32[4], f32[4,8]) tuple(m, d)
}}
"""
LOOKED_UP = f"""  p = pred[4] compare(own, low), direction=GE
  fours = s32[4] broadcast(four), dimensions={{}}
  q = pred[4] compare(own, fours), direction=BOUND
  in = pred[4] and(p, q)
  three = s32[] constant(3)
  last = s32[4] broadcast(three), dimensions={{}}
  c = s32[4] clamp(low, own, last)
  i = s32[4,1] reshape(c)
  g = f32[4] gather(s, i), {GATHER}
  v = f32[4] select(in, g, o)
  w = f32[4] select(in, back, o)
  d = f32[4,4] scatter(e, i, w), {SCATTER}
"""
COMPARED = """  wide = s32[4,4] broadcast(own), dimensions={0}
  classes = s32[4,4] iota(), iota_dimension=1
  b = pred[4,4] compare(wide, classes), direction=EQ
  h = f32[4,4] convert(b)
  x = f32[4,4] multiply(s, h)
  v = f32[4] reduce(x, z), dimensions={1}, to_apply=add
  w = f32[4,4] broadcast(back), dimensions={0}
  d = f32[4,4] multiply(h, w)
"""
PARALLEL = f"""HloModule m, num_partitions=2

{ADD}
ENTRY main {{
  s = f32[4,4] parameter(0)
{LABELS}  k = u32[] partition-id()
  k0 = s32[] convert(k)
  four = s32[] constant(4)
  k1 = s32[] multiply(k0, four)
  first = s32[4] broadcast(k1), dimensions={{}}
  own = s32[4] subtract(safe, first)
  e = f32[4,4] broadcast(z), dimensions={{}}
BODY  u = f32[4] all-reduce(v), {SUM}
  m = f32[4] select(MASK, u, o)
  ROOT r = (f32[4], f32[4,4]) tuple(m, d)
}}
"""
#: The scores of both halves, added up, for each half's own labels that count.
HALVES = f"""HloModule m

{ADD}
ENTRY main {{
  s = f32[8,8] parameter(0)
{LABELS.replace("[4]", "[8]")}  i = s32[8,1] reshape(safe)
  g = f32[8] gather(s, i), {GATHER}
  t = f32[8] select(on, g, o)
  a = f32[4] slice(t), slice={{[0:4]}}
  b = f32[4] slice(t), slice={{[4:8]}}
  c = f32[4] add(a, b)
  d = f32[8] concatenate(c, c), dimensions={{0}}
  ROOT r = f32[8] select(on, d, o)
}}
"""
BY_RANK = f"""HloModule m, num_partitions=2

{ADD}
ENTRY main {{
  s = f32[4,8] parameter(0)
{LABELS}  i = s32[4,1] reshape(safe)
  g = f32[4] gather(s, i), {GATHER}
  t = f32[4] select(on, g, o)
  u = f32[4] all-reduce(GIVEN), {SUM}
  ROOT r = f32[4] select(on, u, o)
}}
"""


@pytest.mark.parametrize(
    ("body", "bound", "mask", "expected"),
    [
        (LOOKED_UP, "LT", "on", "proved"),
        (LOOKED_UP, "LE", "on", "refuted"),
        (COMPARED, "", "on", "proved"),
        (COMPARED, "", "every", "refuted"),
    ],
    ids=["looked up", "one class twice", "compared", "not masked"],
)
def test_labels_that_do_not_count(
    body: str, bound: str, mask: str, expected: str, tmp_path: Path
) -> None:
    if mask == "every":
        body += "  every = pred[4] compare(safe, low), direction=GE\n"
    text = PARALLEL.replace("BODY", body).replace("BOUND", bound).replace("MASK", mask)
    verified(SINGLE, text, tmp_path, expected)


#: What goes back is written into a column first: the derivative of ``scores[..., 0]``.
COLUMN = f"""  e1 = f32[4,1] broadcast(z), dimensions={{}}
  none1 = s32[1] constant({{0}})
  back1 = f32[4,1] scatter(e1, none1, back), update_window_dims={{0}}, \
inserted_window_dims={{1}}, scatter_dims_to_operand_dims={{1}}, index_vector_dim=0, to_apply=add
  i1 = s32[4,1,1] reshape(i)
  d = f32[4,8] scatter(e, i1, back1), {SCATTER.replace("index_vector_dim=1", "index_vector_dim=2")}
"""


@pytest.mark.parametrize(
    ("updates", "expected"), [("back1", "proved"), ("all1", "refuted")], ids=["masked", "all"]
)
def test_what_goes_back_comes_as_a_column(updates: str, expected: str, tmp_path: Path) -> None:
    """`optax.softmax_cross_entropy_with_integer_labels` times a mask."""
    column = COLUMN.replace("e, i1, back1", f"e, i1, {updates}")
    if updates == "all1":
        column = column.replace("  i1 =", "  all1 = f32[4,1] reshape(l)\n  i1 =")
    single = SINGLE.replace(f"  d = f32[4,8] scatter(e, i, back), {SCATTER}\n", column)
    text = PARALLEL.replace("BODY", LOOKED_UP).replace("BOUND", "LT").replace("MASK", "on")
    verified(single, text, tmp_path, expected)


@pytest.mark.parametrize(
    ("weight", "expected"), [("0.5", "proved"), ("1", "refuted")], ids=["halved", "twice"]
)
def test_what_goes_back_is_added_up_over_ranks(weight: str, expected: str, tmp_path: Path) -> None:
    """``shard_map`` without its check sums the gradient of a sum: a mask that comes with it is one
    on all ranks, and was taken for numbers."""
    summed = f"""  given = f32[4] all-reduce(back), {SUM}
  half = f32[] constant({weight})
  halves = f32[4] broadcast(half), dimensions={{}}
  mean = f32[4] multiply(given, halves)
"""
    body = summed + LOOKED_UP.replace("BOUND", "LT").replace(
        "select(in, back, o)", "select(in, mean, o)"
    )
    verified(SINGLE, PARALLEL.replace("BODY", body).replace("MASK", "on"), tmp_path, expected)


@pytest.mark.parametrize(
    ("masked", "given", "expected"),
    [
        ("select(on, d, o)", "t", "proved"),
        ("select(on, d, o)", "g", "refuted"),
        ("copy(d)", "t", "refuted"),
    ],
    ids=["alike", "not masked before", "masked after only here"],
)
def test_labels_that_differ_between_ranks(
    masked: str, given: str, expected: str, tmp_path: Path
) -> None:
    """Where a label counts on one rank and not on the other, the mask after the sum says nothing of
    what the other rank adds to it."""
    single = HALVES.replace("select(on, d, o)", masked)
    verified(single, BY_RANK.replace("GIVEN", given), tmp_path, expected)
