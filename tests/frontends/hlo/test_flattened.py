"""What XLA's passes leave: indices in one list, exchanges of tuples, TopK, total orders."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from shardproof.engine.errors import InvalidInput, Unsupported
from shardproof.frontends.graphs.graph import Graph
from shardproof.frontends.hlo import evaluate, flattened, read
from shardproof.frontends.hlo.lower import lower
from tests.frontends.hlo.verdicts import verified

RNG = np.random.default_rng(0)
ADD = "add {\n p = f32[] parameter(0)\n q = f32[] parameter(1)\n ROOT s = f32[] add(p, q)\n}\n"


def graph(body: str, before: str = "", head: str = "HloModule m") -> Graph:
    made = read.parsed(f"{head}\n{before}ENTRY main {{\n{body}\n}}\n")
    assert not [n for n in made.nodes if "refused" in n.attrs]
    return made


#: Of every text: gathers and scatters by ids and by vectors of two indices that are made a list.
LISTS = {
    "rows": """x = f32[9,4]{1,0} parameter(0)
i = s32[2,3]{1,0} parameter(1)
j = s32[6,1]{1,0} reshape(i)
ROOT g = f32[6,1,4]{2,1,0} gather(x, j), offset_dims={1,2}, collapsed_slice_dims={}, start_index_map={0}, index_vector_dim=1, slice_sizes={1,4}""",
    "rows in front": """x = f32[9,4]{1,0} parameter(0)
i = s32[2,3]{1,0} parameter(1)
j = s32[6]{0} reshape(i)
ROOT g = f32[4,6]{1,0} gather(x, j), offset_dims={0}, collapsed_slice_dims={0}, start_index_map={0}, index_vector_dim=1, slice_sizes={1,4}""",
    "entries": """x = f32[3,9]{1,0} parameter(0)
i = s32[3,2]{1,0} parameter(1)
c = s32[3,2,1]{2,1,0} reshape(i)
r = s32[3,2,1]{2,1,0} iota(), iota_dimension=0
v = s32[3,2,2]{2,1,0} concatenate(r, c), dimensions={2}
j = s32[6,2]{1,0} reshape(v)
ROOT g = f32[6,1,1]{2,1,0} gather(x, j), offset_dims={1,2}, collapsed_slice_dims={}, start_index_map={0,1}, index_vector_dim=1, slice_sizes={1,1}""",
    "added rows": """x = f32[6,4]{1,0} parameter(0)
i = s32[2,3]{1,0} parameter(1)
j = s32[6,1]{1,0} reshape(i)
z = f32[] constant(0)
o = f32[9,4]{1,0} broadcast(z), dimensions={}
ROOT g = f32[9,4]{1,0} scatter(o, j, x), update_window_dims={1}, inserted_window_dims={0}, scatter_dims_to_operand_dims={0}, index_vector_dim=1, to_apply=add""",
    "added entries": """x = f32[6,1,1]{2,1,0} parameter(0)
i = s32[3,2]{1,0} parameter(1)
c = s32[3,2,1]{2,1,0} reshape(i)
r = s32[3,2,1]{2,1,0} iota(), iota_dimension=0
v = s32[3,2,2]{2,1,0} concatenate(r, c), dimensions={2}
j = s32[6,2]{1,0} reshape(v)
z = f32[] constant(0)
o = f32[3,9]{1,0} broadcast(z), dimensions={}
ROOT g = f32[3,9]{1,0} scatter(o, j, x), update_window_dims={1,2}, inserted_window_dims={}, scatter_dims_to_operand_dims={0,1}, index_vector_dim=1, to_apply=add""",
}


@pytest.mark.parametrize("name", LISTS)
def test_rows_are_chosen_by_indices_as_they_were(name: str) -> None:
    """The same numbers, and no gather or scatter reads a reshape."""
    before = graph(LISTS[name], ADD)
    after = flattened.unflattened(before)
    moved = {n.results[0] for n in after.nodes if n.target == "reshape"}
    rows = [n for n in after.nodes if n.target in ("gather", "scatter")]
    assert [n for n in before.nodes if n.target == "reshape"]
    assert not [n for n in rows if n.operands[1] in moved]
    for _ in range(4):
        given = [
            RNG.integers(0, 9, v.shape) if v.dtype == "int32" else RNG.normal(size=v.shape)
            for v in (before.values[item.value] for item in before.inputs)
        ]
        (expected,), (found,) = (evaluate.run(g, [given]) for g in (before, after))
        np.testing.assert_array_equal(found[0], expected[0])


#: Rows of a divided table by clamped ids, where those of other ranks are zero; ``LIST``: how.
LOOKED_UP = """HloModule m
ENTRY main {
  t = f32[8,4]{1,0} parameter(0)
  i = s32[2,3]{1,0} parameter(1)
  ROOT g = f32[2,3,4]{2,1,0} gather(t, i), offset_dims={2}, collapsed_slice_dims={0}, start_index_map={0}, index_vector_dim=2, slice_sizes={1,4}
}
"""
DIVIDED = """HloModule m, num_partitions=2
{add}ENTRY main {{
  t = f32[4,4]{{1,0}} parameter(0), sharding={{devices=[2,1]<=[2]}}
  i = s32[2,3]{{1,0}} parameter(1), sharding={{replicated}}
  a = s32[2]{{0}} constant({{0, {first}}})
  p = u32[] partition-id()
  b = s32[1]{{0}} dynamic-slice(a, p), dynamic_slice_sizes={{1}}
  s = s32[] reshape(b)
  o = s32[2,3]{{1,0}} broadcast(s), dimensions={{}}
  j = s32[2,3]{{1,0}} subtract(i, o)
  z = s32[] constant(0)
  c = s32[2,3]{{1,0}} broadcast(z), dimensions={{}}
  m = s32[] constant(3)
  n = s32[2,3]{{1,0}} broadcast(m), dimensions={{}}
  u = pred[2,3]{{1,0}} compare(j, c), direction=LT
  v = pred[2,3]{{1,0}} compare(j, n), direction=GT
  w = pred[2,3]{{1,0}} or(u, v)
  d = pred[2,3,4]{{2,1,0}} broadcast(w), dimensions={{0,1}}
  f = f32[] constant(0)
  y = f32[2,3,4]{{2,1,0}} broadcast(f), dimensions={{}}
  k = s32[6,1]{{0,1}} bitcast(j)
  l = s32[6,1]{{1,0}} copy(k)
  g = f32[6,1,4]{{2,1,0}} gather(t, l), offset_dims={{1,2}}, collapsed_slice_dims={{}}, start_index_map={{0}}, index_vector_dim=1, slice_sizes={{1,4}}
  h = f32[2,3,4]{{2,1,0}} bitcast(g)
  q = f32[2,3,4]{{2,1,0}} select(d, y, h)
  ROOT r = f32[2,3,4]{{2,1,0}} all-reduce(q), channel_id=1, replica_groups={{{{0,1}}}}, use_global_device_ids=true, to_apply=add
}}
"""


@pytest.mark.parametrize(("first", "verdict"), [(4, "proved"), (3, "refuted")])
def test_rows_of_a_list_may_be_those_of_other_ranks(
    first: int, verdict: str, tmp_path: Path
) -> None:
    verified(LOOKED_UP, DIVIDED.format(add=ADD, first=first), tmp_path, verdict)


#: The score of a label in each row, and its gradient, as JAX writes them and as XLA leaves them.
SCORES = """HloModule m
{add}ENTRY main {{
  x = f32[{n},9]{{1,0}} parameter(0)
  i = s32[{n}]{{0}} parameter(1)
  c = s32[{n},1,1]{{2,1,0}} reshape(i)
  r = s32[{n},1,1]{{2,1,0}} iota(), iota_dimension=0
  v = s32[{n},1,2]{{2,1,0}} concatenate(r, c), dimensions={{2}}
{body}
  ROOT t = (f32[{n}]{{0}}, f32[{n},9]{{1,0}}) tuple(s, d)
}}
"""
PLAIN = """  g = f32[1,1]{{1,0}} gather(x, v), offset_dims={{}}, collapsed_slice_dims={{0,1}}, start_index_map={{0,1}}, index_vector_dim=2, slice_sizes={{1,1}}
  s = f32[1]{{0}} reshape(g)
  z = f32[] constant(0)
  o = f32[1,9]{{1,0}} broadcast(z), dimensions={{}}
  d = f32[1,9]{{1,0}} scatter(o, v, g), update_window_dims={{}}, inserted_window_dims={{0,1}}, scatter_dims_to_operand_dims={{0,1}}, index_vector_dim=2, to_apply=add"""
LISTED = """  j = s32[1,2]{{1,0}} reshape(v)
  g = f32[1,1,1]{{2,1,0}} gather(x, j), offset_dims={{1,2}}, collapsed_slice_dims={{}}, start_index_map={{0,1}}, index_vector_dim=1, slice_sizes={{1,1}}
  s = f32[1]{{0}} reshape(g)
  z = f32[] constant(0)
  o = f32[1,9]{{1,0}} broadcast(z), dimensions={{}}
  d = f32[1,9]{{1,0}} scatter(o, j, g), update_window_dims={{1,2}}, inserted_window_dims={{}}, scatter_dims_to_operand_dims={{0,1}}, index_vector_dim=1, to_apply=add"""


def scores(body: str, rows: int, **changes: str) -> str:
    own = body.format().replace("[1,", f"[{rows},").replace("[1]", f"[{rows}]")
    text = SCORES.format(add=ADD, n=rows, body=own)
    for key, value in changes.items():
        text = text.replace(f"  {key} = ", f"  {value} = ")
    return text


def of_ranks(text: str) -> str:
    """Two ranks with half the rows each."""
    half = "sharding={devices=[2,1]<=[2]}"
    text = text.replace("HloModule m", "HloModule m, num_partitions=2")
    text = text.replace(
        "x = f32[2,9]{1,0} parameter(0)", f"x = f32[2,9]{{1,0}} parameter(0), {half}"
    )
    return text.replace("parameter(1)", "parameter(1), sharding={devices=[2]<=[2]}", 2)


@pytest.mark.parametrize(("body", "wrong"), [(LISTED, False), (LISTED, True), (PLAIN, False)])
def test_labels_of_a_list_are_looked_up_as_such(body: str, wrong: bool, tmp_path: Path) -> None:
    parallel = of_ranks(scores(body, 2))
    if wrong:
        parallel = parallel.replace(
            "c = s32[2,1,1]{2,1,0} reshape(i)", "c = s32[2,1,1]{2,1,0} reshape(k)"
        ).replace(
            "  c = ",
            "  one = s32[] constant(1)\n  ones = s32[2]{0} broadcast(one), dimensions={}\n"
            "  k = s32[2]{0} subtract(i, ones)\n  c = ",
        )
    verified(scores(PLAIN, 4), parallel, tmp_path, "refuted" if wrong else "proved")


EXCHANGE = """HloModule m, num_partitions=2
ENTRY main {
  x = f32[2,3]{1,0} parameter(0)
  a = f32[1,3]{1,0} slice(x), slice={[0:1], [0:3]}
  b = f32[1,3]{1,0} slice(x), slice={[1:2], [0:3]}
  t = (f32[1,3]{1,0}, f32[1,3]{1,0}) all-to-all(a, b), channel_id=1, replica_groups={{0,1}}
  p = f32[1,3]{1,0} get-tuple-element(t), index=0
  q = f32[1,3]{1,0} get-tuple-element(t), index=1
  ROOT r = f32[2,3]{1,0} concatenate(p, q), dimensions={0}
}
"""


def test_an_exchange_of_a_tuple_sends_each_rank_its_tensor() -> None:
    """Source: XLA's AllToAll with a tuple: the k-th operand goes to the k-th rank of the group."""
    made = read.parsed(EXCHANGE, partitioned=True)
    x, y = RNG.normal(size=(2, 2, 3))
    (first,), (second,) = evaluate.run(made, [[x], [y]])
    np.testing.assert_array_equal(first, np.stack([x[0], y[0]]))
    np.testing.assert_array_equal(second, np.stack([x[1], y[1]]))


def test_an_exchange_of_unlike_tensors_is_refused() -> None:
    text = EXCHANGE.replace("slice(x), slice={[1:2], [0:3]}", "slice(x), slice={[1:2], [0:2]}")
    with pytest.raises(InvalidInput, match="all-to-all of 2 tensors"):
        read.parsed(text.replace("b = f32[1,3]", "b = f32[1,2]"), partitioned=True)


TOTAL = """compared {
  p = f32[] parameter(0)
  q = f32[] parameter(1)
  zero = s32[] constant(0)
  all = s32[] constant(2147483647)
  bp = s32[] bitcast(p)
  bq = s32[] bitcast(q)
  tp = s32[] xor(all, bp)
  np = pred[] compare(bp, zero), direction=LT
  tq = s32[] xor(all, bq)
  nq = pred[] compare(bq, zero), direction=LT
  sp = s32[] select(np, tp, bp)
  sq = s32[] select(nq, tq, bq)
  ROOT l = pred[] compare(sp, sq), direction=LT
}
"""
SORT = "x = f32[7]{0} parameter(0)\nROOT r = f32[7]{0} sort(x), dimensions={0}, to_apply=compared"


def test_an_order_of_bits_is_one_of_numbers() -> None:
    x = RNG.normal(size=7)
    (found,) = evaluate.run(graph(SORT, TOTAL), [[x]])
    np.testing.assert_array_equal(found[0], np.sort(x))


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("constant(2147483647)", "constant(1)"),
        ("select(np, tp, bp)", "select(np, bp, tp)"),
        ("compare(bq, zero), direction=LT", "compare(bq, zero), direction=GT"),
        ("select(nq, tq, bq)", "select(np, tq, bq)"),
    ],
)
def test_other_orders_of_bits_are_refused(old: str, new: str) -> None:
    made = read.parsed(f"HloModule m\n{TOTAL.replace(old, new)}ENTRY main {{\n{SORT}\n}}\n")
    assert [n for n in made.nodes if "refused" in n.attrs]
    with pytest.raises(Unsupported):
        evaluate.run(made, [[RNG.normal(size=7)]])


LARGEST = """x = f32[3,6]{1,0} parameter(0)
ROOT t = (f32[3,2]{1,0}, s32[3,2]{1,0}) custom-call(x), custom_call_target="TopK", called_computations={%greater}"""
GREATER = """greater {
  p = f32[] parameter(0)
  q = f32[] parameter(1)
  i = s32[] parameter(2)
  j = s32[] parameter(3)
  ROOT l = pred[] compare(p, q), direction=GT
}
"""


def test_the_largest_are_found_by_a_call() -> None:
    x = RNG.normal(size=(3, 6))
    (found,) = evaluate.run(graph(LARGEST, GREATER), [[x]])
    np.testing.assert_array_equal(found[0], np.sort(x)[:, :-3:-1])
    np.testing.assert_array_equal(found[1], np.argsort(x)[:, :-3:-1])


def test_the_smallest_by_such_a_call_are_refused() -> None:
    text = GREATER.replace("GT", "LT")
    made = read.parsed(f"HloModule m\n{text}ENTRY main {{\n{LARGEST}\n}}\n")
    assert [n for n in made.nodes if "refused" in n.attrs]


@pytest.mark.parametrize(
    ("name", "old", "new"),
    [
        ("rows", "index_vector_dim=1, ", ""),
        ("rows", "offset_dims={1,2}", "offset_dims={1,7}"),
        ("rows in front", "offset_dims={0}", "offset_dims={0,1}"),
        ("added rows", "update_window_dims={1}", "update_window_dims={1,5}"),
    ],
)
def test_gathers_that_are_none_are_refused_by_name(name: str, old: str, new: str) -> None:
    """They change nothing here, and the operator is not understood where it is lowered."""
    assert old in LISTS[name]
    made = read.parsed(f"HloModule m\n{ADD}ENTRY main {{\n{LISTS[name].replace(old, new)}\n}}\n")
    side = flattened.unflattened(made)
    assert lower(side)[0].recorder.ops


def test_words_of_attributes_may_hold_a_dash() -> None:
    body = "x = f32[2]{0} parameter(0)\ny = f32[2]{0} copy(x)\n"
    body += "ROOT z = f32[2]{0} negate(y), control-predecessors={%y}"
    assert graph(body).nodes[-1].target == "negate"
