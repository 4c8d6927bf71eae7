"""For every ATen overload that is lowered: random calls of it."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from typing import Any, NamedTuple

import numpy as np
import torch

from shardproof.frontends.aten.lowering import Const
from shardproof.frontends.aten.positions import Additive, Compared, Positions

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


@call("aten.pow.Tensor_Scalar")
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
    shape = [*sizes[:dim], stop - start, *sizes[dim + 1 :]]
    return (d.real(*shape), sizes, dim, start, stop, 1), {}


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


# -- ids and positions ------------------------------------------------------------------------


@call("aten.embedding.default")
def _(d: Draw) -> Call:
    rows, width = d.sizes(2)
    return (d.real(rows, width), d.ids(rows, *d.sizes(2))), {}


@call("aten.embedding_dense_backward.default")
def _(d: Draw) -> Call:
    rows, width, *shape = d.sizes(4)
    return (d.real(*shape, width), d.ids(rows, *shape), rows, -1, False), {}


def _labels(d: Draw) -> tuple[torch.Tensor, torch.Tensor]:
    n, classes = d.sizes(2)
    labels = d.ids(classes, n)
    labels[d.below(n) :: 2] = -100
    labels[0] = 0
    return d.real(n, classes).log_softmax(1), labels


@call("aten.nll_loss_forward.default")
def _(d: Draw) -> Call:
    logs, labels = _labels(d)
    return (logs, labels, None, d.below(3), -100), {}


@call("aten.nll_loss_backward.default")
def _(d: Draw) -> Call:
    logs, labels = _labels(d)
    reduction = d.below(3)
    _, count = torch.ops.aten.nll_loss_forward(logs, labels, None, reduction, -100)
    gradient = d.real(*(labels.shape if reduction == 0 else ()))
    return (gradient, logs, labels, None, reduction, -100, count.double()), {}


@call("aten.mse_loss.default")
def _(d: Draw) -> Call:
    shape = d.any_shape()
    return (d.real(*shape), d.real(*shape), d.below(3)), {}


@call("aten.mse_loss_backward.default")
def _(d: Draw) -> Call:
    shape = d.any_shape()
    reduction = d.below(3)
    gradient = d.real(*(shape if reduction == 0 else ()))
    return (gradient, d.real(*shape), d.real(*shape), reduction), {}


@call("aten.arange.default")
def _(d: Draw) -> Call:
    return (d.below(5) + 1,), {}


@call("aten.arange.start")
def _(d: Draw) -> Call:
    return (d.below(3), 4 + d.below(3)), {}


@call("aten.arange.start_step")
def _(d: Draw) -> Call:
    return (d.below(3), 5 + d.below(5), 1 + d.below(3)), {}


def positions(d: Draw, shape: tuple[int, ...]) -> Both:
    """Random positions."""
    const, steps = d.below(5) - 2, tuple(d.below(5) - 2 for _ in shape)
    tensor = torch.full(shape, const)
    for dim, step in enumerate(steps):
        index = torch.arange(shape[dim]) * step
        tensor = tensor + index.view(*(-1 if i == dim else 1 for i in range(len(shape))))
    return Both(Positions(const, steps, shape, "int64"), tensor)


@call(*(f"aten.{name}.Tensor" for name in ("lt", "le", "gt", "ge", "add", "sub", "rsub")))
def _(d: Draw) -> Call:
    a, b = d.sizes(2)
    return (positions(d, (a, b)), positions(d, (1, b))), {}


@call(*(f"aten.{name}.Scalar" for name in ("lt", "le", "gt", "ge", "add", "sub", "rsub")))
def _(d: Draw) -> Call:
    return (positions(d, d.sizes(2)), d.below(5) - 2), {}


@call("aten.tril.default", "aten.triu.default")
def _(d: Draw) -> Call:
    shape = d.any_shape(2)
    mask = Both(Const(Fraction(1), shape, "bool"), torch.ones(shape, dtype=torch.bool))
    return (mask, d.below(5) - 2), {}


@call("aten.logical_not.default", "aten.bitwise_not.default")
def _(d: Draw) -> Call:
    given = positions(d, d.sizes(2))
    return (Both(Compared(given.lowered), given.tensor >= 0),), {}


@call("aten.masked_fill.Scalar")
def _(d: Draw) -> Call:
    *lead, n = d.sizes(3)
    later = Positions(-1, (-1, 1), (n, n), "int64")
    mask = torch.ones(n, n, dtype=torch.bool).triu(1)
    return (d.real(*lead, n, n), Both(Compared(later), mask), float("-inf")), {}


@call("aten._scaled_dot_product_flash_attention_for_cpu.default")
def _(d: Draw) -> Call:
    q, k, v, options = _attention(d)
    return (q, k, v, 0.0, options["is_causal"]), {"scale": options["scale"]}


@call("aten._scaled_dot_product_flash_attention_for_cpu.default")
def _(d: Draw) -> Call:
    """A mask of its own, which is causal."""
    b, h, s, e = d.sizes(4)
    later = torch.ones(s, s, dtype=torch.bool).triu(1)
    mask = torch.zeros(1, 1, s, s, dtype=torch.float64).masked_fill(later, float("-inf"))
    additive = Additive(Compared(Positions(-1, (0, 0, -1, 1), (1, 1, s, s), "int64")), "float64")
    given = [d.real(b, h, s, e) for _ in range(3)]
    return (*given, 0.0, False), {"attn_mask": Both(additive, mask)}


@call("aten._scaled_dot_product_flash_attention_for_cpu_backward.default")
def _(d: Draw) -> Call:
    q, k, v, options = _attention(d)
    out, sums = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(q, k, v, **options)
    gradient = d.real(*out.shape)
    return (gradient, q, k, v, out, sums, 0.0, options["is_causal"]), {"scale": options["scale"]}


def _attention(d: Draw) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, dict[str, Any]]:
    b, h, s, e = d.sizes(4)
    causal = bool(d.below(2))
    t = s if causal else d.sizes(1)[0]
    options: dict[str, Any] = {
        "is_causal": causal,
        "scale": abs(d.number()) or None if d.below(2) else None,
    }
    return d.real(b, h, s, e), d.real(b, h, t, e), d.real(b, h, t, e), options


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


def _run(d: Draw, rows: int) -> tuple[Both, int]:
    """Consecutive positions below ``rows``, alike along another dimension."""
    count = 1 + d.below(rows)
    first, wide = d.below(rows - count + 1), d.below(3) + 1
    lead = bool(d.below(2))
    shape, steps = ((wide, count), (0, 1)) if lead else ((count, wide), (1, 0))
    index = first + torch.arange(count)
    tensor = (index[None, :] if lead else index[:, None]).expand(shape).clone()
    return Both(Positions(first, steps, shape, "int64"), tensor), count


@call("aten.embedding.default")
def _(d: Draw) -> Call:
    rows, width = d.sizes(2)
    return (d.real(rows, width), _run(d, rows)[0]), {}


@call("aten.embedding_dense_backward.default")
def _(d: Draw) -> Call:
    rows, width = d.sizes(2)
    at, _ = _run(d, rows)
    return (d.real(*at.tensor.shape, width), at, rows, -1, False), {}


@call("aten._scaled_dot_product_flash_attention_for_cpu.default")
def _(d: Draw) -> Call:
    """Fewer heads of keys, and a mask that is numbers."""
    q, k, v = _grouped(d)
    mask = d.real(1, 1, q.shape[2], k.shape[2])
    return (q, k, v, 0.0, False), {"attn_mask": mask} if d.below(2) else {}


@call("aten._scaled_dot_product_flash_attention_for_cpu_backward.default")
def _(d: Draw) -> Call:
    q, k, v = _grouped(d)
    options = {"attn_mask": d.real(q.shape[0], 1, q.shape[2], k.shape[2])} if d.below(2) else {}
    out, sums = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(q, k, v, **options)
    return (d.real(*out.shape), q, k, v, out, sums, 0.0, False), options


def _grouped(d: Draw) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    b, heads, group, s, t, e = d.sizes(6)
    return d.real(b, heads * group, s, e), d.real(b, heads, t, e), d.real(b, heads, t, e)


@call("aten.cat.default")
def _(d: Draw) -> Call:
    """An empty tensor of one dimension among others."""
    shape = d.any_shape(2)
    return ([torch.zeros(0, dtype=torch.float64), d.real(*shape)], -1), {}


@call("aten.masked_fill.Scalar")
def _(d: Draw) -> Call:
    """A number after the diagonal, and by a mask of positions that is not causal."""
    *lead, n = d.sizes(3)
    shift = d.below(3) - 1
    mask = torch.ones(n, n, dtype=torch.bool).triu(shift)
    later = Positions(-shift, (-1, 1), (n, n), "int64")
    return (d.real(*lead, n, n), Both(Compared(later), mask), d.number()), {}


# -- as torch.export leaves them ---------------------------------------------------------------


@call("aten.floor.default", "aten.ceil.default", "aten.trunc.default")
def _(d: Draw) -> Call:
    return (d.real(*d.any_shape()),), {}


@call("aten.floor.out", "aten.ceil.out", "aten.trunc.out")
def _(d: Draw) -> Call:
    shape = d.any_shape()
    return (d.real(*shape),), {"out": d.real(*shape)}


@call("aten.linear.default")
def _(d: Draw) -> Call:
    a, b = d.sizes(2)
    x, bias = d.real(*d.any_shape(), a), d.real(b)
    return (x, d.real(b, a), *([bias] if d.below(2) else [])), {}


@call("aten.matmul.default")
def _(d: Draw) -> Call:
    lead, (a, b, c) = d.any_shape(), d.sizes(3)
    return (d.real(*lead, a, b), d.real(*lead, b, c)), {}


@call("aten.matmul.default")
def _(d: Draw) -> Call:
    a, b, c = d.sizes(3)
    return (d.real(*d.any_shape(1), a, b), d.real(b, c)), {}


@call("aten.layer_norm.default")
def _(d: Draw) -> Call:
    shape = d.any_shape(1)
    return (d.real(*shape), [shape[-1]], d.real(shape[-1]), d.real(shape[-1])), {}


@call("aten.rms_norm.default")
def _(d: Draw) -> Call:
    shape = d.any_shape(1)
    return (d.real(*shape), [shape[-1]], d.real(shape[-1]), 1e-3), {}


@call("aten.softmax.int", "aten.log_softmax.int")
def _(d: Draw) -> Call:
    shape = d.any_shape(1)
    return (d.real(*shape), d.below(len(shape))), {}


@call("aten.dropout.default")
def _(d: Draw) -> Call:
    return (d.real(*d.any_shape()), 0.5, False), {}


@call("aten.scaled_dot_product_attention.default")
def _(d: Draw) -> Call:
    b, h, s, n = d.sizes(4)
    q, k, v = (d.real(b, h, s, n) for _ in range(3))
    return (q, k, v), {"is_causal": bool(d.below(2))}


@call("aten.flatten.using_ints")
def _(d: Draw) -> Call:
    shape = d.any_shape(1)
    first = d.below(len(shape))
    return (d.real(*shape), first, first + d.below(len(shape) - first)), {}


@call("aten.chunk.default")
def _(d: Draw) -> Call:
    shape = d.any_shape(1)
    return (d.real(*shape), 1 + d.below(3), d.below(len(shape))), {}


@call("aten.unbind.int")
def _(d: Draw) -> Call:
    shape = d.any_shape(1)
    return (d.real(*shape), d.below(len(shape))), {}


@call("aten.numpy_T.default")
def _(d: Draw) -> Call:
    return (d.real(*d.any_shape(2)),), {}


@call("aten.to.dtype")
def _(d: Draw) -> Call:
    return (d.real(*d.any_shape()), torch.float64), {}
