"""Every translation validated: the graph as it was read, and what it was lowered to, in
lock-step."""

from __future__ import annotations

import numpy as np
import pytest

from shardproof.frontends.graphs.graph import Graph
from shardproof.frontends.hlo import evaluate, inline, text
from shardproof.frontends.hlo.lower import RULES, lower
from shardproof.frontends.hlo.stacks import stacks
from tests.frontends.hlo.made_of_others import FUNCTIONS
from tests.frontends.hlo.runner import run
from tests.frontends.hlo.test_read import NAMES, module, sample

ADD = "add {\n  a = f32[] parameter(0)\n  b = f32[] parameter(1)\n  ROOT r = f32[] add(a, b)\n}\n"
MAX = ADD.replace("add", "max", 1).replace("add(", "maximum(")
MIN = ADD.replace("add", "min", 1).replace("add(", "minimum(")
LAST = "last {\n  a = f32[] parameter(0)\n  ROOT b = f32[] parameter(1)\n}\n"
ALL = (
    "all {\n  a = pred[] parameter(0)\n  b = pred[] parameter(1)\n  ROOT r = pred[] and(a, b)\n}\n"
)
ANY = ALL.replace("all", "any", 1).replace("and(", "or(")
#: As JAX writes them: of equal numbers the first, of sorts the first operand.
MOST = """most {
  x = f32[] parameter(0)
  y = f32[] parameter(2)
  gt = pred[] compare(x, y), direction=GT
  ne = pred[] compare(x, x), direction=NE
  o = pred[] or(gt, ne)
  s = f32[] select(o, x, y)
  eq = pred[] compare(x, y), direction=EQ
  i = s32[] parameter(1)
  j = s32[] parameter(3)
  lt = pred[] compare(i, j), direction=LT
  a = pred[] and(eq, lt)
  b = pred[] or(o, a)
  t = s32[] select(b, i, j)
  ROOT r = (f32[], s32[]) tuple(s, t)
}
"""
LEAST = MOST.replace("most", "least").replace("direction=GT", "direction=LT")
RISING = """rising {
  x = f32[] parameter(0)
  y = f32[] parameter(1)
  i = s32[] parameter(2)
  j = s32[] parameter(3)
  z = f32[] constant(0)
  e = pred[] compare(x, z), direction=EQ
  s = f32[] select(e, z, x)
  ROOT r = pred[] compare(s, y), direction=LT, type=TOTALORDER
}
"""
ALONE = RISING.replace("rising", "alone").replace(
    "i = s32[] parameter(2)\n  j = s32[] parameter(3)\n  ", ""
)
FALLING = ALONE.replace("alone", "falling").replace("direction=LT", "direction=GT")
COMPUTATIONS = "".join((ADD, MAX, MIN, LAST, ALL, ANY, MOST, LEAST, RISING, ALONE, FALLING))


def agree(
    graph: Graph,
    domains: dict[int, tuple[int, int]] | None = None,
    seed: int = 0,
    stacked: frozenset[int] = frozenset(),
) -> None:
    """Outputs of the graph as read, and of its lowering, on the same numbers."""
    lowering, outputs, found = lower(graph, domains, stacked)
    rng = np.random.default_rng(seed)
    inputs = []
    for _ in range(graph.ranks):
        own = []
        for position, given in enumerate(graph.inputs):
            value = graph.values[given.value]
            if value.dtype == "bool":
                own.append(rng.integers(0, 2, value.shape).astype(bool))
            elif value.dtype.startswith(("int", "uint")):
                low, high = found.get(position, (0, 7))
                own.append(rng.integers(low, min(high, 1 << 20), value.shape))
            else:
                own.append(rng.uniform(0.1, 2.0, value.shape) * rng.choice([1.0, 0.7], value.shape))
        inputs.append(own)
    expected = evaluate.run(graph, inputs)
    rows = [
        [r for n, x in enumerate(own) for r in (np.split(x, len(x)) if n in stacked else [x])]
        for own in inputs
    ]
    actual = run(lowering.recorder, rows, outputs)
    for own, theirs in zip(actual, expected, strict=True):
        for x, y in zip(own, theirs, strict=True):
            np.testing.assert_allclose(x, np.asarray(y, dtype=float), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("side", ["single", "parallel"])
@pytest.mark.parametrize("name", NAMES)
def test_samples_are_lowered_to_what_they_compute(name: str, side: str) -> None:
    single = inline.graph(text.parse(sample(name, "single")))
    _, _, domains = lower(single)
    graph = single if side == "single" else inline.graph(text.parse(sample(name, side)))
    for seed in range(3):
        agree(graph, domains, seed)


#: An operator, and a program with it.
PROGRAMS = {
    **{
        name: f"  x = f32[3,4] parameter(0)\n  ROOT y = f32[3,4] {name}(x)"
        for name in [
            "negate",
            "exponential",
            "log",
            "logistic",
            "tanh",
            "rsqrt",
            "sqrt",
            "sine",
            "cosine",
            "erf",
            "abs",
            "sign",
            "exponential-minus-one",
            "log-plus-one",
        ]
    },
    **FUNCTIONS,
    **{
        name: "  x = f32[3,4] parameter(0)\n  z = f32[3,4] parameter(1)\n"
        f"  ROOT y = f32[3,4] {name}(x, z)"
        for name in ["add", "subtract", "multiply", "divide", "maximum", "minimum"]
    },
    **{
        f"compare {d}": "  x = f32[3,4] parameter(0)\n  z = f32[3,4] parameter(1)\n"
        f"  p = pred[3,4] compare(x, z), direction={d}\n  n = pred[3,4] not(p)\n"
        "  q = pred[3,4] or(p, n)\n  r = pred[3,4] and(q, p)\n"
        "  ROOT y = f32[3,4] select(r, x, z)"
        for d in ("GT", "LT", "GE", "LE", "EQ", "NE")
    },
    "power": "  x = f32[3] parameter(0)\n  c = f32[] constant(3)\n"
    "  e = f32[3] broadcast(c), dimensions={}\n  a = f32[3] power(x, e)\n"
    "  b = f32[3] power(e, x)\n  ROOT y = f32[3] add(a, b)",
    "convert": "  x = f32[3] parameter(0)\n  b = bf16[3] convert(x)\n"
    "  i = s32[3] parameter(1)\n  f = f32[3] convert(i)\n  c = f32[3] convert(b)\n"
    "  ROOT y = f32[3] add(c, f)",
    "floor": "  x = f32[3] parameter(0)\n  c = f32[3] ceil(x)\n  f = f32[3] floor(x)\n"
    "  i = s32[3] convert(x)\n  d = f32[3] convert(i)\n  p = pred[3] convert(f)\n"
    "  e = f32[3] convert(p)\n  a = f32[3] subtract(c, f)\n  b = f32[3] add(a, d)\n"
    "  ROOT y = f32[3] add(b, e)",
    "xor": "  x = f32[3] parameter(0)\n  z = f32[3] parameter(1)\n"
    "  p = pred[3] compare(x, z), direction=GT\n  m = pred[3] parameter(2)\n"
    "  q = pred[3] xor(p, m)\n  ROOT y = f32[3] select(q, x, z)",
    "a mask that is an input": "  x = f32[3,4] parameter(0)\n  m = pred[3,4] parameter(1)\n"
    "  n = pred[4] parameter(2)\n  w = pred[3,4] broadcast(n), dimensions={1}\n"
    "  b = pred[3,4] and(m, w)\n  c = f32[] constant(2)\n  d = f32[3,4] broadcast(c), "
    "dimensions={}\n  ROOT y = f32[3,4] select(b, x, d)",
    "ids that are compared with ids": "  x = f32[3,4] parameter(0)\n  i = s32[3] parameter(1)\n"
    "  j = s32[4] parameter(2)\n  a = s32[3,4] broadcast(i), dimensions={0}\n"
    "  b = s32[3,4] broadcast(j), dimensions={1}\n  p = pred[3,4] compare(a, b), direction=EQ\n"
    "  f = f32[3,4] convert(p)\n  ROOT y = f32[3,4] multiply(f, x)",
    **{
        f"whether {how} hold": "  x = f32[3,4] parameter(0)\n  z = f32[3,4] parameter(1)\n"
        "  p = pred[3,4] compare(x, z), direction=GT\n"
        f"  c = pred[] constant({start})\n  q = pred[3] reduce(p, c), dimensions={{1}}, "
        f"to_apply={how}\n  ROOT y = f32[3] convert(q)"
        for how, start in (("all", "true"), ("any", "false"))
    },
    "a slice with steps": "  x = f32[2,9] parameter(0)\n  a = f32[2,3] slice(x), "
    "slice={[0:2], [1:8:3]}\n  b = f32[2,3] slice(x), slice={[0:2], [4:9:2]}\n"
    "  ROOT y = f32[2,3] add(a, b)",
    "padding between": "  x = f32[2,3] parameter(0)\n  c = f32[] constant(2.5)\n"
    "  ROOT y = f32[4,7] pad(x, c), padding=1_0_1x1_-1_2",
    "a box written over": "  x = f32[5,6] parameter(0)\n  u = f32[2,3] parameter(1)\n"
    "  i = s32[] constant(1)\n  j = s32[] constant(2)\n"
    "  ROOT y = f32[5,6] dynamic-update-slice(x, u, i, j)",
    "a row written over by an id": "  x = f32[5,6] parameter(0)\n  u = f32[5,1] parameter(1)\n"
    "  z = s32[] constant(0)\n  i = s32[] parameter(2)\n"
    "  w = f32[5,6] dynamic-update-slice(x, u, z, i)\n"
    "  r = f32[5,1] dynamic-slice(w, z, i), dynamic_slice_sizes={5,1}\n"
    "  ROOT y = f32[5,7] concatenate(w, r), dimensions={1}",
    "known rows written over": "  x = f32[5,3] parameter(0)\n  i = s32[2,1] constant({{2}, {3}})\n"
    "  u = f32[2,3] parameter(1)\n  ROOT y = f32[5,3] scatter(x, i, u), "
    "update_window_dims={1}, inserted_window_dims={0}, scatter_dims_to_operand_dims={0}, "
    "index_vector_dim=1, to_apply=last",
    "a known box written over": "  x = f32[5,6] parameter(0)\n  i = s32[2] constant({4, 1})\n"
    "  u = f32[3] parameter(1)\n  ROOT y = f32[5,6] scatter(x, i, u), "
    "update_window_dims={0}, inserted_window_dims={0}, scatter_dims_to_operand_dims={0,1}, "
    "index_vector_dim=0, to_apply=last",
    "a known box added": "  x = f32[5,6] parameter(0)\n  i = s32[2] constant({4, 1})\n"
    "  u = f32[3] parameter(1)\n  ROOT y = f32[5,6] scatter(x, i, u), "
    "update_window_dims={0}, inserted_window_dims={0}, scatter_dims_to_operand_dims={0,1}, "
    "index_vector_dim=0, to_apply=add",
    "an entry of each row": "  x = f32[4,9] parameter(0)\n  n = s32[4] iota(), iota_dimension=0\n"
    "  a = s32[4,1] reshape(n)\n  i = s32[4] parameter(1)\n  b = s32[4,1] reshape(i)\n"
    "  v = s32[4,2] concatenate(a, b), dimensions={1}\n  z = s32[] constant(0)\n"
    "  w = s32[4,2] broadcast(z), dimensions={}\n"
    "  p = pred[4,2] compare(v, w), direction=GE\n  t = pred[] constant(true)\n"
    "  q = pred[4] reduce(p, t), dimensions={1}, to_apply=all\n"
    "  g = f32[4] gather(x, v), offset_dims={}, collapsed_slice_dims={0,1}, "
    "start_index_map={0,1}, index_vector_dim=1, slice_sizes={1,1}\n"
    "  c = f32[] constant(0)\n  d = f32[4] broadcast(c), dimensions={}\n"
    "  ROOT y = f32[4] select(q, g, d)",
    **{
        f"an entry of each row, {how}": "  x = f32[4,9] parameter(0)\n"
        "  n = s32[4] iota(), iota_dimension=0\n  a = s32[4,1] reshape(n)\n"
        "  i = s32[4] parameter(1)\n  b = s32[4,1] reshape(i)\n  u = f32[4] parameter(2)\n"
        "  v = s32[4,2] concatenate(a, b), dimensions={1}\n"
        "  ROOT y = f32[4,9] scatter(x, v, u), update_window_dims={}, "
        "inserted_window_dims={0,1}, scatter_dims_to_operand_dims={0,1}, index_vector_dim=1, "
        f"to_apply={how}"
        for how in ("add", "last")
    },
    "a row that stays a dimension": "  t = f32[4,9] parameter(0)\n  i = s32[4,1] parameter(1)\n"
    "  g = f32[4,1] gather(t, i), offset_dims={1}, collapsed_slice_dims={}, "
    "start_index_map={1}, operand_batching_dims={0}, start_indices_batching_dims={0}, "
    "index_vector_dim=1, slice_sizes={1,1}\n  c = f32[] constant(0)\n"
    "  z = f32[4,9] broadcast(c), dimensions={}\n  s = f32[4,9] scatter(z, i, g), "
    "update_window_dims={1}, inserted_window_dims={}, scatter_dims_to_operand_dims={1}, "
    "input_batching_dims={0}, scatter_indices_batching_dims={0}, index_vector_dim=1, "
    "to_apply=last\n  ROOT y = f32[4,9] add(s, t)",
    "topk": "  x = f32[3,6] parameter(0)\n  t = (f32[3,2], s32[3,2]) topk(x), k=2, largest=true\n"
    "  v = f32[3,2] get-tuple-element(t), index=0\n  i = s32[3,2] get-tuple-element(t), index=1\n"
    "  b = s32[3,2,6] broadcast(i), dimensions={0,1}\n  p = s32[3,2,6] iota(), iota_dimension=2\n"
    "  e = pred[3,2,6] compare(b, p), direction=EQ\n  h = f32[3,2,6] convert(e)\n"
    "  w = f32[3,2,6] broadcast(v), dimensions={0,1}\n  ROOT y = f32[3,2,6] multiply(h, w)",
    **{
        f"where the {how} is": "  x = f32[3,6] parameter(0)\n"
        "  p = s32[3,6] iota(), iota_dimension=1\n"
        f"  c = f32[] constant({start})\n  z = s32[] constant(0)\n"
        "  t = (f32[3], s32[3]) reduce(x, p, c, z), dimensions={1}, "
        f"to_apply={how}\n  v = f32[3] get-tuple-element(t), index=0\n"
        "  i = s32[3] get-tuple-element(t), index=1\n  f = f32[3] convert(i)\n"
        "  ROOT y = f32[3] add(f, v)"
        for how, start in (("most", "-inf"), ("least", "inf"))
    },
    **{
        f"sort {how}": "  x = f32[5,3] parameter(0)\n  ROOT y = f32[5,3] sort(x), "
        f"dimensions={{0}}, is_stable=true, to_apply={how}"
        for how in ("alone", "falling")
    },
    "sort": "  x = f32[3,5] parameter(0)\n  p = s32[3,5] iota(), iota_dimension=1\n"
    "  t = (f32[3,5], s32[3,5]) sort(x, p), dimensions={1}, is_stable=true, to_apply=rising\n"
    "  v = f32[3,5] get-tuple-element(t), index=0\n  i = s32[3,5] get-tuple-element(t), index=1\n"
    "  f = f32[3,5] convert(i)\n  ROOT y = f32[3,5] add(f, v)",
    **{
        f"windows {at}": "  x = f32[2,6] parameter(0)\n"
        f"  c = f32[] constant({start})\n  ROOT y = f32[2,{size}] reduce-window(x, c), "
        f"window={{{at}}}, to_apply={how}"
        for at, size, how, start in (
            ("size=1x6 pad=0_0x5_0", 6, "add", 0),
            ("size=1x6 pad=0_0x0_5", 6, "add", 0),
            ("size=1x3 stride=1x3", 2, "add", 0),
            ("size=1x3 stride=1x2 pad=0_0x1_1", 3, "add", 0),
            ("size=1x2 stride=1x2", 3, "max", "-inf"),
            ("size=1x3 rhs_dilate=1x2", 2, "min", "inf"),
        )
    },
    **{
        f"convolution {number}": f"  x = f32[{x}] parameter(0)\n  w = f32[{w}] parameter(1)\n"
        f"  ROOT y = f32[{y}] convolution(x, w), {attrs}"
        for number, (x, w, y, attrs) in enumerate(
            [
                ("2,5,6,3", "3,2,3,4", "2,3,5,4", "window={size=3x2}, dim_labels=b01f_01io->b01f"),
                (
                    "2,3,5,6",
                    "4,3,3,3",
                    "2,4,3,3",
                    "window={size=3x3 stride=2x2 pad=1_1x1_1}, dim_labels=bf01_oi01->bf01",
                ),
                (
                    "2,7,4",
                    "3,2,6",
                    "2,5,6",
                    "window={size=3}, dim_labels=b0f_0io->b0f, feature_group_count=2",
                ),
                (
                    "4,5,3",
                    "2,3,6",
                    "2,9,6",
                    "window={size=2 pad=1_0 lhs_dilate=2 rhs_reversal=1}, "
                    "dim_labels=b0f_0io->b0f, batch_group_count=2",
                ),
                ("3,5,2", "1,2,4", "3,5,4", "window={size=1}, dim_labels=b0f_0io->b0f"),
                (
                    "3,9,2",
                    "3,4,5",
                    "4,2,5",
                    "window={size=4 stride=2 pad=1_0 rhs_dilate=1}, dim_labels=f0b_i0o->0bf",
                ),
            ]
        )
    },
    "reverse": "  x = f32[4,3] parameter(0)\n  ROOT y = f32[4,3] reverse(x), dimensions={0,1}",
    "reduce-precision": "  x = f32[3] parameter(0)\n"
    "  ROOT y = f32[3] reduce-precision(x), exponent_bits=8, mantissa_bits=7",
    "minus infinity": "  x = f32[3] parameter(0)\n  c = f32[] constant(-inf)\n"
    "  b = f32[3] broadcast(c), dimensions={}\n  s = f32[3] subtract(b, x)\n"
    "  e = f32[3] exponential(s)\n  ROOT y = f32[3] add(e, x)",
    "a function of an id with kinks": "  x = f32[3] parameter(0)\n  i = s32[3] parameter(1)\n"
    "  c = s32[] constant(2)\n  l = s32[3] broadcast(c), dimensions={}\n"
    "  m = s32[3] minimum(i, l)\n  f = f32[3] convert(m)\n"
    "  p = pred[3] compare(i, l), direction=LT\n  g = f32[3] select(p, f, x)\n"
    "  ROOT y = f32[3] add(f, g)",
    "clamp": "  x = f32[3] parameter(0)\n  l = f32[3] constant({0.5, 0.5, 0.5})\n"
    "  h = f32[3] constant({1, 1.25, 1.5})\n  ROOT y = f32[3] clamp(l, x, h)",
    "broadcast": "  x = f32[3,2] parameter(0)\n  ROOT y = f32[3,4,2] broadcast(x), dimensions={0,2}",
    "transpose": "  x = f32[3,2,5] parameter(0)\n  ROOT y = f32[5,3,2] transpose(x), dimensions={2,0,1}",
    "slice": "  x = f32[6,5] parameter(0)\n  ROOT y = f32[2,3] slice(x), slice={[1:3], [2:5]}",
    "pad": "  x = f32[4,3] parameter(0)\n  c = f32[] constant(2.5)\n"
    "  ROOT y = f32[6,2] pad(x, c), padding=1_1x-1_0",
    "concatenate": "  x = f32[2,3] parameter(0)\n  z = f32[4,3] parameter(1)\n"
    "  ROOT y = f32[6,3] concatenate(x, z), dimensions={0}",
    "dynamic-update-slice": "  x = f32[5,3] parameter(0)\n  u = f32[2,3] parameter(1)\n"
    "  i = s32[] constant(9)\n  z = s32[] constant(0)\n"
    "  ROOT y = f32[5,3] dynamic-update-slice(x, u, i, z)",
    "dot": "  x = f32[2,3,4] parameter(0)\n  z = f32[4,2,5] parameter(1)\n"
    "  ROOT y = f32[2,3,5] dot(x, z), lhs_batch_dims={0}, rhs_batch_dims={1}, "
    "lhs_contracting_dims={2}, rhs_contracting_dims={0}",
    **{
        f"reduce {how}": f"  x = f32[2,3,4] parameter(0)\n  c = f32[] constant({start})\n"
        f"  ROOT y = f32[3] reduce(x, c), dimensions={{0,2}}, to_apply={how}"
        for how, start in (("add", 0), ("add", 1.5), ("max", "-inf"), ("max", 1), ("min", "inf"))
    },
    "gather": "  t = f32[9,3] parameter(0)\n  i = s32[2,4] parameter(1)\n"
    "  ROOT y = f32[2,3,4] gather(t, i), offset_dims={1}, collapsed_slice_dims={0}, "
    "start_index_map={0}, index_vector_dim=2, slice_sizes={1,3}",
    "gather in batches": "  t = f32[2,5,9] parameter(0)\n  i = s32[2,5,1] parameter(1)\n"
    "  ROOT y = f32[2,5] gather(t, i), offset_dims={}, collapsed_slice_dims={2}, "
    "start_index_map={2}, operand_batching_dims={0,1}, start_indices_batching_dims={0,1}, "
    "index_vector_dim=2, slice_sizes={1,1,1}",
    "scatter": "  t = f32[9,3] parameter(0)\n  i = s32[2,4] parameter(1)\n"
    "  u = f32[2,4,3] parameter(2)\n  ROOT y = f32[9,3] scatter(t, i, u), "
    "update_window_dims={2}, inserted_window_dims={0}, scatter_dims_to_operand_dims={0}, "
    "index_vector_dim=2, to_apply=add",
    "gather of known rows": "  t = f32[9,3] parameter(0)\n  i = s32[4] iota(), iota_dimension=0\n"
    "  o = s32[4] constant({2, 2, 2, 2})\n  j = s32[4] add(i, o)\n  k = s32[4,1] reshape(j)\n"
    "  ROOT y = f32[3,4] gather(t, k), offset_dims={0}, collapsed_slice_dims={0}, "
    "start_index_map={0}, index_vector_dim=1, slice_sizes={1,3}",
    "gather of one row": "  t = f32[2,9,3] parameter(0)\n  i = s32[5,1] constant({{7}, {7}, {7}, "
    "{7}, {7}})\n  ROOT y = f32[5,2,3] gather(t, i), offset_dims={1,2}, "
    "collapsed_slice_dims={1}, start_index_map={1}, index_vector_dim=1, slice_sizes={2,1,3}",
    "scatter to known rows": "  t = f32[9,3] parameter(0)\n  i = s32[4] iota(), "
    "iota_dimension=0\n  k = s32[2,4,1] broadcast(i), dimensions={1}\n"
    "  u = f32[2,4,3] parameter(1)\n  ROOT y = f32[9,3] scatter(t, k, u), "
    "update_window_dims={2}, inserted_window_dims={0}, scatter_dims_to_operand_dims={0}, "
    "index_vector_dim=2, to_apply=add",
    "scatter to the last row": "  z = f32[] constant(0)\n  t = f32[4,3] broadcast(z), "
    "dimensions={}\n  i = s32[1] constant({2})\n  u = f32[4] parameter(0)\n"
    "  ROOT y = f32[4,3] scatter(t, i, u), update_window_dims={0}, inserted_window_dims={1}, "
    "scatter_dims_to_operand_dims={1}, index_vector_dim=0, to_apply=add",
    **{
        f"one-hot {d}": "  i = s32[4] parameter(0)\n  x = f32[4,6] parameter(1)\n"
        "  o = s32[] constant(2)\n  a = s32[4] broadcast(o), dimensions={}\n"
        "  j = s32[4] add(i, a)\n  b = s32[4,6] broadcast(j), dimensions={0}\n"
        f"  p = s32[4,6] iota(), iota_dimension=1\n  c = pred[4,6] compare(b, p), direction={d}\n"
        "  f = f32[4,6] convert(c)\n  ROOT y = f32[4,6] multiply(f, x)"
        for d in ("EQ", "NE")
    },
    "minus infinity where keys come after queries": "  x = f32[2,4,4] parameter(0)\n"
    "  q = s32[4,4] iota(), iota_dimension=0\n  k = s32[4,4] iota(), iota_dimension=1\n"
    "  p = pred[4,4] compare(q, k), direction=GE\n  m = pred[2,4,4] broadcast(p), "
    "dimensions={1,2}\n  i = f32[] constant(-inf)\n  j = f32[2,4,4] broadcast(i), dimensions={}\n"
    "  s = f32[2,4,4] select(m, x, j)\n  ROOT y = f32[2,4,4] exponential(s)",
    **{
        f"compare with {limit}": "  x = f32[3] parameter(0)\n  z = f32[3] parameter(1)\n"
        f"  i = f32[] constant({limit})\n  j = f32[3] broadcast(i), dimensions={{}}\n"
        "  a = pred[3] compare(x, j), direction=LT\n  b = pred[3] compare(j, x), direction=LT\n"
        "  c = pred[3] compare(x, j), direction=EQ\n  d = pred[3] compare(x, x), direction=NE\n"
        "  e = pred[3] or(c, d)\n  f = f32[3] select(a, x, z)\n  g = f32[3] select(b, f, x)\n"
        "  ROOT y = f32[3] select(e, j, g)"
        for limit in ("inf", "-inf")
    },
    "what is left of a count": "  x = f32[3] parameter(0)\n  n = f32[] constant(32)\n"
    "  o = f32[] constant(1)\n  m = f32[] subtract(n, o)\n  z = f32[] constant(0)\n"
    "  p = pred[] compare(m, z), direction=GT\n  b = pred[3] broadcast(p), dimensions={}\n"
    "  u = f32[] constant(nan)\n  w = f32[3] broadcast(u), dimensions={}\n"
    "  ROOT y = f32[3] select(b, x, w)",
    "magnitude of a sum of squares": "  x = f32[3,4] parameter(0)\n  s = f32[3,4] "
    "multiply(x, x)\n  c = f32[] constant(0)\n  r = f32[3] reduce(s, c), dimensions={1}, "
    "to_apply=add\n  a = f32[3] abs(r)\n  ROOT y = f32[3] log(a)",
    "negative indices": "  t = f32[9,3] parameter(0)\n  i = s32[4] parameter(1)\n"
    "  z = s32[4] constant({0, 0, 0, 0})\n  n = s32[4] constant({9, 9, 9, 9})\n"
    "  p = pred[4] compare(i, z), direction=LT\n  j = s32[4] add(i, n)\n"
    "  k = s32[4] select(p, j, i)\n  ROOT y = f32[4,3] gather(t, k), offset_dims={1}, "
    "collapsed_slice_dims={0}, start_index_map={0}, index_vector_dim=1, slice_sizes={1,3}",
    "rows of a rank": "  t = f32[4,3] parameter(0)\n  i = s32[5] parameter(1)\n"
    "  o = s32[5] constant({4, 4, 4, 4, 4})\n  l = s32[5] constant({3, 3, 3, 3, 3})\n"
    "  z = s32[5] constant({0, 0, 0, 0, 0})\n  j = s32[5] subtract(i, o)\n"
    "  a = pred[5] compare(j, z), direction=LT\n  b = pred[5] compare(j, l), direction=GT\n"
    "  c = pred[5] or(a, b)\n  m = pred[5,3] broadcast(c), dimensions={0}\n"
    "  f = f32[] constant(0)\n  g = f32[5,3] broadcast(f), dimensions={}\n"
    "  r = f32[5,3] gather(t, j), offset_dims={1}, collapsed_slice_dims={0}, "
    "start_index_map={0}, index_vector_dim=1, slice_sizes={1,3}\n"
    "  ROOT y = f32[5,3] select(m, g, r)",
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_an_operator_is_lowered_to_what_it_computes(name: str) -> None:
    body = f"{COMPUTATIONS}ENTRY e {{\n{PROGRAMS[name]}\n}}\n"
    graph = inline.graph(text.parse("HloModule m\n" + body))
    # Ids of the rows of a rank are of the whole vocabulary.
    domains = {1: (0, 12)} if name == "rows of a rank" else None
    for seed in range(3):
        agree(graph, domains, seed)


GROUPED = {
    "all-reduce": ("f32[4,8]", "to_apply=add"),
    "all-gather": ("f32[8,8]", "dimensions={0}"),
    "reduce-scatter": ("f32[4,4]", "dimensions={1}, to_apply=add"),
    "all-to-all": ("f32[4,8]", "dimensions={1}"),
}


@pytest.mark.parametrize("name", GROUPED)
@pytest.mark.parametrize("groups", ["{{0,1},{2,3}}", "{{0,2},{1,3}}"])
def test_a_collective_is_lowered_to_what_it_computes(name: str, groups: str) -> None:
    type, attrs = GROUPED[name]
    device = "" if name == "all-to-all" else ", use_global_device_ids=true"
    body = (
        "ENTRY e {\n  x = f32[4,8] parameter(0)\n"
        f"  ROOT y = {type} {name}(x), channel_id=1, replica_groups={groups}{device}, {attrs}\n}}\n"
    )
    agree(inline.graph(text.parse("HloModule m, num_partitions=4\n" + ADD + body)))


@pytest.mark.parametrize("how", ["all", "any"])
def test_whether_predicates_hold_on_all_ranks_or_on_one(how: str) -> None:
    body = (
        "ENTRY e {\n  x = f32[4] parameter(0)\n  z = f32[4] parameter(1)\n"
        "  p = pred[4] compare(x, z), direction=GT\n  q = pred[4] all-reduce(p), channel_id=1, "
        f"replica_groups={{{{0,1}}}}, use_global_device_ids=true, to_apply={how}\n"
        "  ROOT y = f32[4] convert(q)\n}\n"
    )
    agree(inline.graph(text.parse("HloModule m, num_partitions=2\n" + ALL + ANY + body)))


def test_a_permutation_gives_zeros_where_nobody_sends() -> None:
    body = (
        "ENTRY e {\n  x = f32[4] parameter(0)\n  ROOT y = f32[4] collective-permute(x), "
        "channel_id=1, source_target_pairs={{0,1},{1,2},{2,3}}\n}\n"
    )
    agree(inline.graph(text.parse("HloModule m, num_partitions=4\n" + body)))


@pytest.mark.parametrize("direction", ["EQ", "LT"])
def test_a_choice_by_the_rank_is_one_of_both(direction: str) -> None:
    body = (
        "ENTRY e {\n  x = f32[4] parameter(0)\n  z = f32[4] parameter(1)\n"
        "  r = u32[] partition-id()\n  c = u32[] constant(2)\n"
        f"  p = pred[] compare(r, c), direction={direction}\n"
        "  b = pred[4] broadcast(p), dimensions={}\n  ROOT y = f32[4] select(b, x, z)\n}\n"
    )
    agree(inline.graph(text.parse("HloModule m, num_partitions=4\n" + body)))


def test_every_rule_is_met() -> None:
    """What has a rule is in a program above, or in a sample."""
    met = {word for body in PROGRAMS.values() for word in RULES if f" {word}(" in body}
    met |= {*GROUPED, "collective-permute"}
    for name in NAMES:
        for side in ("single", "parallel"):
            met |= {n.target for n in inline.graph(text.parse(sample(name, side))).nodes}
    assert set(RULES) - met == {"is-finite", "select-and-scatter", "custom-call"}


def test_a_stack_is_held_row_by_row_where_one_row_is_taken_at_a_time() -> None:
    body = (
        "ENTRY e {\n  x = f32[3,4] parameter(0)\n  w = f32[3,4] parameter(1)\n"
        "  a = f32[1,4] slice(x), slice={[2:3], [0:4]}\n"
        "  b = f32[2,4] slice(w), slice={[1:3], [0:4]}\n  c = f32[1,4] negate(a)\n"
        "  ROOT y = f32[3,4] concatenate(b, c), dimensions={0}\n}\n"
    )
    graph = inline.graph(text.parse("HloModule m\n" + body))
    assert stacks(graph, graph) == {0}
    names = [h.name for h in lower(graph, None, frozenset({0}))[0].recorder.placed]
    assert names == ["x[0]", "x[1]", "x[2]", "w"]
    agree(graph, stacked=frozenset({0}))


def test_what_may_be_negative_keeps_its_magnitude() -> None:
    body = "ENTRY e {\n  x = f32[3] parameter(0)\n  ROOT y = f32[3] abs(x)\n}\n"
    found = lower(inline.graph(text.parse("HloModule m\n" + body)))[0]
    assert len(found.recorder.ops) > 1
    squared = body.replace(
        "ROOT y = f32[3] abs(x)", "s = f32[3] multiply(x, x)\n  ROOT y = f32[3] abs(s)"
    )
    found = lower(inline.graph(text.parse("HloModule m\n" + squared)))[0]
    assert [op.name for op in found.recorder.ops] == ["mul"]


def test_rows_that_are_read_twice_are_looked_up_once() -> None:
    body = (
        "  t = f32[9,3] parameter(0)\n  i = s32[4] parameter(1)\n"
        "  g = f32[4,3] gather(t, i), offset_dims={1}, collapsed_slice_dims={0}, "
        "start_index_map={0}, index_vector_dim=1, slice_sizes={1,3}\n"
        "  n = f32[4,3] negate(g)\n  ROOT y = f32[4,3] multiply(g, n)"
    )
    low, _, _ = lower(inline.graph(text.parse(module(body))))
    assert [op.name for op in low.recorder.ops] == ["onehot", "einsum", "mul", "mul"]
