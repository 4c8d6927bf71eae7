"""For every ATen overload that is lowered: random calls of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch

Call = tuple[tuple[Any, ...], dict[str, Any]]
CALLS: dict[str, list[Callable[[Draw], Call]]] = {}


class Draw:
    """Random tensors of random sizes from 1 to 4, in float64."""

    def __init__(self, seed: int) -> None:
        self.rng = np.random.default_rng(seed)

    def sizes(self, count: int) -> tuple[int, ...]:
        return tuple(int(n) for n in self.rng.integers(1, 5, count))

    def real(self, *shape: int) -> torch.Tensor:
        return torch.tensor(self.rng.normal(size=shape))

    def positive(self, *shape: int) -> torch.Tensor:
        return torch.tensor(self.rng.uniform(0.5, 2, size=shape))

    def number(self) -> float:
        return float(np.round(self.rng.uniform(-2, 2), 3))

    def below(self, limit: int) -> int:
        return int(self.rng.integers(limit))

    def ids(self, stop: int, *shape: int) -> torch.Tensor:
        return torch.tensor(self.rng.integers(0, stop, size=shape))

    def any_shape(self, least: int = 0) -> tuple[int, ...]:
        return self.sizes(least + self.below(4 - least))

    def pair(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Two tensors that broadcast."""
        shape = self.any_shape(1)
        cut = self.below(len(shape) + 1)
        other = tuple(1 if self.below(3) == 0 else n for n in shape[cut:])
        return self.real(*shape), self.real(*other)


def call(*names: str) -> Callable[[Callable[[Draw], Call]], Callable[[Draw], Call]]:
    def register(make: Callable[[Draw], Call]) -> Callable[[Draw], Call]:
        for name in names:
            CALLS.setdefault(name, []).append(make)
        return make

    return register


@call("aten.add.Tensor", "aten.sub.Tensor", "aten.rsub.Tensor")
def _(d: Draw) -> Call:
    return d.pair(), {"alpha": d.number()} if d.below(2) else {}


@call("aten.add.Scalar", "aten.sub.Scalar", "aten.rsub.Scalar")
def _(d: Draw) -> Call:
    return (d.real(*d.any_shape()), d.number(), d.number()), {}


@call("aten.mul.Tensor")
def _(d: Draw) -> Call:
    return d.pair(), {}


@call("aten.div.Tensor")
def _(d: Draw) -> Call:
    x, y = d.pair()
    return (x, y.abs() + 0.5), {}


@call("aten.mul.Scalar")
def _(d: Draw) -> Call:
    return (d.real(*d.any_shape()), d.number()), {}


@call("aten.div.Scalar")
def _(d: Draw) -> Call:
    return (d.real(*d.any_shape()), d.number() or 1.5), {}


@call(
    "aten.neg.default",
    "aten.exp.default",
    "aten.square.default",
    "aten.sigmoid.default",
    "aten.tanh.default",
    "aten.silu.default",
    "aten.gelu.default",
    "aten.ones_like.default",
    "aten.zeros_like.default",
    "aten.zero.default",
    "aten.sum.default",
    "aten.mean.default",
)
def _(d: Draw) -> Call:
    return (d.real(*d.any_shape()),), {}


@call("aten.log.default", "aten.sqrt.default", "aten.rsqrt.default", "aten.reciprocal.default")
def _(d: Draw) -> Call:
    return (d.positive(*d.any_shape()),), {}


@call("aten.exp.out", "aten.sigmoid.out", "aten.tanh.out", "aten.silu.out")
def _(d: Draw) -> Call:
    shape = d.any_shape()
    return (d.real(*shape),), {"out": d.real(*shape)}


@call("aten.log.out", "aten.sqrt.out", "aten.rsqrt.out")
def _(d: Draw) -> Call:
    shape = d.any_shape()
    return (d.positive(*shape),), {"out": d.real(*shape)}


@call("aten.gelu.default")
def _(d: Draw) -> Call:
    return (d.real(*d.any_shape()),), {"approximate": "tanh"}


@call("aten.silu_backward.default", "aten.gelu_backward.default")
def _(d: Draw) -> Call:
    shape = d.any_shape()
    return (d.real(*shape), d.real(*shape)), {}


@call("aten.gelu_backward.default")
def _(d: Draw) -> Call:
    shape = d.any_shape()
    return (d.real(*shape), d.real(*shape)), {"approximate": "tanh"}


@call("aten.sigmoid_backward.default", "aten.tanh_backward.default")
def _(d: Draw) -> Call:
    shape = d.any_shape()
    return (d.real(*shape), torch.tanh(d.real(*shape))), {}


@call("aten.pow.Tensor_Scalar")
def _(d: Draw) -> Call:
    exponent = (0, 1, 1.0, 2, 3, -1, 0.5, -0.5, 2.5)[d.below(9)]
    return (d.positive(*d.any_shape()), exponent), {}


@call("aten.addcmul.default", "aten.addcdiv.default")
def _(d: Draw) -> Call:
    shape = d.any_shape()
    return (d.real(*shape), d.real(*shape), d.positive(*shape)), {"value": d.number()}


@call("aten.lerp.Scalar")
def _(d: Draw) -> Call:
    shape = d.any_shape()
    return (d.real(*shape), d.real(*shape), d.number()), {}


@call("aten.ones.default", "aten.zeros.default")
def _(d: Draw) -> Call:
    return (d.any_shape(),), {"dtype": torch.float64}


@call("aten.new_ones.default", "aten.new_zeros.default")
def _(d: Draw) -> Call:
    return (d.real(2), d.any_shape()), {}


@call("aten.full.default")
def _(d: Draw) -> Call:
    return (d.any_shape(), d.number()), {"dtype": torch.float64}


@call("aten.full_like.default", "aten.fill.Scalar")
def _(d: Draw) -> Call:
    return (d.real(*d.any_shape()), d.number()), {}


@call("aten.new_full.default")
def _(d: Draw) -> Call:
    return (d.real(2), d.any_shape(), d.number()), {}


@call("aten.scalar_tensor.default")
def _(d: Draw) -> Call:
    return (d.number(),), {"dtype": torch.float64}


@call("aten._to_copy.default")
def _(d: Draw) -> Call:
    return (d.real(*d.any_shape()),), {"dtype": torch.float64}


@call("aten.cat.default")
def _(d: Draw) -> Call:
    shape = d.any_shape(1)
    dim = d.below(len(shape))
    parts = [d.real(*shape[:dim], d.below(3) + 1, *shape[dim + 1 :]) for _ in range(3)]
    return (parts, dim - len(shape) if d.below(2) else dim), {}


@call("aten.stack.default")
def _(d: Draw) -> Call:
    shape = d.any_shape()
    return ([d.real(*shape) for _ in range(2)], d.below(len(shape) + 1)), {}


@call("aten.sum.dim_IntList", "aten.mean.dim", "aten.amax.default")
def _(d: Draw) -> Call:
    shape = d.any_shape(1)
    dims = [i for i in range(len(shape)) if d.below(2)] or [-1]
    return (d.real(*shape), dims, bool(d.below(2))), {}


@call("aten.mm.default")
def _(d: Draw) -> Call:
    m, k, n = d.sizes(3)
    return (d.real(m, k), d.real(k, n)), {}


@call("aten.bmm.default")
def _(d: Draw) -> Call:
    b, m, k, n = d.sizes(4)
    return (d.real(b, m, k), d.real(b, k, n)), {}


@call("aten.addmm.default")
def _(d: Draw) -> Call:
    m, k, n = d.sizes(3)
    scales = {"beta": d.number(), "alpha": d.number()} if d.below(2) else {}
    return (d.real(n), d.real(m, k), d.real(k, n)), scales


@call("aten.baddbmm.default")
def _(d: Draw) -> Call:
    b, m, k, n = d.sizes(4)
    scales = {"beta": 0, "alpha": d.number()} if d.below(2) else {}
    return (d.real(b, m, n), d.real(b, m, k), d.real(b, k, n)), scales


@call("aten.dot.default")
def _(d: Draw) -> Call:
    (n,) = d.sizes(1)
    return (d.real(n), d.real(n)), {}


@call("aten.mv.default")
def _(d: Draw) -> Call:
    m, n = d.sizes(2)
    return (d.real(m, n), d.real(n)), {}


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
