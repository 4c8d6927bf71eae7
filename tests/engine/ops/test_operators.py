"""Every declared operator: its values and gradients are PyTorch's, its terms mean its values."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any
from zlib import crc32

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from shardproof.engine.algebra.affine import Affine
from shardproof.engine.algebra.terms import Term, TermTable
from shardproof.engine.errors import ShapeMismatch, Unsupported
from shardproof.engine.interpreters import (
    MASKED,
    FieldInterpreter,
    FloatInterpreter,
    TermInterpreter,
    Weighted,
    exact,
)
from shardproof.engine.interpreters.field import MASK
from shardproof.engine.ops import OPERATORS, Operator, apply_backward, apply_forward, lookup
from shardproof.engine.ops.basic import R
from shardproof.engine.ops.primitives import Interpreter, Selection
from tests.engine.mixture_examples import EXAMPLES
from tests.engine.operator_examples import Attrs, Draw, Example

FLOAT = FloatInterpreter()
ROUNDS = 6
NAMES = [f"{e.operator}-{i}" for i, e in enumerate(EXAMPLES)]
every_example = pytest.mark.parametrize("example", EXAMPLES, ids=NAMES)


def draw(example: Example, number: int, limit: int = 5) -> Draw:
    """The same random calls of an example in every run."""
    return Draw(np.random.default_rng([crc32(example.operator.encode()), number]), limit)


def assert_close(found: NDArray[Any], expected: NDArray[Any], what: str) -> None:
    """Fail unless equal up to a relative error (of the tensor) of 1e-9."""
    assert found.shape == expected.shape, f"{what}: {found.shape} is not {expected.shape}"
    finite = np.abs(expected[np.isfinite(expected)])
    scale = max(1.0, float(finite.max(initial=0.0)))
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-9 * scale, err_msg=what)


def reference(example: Example, inputs: Sequence[Any], attrs: Attrs) -> tuple[Any, ...]:
    found = example.reference(attrs, *inputs)
    return found if isinstance(found, tuple) else (found,)


def check_forward(example: Example, number: int) -> None:
    inputs, attrs = example.build(draw(example, number))
    expected = reference(example, [torch.tensor(x) for x in inputs], attrs)
    found = apply_forward(FLOAT, example.operator, [exact(x) for x in inputs], attrs)
    assert len(found) == len(expected)
    for i, (x, y) in enumerate(zip(found, expected, strict=True)):
        assert_close(x.data, y.numpy(), f"output {i} of {example.operator}")


def check_backward(example: Example, number: int) -> None:
    inputs, attrs = example.build(draw(example, number))
    data = lookup(example.operator).index_data(len(inputs))
    tensors = [torch.tensor(x, requires_grad=i not in data) for i, x in enumerate(inputs)]
    outputs = reference(example, tensors, attrs)
    rng = np.random.default_rng(number)
    gradients = [rng.normal(size=y.shape) if y.requires_grad else None for y in outputs]
    torch.autograd.backward(
        [y for y in outputs if y.requires_grad],
        [torch.tensor(g) for g in gradients if g is not None],
    )
    wrt = [i for i, x in enumerate(tensors) if x.grad is not None]
    assert wrt
    found = apply_backward(
        FLOAT,
        example.operator,
        [exact(x) for x in inputs],
        [None if g is None else exact(g) for g in gradients],
        attrs,
        wrt,
    )
    for i, gradient in zip(wrt, found, strict=True):
        expected = tensors[i].grad
        assert expected is not None
        assert_close(
            gradient.data, expected.numpy(), f"gradient of input {i} of {example.operator}"
        )


def every_round(check: Callable[[Example, int], None], example: Example) -> None:
    for number in range(ROUNDS):
        check(example, number)


def test_every_operator_has_an_example() -> None:
    assert {e.operator for e in EXAMPLES} == OPERATORS.keys()


#: Operators of which no gradient is taken, and why.
WITHOUT_DERIVATIVE = {
    "choose_experts": "its result is which experts, not a number",
    "create_mask": "it reads no values",
    "detach": "no gradient goes on from its result",
    "full": "it has no operand",
    "onehot": "its operand is index data",
    "trigamma": "its derivative has no name",
}


def test_every_operator_is_compared_backward_but_for_those_that_are_named() -> None:
    """Nothing escapes: what is declared has a derivative that is compared, or a reason here."""
    compared = {e.operator for e in EXAMPLES if e.differentiable}
    assert OPERATORS.keys() - compared == WITHOUT_DERIVATIVE.keys()


@every_example
def test_forward_is_pytorch(example: Example) -> None:
    every_round(check_forward, example)


@pytest.mark.parametrize(
    "example",
    [e for e in EXAMPLES if e.differentiable],
    ids=[name for name, e in zip(NAMES, EXAMPLES, strict=True) if e.differentiable],
)
def test_backward_is_autograd(example: Example) -> None:
    every_round(check_backward, example)


@pytest.mark.parametrize("operator", sorted(WITHOUT_DERIVATIVE))
def test_a_missing_derivative_is_unsupported(operator: str) -> None:
    example = next(e for e in EXAMPLES if e.operator == operator)
    inputs, attrs = example.build(draw(example, 0))
    tensors = [exact(x) for x in inputs]
    outputs = apply_forward(FLOAT, operator, tensors, attrs)
    with pytest.raises(Unsupported):
        apply_backward(FLOAT, operator, tensors, outputs, attrs, [0])


@pytest.mark.parametrize("operator", ["float", "multiref", "view", "silu"])
def test_a_gradient_of_another_shape_than_its_operand_does_not_fit(operator: str) -> None:
    """Also where the derivative does not read the operand."""
    attrs: Attrs = {"multiref": {"times": 2}, "view": {"size": (6,)}}.get(operator, {})
    x, other = exact(np.ones((2, 3))), exact(np.ones((3, 3)))
    gradients = apply_forward(FLOAT, operator, [x], attrs)
    assert len(apply_backward(FLOAT, operator, [x], gradients, attrs, [0])) == 1
    with pytest.raises(ShapeMismatch):
        apply_backward(FLOAT, operator, [other], gradients, attrs, [0])


# -- terms, evaluated -----------------------------------------------------------------------------


@dataclass(frozen=True)
class Recorder(TermInterpreter):
    """Remembers what the functions ``select:...`` choose."""

    choices: dict[str, tuple[Selection, int]] = field(default_factory=dict)

    def select(self, scores: Weighted, selection: Selection) -> Weighted:
        for j in range(selection.topk):
            self.choices[f"select:{selection}:{j}"] = (selection, j)
        return super().select(scores, selection)


class Evaluator:
    """The values of terms in a numeric reading, one entry at a time."""

    def __init__(
        self,
        reading: FloatInterpreter | FieldInterpreter,
        values: dict[str, Any],
        choices: dict[str, tuple[Selection, int]],
    ) -> None:
        self.interpreter: Interpreter[Weighted] = reading
        self.values = values
        self.choices = choices
        self.known: dict[Term, Weighted] = {}

    def entries(self, x: Weighted) -> NDArray[Any]:
        hidden = MASK if isinstance(self.interpreter, FieldInterpreter) else -np.inf
        flat = [hidden if e is MASKED else self(e).data[()] for e in x.data.flat]
        return np.array(flat).reshape(x.data.shape)

    def __call__(self, term: Term) -> Weighted:
        if term not in self.known:
            self.known[term] = self.evaluate(term, [self(argument) for argument in term.args])
        return self.known[term]

    def evaluate(self, term: Term, args: list[Weighted]) -> Weighted:
        one, zero = Fraction(1), Fraction(0)
        name = str(term.name)
        if term.value is not None:
            return self.interpreter.combine([self.scalar(0)], [zero], term.value)
        match term.kind:
            case "symbol":
                return self.scalar(self.values[name])
            case "add":
                return self.interpreter.combine(args, [one] * len(args), zero)
            case "mul":
                return self.interpreter.einsum("," * (len(args) - 1) + "->", *args)
        if name.startswith("max"):
            return self.interpreter.amax(self.row(args), 0)
        if name == "is":
            position = term.args[1].value
            assert position is not None
            return self.interpreter.reshape(
                self.interpreter.onehot(args[0], Affine(int(position)), 1), ()
            )
        if name in self.choices:
            selection, j = self.choices[name]
            scores = self.interpreter.reshape(self.row(args), (1, len(args)))
            return self.interpreter.reshape(
                self.interpreter.slice(self.interpreter.select(scores, selection), 1, Affine(j), 1),
                (),
            )
        return self.interpreter.unary(name, args[0])

    def scalar(self, value: Any) -> Weighted:
        dtype = np.int64 if isinstance(self.interpreter, FieldInterpreter) else np.float64
        return exact(np.array(value, dtype=dtype))

    def row(self, args: list[Weighted]) -> Weighted:
        return self.interpreter.concat([self.interpreter.reshape(x, (1,)) for x in args], 0)


def symbols(table: TermTable, name: str, x: NDArray[Any], masked: NDArray[np.bool_]) -> Weighted:
    entries = np.empty(x.shape, dtype=object)
    for index in np.ndindex(x.shape):
        entries[index] = MASKED if masked[index] else table.symbol(f"{name}{list(index)}")
    return exact(entries)


@pytest.mark.parametrize("field", [False, True], ids=["float", "field"])
@every_example
def test_terms_mean_the_values(example: Example, field: bool) -> None:
    """Forward and backward, terms and numbers agree: with the true functions in float64, with
    random functions in the field."""
    inputs, attrs = example.build(draw(example, 1, limit=3))
    reading: Any = FieldInterpreter(seed=7) if field else FLOAT
    masks = [np.isneginf(x) for x in inputs]
    rng = np.random.default_rng(3)

    def numbers(shape: tuple[int, ...]) -> NDArray[Any]:
        return rng.integers(0, reading.prime, shape) if field else rng.normal(size=shape)

    if field:
        inputs = [np.where(m, MASK, numbers(m.shape)) for m in masks]
    table = TermTable()
    terms = [
        symbols(table, f"x{i}", x, m) for i, (x, m) in enumerate(zip(inputs, masks, strict=True))
    ]
    values = {f"x{i}{list(k)}": x[k] for i, x in enumerate(inputs) for k in np.ndindex(x.shape)}
    symbolic = Recorder(table)
    pairs = list(
        zip(
            apply_forward(symbolic, example.operator, terms, attrs),
            apply_forward(reading, example.operator, [exact(x) for x in inputs], attrs),
            strict=True,
        )
    )
    if example.differentiable:
        data = lookup(example.operator).index_data(len(inputs))
        wrt = [
            i
            for i in range(len(inputs))
            if i not in data and (i, example.operator) != (2, "gate_fw")
        ]
        gradients = [numbers(y.data.shape) for _, y in pairs]
        given: list[Any] = []
        for i, g in enumerate(gradients):
            given.append(symbols(table, f"g{i}", g, np.zeros(g.shape, dtype=bool)))
            values |= {f"g{i}{list(k)}": g[k] for k in np.ndindex(g.shape)}
        pairs += zip(
            apply_backward(symbolic, example.operator, terms, given, attrs, wrt),
            apply_backward(
                reading,
                example.operator,
                [exact(x) for x in inputs],
                [exact(g) for g in gradients],
                attrs,
                wrt,
            ),
            strict=True,
        )
    evaluator = Evaluator(reading, values, symbolic.choices)
    for term, number in pairs:
        if field:
            np.testing.assert_array_equal(evaluator.entries(term), number.data)
        else:
            assert_close(evaluator.entries(term), number.data, example.operator)


# -- wrong declarations fail the same checks ------------------------------------------------------


def _untransposed(r: R, inputs: Sequence[Any], attrs: Any) -> list[Any]:
    return [r.einsum("abx,xy->aby", *inputs)]


def _sigmoid(r: R, inputs: Sequence[Any], attrs: Any) -> list[Any]:
    return [r.unary("sigmoid", inputs[0])]


def _straight_through(
    r: R, inputs: Sequence[Any], gradients: Sequence[Any], attrs: Any
) -> list[Any]:
    return list(gradients)


def _declared(name: str, **changes: Any) -> Operator:
    return dataclasses.replace(lookup(name), **changes)


@pytest.mark.parametrize(
    ("name", "changes", "check"),
    [
        ("linear", {"forward": _untransposed}, check_forward),
        ("silu", {"forward": _sigmoid}, check_forward),
        ("silu", {"forward": _sigmoid}, check_backward),
        ("softmax", {"backward": _straight_through}, check_backward),
    ],
)
def test_a_wrong_declaration_is_found(
    monkeypatch: pytest.MonkeyPatch, name: str, changes: dict[str, Any], check: Any
) -> None:
    example = next(e for e in EXAMPLES if e.operator == name)
    every_round(check, example)
    monkeypatch.setitem(OPERATORS, name, _declared(name, **changes))
    with pytest.raises((AssertionError, ShapeMismatch)):
        every_round(check, example)
