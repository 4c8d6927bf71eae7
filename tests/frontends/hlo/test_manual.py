"""Manual computations of StableHLO (shard_map as JAX lowers it), against NumPy and as a user
verifies them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import pytest

import shardproof
from shardproof.engine.errors import InvalidInput
from shardproof.frontends.graphs.graph import Placement
from shardproof.frontends.hlo import evaluate, manual, read
from tests.frontends.hlo.verdicts import verified

Array = np.ndarray
MESH = 'sdy.mesh @mesh = <["x"=2, "y"=2]>'
CHANNEL = "channel_handle = #stablehlo.channel_handle<handle = 1, type = 1>"
ROWS, COLUMNS = "[[0, 2], [1, 3]]", "[[0, 1], [2, 3]]"
X = np.random.default_rng(0).normal(size=(8, 6)).astype(np.float32)


def module(body: str, given: str, results: str, returned: str, *, mesh: str = MESH) -> str:
    head = "module @m attributes {mhlo.num_partitions = 4 : i32, mhlo.num_replicas = 1 : i32} {"
    main = f"func.func public @main({given}) -> ({results}) {{"
    return f"{head}\n{mesh}\n{main}\n{body}\nreturn {returned} : {results}\n}}\n}}\n"


def mapped(
    body: str, ins: str, outs: str, parameter: str, whole: str, *, axes: str = '"x", "y"'
) -> str:
    """``%0``: a manual computation of ``%x``, in which ``%a`` is the part and ``%r`` the result."""
    part, result = parameter.split(" -> ")
    return f"""%0 = sdy.manual_computation(%x) in_shardings=[<@mesh, {ins}>] out_shardings=[<@mesh, {outs}>] manual_axes={{{axes}}} (%a: {part}) {{
{body}
sdy.return %r : {result}
}} : (tensor<8x6xf32>) -> {whole}"""


def run(program: str) -> list[Array]:
    """The result of every rank, each of which is given its part of the input."""
    graph = read.parsed(program, partitioned=True)
    assert not [n for n in graph.nodes if "refused" in n.attrs]
    (given,) = graph.inputs
    parts = [[part(X, given.placement, graph.values[given.value].shape, n)] for n in range(4)]
    return [own[0] for own in evaluate.run(graph, parts)]


def part(x: Array, placement: Placement | None, shape: tuple[int, ...], rank: int) -> Array:
    assert placement is not None
    assert placement.full == x.shape
    return x[tuple(slice(s, s + n) for s, n in zip(placement.starts[rank], shape, strict=True))]


def everywhere(program: str, expected: Array) -> None:
    """Every rank gives its part of what is expected."""
    lies = read.parsed(program, partitioned=True).outputs[0].placement
    for rank, found in enumerate(run(program)):
        own = expected if lies is None else part(expected, lies, found.shape, rank)
        np.testing.assert_allclose(found, own, rtol=1e-6)


# -- operators that join ranks, inside ------------------------------------------------------------

Parts = Mapping[tuple[int, int], Array]


def reducer(word: str) -> str:
    return (
        f"({{\n^bb0(%p: tensor<f32>, %q: tensor<f32>):\n%s = stablehlo.{word} %p, %q : "
        "tensor<f32>\nstablehlo.return %s : tensor<f32>\n})"
    )


def joined(word: str, attrs: str, region: str, result: str) -> str:
    """An operator of ``%a`` in the form in which JAX prints it."""
    types = f"(tensor<4x3xf32>) -> tensor<{result}xf32>"
    return f'%r = "stablehlo.{word}"(%a) <{{{CHANNEL}, {attrs}}}> {region} : {types}'


def groups(rows: str) -> str:
    return f"replica_groups = dense<{rows}> : tensor<2x2xi64>"


WORLD = ", use_global_device_ids"
JOINED: dict[str, tuple[str, str, Callable[[Parts, int, int], Array]]] = {
    "a sum over rows of ranks": (
        joined("all_reduce", groups(ROWS) + WORLD, reducer("add"), "4x3"),
        "4x3",
        lambda p, x, y: p[0, y] + p[1, y],
    ),
    "a maximum over columns of ranks": (
        joined("all_reduce", groups(COLUMNS) + WORLD, reducer("maximum"), "4x3"),
        "4x3",
        lambda p, x, y: np.maximum(p[x, 0], p[x, 1]),
    ),
    "parts side by side": (
        joined("all_gather", f"all_gather_dim = 1 : i64, {groups(COLUMNS)}{WORLD}", "", "4x6"),
        "4x6",
        lambda p, x, y: np.concatenate([p[x, 0], p[x, 1]], axis=1),
    ),
    "parts of a sum": (
        joined(
            "reduce_scatter",
            f"{groups(ROWS)}, scatter_dimension = 0 : i64{WORLD}",
            reducer("add"),
            "2x3",
        ),
        "2x3",
        lambda p, x, y: np.split(p[0, y] + p[1, y], 2)[x],
    ),
    "rows exchanged for columns": (
        joined(
            "all_to_all",
            f"concat_dimension = 1 : i64, {groups(ROWS)}, split_count = 2 : i64, "
            "split_dimension = 0 : i64",
            "",
            "2x6",
        ),
        "2x6",
        lambda p, x, y: np.concatenate([np.split(p[k, y], 2)[x] for k in range(2)], axis=1),
    ),
    "rows exchanged": (
        joined(
            "all_to_all",
            f"concat_dimension = 0 : i64, {groups(COLUMNS)}, split_count = 2 : i64, "
            "split_dimension = 0 : i64",
            "",
            "4x3",
        ),
        "4x3",
        lambda p, x, y: np.concatenate([np.split(p[x, k], 2)[y] for k in range(2)]),
    ),
    "handed on": (
        joined(
            "collective_permute",
            "source_target_pairs = dense<[[0, 1], [1, 0], [2, 3], [3, 2]]> : tensor<4x2xi64>",
            "",
            "4x3",
        ),
        "4x3",
        lambda p, x, y: p[x, 1 - y],
    ),
    "numbers of ranks": (
        "%i = stablehlo.partition_id : tensor<ui32>\n%f = stablehlo.convert %i : (tensor<ui32>) -> "
        "tensor<f32>\n%w = stablehlo.broadcast_in_dim %f, dims = [] : (tensor<f32>) -> "
        "tensor<4x3xf32>\n%r = stablehlo.multiply %a, %w : tensor<4x3xf32>",
        "4x3",
        lambda p, x, y: p[x, y] * (2 * x + y),
    ),
}


@pytest.mark.parametrize("name", JOINED)
def test_ranks_are_joined_as_in_numpy(name: str) -> None:
    body, shape, expected = JOINED[name]
    parts = {(x, y): X[4 * x : 4 * x + 4, 3 * y : 3 * y + 3] for x in range(2) for y in range(2)}
    results = [[expected(parts, x, y) for y in range(2)] for x in range(2)]
    whole = np.block(results)
    type = f"tensor<{whole.shape[0]}x{whole.shape[1]}xf32>"
    both = '[{"x"}, {"y"}]'
    text = mapped(body, both, both, f"tensor<4x3xf32> -> tensor<{shape}xf32>", type)
    everywhere(module(text, "%x: tensor<8x6xf32>", type, "%0"), whole)


# -- what enters and leaves -----------------------------------------------------------------------

SAME = "%r = stablehlo.negate %a : tensor<2x6xf32>"
WHOLE = "tensor<8x6xf32>"


def test_the_first_axis_of_a_dimension_is_the_slowest() -> None:
    text = mapped(
        SAME, '[{"x", "y"}, {}]', '[{"y", "x"}, {}]', "tensor<2x6xf32> -> tensor<2x6xf32>", WHOLE
    )
    rows = X.reshape(2, 2, 2, 6).swapaxes(0, 1).reshape(8, 6)
    everywhere(module(text, "%x: tensor<8x6xf32>", WHOLE, "%0"), -rows)


def test_axes_that_are_not_manual_divide_nothing() -> None:
    text = mapped(
        "%r = stablehlo.negate %a : tensor<4x6xf32>",
        '[{"x", ?}, {"y", ?}]',
        '[{"x"}, {?}]',
        "tensor<4x6xf32> -> tensor<4x6xf32>",
        WHOLE,
        axes='"x"',
    )
    everywhere(module(text, "%x: tensor<8x6xf32>", WHOLE, "%0"), -X)


def test_annotations_say_nothing_of_values() -> None:
    """Also in what combines two numbers, where axes that are not manual are left to others."""
    constrained = reducer("add").replace(
        "stablehlo.return %s",
        "%t = sdy.sharding_constraint %s <@mesh, []> : tensor<f32>\nstablehlo.return %t",
    )
    body = joined("all_reduce", groups(ROWS) + WORLD, constrained, "4x3")
    body = f"{body.replace('%r =', '%q =', 1)}\n%r = sdy.sharding_constraint %q <@mesh, [{{?}}, {{?}}]> : tensor<4x3xf32>"
    text = mapped(
        body,
        '[{"x"}, {"y"}]',
        '[{}, {"y"}]',
        "tensor<4x3xf32> -> tensor<4x3xf32>",
        "tensor<4x6xf32>",
    )
    everywhere(module(text, "%x: tensor<8x6xf32>", "tensor<4x6xf32>", "%0"), X[:4] + X[4:])


def test_what_gives_no_value_is_passed_over() -> None:
    body = f"{SAME}\nstablehlo.custom_call @print(%a) {{has_side_effect = true}} : (tensor<2x6xf32>) -> ()"
    text = mapped(
        body, '[{"x", "y"}, {}]', '[{"x", "y"}, {}]', "tensor<2x6xf32> -> tensor<2x6xf32>", WHOLE
    )
    everywhere(module(text, "%x: tensor<8x6xf32>", WHOLE, "%0"), -X)


def test_along_other_axes_a_rank_keeps_what_it_has() -> None:
    text = mapped(
        "%r = stablehlo.negate %a : tensor<4x3xf32>",
        '[{"x"}, {"y"}]',
        '[{"x"}, {}]',
        "tensor<4x3xf32> -> tensor<4x3xf32>",
        "tensor<8x3xf32>",
    )
    found = run(module(text, "%x: tensor<8x6xf32>", "tensor<8x3xf32>", "%0"))
    for rank, own in enumerate(found):
        rows = np.split(X, 2)[rank // 2]
        np.testing.assert_allclose(own, -np.split(rows, 2, axis=1)[rank % 2], rtol=1e-6)


def test_what_is_read_in_two_ways_is_whole() -> None:
    """Cut inside of its manual computation, and read as a whole behind it."""
    text = mapped(
        SAME, '[{"x", "y"}, {}]', '[{"x", "y"}, {}]', "tensor<2x6xf32> -> tensor<2x6xf32>", WHOLE
    )
    for operand, twice in (("%x", 0.0), ("%0", -2.0)):
        body = f"{text}\n%1 = stablehlo.add %0, {operand} : {WHOLE}"
        program = module(body, "%x: tensor<8x6xf32>", WHOLE, "%1")
        everywhere(program, twice * X)
        graph = read.parsed(program, partitioned=True)
        # What is read in one way is the ranks' parts from the start.
        shape = graph.values[graph.inputs[0].value].shape
        assert shape == ((8, 6) if operand == "%x" else (2, 6))


LOOP = f"""%z = stablehlo.constant dense<0> : tensor<i32>
%n1 = stablehlo.constant dense<1> : tensor<i32>
%n3 = stablehlo.constant dense<3> : tensor<i32>
%w:2 = stablehlo.while(%i = %z, %y = %x) : tensor<i32>, {WHOLE}
cond {{
%p = stablehlo.compare LT, %i, %n3, SIGNED : (tensor<i32>, tensor<i32>) -> tensor<i1>
stablehlo.return %p : tensor<i1>
}} do {{
%j = stablehlo.add %i, %n1 : tensor<i32>
%v = func.call @f(%y) : ({WHOLE}) -> {WHOLE}
stablehlo.return %j, %v : tensor<i32>, {WHOLE}
}}"""


@pytest.mark.parametrize(
    ("body", "returned"),
    [(f"%1 = call @f(%x) : ({WHOLE}) -> {WHOLE}", "%1"), (LOOP, "%w#1")],
    ids=["once", "three times"],
)
def test_in_a_function_that_is_called(body: str, returned: str) -> None:
    text = mapped(
        SAME, '[{"x", "y"}, {}]', '[{"y", "x"}, {}]', "tensor<2x6xf32> -> tensor<2x6xf32>", WHOLE
    )
    own = f"func.func private @f(%x: {WHOLE}) -> {WHOLE} {{\n{text}\nreturn %0 : {WHOLE}\n}}\n}}\n"
    program = module(body, "%x: tensor<8x6xf32>", WHOLE, returned).removesuffix("}\n") + own
    rows = X.reshape(2, 2, 2, 6).swapaxes(0, 1).reshape(8, 6)
    everywhere(program, -rows)


def again(ins: str) -> str:
    """A result that enters a second manual computation, by the sharding ``ins``."""
    first = mapped(
        SAME, '[{"x", "y"}, {}]', '[{"x", "y"}, {}]', "tensor<2x6xf32> -> tensor<2x6xf32>", WHOLE
    )
    second = (
        mapped(SAME, ins, ins, "tensor<2x6xf32> -> tensor<2x6xf32>", WHOLE)
        .replace("%0 =", "%1 =")
        .replace("(%x)", "(%0)")
    )
    return module(f"{first}\n{second}", "%x: tensor<8x6xf32>", WHOLE, "%1")


@pytest.mark.parametrize(
    ("ins", "gathers"), [('[{"x", "y"}, {}]', 0), ('[{"y", "x"}, {}]', 2)], ids=["same", "other"]
)
def test_what_enters_again_as_it_left_is_not_gathered(ins: str, gathers: int) -> None:
    program = again(ins)
    everywhere(program, X)
    targets = [n.target for n in read.parsed(program, partitioned=True).nodes]
    assert targets.count("all-gather") == gathers


# -- verdicts -------------------------------------------------------------------------------------

GIVEN = "%x: tensor<8x6xf32>, %w: tensor<6x4xf32>, %v: tensor<4x6xf32>"
DOT = "contracting_dims = [1] x [0] : (tensor<{0}>, tensor<{1}>) -> tensor<{2}>"
ALONE = f"""module @s {{
func.func public @main({GIVEN}) -> ({WHOLE}) {{
%h = stablehlo.dot_general %x, %w, {DOT.format("8x6xf32", "6x4xf32", "8x4xf32")}
%t = stablehlo.tanh %h : tensor<8x4xf32>
%y = stablehlo.dot_general %t, %v, {DOT.format("8x4xf32", "4x6xf32", "8x6xf32")}
%c = stablehlo.constant dense<2.0> : tensor<f32>
%b = stablehlo.broadcast_in_dim %c, dims = [] : (tensor<f32>) -> {WHOLE}
%z = stablehlo.multiply %y, %b : {WHOLE}
return %z : {WHOLE}
}}
}}
"""
SUMMED = f"""%s = "stablehlo.all_reduce"(%p) <{{{CHANNEL}, {groups(COLUMNS)}{WORLD}}}> {reducer("add")} : (tensor<4x6xf32>) -> tensor<4x6xf32>"""


def divided(sum_of: str) -> str:
    """Rows over ``x``, features over ``y``, in a function; behind it everything is whole."""
    body = f"""%0 = sdy.manual_computation(%x, %w, %v) in_shardings=[<@mesh, [{{"x"}}, {{}}]>, <@mesh, [{{}}, {{"y"}}]>, <@mesh, [{{"y"}}, {{}}]>] out_shardings=[<@mesh, [{{"x"}}, {{}}]>] manual_axes={{"x", "y"}} (%a: tensor<4x6xf32>, %k: tensor<6x2xf32>, %l: tensor<2x6xf32>) {{
%h = stablehlo.dot_general %a, %k, {DOT.format("4x6xf32", "6x2xf32", "4x2xf32")}
%t = stablehlo.tanh %h : tensor<4x2xf32>
%p = stablehlo.dot_general %t, %l, {DOT.format("4x2xf32", "2x6xf32", "4x6xf32")}
{sum_of}
sdy.return %s : tensor<4x6xf32>
}} : (tensor<8x6xf32>, tensor<6x4xf32>, tensor<4x6xf32>) -> {WHOLE}
%c = stablehlo.constant dense<2.0> : tensor<f32>
%b = stablehlo.broadcast_in_dim %c, dims = [] : (tensor<f32>) -> {WHOLE}
%z = stablehlo.multiply %0, %b : {WHOLE}"""
    return module(body, GIVEN, WHOLE, "%z")


@pytest.mark.parametrize(
    ("sum_of", "expected"),
    [
        (SUMMED, "proved"),
        ("%s = stablehlo.optimization_barrier %p : tensor<4x6xf32>", "refuted"),
        (SUMMED.replace(COLUMNS, ROWS), "refuted"),
    ],
    ids=["a sum", "none", "over the other axis"],
)
def test_a_divided_perceptron(sum_of: str, expected: str, tmp_path: Path) -> None:
    verified(ALONE, divided(sum_of), tmp_path, expected)


def test_the_partitioner_is_an_assumption(tmp_path: Path) -> None:
    files = tmp_path / "single.mlir", tmp_path / "parallel.mlir"
    for file, text in zip(files, (ALONE, divided(SUMMED)), strict=True):
        file.write_text(text)
    result = shardproof.verify(*files, out=tmp_path / "run", cache=False, strict=True)
    assert result.verdict == "proved", result.reason
    assert manual.PARTITIONER in result.assumptions


def ranks_alone(word: str) -> str:
    """What every rank runs, without a manual computation: its rows, and their sum or maximum."""
    added = f"""%s = "stablehlo.all_reduce"(%t) <{{{CHANNEL}, replica_groups = dense<[[0, 1, 2, 3]]> : tensor<1x4xi64>{WORLD}}}> {reducer(word)} : (tensor<6xf32>) -> tensor<6xf32>"""
    body = f"""%c = stablehlo.constant dense<0.0> : tensor<f32>
%t = stablehlo.reduce(%x init: %c) applies stablehlo.add across dimensions = [0] : (tensor<2x6xf32>, tensor<f32>) -> tensor<6xf32>
{added}"""
    return module(body, "%x: tensor<2x6xf32>", "tensor<6xf32>", "%s", mesh="")


@pytest.mark.parametrize(("word", "expected"), [("add", "proved"), ("maximum", "refuted")])
def test_a_program_that_joins_ranks_is_what_every_rank_runs(
    word: str, expected: str, tmp_path: Path
) -> None:
    body = """%c = stablehlo.constant dense<0.0> : tensor<f32>
%s = stablehlo.reduce(%x init: %c) applies stablehlo.add across dimensions = [0] : (tensor<8x6xf32>, tensor<f32>) -> tensor<6xf32>"""
    alone = module(body, "%x: tensor<8x6xf32>", "tensor<6xf32>", "%s", mesh="").replace(
        "4 :", "1 :"
    )
    verified(alone, ranks_alone(word), tmp_path, expected)


# -- what is refused ------------------------------------------------------------------------------

RIGHT = divided(SUMMED)
REFUSED = {
    "parts of an axis": ('[{"x"}, {}]>, <@mesh', '[{"x":(1)2}, {}]>, <@mesh', "sharding"),
    "a mesh of some devices": (
        '"y"=2]>',
        '"y"=2], device_ids=[3, 2, 1, 1]>',
        "device_ids",
    ),
    "what is not added up": ('[{"x"}, {}]>, <@', '[{"x"}, {}], unreduced={"y"}>, <@', "unreduced"),
    "an axis twice": ('[{}, {"y"}]', '[{"y"}, {"y"}]', "a sharding of 2 dimensions"),
    "another size": ("%k: tensor<6x2xf32>", "%k: tensor<6x4xf32>", "is divided into"),
    "another mesh": ("out_shardings=[<@mesh", "out_shardings=[<@other", "on meshes mesh, other"),
    "no such axis": ('manual_axes={"x", "y"}', 'manual_axes={"x", "z"}', "a manual computation on"),
    "another number of devices": ("num_partitions = 4", "num_partitions = 8", "a mesh of 4"),
    "ranks joined around it": (
        "%z = stablehlo.multiply %0, %b : tensor<8x6xf32>",
        "%z = " + SUMMED.split(" = ", 1)[1].replace("4x6", "8x6").replace("%p)", "%0)"),
        "ranks are joined in and outside",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_not_read_is_refused_by_name(name: str) -> None:
    read.parsed(RIGHT, partitioned=True)
    old, new, message = REFUSED[name]
    assert old in RIGHT
    with pytest.raises(InvalidInput, match=message):
        read.parsed(RIGHT.replace(old, new, 1), partitioned=True)
