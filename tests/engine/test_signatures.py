"""The axis signatures of operators are true: reduction of axes rests on them.

Claimed are parallel axes (restriction to any positions in any order commutes with the operator),
``+`` axes (parts of the axis give addends) and ``^`` axes (parts give candidates of a maximum).
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Mapping, Sequence
from math import prod
from typing import Any, NamedTuple

import numpy as np
import pytest
from numpy.typing import NDArray

from engine.arrays import FloatReading, exact
from engine.ops import OPERATORS, apply_forward, lookup
from engine.ops.basic import R
from tests.engine.mixture_examples import EXAMPLES
from tests.engine.operator_examples import Attrs, Example
from tests.engine.test_operators import close, draw

CLAIMED = [e for e in EXAMPLES if e.conforms]
FLOAT = FloatReading()
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
                close(x, take(y, layout, sizes, axis, kept), what)
        elif role in "+^" and sizes[axis] > 1:
            cut = int(rng.integers(1, sizes[axis]))
            parts = part(axis, range(cut)), part(axis, range(cut, sizes[axis]))
            join: Callable[..., Any] = np.add if role == "+" else np.maximum
            for x, y, z in zip(*parts, whole, strict=True):
                close(join(x, y), z, what)


def every_round(example: Example) -> None:
    for number in range(ROUNDS):
        check_signature(example, number)


def test_every_operator_is_claimed_about() -> None:
    assert {e.operator for e in CLAIMED} == OPERATORS.keys()


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
