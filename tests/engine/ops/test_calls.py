"""Calls of every declared operator: what fits its declaration, and what is refused and how.

Operands and attributes are changed at random; every reading then gives a result or says in the
declaration's words what does not fit, and never fails in a way of its own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import Any
from zlib import crc32

import numpy as np
import pytest

from shardproof.engine.algebra.affine import affine
from shardproof.engine.algebra.terms import TermTable
from shardproof.engine.errors import ShapeMismatch, Unsupported
from shardproof.engine.interpreters import FloatInterpreter, TermInterpreter, exact
from shardproof.engine.lineage.expressions import Input
from shardproof.engine.lineage.lineage import Lineage
from shardproof.engine.lineage.nodes import NodeTable
from shardproof.engine.ops import (
    OPERATORS,
    Operator,
    apply_backward,
    apply_forward,
    described,
    listing,
)
from shardproof.engine.ops.calls import KINDS, Attribute, attributes_of, operands_of
from shardproof.engine.plan_files.calling import wrong_call
from shardproof.frontends.builder.shapes import ShapeInterpreter
from shardproof.partition.inference.interpreter import LineageInterpreter
from shardproof.partition.inference.views import local_view
from tests.engine.mixture_examples import EXAMPLES
from tests.engine.operator_examples import Attrs, Draw, Example

NAMES = [f"{e.operator}-{i}" for i, e in enumerate(EXAMPLES)]
every_example = pytest.mark.parametrize("example", EXAMPLES, ids=NAMES)
#: One value of each kind, and one that is of none of the others' kinds.
VALUES: Mapping[str, Any] = {
    "integer": 1,
    "integers": (0, 1),
    "position": affine(0, {"tp": 2}),
    "number": Fraction(1, 3),
    "flag": True,
    "text": "a text",
}


def call(example: Example, number: int = 0) -> tuple[list[Any], Attrs]:
    rng = np.random.default_rng([crc32(example.operator.encode()), number])
    return example.build(Draw(rng))


def wrong(name: str, count: int, attrs: Attrs) -> str:
    declared = OPERATORS[name]
    try:
        outputs = declared.outputs(count, attrs)
    except Unsupported:
        outputs = 1
    return wrong_call(name, range(count), outputs, attrs)


# -- declarations ----------------------------------------------------------------------------------


@every_example
def test_the_examples_fit(example: Example) -> None:
    inputs, attrs = call(example)
    assert wrong(example.operator, len(inputs), attrs) == ""


@pytest.mark.parametrize("name", sorted(OPERATORS))
def test_too_many_and_too_few_operands_are_refused(name: str) -> None:
    inputs, attrs = call(next(e for e in EXAMPLES if e.operator == name))
    declared = OPERATORS[name]
    least = sum(not (x.optional or x.instead) for x in declared.operands)
    for count in range(least):
        assert f"found {count}" in wrong(name, count, attrs)
    if any(x.several for x in declared.operands):
        assert wrong(name, len(inputs) + 5, attrs) == ""
    else:
        assert f"found {len(declared.operands) + 1}" in wrong(
            name, len(declared.operands) + 1, attrs
        )
    if least:
        with pytest.raises(Unsupported, match="its declaration does not fit"):
            apply_forward(ShapeInterpreter(), name, [(2, 2)] * (least - 1), attrs)


@pytest.mark.parametrize("name", sorted(OPERATORS))
def test_an_attribute_of_another_type_is_refused_and_one_that_is_needed_has_to_be_there(
    name: str,
) -> None:
    inputs, attrs = call(next(e for e in EXAMPLES if e.operator == name))
    for attribute in OPERATORS[name].attributes:
        for value in VALUES.values():
            said = wrong(name, len(inputs), {**attrs, attribute.name: value})
            if not attribute.takes(value):
                assert attribute.name in said, (attribute, value)
        without = {key: value for key, value in attrs.items() if key != attribute.name}
        said = wrong(name, len(inputs), without)
        assert attribute.optional or attribute.name in said


@pytest.mark.parametrize("name", sorted(OPERATORS))
@pytest.mark.parametrize("key", ["reverse", "wrt", "arity"])
def test_an_attribute_that_is_not_declared_has_no_meaning(name: str, key: str) -> None:
    inputs, attrs = call(next(e for e in EXAMPLES if e.operator == name))
    shapes = [x.shape for x in inputs]
    assert apply_forward(ShapeInterpreter(), name, shapes, attrs)
    with pytest.raises(Unsupported, match=f"attribute {key} of operator {name} is not declared"):
        apply_forward(ShapeInterpreter(), name, shapes, {**attrs, key: 1})


@pytest.mark.parametrize("name", ["add", "sub", "mul", "div"])
def test_a_constant_stands_in_the_place_of_an_operand_and_never_beside_it(name: str) -> None:
    two = {"other": Fraction(2)}
    assert wrong(name, 1, two) == wrong(name, 2, {}) == ""
    assert "found both" in wrong(name, 2, two)
    assert "found neither" in wrong(name, 1, {})
    assert "found neither" in wrong(name, 1, {"other": None})


def test_another_number_of_outputs_is_refused() -> None:
    assert wrong_call("silu", [0], 1, {}) == ""
    assert wrong_call("silu", [0], 2, {}) == "gives 1 outputs, found 2"
    assert wrong_call("multiref", [0], 3, {"times": 3}) == ""
    assert wrong_call("multiref", [0], 2, {"times": 3}) == "gives 3 outputs, found 2"
    assert wrong_call("apply_rotary_emb", [0, 1, 2, 3], 3, {}) == ""
    assert wrong_call("apply_rotary_emb", [0, 1], 2, {}) == "gives 1 outputs, found 2"


def test_a_derivative_reads_what_its_operator_does_and_a_gradient_of_each_output() -> None:
    attrs: Attrs = {"wrt": (0,), "arity": 2}

    def said(inputs: Sequence[int], outputs: int = 1, **changed: Any) -> str:
        return wrong_call("linear", inputs, outputs, attrs | changed, backward=True)

    assert said([0, 1, 2]) == ""
    assert said([0, 1, -1]) == ""
    assert "found 2 inputs" in said([0, 1])
    assert "found 4 inputs" in said([0, 1, 2, 3])
    assert "one missing" in said([0, -1, 2])
    assert "found 2 outputs" in said([0, 1, 2], 2)
    assert said([0, 1, 2], 2, wrt=(0, 1)) == ""
    assert "gradients of operands [0, 0]" in said([0, 1, 2], 2, wrt=(0, 0))
    assert "gradients of operands [2]" in said([0, 1, 2], wrt=(2,))
    assert "found 1" in said([0, 1, 2], arity=1)
    assert "arity" in said([0, 1, 2], arity=True)


@pytest.mark.parametrize("text", ["x? y", "xs+ ys+", "x y|other z"])
def test_operands_that_no_number_tells_apart_are_no_declaration(text: str) -> None:
    with pytest.raises(ValueError, match="which one is meant"):
        operands_of(text)


def test_kinds_of_attributes() -> None:
    assert VALUES.keys() == KINDS.keys()
    assert attributes_of("f:a/b?") == (Attribute("f", "text", True, ("a", "b")),)
    with pytest.raises(ValueError, match="no kind"):
        attributes_of("f:real")
    assert not attributes_of("n:integer")[0].takes(True)
    assert not attributes_of("n:integers")[0].takes((1, True))


def test_every_operator_is_listed_as_data() -> None:
    found = {x["name"]: x for x in listing()}
    assert found.keys() == OPERATORS.keys()
    assert found["linear"] == described("linear")
    assert [x["name"] for x in found["linear"]["operands"]] == ["x", "weight", "bias"]
    assert {n for n, x in found.items() if not x["derivative"]} == {
        "choose_experts",
        "create_mask",
        "detach",
    }
    with pytest.raises(Unsupported, match="near: silu"):
        described("slu")


# -- operands that do not fit ----------------------------------------------------------------------


def altered(declared: Operator, shapes: list[Any], attrs: Attrs, rng: Any) -> tuple[Any, Attrs]:
    """Some operands of other shapes, some integers of attributes other ones."""
    shapes = [list(shape) for shape in shapes]
    for shape in shapes:
        match rng.integers(7):
            case 0 if shape:
                del shape[rng.integers(len(shape))]
            case 1:
                shape.insert(rng.integers(len(shape) + 1), int(rng.integers(1, 4)))
            case 2 if shape:
                shape[rng.integers(len(shape))] = int(rng.integers(1, 5))
            case 3:
                shape.clear()
    changed = dict(attrs)
    for attribute in declared.attributes:
        held = changed.get(attribute.name)
        if rng.integers(3):
            continue
        if attribute.kind == "integers":
            count = rng.integers(4)
            changed[attribute.name] = tuple(int(n) for n in rng.integers(-3, 5, count))
        elif attribute.kind in ("integer", "position") and not isinstance(held, str):
            changed[attribute.name] = int(rng.integers(-3, 6))
        elif attribute.kind == "number":
            changed[attribute.name] = Fraction(int(rng.integers(-2, 3)))
    return [tuple(shape) for shape in shapes], changed


def tensors(kind: str, shapes: Sequence[tuple[int, ...]]) -> tuple[Any, list[Any]]:
    """A reading, and tensors of it; a node for each, as inputs of a program are."""
    if kind == "lineage":
        table = NodeTable()
        found: list[Lineage] = []
        for i, shape in enumerate(shapes):
            node = table.define(Input(f"x{i}"), tuple(n for n in shape if n != 1))
            found.append(local_view(node, shape))
        return LineageInterpreter(table), found
    if kind == "shape":
        return ShapeInterpreter(), list(shapes)
    if kind == "terms":
        terms = TermTable()
        entries = []
        for i, shape in enumerate(shapes):
            data = np.empty(shape, dtype=object)
            for index in np.ndindex(shape):
                data[index] = terms.symbol(f"x{i}{list(index)}")
            entries.append(exact(data))
        return TermInterpreter(terms), entries
    rng = np.random.default_rng(0)
    return FloatInterpreter(), [exact(rng.normal(size=shape)) for shape in shapes]


@pytest.mark.parametrize("kind", ["lineage", "shape", "terms", "float"])
@every_example
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_what_does_not_fit_is_said_in_every_reading(example: Example, kind: str) -> None:
    """A plan that is well formed never makes a reading fail otherwise; what it gives has the shape
    that shapes alone give."""
    declared = OPERATORS[example.operator]
    rng = np.random.default_rng(crc32(f"{example.operator} {kind}".encode()))
    gave = 0
    for number in range(30):
        inputs, attrs = call(example, number % 5)
        shapes = [x.shape for x in inputs]
        if number:
            shapes, attrs = altered(declared, shapes, attrs, rng)
        if wrong(example.operator, len(shapes), attrs):
            continue
        reading, given = tensors(kind, shapes)
        try:
            found = apply_forward(reading, example.operator, given, attrs)
        except (ShapeMismatch, Unsupported):
            continue
        gave += 1
        if kind != "shape":
            alone = apply_forward(ShapeInterpreter(), example.operator, shapes, attrs)
            assert [tuple(reading.shape(x)) for x in found] == [tuple(x) for x in alone]
        wrt = [i for i in range(len(given)) if i not in declared.index_data(len(given))]
        if not example.differentiable or not wrt:
            continue
        other, _ = altered(declared, [reading.shape(x) for x in found], {}, rng)
        for outputs in ([tuple(reading.shape(x)) for x in found], other):
            made, gradients = tensors(kind, [*shapes, *outputs])
            operands, gradients = gradients[: len(given)], gradients[len(given) :]
            try:
                back = apply_backward(made, example.operator, operands, gradients, attrs, wrt)
            except (ShapeMismatch, Unsupported):
                continue
            assert [tuple(made.shape(x)) for x in back] == [shapes[i] for i in wrt]
            assert outputs == [tuple(reading.shape(x)) for x in found]
    assert gave


@pytest.mark.parametrize("name", ["softmax", "view", "silu", "cross_entropy", "multiref", "amax"])
def test_a_derivative_without_a_gradient_has_no_meaning(name: str) -> None:
    inputs, attrs = call(next(e for e in EXAMPLES if e.operator == name))
    shapes = [x.shape for x in inputs]
    outputs = apply_forward(ShapeInterpreter(), name, shapes, attrs)
    assert apply_backward(ShapeInterpreter(), name, shapes, outputs, attrs, [0]) == [shapes[0]]
    with pytest.raises(Unsupported, match="no gradient arrives"):
        apply_backward(ShapeInterpreter(), name, shapes, [None] * len(outputs), attrs, [0])
