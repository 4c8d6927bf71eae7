"""Operators of StableHLO with regions or windows, as JAX prints them, against NumPy; and constants
that are printed as bytes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from shardproof.engine.errors import InvalidInput
from shardproof.frontends.hlo import evaluate, read
from shardproof.frontends.hlo.lower import lower
from tests.frontends.hlo.verdicts import verified

Array = np.ndarray
F, K, P, V = "tensor<4x6xf32>", "tensor<i32>", "tensor<i1>", "tensor<2x3xf32>"
X = np.random.default_rng(0).normal(size=(4, 6)).astype(np.float32)


def text(given: str, body: str, results: str, returned: str, more: str = "") -> str:
    head = f"func.func public @main({given}) -> ({results}) {{"
    return f"module @m {{\n{head}\n{body}\nreturn {returned} : {results}\n}}\n{more}}}\n"


def run(program: str, *values: Array) -> list[Array]:
    """The results in NumPy; every operator has a rule."""
    graph = read.parsed(program)
    lowering, _, _ = lower(graph)
    assert not [op.name for op in lowering.recorder.ops if " of HLO (" in op.name]
    return evaluate.run(graph, [list(values)])[0]


def number(word: str, x: str, y: str) -> str:
    return f"%s = stablehlo.{word} {x}, {y} : tensor<f32>\nstablehlo.return %s : tensor<f32>"


def region(word: str) -> str:
    return f"({{\n^bb0(%p: tensor<f32>, %q: tensor<f32>):\n{number(word, '%p', '%q')}\n}})"


# -- branches and loops, which read what is given around them -------------------------------------

DOUBLE = f"%a = stablehlo.add %x, %x : {F}\nstablehlo.return %a : {F}"
SHIFT = f"%b = stablehlo.add %x, %one : {F}\nstablehlo.return %b : {F}"
ONE = (
    "%c = stablehlo.constant dense<1.0> : tensor<f32>\n"
    f"%one = stablehlo.broadcast_in_dim %c, dims = [] : (tensor<f32>) -> {F}"
)


@pytest.mark.parametrize(("at", "expected"), [(0, 2 * X), (1, X + 1), (2, X), (7, X)])
def test_the_branch_that_a_number_chooses(at: int, expected: Array) -> None:
    branches = f"({{\n{DOUBLE}\n}}, {{\n{SHIFT}\n}}, {{\nstablehlo.return %x : {F}\n}})"
    body = f'{ONE}\n%r = "stablehlo.case"(%n) {branches} : ({K}) -> {F}'
    (found,) = run(text(f"%n: {K}, %x: {F}", body, F, "%r"), np.int32(at), X)
    np.testing.assert_allclose(found, expected, rtol=1e-6)


@pytest.mark.parametrize(("holds", "expected"), [(True, 2 * X), (False, X + 1)])
def test_the_branch_that_a_predicate_chooses(holds: bool, expected: Array) -> None:
    body = f'{ONE}\n%r = "stablehlo.if"(%n) ({{\n{DOUBLE}\n}}, {{\n{SHIFT}\n}}) : ({P}) -> {F}'
    (found,) = run(text(f"%n: {P}, %x: {F}", body, F, "%r"), np.bool_(holds), X)
    np.testing.assert_allclose(found, expected, rtol=1e-6)


def test_branches_in_branches_that_give_several_values() -> None:
    inner = f'%d = "stablehlo.if"(%n) ({{\n{DOUBLE}\n}}, {{\n{SHIFT}\n}}) : ({P}) -> {F}'
    first = f"{inner}\nstablehlo.return %d, %x : {F}, {F}"
    second = f"stablehlo.return %x, %one : {F}, {F}"
    both = f"({{\n{first}\n}}, {{\n{second}\n}}) : ({P}) -> ({F}, {F})"
    body = f'{ONE}\n%r:2 = "stablehlo.if"(%m) {both}'
    program = text(f"%n: {P}, %m: {P}, %x: {F}", body, f"{F}, {F}", "%r#0, %r#1")
    found = run(program, np.bool_(False), np.bool_(True), X)
    np.testing.assert_allclose(np.stack(found), np.stack([X + 1, X]), rtol=1e-6)
    found = run(program, np.bool_(True), np.bool_(False), X)
    np.testing.assert_allclose(np.stack(found), np.stack([X, np.ones_like(X)]), rtol=1e-6)


def loop(carried: str, kinds: str, returned: str) -> str:
    """Three rounds, in each of which the values around the loop are read."""
    return f"""%zero = stablehlo.constant dense<0> : {K}
%n1 = stablehlo.constant dense<1> : {K}
%n3 = stablehlo.constant dense<3> : {K}
%w{returned} = stablehlo.while(%i = %zero{carried}) : {K}{kinds}
cond {{
%p = stablehlo.compare LT, %i, %n3, SIGNED : ({K}, {K}) -> {P}
stablehlo.return %p : {P}
}} do {{
%j = stablehlo.add %i, %n1 : {K}
"""


def test_a_loop_that_reads_what_is_given_around_it() -> None:
    body = loop(", %y = %x", f", {F}", ":2")
    body += f"%z = stablehlo.add %y, %x : {F}\nstablehlo.return %j, %z : {K}, {F}\n}}"
    (found,) = run(text(f"%x: {F}", body, F, "%w#1"), X)
    np.testing.assert_allclose(found, 4 * X, rtol=1e-6)


def test_a_loop_of_one_value() -> None:
    body = loop("", "", "") + f"stablehlo.return %j : {K}\n}}"
    (found,) = run(text(f"%x: {F}", body, K, "%w"), X)
    assert found == 3


def test_what_a_branch_gives_is_not_read_outside_of_it() -> None:
    body = f'{ONE}\n%r = "stablehlo.if"(%n) ({{\n{DOUBLE}\n}}, {{\n{SHIFT}\n}}) : ({P}) -> {F}'
    with pytest.raises(InvalidInput, match="a return of what is not given"):
        read.parsed(text(f"%n: {P}, %x: {F}", body, F, "%a"))


# -- reductions, sorts and windows ----------------------------------------------------------------

WINDOW = "window_dimensions = array<i64: 1, 2>, window_strides = array<i64: 1, 2>"


@pytest.mark.parametrize(
    ("word", "start", "expected"),
    [
        ("add", "0.0", X.reshape(4, 3, 2).sum(2)),
        ("maximum", "0xFF800000", X.reshape(4, 3, 2).max(2)),
    ],
)
def test_windows_are_reduced(word: str, start: str, expected: Array) -> None:
    body = f"""%c = stablehlo.constant dense<{start}> : tensor<f32>
%r = "stablehlo.reduce_window"(%x, %c) <{{padding = dense<0> : tensor<2x2xi64>, {WINDOW}}}> {region(word)} : ({F}, tensor<f32>) -> tensor<4x3xf32>"""
    (found,) = run(text(f"%x: {F}", body, "tensor<4x3xf32>", "%r"), X)
    np.testing.assert_allclose(found, expected, rtol=1e-6)


def test_running_sums() -> None:
    body = f"""%c = stablehlo.constant dense<0.0> : tensor<f32>
%r = "stablehlo.reduce_window"(%x, %c) <{{base_dilations = array<i64: 1, 1>, padding = dense<[[0, 0], [5, 0]]> : tensor<2x2xi64>, window_dilations = array<i64: 1, 1>, window_dimensions = array<i64: 1, 6>, window_strides = array<i64: 1, 1>}}> {region("add")} : ({F}, tensor<f32>) -> {F}"""
    (found,) = run(text(f"%x: {F}", body, F, "%r"), X)
    np.testing.assert_allclose(found, np.cumsum(X, axis=1), rtol=1e-5)


def test_the_gradient_of_a_maximum_over_windows() -> None:
    most = "%g = stablehlo.compare GE, %p, %q, FLOAT : (tensor<f32>, tensor<f32>) -> tensor<i1>"
    select = f"^bb0(%p: tensor<f32>, %q: tensor<f32>):\n{most}\nstablehlo.return %g : tensor<i1>"
    scatter = region("add")[2:]
    body = f"""%c = stablehlo.constant dense<0.0> : tensor<f32>
%r = "stablehlo.select_and_scatter"(%x, %y, %c) <{{padding = dense<0> : tensor<2x2xi64>, {WINDOW}}}> ({{
{select}
}}, {{{scatter} : ({F}, tensor<4x3xf32>, tensor<f32>) -> {F}"""
    y = np.arange(12, dtype=np.float32).reshape(4, 3)
    (found,) = run(text(f"%x: {F}, %y: tensor<4x3xf32>", body, F, "%r"), X, y)
    pairs = X.reshape(4, 3, 2)
    first = pairs == pairs.max(2, keepdims=True)
    np.testing.assert_allclose(found, (first * y[..., None]).reshape(4, 6), rtol=1e-6)


def test_rows_are_sorted() -> None:
    less = (
        "%l = stablehlo.compare LT, %p, %q, TOTALORDER : (tensor<f32>, tensor<f32>) -> tensor<i1>"
    )
    body = f"""%r = "stablehlo.sort"(%x) <{{dimension = 1 : i64, is_stable = true}}> ({{
^bb0(%p: tensor<f32>, %q: tensor<f32>):
{less}
stablehlo.return %l : tensor<i1>
}}) : ({F}) -> {F}"""
    (found,) = run(text(f"%x: {F}", body, F, "%r"), X)
    np.testing.assert_allclose(found, np.sort(X, axis=1), rtol=1e-6)


def test_the_largest_of_each_row() -> None:
    body = f"%v, %i = chlo.top_k(%x, k = 2) : {F} -> (tensor<4x2xf32>, tensor<4x2xi32>)"
    values, places = run(text(f"%x: {F}", body, "tensor<4x2xf32>, tensor<4x2xi32>", "%v, %i"), X)
    order = np.argsort(-X, axis=1)[:, :2]
    np.testing.assert_array_equal(places, order)
    np.testing.assert_allclose(values, np.take_along_axis(X, order, axis=1), rtol=1e-6)


def test_a_convolution() -> None:
    x = np.random.default_rng(1).normal(size=(2, 7, 3)).astype(np.float32)
    k = np.random.default_rng(2).normal(size=(3, 3, 4)).astype(np.float32)
    body = """%r = stablehlo.convolution(%x, %k) dim_numbers = [b, 0, f]x[0, i, o]->[b, 0, f], window = {stride = [2], pad = [[1, 0]], rhs_dilate = [2], reverse = [true]} {batch_group_count = 1 : i64, feature_group_count = 1 : i64, precision_config = [#stablehlo<precision DEFAULT>, #stablehlo<precision DEFAULT>]} : (tensor<2x7x3xf32>, tensor<3x3x4xf32>) -> tensor<2x2x4xf32>"""
    given, result = "%x: tensor<2x7x3xf32>, %k: tensor<3x3x4xf32>", "tensor<2x2x4xf32>"
    (found,) = run(text(given, body, result, "%r"), x, k)
    padded = np.pad(x, ((0, 0), (1, 0), (0, 0)))
    taps = np.stack([padded[:, 2 * t : 2 * t + 3 : 2] for t in range(3)])
    np.testing.assert_allclose(found, np.einsum("tbpi,tio->bpo", taps, k[::-1]), rtol=1e-5)


def test_a_cast_to_the_same_type_says_nothing() -> None:
    """Minus infinity is no number that a cast could have."""
    body = f"""%c = stablehlo.constant dense<0xFF800000> : tensor<f32>
%m = stablehlo.convert %c : tensor<f32>
%r = stablehlo.reduce(%x init: %m) applies stablehlo.maximum across dimensions = [1] : ({F}, tensor<f32>) -> tensor<4xf32>"""
    (found,) = run(text(f"%x: {F}", body, "tensor<4xf32>", "%r"), X)
    np.testing.assert_allclose(found, X.max(1), rtol=1e-6)


def test_a_composite_is_what_decomposes_it() -> None:
    own = f"func.func private @f(%y: {F}) -> {F} {{\n%s = stablehlo.add %y, %y : {F}\nreturn %s : {F}\n}}\n"
    body = (
        '%r = stablehlo.composite "my.double" %x {composite_attributes = {n = 2 : i64}, '
        f"decomposition = @f}} : ({F}) -> {F}"
    )
    (found,) = run(text(f"%x: {F}", body, F, "%r", own), X)
    np.testing.assert_allclose(found, 2 * X, rtol=1e-6)


# -- constants that are printed as bytes ----------------------------------------------------------


@pytest.mark.parametrize(
    ("element", "kind"),
    [("f32", "<f4"), ("f64", "<f8"), ("f16", "<f2"), ("i32", "<i4"), ("ui8", "u1"), ("i1", "?")],
)
def test_a_constant_printed_as_bytes(element: str, kind: str) -> None:
    values = (np.arange(6).reshape(2, 3) % 2 + 1 * (kind != "?")).astype(kind)
    type = f"tensor<2x3x{element}>"
    body = f'%r = stablehlo.constant dense<"0x{values.tobytes().hex().upper()}"> : {type}'
    graph = read.parsed(text(f"%x: {F}", body, type, "%r"))
    np.testing.assert_array_equal(evaluate.run(graph, [[X]])[0][0], values)


def test_predicates_printed_as_bits() -> None:
    values = np.arange(6).reshape(2, 3) % 2 == 0
    digits = np.packbits(values, bitorder="little").tobytes().hex()
    body = f'%r = stablehlo.constant dense<"0x{digits}"> : tensor<2x3xi1>'
    graph = read.parsed(text(f"%x: {F}", body, "tensor<2x3xi1>", "%r"))
    np.testing.assert_array_equal(evaluate.run(graph, [[X]])[0][0], values)


def test_bfloat16_printed_as_bytes() -> None:
    body = '%r = stablehlo.constant dense<"0x803F0040"> : tensor<2xbf16>'
    graph = read.parsed(text(f"%x: {F}", body, "tensor<2xbf16>", "%r"))
    np.testing.assert_array_equal(evaluate.run(graph, [[X]])[0][0], [1.0, 2.0])


@pytest.mark.parametrize("digits", ["0x00", "0x0000803", "0x0000803G", "803F"])
def test_bytes_of_another_number_are_refused(digits: str) -> None:
    body = f'%r = stablehlo.constant dense<"{digits}"> : tensor<2xf32>'
    with pytest.raises(InvalidInput, match="line 3: a constant of"):
        read.parsed(text(f"%x: {F}", body, "tensor<2xf32>", "%r"))


@pytest.mark.parametrize(
    ("written", "message"),
    [
        ("padding = dense<[[0, 0], [5]]> : tensor<2x2xi64>", "is not of 2 rows of 2"),
        ("padding = dense<[[0, 0]]> : tensor<2x2xi64>", "is not of 2 rows of 2"),
        ("padding = dense<[[0, 0], [5, x]]> : tensor<2x2xi64>", "is not of 2 rows of 2"),
        ('padding = dense<"0x00"> : tensor<2x2xi64>', "padding = dense"),
        ("padding = dense<0> : tensor<3x2xi64>", "padding of 3 dimensions"),
        ("padding = #other", "no padding = dense"),
    ],
)
def test_tables_that_are_written_otherwise_are_refused(written: str, message: str) -> None:
    body = f"""%c = stablehlo.constant dense<0.0> : tensor<f32>
%r = "stablehlo.reduce_window"(%x, %c) <{{{written}, {WINDOW}}}> {region("add")} : ({F}, tensor<f32>) -> tensor<4x3xf32>"""
    with pytest.raises(InvalidInput, match=message):
        read.parsed(text(f"%x: {F}", body, "tensor<4x3xf32>", "%r"))


# -- what becomes known while operators are lowered -----------------------------------------------


@pytest.mark.parametrize(("part", "expected"), [("8.0", "proved"), ("4.0", "refuted")])
def test_a_slice_of_what_is_known_only_later(part: str, expected: str, tmp_path: Path) -> None:
    """A quotient is no constant of the file; one of whole numbers is known all the same."""
    given, quotient = f"%x: {F}", "%q = stablehlo.divide %one, %n : tensor<f32>"
    numbers = "%one = stablehlo.constant dense<1.0> : tensor<f32>\n%n = stablehlo.constant dense<"
    wide = f"%w = stablehlo.broadcast_in_dim %q, dims = [] : (tensor<f32>) -> {F}"
    alone = f"{numbers}8.0> : tensor<f32>\n{quotient}\n{wide}\n%r = stablehlo.multiply %x, %w : {F}"
    sliced = f"""{numbers}{part}> : tensor<f32>
{quotient}
%v = stablehlo.broadcast_in_dim %q, dims = [] : (tensor<f32>) -> tensor<3x6xf32>
%at = stablehlo.constant dense<1> : {K}
%s = stablehlo.dynamic_slice %v, %at, %at, sizes = [1, 1] : (tensor<3x6xf32>, {K}, {K}) -> tensor<1x1xf32>
%w = stablehlo.broadcast_in_dim %s, dims = [0, 1] : (tensor<1x1xf32>) -> {F}
%r = stablehlo.multiply %x, %w : {F}"""
    verified(text(given, alone, F, "%r"), text(given, sliced, F, "%r"), tmp_path, expected)


# -- what does not fit ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (f"%r = stablehlo.iota dim = 2 : {F}", "an iota of .* along dimension 2"),
        (f"%r = stablehlo.optimization_barrier : {F}", "opt-barrier r of 0 operands"),
        (f"%r = stablehlo.partition_id : {F}", "partition-id of type .*, expected an integer"),
        (
            f"%c = stablehlo.constant dense<0> : {K}\n%r = stablehlo.dynamic_slice %x, %c, "
            f"sizes = [4, 6] : ({F}, {K}) -> {F}",
            "has 1 starts",
        ),
        (
            f'%r = "stablehlo.all_to_all"(%x) <{{concat_dimension = 0 : i64, split_count = 2 : i64, '
            f"split_dimension = 0 : i64, replica_groups = dense<0> : tensor<1x1xi64>}}> : () -> {F}",
            "an all_to_all of other than one tensor",
        ),
        (
            "%c = stablehlo.constant dense<0.0> : tensor<f32>\n%r = stablehlo.pad %x, %c, low = "
            f"[0, 0], high = [0], interior = [0, 0] : ({F}, tensor<f32>) -> {F}",
            "padding of unlike numbers",
        ),
    ],
    ids=["iota", "nothing", "a rank", "starts", "exchange", "padding"],
)
def test_what_does_not_fit_is_invalid_with_its_line(body: str, message: str) -> None:
    with pytest.raises(InvalidInput, match=rf"line \d+.*{message}"):
        read.parsed(text(f"%x: {F}", body, F, "%r"))
