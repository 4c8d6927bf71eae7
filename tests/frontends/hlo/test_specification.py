"""Every operator of the specification of StableHLO: read, or refused by its name.

The list is that of the dialect as JAX 0.10 has it; nothing in it is invalid input, and none is read
as another operator.
"""

from __future__ import annotations

import numpy as np
import pytest

from shardproof.engine.errors import InvalidInput
from shardproof.frontends.hlo import evaluate, read
from shardproof.frontends.hlo.lower import lower

F, C, P = "tensor<2x3xf32>", "tensor<2x3xcomplex<f32>>", "tensor<2x3xi1>"
#: Operators that no rule says, in the form in which any operator may be written.
UNREAD = (
    *("batch_norm_grad", "batch_norm_inference"),
    *("batch_norm_training", "broadcast", "case", "cholesky", "collective_broadcast"),
    *("convolution", "count_leading_zeros", "dot", "einsum"),
    *("cross-replica-sum", "dynamic_broadcast_in_dim", "dynamic_conv", "dynamic_gather"),
    *("dynamic_iota", "dynamic_pad", "dynamic_reshape", "get_dimension_size", "if", "map"),
    *("popcnt", "real_dynamic_slice", "recv", "infeed", "reduce_window", "rng"),
    *("rng_bit_generator", "sort"),
    *("select_and_scatter", "torch_index_select", "triangular_solve", "unary_einsum"),
    *("uniform_quantize", "uniform_dequantize", "get_tuple_element", "async_start", "async_done"),
)


def text(arguments: str, body: str, results: str, returned: str) -> str:
    head = f"func.func public @main({arguments}) -> ({results}) {{"
    return f"module @m {{\n{head}\n{body}\nreturn {returned} : {results}\n}}\n}}\n"


def refused(program: str) -> list[str]:
    """The operators that are read as what nobody declares."""
    lowering, _, _ = lower(read.parsed(program))
    return [op.name for op in lowering.recorder.ops if " of HLO (" in op.name]


@pytest.mark.parametrize("name", UNREAD)
def test_operators_without_a_rule_are_refused_by_name(name: str) -> None:
    body = f'%0 = "stablehlo.{name}"(%x, %y) : ({F}, {F}) -> {F}'
    (own,) = refused(text(f"%x: {F}, %y: {F}", body, F, "%0"))
    assert own.startswith((f"stablehlo.{name} of HLO", f"{name} of HLO"))


#: Operators whose attributes are read, and which have none in this form.
WITHOUT = {
    "all_gather": "replica_groups",
    "all_reduce": "replica_groups",
    "all_to_all": "of other than one tensor",
    "collective_permute": "source_target_pairs",
    "reduce_scatter": "replica_groups",
    "composite": "decomposition",
}


@pytest.mark.parametrize("name", WITHOUT)
def test_operators_without_their_attributes_are_invalid(name: str) -> None:
    body = f'%0 = "stablehlo.{name}"(%x, %y) : ({F}, {F}) -> {F}'
    with pytest.raises(InvalidInput, match=f"line 3: .*{WITHOUT[name]}"):
        read.parsed(text(f"%x: {F}, %y: {F}", body, F, "%0"))


def test_regions_that_are_not_read_are_passed_over() -> None:
    body = f"""%0 = "stablehlo.if"(%p) ({{
  %a = "stablehlo.map"(%x) <{{dimensions = array<i64: 0, 1>}}> ({{
  ^bb0(%arg0: tensor<f32>):
    stablehlo.return %arg0 : tensor<f32>
  }}) : ({F}) -> {F}
  stablehlo.return %a : {F}
}}, {{
  stablehlo.return %x : {F}
}}) : (tensor<i1>) -> {F}
%1 = stablehlo.negate %0 : {F}"""
    program = text(f"%p: tensor<i1>, %x: {F}", body, F, "%1")
    assert refused(program) == ["stablehlo.map of HLO (no rule says what it is)"]


def test_several_results_by_names_of_their_own() -> None:
    body = (
        "%state, %drawn = stablehlo.rng_bit_generator %k, algorithm = THREE_FRY : "
        f"(tensor<2xui64>) -> (tensor<2xui64>, {F})"
    )
    own, *_ = refused(text("%k: tensor<2xui64>", body, F, "%drawn"))
    assert own.startswith("stablehlo.rng_bit_generator")


def test_a_parameter_that_is_no_tensor_is_no_gap_in_their_numbers() -> None:
    inner = (
        f"module @m {{\nfunc.func public @main(%x: {F}) -> {F} {{\nreturn %x : {F}\n}}\n"
        f"func.func private @f(%t: !stablehlo.token, %x: {F}) -> {F} {{\nreturn %x : {F}\n}}\n}}\n"
    )
    with pytest.raises(InvalidInput, match="line 5: a parameter that is no tensor"):
        read.parsed(inner)


@pytest.mark.parametrize("type", ["!stablehlo.token", "()"])
def test_a_constant_that_is_no_tensor_is_refused(type: str) -> None:
    body = f"%0 = stablehlo.constant dense<1> : {type}"
    with pytest.raises(InvalidInput, match="line 3: a constant that is no tensor"):
        read.parsed(text(f"%x: {F}", body, F, "%x"))


def test_a_size_that_is_not_fixed_is_refused() -> None:
    body = (
        f"%0 = stablehlo.set_dimension_size %x, %n, dim = 1 : ({F}, tensor<i32>) -> tensor<2x?xf32>"
    )
    with pytest.raises(InvalidInput, match=r"line 3: type 'tensor<2x.xf32>' is not understood"):
        read.parsed(text(f"%x: {F}, %n: tensor<i32>", body, "tensor<2x?xf32>", "%0"))


def argmax(chosen: str) -> str:
    body = f"""%i = stablehlo.iota dim = 1 : tensor<2x3xi32>
%low = stablehlo.constant dense<0xFF800000> : tensor<f32>
%zero = stablehlo.constant dense<0> : tensor<i32>
%0:2 = stablehlo.reduce(%x init: %low), (%i init: %zero) across dimensions = [1] : ({F}, tensor<2x3xi32>, tensor<f32>, tensor<i32>) -> (tensor<2xf32>, tensor<2xi32>)
 reducer(%a: tensor<f32>, %b: tensor<f32>) (%c: tensor<i32>, %d: tensor<i32>)  {{
  %g = stablehlo.compare {chosen}, %a, %b, FLOAT : (tensor<f32>, tensor<f32>) -> tensor<i1>
  %e = stablehlo.compare EQ, %a, %b, FLOAT : (tensor<f32>, tensor<f32>) -> tensor<i1>
  %l = stablehlo.compare LT, %c, %d, SIGNED : (tensor<i32>, tensor<i32>) -> tensor<i1>
  %m = stablehlo.and %e, %l : tensor<i1>
  %o = stablehlo.or %g, %m : tensor<i1>
  %v = stablehlo.select %g, %a, %b : tensor<i1>, tensor<f32>
  %w = stablehlo.select %o, %c, %d : tensor<i1>, tensor<i32>
  stablehlo.return %v, %w : tensor<f32>, tensor<i32>
}}"""
    return text(f"%x: {F}", body, "tensor<2xi32>", "%0#1")


def test_a_reduction_of_several_tensors() -> None:
    x = np.array([[1, 5, 5], [4, 2, 3]], dtype=np.float32)
    graph = read.parsed(argmax("GT"))
    np.testing.assert_array_equal(evaluate.run(graph, [[x]])[0][0], np.argmax(x, axis=1))
    assert not refused(argmax("GT"))
    assert refused(argmax("NE"))


# -- complex numbers -------------------------------------------------------------------------------

X, Y, Z, W = np.random.default_rng(0).normal(size=(4, 2, 3))
COMPLEX = {
    "add": (X + 1j * Y) + (Z + 1j * W),
    "subtract": (X + 1j * Y) - (Z + 1j * W),
    "multiply": (X + 1j * Y) * (Z + 1j * W),
    "divide": (X + 1j * Y) / (Z + 1j * W),
}


def paired(body: str, type: str = C) -> str:
    """A program of two complex tensors made of four real ones; its result is %r."""
    real = type.replace("complex<f32>", "f32")
    return text(
        ", ".join(f"%{name}: {F}" for name in "xyzw"),
        f"%a = stablehlo.complex %x, %y : {C}\n%b = stablehlo.complex %z, %w : {C}\n{body}\n"
        f"%re = stablehlo.real %r : ({type}) -> {real}\n"
        f"%im = stablehlo.imag %r : ({type}) -> {real}",
        f"{real}, {real}",
        "%re, %im",
    )


def computed(program: str) -> np.ndarray:
    assert not refused(program)
    real, imaginary = evaluate.run(read.parsed(program), [[X, Y, Z, W]])[0]
    return real + 1j * imaginary


@pytest.mark.parametrize("name", COMPLEX)
def test_arithmetic_of_complex_numbers(name: str) -> None:
    program = paired(f"%r = stablehlo.{name} %a, %b : {C}")
    np.testing.assert_allclose(computed(program), COMPLEX[name])


@pytest.mark.parametrize(
    ("statement", "expected"),
    [
        (f"stablehlo.exponential %a : {C}", np.exp(X + 1j * Y)),
        (f"stablehlo.negate %a : {C}", -(X + 1j * Y)),
        (f"stablehlo.select %p, %a, %b : {P}, {C}", np.where(X < Z, X + 1j * Y, Z + 1j * W)),
        (f"stablehlo.convert %x : ({F}) -> {C}", X.astype(complex)),
        (f"stablehlo.constant dense<(0.0, 1.0)> : {C}", np.full((2, 3), 1j)),
    ],
)
def test_operators_of_complex_numbers(statement: str, expected: np.ndarray) -> None:
    less = f"%p = stablehlo.compare LT, %x, %z, FLOAT : ({F}, {F}) -> {P}\n"
    np.testing.assert_allclose(computed(paired(f"{less}%r = {statement}")), expected)


def test_products_and_moves_of_complex_numbers() -> None:
    square = "tensor<2x2xcomplex<f32>>"
    dot = f"contracting_dims = [1] x [1] : ({C}, {C}) -> {square}"
    body = f"%d = stablehlo.dot_general %a, %b, {dot}\n"
    body += f"%r = stablehlo.transpose %d, dims = [1, 0] : ({square}) -> {square}"
    expected = ((X + 1j * Y) @ (Z + 1j * W).T).T
    np.testing.assert_allclose(computed(paired(body, square)), expected)


@pytest.mark.parametrize("name", ["log", "sqrt", "tanh", "sign", "cosine"])
def test_functions_of_complex_numbers_are_refused(name: str) -> None:
    first, *_ = refused(paired(f"%r = stablehlo.{name} %a : {C}"))
    assert first.startswith(f"{name} of HLO (complex numbers")


def test_a_product_of_all_complex_numbers_is_refused() -> None:
    one = "tensor<complex<f32>>"
    body = f"%o = stablehlo.constant dense<(1.0, 0.0)> : {one}\n"
    body += "%r = stablehlo.reduce(%a init: %o) applies stablehlo.multiply across dimensions = [1] "
    body += f": ({C}, {one}) -> tensor<2xcomplex<f32>>"
    first, *_ = refused(paired(body, "tensor<2xcomplex<f32>>"))
    assert first.startswith("reduce of HLO (reduce of complex numbers by multiply")
    total = paired(body.replace("multiply", "add"), "tensor<2xcomplex<f32>>")
    np.testing.assert_allclose(computed(total), (X + 1j * Y).sum(axis=1) + 1)


@pytest.mark.parametrize("element", ["complex<f32>", "f8E4M3FN", "i4", "ui2"])
def test_inputs_whose_numbers_are_not_read(element: str) -> None:
    type = f"tensor<4x{element}>"
    program = text(f"%x: {type}", f"%0 = stablehlo.add %x, %x : {type}", type, "%0")
    assert refused(program)[0].startswith("parameter of HLO (element type")


def test_constants_of_types_that_are_not_read() -> None:
    body = "%0 = stablehlo.constant dense<[1.0, 2.0]> : tensor<2xf8E5M2>\n"
    body += "%1 = stablehlo.convert %0 : (tensor<2xf8E5M2>) -> tensor<2xf32>"
    first, *_ = refused(text("", body, "tensor<2xf32>", "%1"))
    assert first == "constant of HLO (element type f8e5m2, whose numbers are not read)"


def test_complex_constants_of_hlo_text() -> None:
    head = "HloModule m\n\nENTRY e {\n"
    body = "c = c64[2] constant({(1, -2.5), (0, inf)})\nr = f32[2] real(c)\n"
    graph = read.parsed(f"{head}{body}ROOT i = f32[2] imag(c)\n}}\n")
    np.testing.assert_array_equal(evaluate.run(graph, [[]])[0][0], [-2.5, np.inf])
    for wrong in ("{1, -2.5, 0, 1}", "{(1, 2)}", "{(1, 2), (3, 4, 5, 6)}"):
        with pytest.raises(InvalidInput, match="a constant of complex64"):
            read.parsed(f"{head}ROOT c = c64[2] constant({wrong})\n}}\n")


def test_elements_that_a_tuple_has_not() -> None:
    head = "HloModule m\n\nENTRY e {\nx = f32[2] parameter(0)\nt = (f32[2]) tuple(x)\n"
    for number in ("1", "7"):
        with pytest.raises(InvalidInput, match=f"element {number} of what is no such tuple"):
            read.parsed(f"{head}ROOT g = f32[2] get-tuple-element(t), index={number}\n}}\n")


def test_long_lines_are_gone_through_once() -> None:
    """Long words took as many steps as the square of their length."""
    word = "1" * (1 << 21)
    program = text(f"%x: {F}", f"%r = stablehlo.reverse %x, dims = [0] {{a{word}}} : {F}", F, "%r")
    assert read.parsed(program).nodes[0].target == "reverse"
    with pytest.raises(InvalidInput, match="a line of 4194"):
        read.parsed(program.replace(word, word * 2))


def test_places_behind_statements_say_nothing() -> None:
    program = text(f"%x: {F}", f"%r = stablehlo.abs %x : {F} loc(fused[#loc1, #loc(2)])", F, "%r")
    assert read.parsed(program).nodes[0].target == "abs"
