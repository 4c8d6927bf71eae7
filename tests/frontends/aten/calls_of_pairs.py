"""Random calls of operators that move complex tensors, or add them up, as pairs of real numbers."""

from __future__ import annotations

from typing import Any

import torch

from tests.frontends.aten.calls import Call, Draw, call
from tests.frontends.aten.calls_of_norms import REFERENCES


def _complex(*names: str) -> Any:
    """PyTorch on complex numbers; all tensors of floats among the operands are pairs."""

    def reference(name: str) -> Any:
        overload: Any = torch.ops.aten
        for part in name.removeprefix("complex.").split("."):
            overload = getattr(overload, part)

        def wide(x: Any) -> Any:
            if isinstance(x, list):
                return [wide(one) for one in x]
            floats = isinstance(x, torch.Tensor) and x.is_floating_point()
            return torch.view_as_complex(x) if floats else x

        def made(*args: Any, pairs: list[bool], **named: Any) -> Any:
            result = overload(*map(wide, args), **named)
            if isinstance(result, (list, tuple)):
                return [torch.view_as_real(x) for x in result]
            return torch.view_as_real(result)

        return made

    for name in names:
        REFERENCES[name] = reference(name)
    return call(*names)


def _at(d: Draw, shape: tuple[int, ...]) -> tuple[int, int]:
    """A dimension, from the front and as it is named."""
    at = d.below(len(shape))
    return at, at - len(shape) * d.below(2)


def _flags(first: Any, *rest: bool) -> dict[str, Any]:
    return {"pairs": [first, *rest, True]}


@_complex("complex.slice_scatter.default")
def _(d: Draw) -> Call:
    shape = d.any_shape(1)
    at, dim = _at(d, shape)
    start = d.below(shape[at])
    part = (*shape[:at], shape[at] - start, *shape[at + 1 :])
    given = (d.real(*shape, 2), d.real(*part, 2), dim, start)
    return given, _flags(True, True, False, False)


@_complex("complex.select_scatter.default")
def _(d: Draw) -> Call:
    shape = d.any_shape(1)
    at, dim = _at(d, shape)
    part = (*shape[:at], *shape[at + 1 :])
    given = (d.real(*shape, 2), d.real(*part, 2), dim, d.below(shape[at]))
    return given, _flags(True, True, False, False)


@_complex("complex.index_select.default")
def _(d: Draw) -> Call:
    shape = d.any_shape(1)
    at, dim = _at(d, shape)
    return (d.real(*shape, 2), dim, d.ids(shape[at], 1 + d.below(4))), _flags(True, False, False)


@_complex("complex.flip.default")
def _(d: Draw) -> Call:
    shape = d.any_shape(1)
    return (d.real(*shape, 2), [_at(d, shape)[1]]), _flags(True, False)


@_complex("complex.roll.default")
def _(d: Draw) -> Call:
    shape = d.any_shape(1)
    return (d.real(*shape, 2), [d.below(7) - 3], [_at(d, shape)[1]]), _flags(True, False, False)


@_complex("complex.cumsum.default", "complex.unbind.int")
def _(d: Draw) -> Call:
    shape = d.any_shape(1)
    return (d.real(*shape, 2), _at(d, shape)[1]), _flags(True, False)


@_complex("complex.mean.dim")
def _(d: Draw) -> Call:
    shape = d.any_shape(1)
    return (d.real(*shape, 2), [_at(d, shape)[1]], bool(d.below(2))), _flags(True, False, False)


@_complex("complex.stack.default")
def _(d: Draw) -> Call:
    shape = d.any_shape()
    dim = d.below(len(shape) + 1) - (len(shape) + 1) * d.below(2)
    return ([d.real(*shape, 2), d.real(*shape, 2)], dim), _flags(False, False)


@_complex("complex.split.Tensor", "complex.chunk.default")
def _(d: Draw) -> Call:
    shape = d.any_shape(1)
    return (d.real(*shape, 2), 1 + d.below(3), _at(d, shape)[1]), _flags(True, False, False)


@_complex("complex.split_with_sizes.default")
def _(d: Draw) -> Call:
    shape = d.any_shape(1)
    at, dim = _at(d, shape)
    first = d.below(shape[at] + 1)
    given = (d.real(*shape, 2), [first, shape[at] - first], dim)
    return given, _flags(True, False, False)


@_complex("complex.slice_backward.default")
def _(d: Draw) -> Call:
    shape = d.any_shape(1)
    at, dim = _at(d, shape)
    start = d.below(shape[at])
    stop = start + 1 + d.below(shape[at] - start)
    part = (*shape[:at], stop - start, *shape[at + 1 :])
    given = (d.real(*part, 2), list(shape), dim, start, stop, 1)
    return given, _flags(True, False, False, False, False, False)


@_complex("complex.select_backward.default")
def _(d: Draw) -> Call:
    shape = d.any_shape(1)
    at, dim = _at(d, shape)
    part = (*shape[:at], *shape[at + 1 :])
    given = (d.real(*part, 2), list(shape), dim, d.below(shape[at]))
    return given, _flags(True, False, False, False)
