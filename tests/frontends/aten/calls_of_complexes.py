"""Random calls of operators on complex tensors, as pairs of real numbers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from shardproof.frontends.torch.complexes import called
from tests.frontends.aten.calls import Call, Draw, call
from tests.frontends.aten.calls_of_norms import REFERENCES


def _pairs(name: str) -> Callable[..., Any]:
    """PyTorch on complex numbers, from pairs and to pairs."""

    def reference(*args: Any, pairs: list[bool]) -> Any:
        return called(name, args, pairs)

    return reference


def _complex(*names: str) -> Callable[[Callable[[Draw], Call]], Callable[[Draw], Call]]:
    for name in names:
        REFERENCES[name] = _pairs(name)
    return call(*names)


@_complex("complex.mul.Tensor", "complex.add.Tensor", "complex.sub.Tensor", "complex.div.Tensor")
def _(d: Draw) -> Call:
    """Complex or real operands that broadcast."""
    x, y = d.pair()
    kinds = [(True, True), (True, False), (False, True)][d.below(3)]
    given = [d.real(*z.shape, 2) if pair else z for z, pair in zip((x, y), kinds, strict=True)]
    return tuple(given), {"pairs": [*kinds, True]}


@_complex("complex.mul.Scalar", "complex.add.Scalar", "complex.sub.Scalar", "complex.div.Scalar")
def _(d: Draw) -> Call:
    return (d.real(*d.any_shape(), 2), d.number() or 1.5), {"pairs": [True, False, True]}


@_complex(
    "complex.neg.default",
    "complex.conj_physical.default",
    "complex.zeros_like.default",
    "complex.ones_like.default",
    "complex.sum.default",
)
def _(d: Draw) -> Call:
    return (d.real(*d.any_shape(), 2),), {"pairs": [True, True]}


@_complex("complex.abs.default")
def _(d: Draw) -> Call:
    return (d.real(*d.any_shape(), 2),), {"pairs": [True, False]}


@_complex("complex.sum.dim_IntList")
def _(d: Draw) -> Call:
    shape = d.any_shape(1)
    dim = d.below(len(shape)) - d.below(2) * len(shape)
    return (d.real(*shape, 2), [dim], bool(d.below(2))), {"pairs": [True, False, False, True]}


@_complex("complex.complex.default", "complex.polar.default")
def _(d: Draw) -> Call:
    shape = d.any_shape()
    return (d.real(*shape), d.real(*shape)), {"pairs": [False, False, True]}


@_complex("complex._to_copy.default")
def _(d: Draw) -> Call:
    pair = bool(d.below(2))
    return (d.real(*d.any_shape(), 2),), {"pairs": [pair, True]}


REFERENCES["complex._to_copy.default"] = lambda x, pairs: (
    x.clone() if pairs[0] else torch.stack([x, torch.zeros_like(x)], -1)
)


@_complex("complex.cat.default")
def _(d: Draw) -> Call:
    shape = d.any_shape(1)
    dim = d.below(len(shape)) - d.below(2) * len(shape)
    return ([d.real(*shape, 2), d.real(*shape, 2)], dim), {"pairs": [False, False, True]}


@_complex("complex.copy.default")
def _(d: Draw) -> Call:
    """Of a tensor that broadcasts, complex or not."""
    shape = d.any_shape(1)
    part = shape[d.below(len(shape)) :]
    pair = bool(d.below(2))
    source = d.real(*part, 2) if pair else d.real(*part)
    return (d.real(*shape, 2), source), {"pairs": [True, pair, True]}


@_complex("complex.gather.default")
def _(d: Draw) -> Call:
    shape = list(d.sizes(1 + d.below(3)))
    dim = d.below(len(shape))
    index = [1 + d.below(n) for n in shape]
    at = dim - len(shape) * d.below(2)
    given = (d.real(*shape, 2), at, d.ids(shape[dim], *index))
    return given, {"pairs": [True, False, False, True]}


def _joined(xs: list[torch.Tensor], dim: int, pairs: list[bool]) -> torch.Tensor:
    return torch.view_as_real(torch.cat([torch.view_as_complex(x) for x in xs], dim))


REFERENCES["complex.cat.default"] = _joined


def _sized(name: str) -> None:
    @call(f"complex.{name}.default")
    def made(d: Draw) -> Call:
        return (list(d.any_shape()),), {"pairs": [False, True]}

    function = getattr(torch, name)
    REFERENCES[f"complex.{name}.default"] = lambda shape, pairs: torch.view_as_real(
        function(shape, dtype=torch.complex128)
    )


for _name in ("zeros", "ones"):
    _sized(_name)


@call("complex.new_zeros.default")
def _(d: Draw) -> Call:
    return (d.real(2), list(d.any_shape())), {"pairs": [False, False, True]}


REFERENCES["complex.new_zeros.default"] = lambda x, shape, pairs: torch.view_as_real(
    x.new_zeros(shape, dtype=torch.complex128)
)
