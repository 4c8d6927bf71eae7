"""Random calls of softmaxes and norms, forward and backward."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from tests.frontends.aten.calls import Call, Draw, call


@call("aten._softmax.default", "aten._log_softmax.default")
def _(d: Draw) -> Call:
    shape = d.any_shape(1)
    return (d.real(*shape), d.below(len(shape)) - len(shape), False), {}


@call("aten._softmax_backward_data.default")
def _(d: Draw) -> Call:
    shape = d.any_shape(1)
    dim = d.below(len(shape))
    return (d.real(*shape), d.real(*shape).softmax(dim), dim, torch.float64), {}


@call("aten._log_softmax_backward_data.default")
def _(d: Draw) -> Call:
    shape = d.any_shape(1)
    dim = d.below(len(shape))
    return (d.real(*shape), d.real(*shape).log_softmax(dim), dim, torch.float64), {}


def _norm(d: Draw) -> tuple[tuple[int, ...], list[int], Any, Any]:
    shape = d.any_shape(1)
    last = list(shape[len(shape) - 1 - d.below(min(2, len(shape))) :])
    weight = d.real(*last) if d.below(3) else None
    bias = d.real(*last) if weight is not None and d.below(3) else None
    return shape, last, weight, bias


@call("aten.native_layer_norm.default")
def _(d: Draw) -> Call:
    shape, last, weight, bias = _norm(d)
    return (d.real(*shape), last, weight, bias, 1e-2), {}


@call("aten.native_layer_norm_backward.default")
def _(d: Draw) -> Call:
    shape, last, weight, bias = _norm(d)
    x = d.real(*shape)
    _, mean, scale = torch.ops.aten.native_layer_norm(x, last, weight, bias, 1e-2)
    mask = [bool(d.below(2)), weight is not None, bias is not None]
    return (d.real(*shape), x, last, mean, scale, weight, bias, mask), {}


@call("aten._fused_rms_norm.default")
def _(d: Draw) -> Call:
    shape, last, weight, _ = _norm(d)
    return (d.real(*shape), last, weight, 1e-2), {}


@call("aten._fused_rms_norm_backward.default")
def _(d: Draw) -> Call:
    shape, last, weight, _ = _norm(d)
    x = d.real(*shape)
    _, scale = torch.ops.aten._fused_rms_norm(x, last, weight, 1e-2)
    return (d.real(*shape), x, last, scale, weight, [True, weight is not None]), {}


def _rms_backward(
    gradient: torch.Tensor,
    x: torch.Tensor,
    shape: list[int],
    scale: torch.Tensor,
    weight: torch.Tensor | None,
    mask: list[bool],
) -> tuple[torch.Tensor | None, ...]:
    x = x.clone().requires_grad_()
    held = None if weight is None else weight.clone().requires_grad_()
    torch.nn.functional.rms_norm(x, shape, held, 1e-2).backward(gradient)
    return x.grad, None if held is None else held.grad


#: Overloads without a kernel on this machine, by autograd of what they differentiate.
REFERENCES: dict[str, Callable[..., Any]] = {
    "aten._fused_rms_norm_backward.default": _rms_backward,
}
