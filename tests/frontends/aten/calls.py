"""For every ATen overload that is lowered: random calls of it; here of arithmetic and movement."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch

Call = tuple[tuple[Any, ...], dict[str, Any]]
CALLS: dict[str, list[Callable[[Draw], Call]]] = {}


class Both(NamedTuple):
    """An operand that is symbolic, and what it is."""

    lowered: Any
    tensor: torch.Tensor


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


@call("aten.pow.Tensor_Scalar", "aten.pow_.Scalar")
def _(d: Draw) -> Call:
    exponent = (0, 1, 1.0, 2, 3, -1, 0.5, -0.5, 2.5)[d.below(9)]
    return (d.positive(*d.any_shape()), exponent), {}


@call("aten.addcmul.default", "aten.addcdiv.default")
def _(d: Draw) -> Call:
    shape = d.any_shape()
    return (d.real(*shape), d.real(*shape), d.positive(*shape)), {"value": d.number()}


@call(
    *(
        f"aten.{name}.default"
        for name in (
            [
                "relu",
                "abs",
                "sin",
                "cos",
                "erf",
                "sgn",
                "sign",
                "leaky_relu",
                "hardtanh",
                "log_sigmoid_forward",
                "expm1",
            ]
        )
    ),
    "aten.linalg_vector_norm.default",
    "aten.norm.Scalar",
)
def _(d: Draw) -> Call:
    return (d.real(*d.any_shape()),), {}


@call("aten.log1p.default")
def _(d: Draw) -> Call:
    return (d.positive(*d.any_shape()),), {}


@call("aten.leaky_relu.default", "aten.clamp_min.default", "aten.clamp_max.default")
def _(d: Draw) -> Call:
    return (d.real(*d.any_shape()), d.number()), {}


@call("aten.clamp.default", "aten.hardtanh.default")
def _(d: Draw) -> Call:
    """The lower bound may be above the upper one in clamp."""
    return (d.real(*d.any_shape()), -abs(d.number()), abs(d.number())), {}


@call("aten.clamp.default")
def _(d: Draw) -> Call:
    bounds = [(d.number(), None), (None, d.number()), (d.number(), d.number())]
    return (d.real(*d.any_shape()), *bounds[d.below(3)]), {}


@call("aten.hardtanh_backward.default")
def _(d: Draw) -> Call:
    shape = d.any_shape()
    return (d.real(*shape), d.real(*shape), -abs(d.number()), abs(d.number())), {}


@call("aten.threshold_backward.default")
def _(d: Draw) -> Call:
    """At the threshold itself too."""
    shape = d.any_shape()
    x = d.real(*shape).relu()
    return (d.real(*shape), x, d.number() if d.below(2) else 0), {}


@call("aten.leaky_relu_backward.default")
def _(d: Draw) -> Call:
    shape = d.any_shape()
    return (d.real(*shape), d.real(*shape).relu(), d.number(), False), {}


@call("aten.log_sigmoid_backward.default")
def _(d: Draw) -> Call:
    shape = d.any_shape()
    x = d.real(*shape)
    return (d.real(*shape), x, torch.ops.aten.log_sigmoid_forward(x)[1]), {}


@call("aten.linalg_vector_norm.default")
def _(d: Draw) -> Call:
    shape = d.any_shape(1)
    dims = [i for i in range(len(shape)) if d.below(2)] or [-1]
    return (d.real(*shape), 1 + d.below(2), dims, bool(d.below(2))), {}


@call("aten.norm.Scalar")
def _(d: Draw) -> Call:
    return (d.real(*d.any_shape()), 1 + d.below(2)), {}


@call("aten.maximum.default", "aten.minimum.default")
def _(d: Draw) -> Call:
    return d.pair(), {}


def _few(d: Draw, *shape: int) -> torch.Tensor:
    """Values of which many are alike."""
    return torch.tensor(d.rng.integers(-1, 2, size=shape).astype(float))


@call(*(f"aten.{name}.Tensor" for name in ("lt", "le", "gt", "ge", "eq", "ne")))
def _(d: Draw) -> Call:
    shape = d.any_shape()
    return (_few(d, *shape), _few(d, *shape)), {}


@call(*(f"aten.{name}.Scalar" for name in ("lt", "le", "gt", "ge", "eq", "ne")))
def _(d: Draw) -> Call:
    return (_few(d, *d.any_shape()), d.below(3) - 1), {}


def _mask(d: Draw, *shape: int) -> torch.Tensor:
    return torch.tensor(d.rng.integers(0, 2, size=shape).astype(bool))


@call(
    "aten.logical_and.default",
    "aten.logical_or.default",
    *(f"aten.{name}.Tensor" for name in ("bitwise_and", "bitwise_or", "__and__", "__or__")),
)
def _(d: Draw) -> Call:
    shape = d.any_shape()
    return (_mask(d, *shape), _mask(d, *shape)), {}


@call("aten.logical_not.default", "aten.bitwise_not.default")
def _(d: Draw) -> Call:
    return (_mask(d, *d.any_shape()),), {}


@call("aten.where.self")
def _(d: Draw) -> Call:
    x, y = d.pair()
    return (_mask(d, *x.shape), x, y), {}


@call("aten.where.ScalarOther")
def _(d: Draw) -> Call:
    shape = d.any_shape()
    return (_mask(d, *shape), d.real(*shape), d.number()), {}


@call("aten.where.ScalarSelf")
def _(d: Draw) -> Call:
    shape = d.any_shape()
    return (_mask(d, *shape), d.number(), d.real(*shape)), {}


@call("aten.masked_fill.Scalar")
def _(d: Draw) -> Call:
    shape = d.any_shape()
    return (d.real(*shape), _mask(d, *shape), d.number()), {}


@call("aten._to_copy.default")
def _(d: Draw) -> Call:
    return (_mask(d, *d.any_shape()),), {"dtype": torch.float64}


@call("aten.mul.Tensor")
def _(d: Draw) -> Call:
    shape = d.any_shape()
    return (_mask(d, *shape), d.real(*shape)), {}


@call("aten.add.Tensor")
def _(d: Draw) -> Call:
    shape = d.any_shape()
    return (d.real(*shape), _mask(d, *shape)), {}


@call("aten._safe_softmax.default")
def _(d: Draw) -> Call:
    shape = d.any_shape(1)
    return (d.real(*shape), d.below(len(shape)) - len(shape)), {}


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


@call("aten.constant_pad_nd.default")
def _(d: Draw) -> Call:
    x = d.real(*(n + 2 for n in d.any_shape(2)))
    padding = [d.below(4) - 1 for _ in range(2 * (1 + d.below(2)))]
    return (x, padding, d.number()), {}


@call("aten.slice_backward.default")
def _(d: Draw) -> Call:
    sizes = [n + 1 for n in d.any_shape(1)]
    dim = d.below(len(sizes))
    start = d.below(sizes[dim])
    stop = start + 1 + d.below(sizes[dim] - start)
    step = 1 + d.below(3)
    shape = [*sizes[:dim], -(-(stop - start) // step), *sizes[dim + 1 :]]
    return (d.real(*shape), sizes, dim, start, stop, step), {}


@call("aten.select_backward.default")
def _(d: Draw) -> Call:
    sizes = list(d.any_shape(1))
    dim = d.below(len(sizes))
    index = d.below(2 * sizes[dim]) - sizes[dim]
    return (d.real(*sizes[:dim], *sizes[dim + 1 :]), sizes, dim, index), {}


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
