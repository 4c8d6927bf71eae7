"""The axis signatures of operators are true: reduction of axes rests on them.

Claimed are parallel axes (restriction to any positions in any order commutes with the operator),
``+`` axes (parts of the axis give addends) and ``^`` axes (parts give candidates of a maximum).
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from math import prod
from typing import Any, NamedTuple

import numpy as np
import pytest
from numpy.typing import NDArray

from shardproof.engine.algebra.terms import TermTable
from shardproof.engine.interpreters import MASKED, FloatInterpreter, TermInterpreter, exact
from shardproof.engine.ops import OPERATORS, apply_backward, apply_forward, lookup
from shardproof.engine.ops.basic import R
from shardproof.solvers import Portfolio, Query
from tests.engine.mixture_examples import EXAMPLES
from tests.engine.operator_examples import Attrs, Draw, Example
from tests.engine.ops.test_operators import assert_close, draw

CLAIMED = [e for e in EXAMPLES if e.conforms]
FLOAT = FloatInterpreter()
ROUNDS = 8

#: The axes of each dimension of a tensor; a dimension of size 1 has none.
Layout = list[list[str]]


class Signature(NamedTuple):
    inputs: list[Layout]
    outputs: list[Layout]
    roles: dict[str, set[str]]


def parse(text: str, ranks: Sequence[int]) -> Signature:
    """The signature for inputs of these ranks; its last output stands for all further ones."""
    roles: dict[str, set[str]] = {}
    ellipsis: list[list[str]] = []

    def side(operands: str, ranks: Sequence[int] | None) -> list[Layout]:
        found = []
        for number, operand in enumerate(operands.split(",")):
            layout: Layout = []
            tokens = re.findall(r"\([^)]*\)|\S+", operand)
            for token in tokens:
                if token == "...":
                    if ranks is not None:
                        lead = ranks[number] - len(tokens) + 1
                        ellipsis[:] = [[f".{i}"] for i in range(lead)]
                    layout += ellipsis
                    continue
                names = []
                for axis in token.strip("()").split():
                    name = axis.rstrip("+^#!")
                    if name != "1":
                        names.append(name)
                        roles.setdefault(name, set()).add(axis[len(name) :])
                layout.append(names)
            found.append(layout)
        return found

    left, right = text.split("->")
    inputs = side(left, ranks)
    outputs = side(right, None)
    roles.update({name: {""} for (name,) in ellipsis})
    return Signature(inputs, outputs, roles)


def axis_sizes(layouts: Sequence[Layout], tensors: Sequence[NDArray[Any]]) -> dict[str, int]:
    """The size of every axis; of the axes of one dimension at most one occurs nowhere else."""
    dims = [
        (names, size)
        for layout, tensor in zip(layouts, tensors, strict=True)
        for names, size in zip(layout, tensor.shape, strict=True)
    ]
    sizes = {names[0]: size for names, size in dims if len(names) == 1}
    for names, size in dims:
        for name in names:
            if name not in sizes:
                sizes[name] = size // prod(sizes[other] for other in names if other != name)
    return sizes


def take(
    tensor: NDArray[Any], layout: Layout, sizes: Mapping[str, int], axis: str, kept: Sequence[int]
) -> NDArray[Any]:
    """The tensor restricted to some positions of ``axis``, wherever that occurs."""
    for dim, names in enumerate(layout):
        if axis not in names:
            continue
        inner = [sizes[name] for name in names] if len(names) > 1 else [tensor.shape[dim]]
        where = dim + names.index(axis)
        split = tensor.reshape(*tensor.shape[:dim], *inner, *tensor.shape[dim + 1 :])
        cut = np.take(split, kept, axis=where)
        merged = prod(cut.shape[dim : dim + len(inner)])
        tensor = cut.reshape(*tensor.shape[:dim], merged, *tensor.shape[dim + 1 :])
    return tensor


def check_signature(example: Example, number: int) -> None:
    inputs, attrs = example.build(draw(example, number))
    signature = parse(lookup(example.operator).signature, [x.ndim for x in inputs])

    def run(tensors: Sequence[NDArray[Any]], attrs: Attrs) -> list[NDArray[Any]]:
        found = apply_forward(FLOAT, example.operator, [exact(x) for x in tensors], attrs)
        return [x.data for x in found]

    whole = run(inputs, attrs)
    more = len(whole) - len(signature.outputs)
    outputs = signature.outputs + signature.outputs[-1:] * more
    sizes = axis_sizes([*signature.inputs, *outputs], [*inputs, *whole])

    def part(axis: str, kept: Sequence[int]) -> list[NDArray[Any]]:
        pairs = zip(inputs, signature.inputs, strict=True)
        restricted = [take(x, layout, sizes, axis, kept) for x, layout in pairs]
        fewer = sizes | {axis: len(kept)}
        return run(restricted, example.resize(attrs, fewer, axis, min(kept)))

    rng = np.random.default_rng(number)
    axes = {name for layout in signature.inputs for names in layout for name in names}
    for axis in sorted(axes):
        what = f"axis {axis} of {example.operator}"
        assert len(signature.roles[axis]) == 1, f"{what} has roles {signature.roles[axis]}"
        (role,) = signature.roles[axis]
        if role == "":
            kept = rng.permutation(sizes[axis])[: 1 + rng.integers(sizes[axis])].tolist()
            for x, y, layout in zip(part(axis, kept), whole, outputs, strict=True):
                assert_close(x, take(y, layout, sizes, axis, kept), what)
        elif role in "+^" and sizes[axis] > 1:
            cut = int(rng.integers(1, sizes[axis]))
            parts = part(axis, range(cut)), part(axis, range(cut, sizes[axis]))
            join: Callable[..., Any] = np.add if role == "+" else np.maximum
            for x, y, z in zip(*parts, whole, strict=True):
                assert_close(join(x, y), z, what)


def every_round(example: Example) -> None:
    for number in range(ROUNDS):
        check_signature(example, number)


def test_every_operator_is_claimed_about() -> None:
    # A tensor of one number has no operand that an axis of its signature could be one of.
    assert {e.operator for e in CLAIMED} == OPERATORS.keys() - {"full"}


@pytest.mark.parametrize("example", CLAIMED, ids=[e.operator for e in CLAIMED])
def test_signature_is_true(example: Example) -> None:
    every_round(example)


def _reversed(r: R, inputs: Sequence[Any], attrs: Any) -> list[Any]:
    """Reads the other end of its first axis."""
    return [exact(np.ascontiguousarray(inputs[0].data[::-1]))]


@pytest.mark.parametrize(
    ("operator", "changes"),
    [
        ("softmax", {"signature": "a k -> a k"}),
        ("cross_entropy_grad", {"signature": "b s v, b s, b s, b s -> b s v"}),
        ("rms_norm", {"signature": "... k+, k -> ... k"}),
        ("rms_norm", {"signature": "... k, k -> ... k"}),
        ("gate_fw", {"signature": "a h+, e! h+ -> a k!, a k!"}),
        ("nnscaler_moe_gmm", {"signature": "a h!, a k, a k, e+ d+ h!, e+ d+ h!, e+ o d+ -> a o"}),
        ("amax", {"signature": "a k+ -> a"}),
        ("identity", {"forward": _reversed}),
    ],
)
def test_a_false_claim_is_found(
    monkeypatch: pytest.MonkeyPatch, operator: str, changes: dict[str, Any]
) -> None:
    example = next(e for e in CLAIMED if e.operator == operator)
    monkeypatch.setitem(OPERATORS, operator, dataclasses.replace(lookup(operator), **changes))
    with pytest.raises(AssertionError, match="axis"):
        every_round(example)


# -- proved by the solvers, forward and backward
# -----------------------------------------------------

#: Sizes of axes at which claims are proved for all values: of all axes alike, and drawn up to it.
PROVED_AT = (2, 3, 4)


class Full(Draw):
    """Every axis has as many positions as the limit."""

    def sizes(self, count: int) -> tuple[int, ...]:
        return (self.limit,) * count


def full(example: Example, limit: int) -> Draw:
    return Full(draw(example, limit, limit=limit).rng, limit)


class Claims:
    """What a signature says of an operator, as equalities of terms at one size."""

    def __init__(self, example: Example, drawn: Draw) -> None:
        self.example = example
        self.table = TermTable()
        self.interpreter = TermInterpreter(self.table)
        self.goals: list[tuple[Any, Any]] = []
        inputs, self.attrs = example.build(drawn)
        self.signature = parse(lookup(example.operator).signature, [x.ndim for x in inputs])
        self.inputs = [self.symbols(f"x{i}", x) for i, x in enumerate(inputs)]
        self.whole = self.forward(self.inputs, self.attrs)
        more = len(self.whole) - len(self.signature.outputs)
        self.outputs = self.signature.outputs + self.signature.outputs[-1:] * more
        layouts, tensors = (
            [*self.signature.inputs, *self.outputs],
            [*self.inputs, *self.whole],
        )
        self.sizes = axis_sizes(layouts, tensors)

    def symbols(self, name: str, like: NDArray[Any]) -> NDArray[Any]:
        found = np.empty(like.shape, dtype=object)
        for at in np.ndindex(like.shape):
            masked = isinstance(like[at], float) and np.isneginf(like[at])
            found[at] = MASKED if masked else self.table.symbol(f"{name}{list(at)}")
        return found

    def forward(self, tensors: Sequence[NDArray[Any]], attrs: Attrs) -> list[NDArray[Any]]:
        given = [exact(x) for x in tensors]
        return [
            x.data for x in apply_forward(self.interpreter, self.example.operator, given, attrs)
        ]

    def take(
        self, tensors: Sequence[Any], layouts: Sequence[Layout], axis: str, kept: Sequence[int]
    ) -> list[Any]:
        pairs = zip(tensors, layouts, strict=True)
        return [take(x, layout, self.sizes, axis, kept) for x, layout in pairs]

    def resized(self, axis: str, kept: Sequence[int]) -> Attrs:
        return self.example.resize(self.attrs, self.sizes | {axis: len(kept)}, axis, min(kept))

    def part(self, axis: str, kept: Sequence[int]) -> list[NDArray[Any]]:
        restricted = self.take(self.inputs, self.signature.inputs, axis, kept)
        return self.forward(restricted, self.resized(axis, kept))

    def same(self, found: Sequence[NDArray[Any]], expected: Sequence[NDArray[Any]]) -> None:
        for x, y in zip(found, expected, strict=True):
            assert x.shape == y.shape
            self.goals += [
                (a, b) if a is not MASKED and b is not MASKED else self.masked(a, b)
                for a, b in zip(x.flat, y.flat, strict=True)
            ]

    def masked(self, a: Any, b: Any) -> tuple[Any, Any]:
        return (self.table.zero, self.table.zero if a is b else self.table.one)

    def axes(self) -> list[tuple[str, str]]:
        names = {name for layout in self.signature.inputs for names in layout for name in names}
        return [(name, role) for name in sorted(names) for role in self.signature.roles[name]]

    def state_forward(self) -> None:
        for axis, role in self.axes():
            size = self.sizes[axis]
            if role == "":
                kept = list(range(size))[::-1][: max(1, size - 1)]
                self.same(self.part(axis, kept), self.take(self.whole, self.outputs, axis, kept))
            elif role in "+^" and size > 1:
                parts = self.part(axis, range(1)), self.part(axis, range(1, size))
                joined = [self.joined(a, b, role) for a, b in zip(*parts, strict=True)]
                self.same(joined, self.whole)

    def joined(self, a: NDArray[Any], b: NDArray[Any], role: str) -> NDArray[Any]:
        if role == "+":
            return np.frompyfunc(lambda x, y: x + y, 2, 1)(a, b)  # type: ignore[no-any-return]
        return self.interpreter.amax(exact(np.stack([a, b], axis=-1)), a.ndim).data

    def state_backward(self) -> None:
        """Gradients of inputs with a parallel or summed axis are those of its parts; of inputs
        without a parallel axis that the outputs have, they add up."""
        data = lookup(self.example.operator).index_data(len(self.inputs))
        wrt = [i for i in range(len(self.inputs)) if i not in data and not self.gate(i)]
        gradients = [self.symbols(f"g{i}", y) for i, y in enumerate(self.whole)]

        def pull(inputs: Sequence[Any], given: Sequence[Any], attrs: Attrs) -> list[Any]:
            found = apply_backward(
                self.interpreter,
                self.example.operator,
                [exact(x) for x in inputs],
                [exact(g) for g in given],
                attrs,
                wrt,
            )
            return [x.data for x in found]

        whole = pull(self.inputs, gradients, self.attrs)
        layouts = [self.signature.inputs[i] for i in wrt]

        def part(axis: str, kept: Sequence[int]) -> list[Any]:
            return pull(
                self.take(self.inputs, self.signature.inputs, axis, kept),
                self.take(gradients, self.outputs, axis, kept),
                self.resized(axis, kept),
            )

        for axis, role in self.axes():
            size = self.sizes[axis]
            if role not in ("", "+") or size < 2:
                continue
            first, rest = part(axis, range(1)), part(axis, range(1, size))
            has = [any(axis in names for names in layout) for layout in layouts]
            for kept, found in ((range(1), first), (range(1, size), rest)):
                expected = self.take(whole, layouts, axis, kept)
                pairs = [
                    p for p, h in zip(zip(found, expected, strict=True), has, strict=True) if h
                ]
                self.same([x for x, _ in pairs], [y for _, y in pairs])
            if role == "":
                lacking = [i for i, h in enumerate(has) if not h]
                total = [self.joined(first[i], rest[i], "+") for i in lacking]
                self.same(total, [whole[i] for i in lacking])

    def gate(self, number: int) -> bool:
        """The selection bias of a gate, whose gradient is not declared."""
        return (number, self.example.operator) == (2, "gate_fw")


@pytest.fixture(scope="module")
def solver() -> Iterator[Portfolio]:
    # The largest took two minutes of one processor, with both solvers, on a slow day.
    with Portfolio("both", timeout=180) as portfolio:
        yield portfolio


def proved(solver: Portfolio, example: Example, drawn: Draw) -> bool:
    """Whether both solvers prove what the signature says, for all values at one size."""
    claims = Claims(example, drawn)
    claims.state_forward()
    if example.differentiable:
        claims.state_backward()
    goals = [(a, b) for a, b in claims.goals if a is not b]
    return not goals or solver.solve(Query.of(example.operator, goals)).verdict == "unsat"


#: Axes of which nothing is claimed, by the role that says so: "#" is read by position, "!" as a
#: unit (docs/soundness.md, section 10, has these lists too).
UNCLAIMED: dict[str, dict[str, str]] = {
    "slice": {"k": "#"},
    "concat": {"k": "#"},
    "create_mask": {"s": "#"},
    "tril": {"q": "#", "k": "#"},
    "fill_after": {"q": "#", "k": "#"},
    "cross_entropy_grad": {"v": "#"},
    "softmax": {"k": "!"},
    "rms_norm": {"k": "!"},
    "layernorm": {"k": "!"},
    "cross_entropy": {"v": "!"},
    "apply_rotary_emb": {"c": "!"},
    "gate_fw": {"e": "!", "h": "!"},
    "choose_experts": {"e": "!"},
    "topk": {"e": "!"},
    "nnscaler_moe_gmm": {"h": "!"},
    "addmm": {"k": "!"},
    "log_softmax": {"k": "!"},
    "norm": {"k": "!"},
    "scaled_dot_product_attention": {"q": "!", "k": "!", "d": "!"},
    "rearrange": {"c": "!"},
    "split": {"k": "#"},
    "index": {"k": "#"},
}
#: Operators without a derivative, of which forward claims alone are proved.
FORWARD_ONLY = {"create_mask", "choose_experts", "detach", "onehot", "trigamma"}


@pytest.mark.parametrize("example", CLAIMED, ids=[e.operator for e in CLAIMED])
def test_something_is_proved_of_every_operator(example: Example) -> None:
    """And of all its axes but those that are listed; backward too, where there is a derivative."""
    claims = Claims(example, full(example, PROVED_AT[-1]))
    claims.state_forward()
    forward = len(claims.goals)
    assert forward > 0
    assert all(claims.sizes[axis] > 1 for axis, role in claims.axes() if role in ("", "+", "^"))
    left = {axis: role for axis, role in claims.axes() if role not in ("", "+", "^")}
    assert left == UNCLAIMED.get(example.operator, {})
    assert example.differentiable == (example.operator not in FORWARD_ONLY)
    if example.differentiable:
        claims.state_backward()
        assert len(claims.goals) > forward


#: Whose claims take the solvers most of a minute.
SLOW = {
    ("nnscaler_moe_gmm", 3),
    ("nnscaler_moe_gmm", 4),
    ("scaled_dot_product_attention", 3),
    ("scaled_dot_product_attention", 4),
}
#: The one that takes longest at various sizes.
LONGEST = ("scaled_dot_product_attention", 4)


@pytest.mark.parametrize(
    ("example", "limit"),
    [
        pytest.param(
            e,
            n,
            id=f"{e.operator}-{n}",
            marks=pytest.mark.slow if (e.operator, n) in SLOW else (),
        )
        for e in CLAIMED
        for n in PROVED_AT
    ],
)
def test_signature_is_proved(example: Example, limit: int, solver: Portfolio) -> None:
    assert proved(solver, example, full(example, limit))


@pytest.mark.parametrize(
    ("example", "limit"),
    [
        pytest.param(
            e,
            n,
            id=f"{e.operator}-{n}",
            marks=pytest.mark.slow if (e.operator, n) == LONGEST else (),
        )
        for e in CLAIMED
        for n in PROVED_AT
    ],
)
def test_signature_is_proved_at_various_sizes(
    example: Example, limit: int, solver: Portfolio
) -> None:
    assert proved(solver, example, draw(example, limit, limit=limit))


def test_a_false_signature_is_not_proved(
    monkeypatch: pytest.MonkeyPatch, solver: Portfolio
) -> None:
    example = next(e for e in CLAIMED if e.operator == "rms_norm")
    false = dataclasses.replace(lookup("rms_norm"), signature="... k, k -> ... k")
    monkeypatch.setitem(OPERATORS, "rms_norm", false)
    assert not proved(solver, example, draw(example, 3, limit=3))
