"""Random calls of further activations and functions, of images' layers and of fused optimizers."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from typing import Any

import torch

from shardproof.frontends.aten import Const
from shardproof.frontends.aten.positions import Positions
from tests.frontends.aten.calls import Both, Call, Draw, call
from tests.frontends.aten.calls_of_norms import REFERENCES


def _with_kinks(d: Draw, *shape: int) -> torch.Tensor:
    """Numbers of which some are where activations have their kinks."""
    kinks = torch.tensor([-3.0, -0.5, 0.0, 0.5, 3.0], dtype=torch.float64)
    x = d.real(*shape) * 3
    return torch.where(d.real(*shape) > 0.5, kinks[d.ids(5, *shape)], x)


@call(
    "aten.cosh.default",
    "aten.sinh.default",
    "aten.exp2.default",
    "aten.tan.default",
    "aten.erfc.default",
    "aten.celu.default",
    "aten.softshrink.default",
    "aten.hardshrink.default",
)
def _(d: Draw) -> Call:
    return (_with_kinks(d, *d.any_shape()),), {}


@call("aten.celu.default")
def _(d: Draw) -> Call:
    return (d.real(*d.any_shape()), 0.7), {}


@call("aten.log2.default", "aten.log10.default")
def _(d: Draw) -> Call:
    return (d.positive(*d.any_shape()),), {}


@call("aten.pow.Scalar")
def _(d: Draw) -> Call:
    return (abs(d.number()) + 0.5, d.real(*d.any_shape())), {}


@call("aten.hypot.default")
def _(d: Draw) -> Call:
    shape = d.any_shape()
    return (d.real(*shape), d.real(*shape)), {}


@call("aten.remainder.Scalar", "aten.fmod.Scalar")
def _(d: Draw) -> Call:
    return (d.real(*d.any_shape()), d.number() or 1.5), {}


@call("aten.remainder.Tensor", "aten.fmod.Tensor")
def _(d: Draw) -> Call:
    x, y = d.pair()
    return (x, y.abs() + 0.5), {}


@call("aten.hardswish_backward.default", "aten.hardsigmoid_backward.default")
def _(d: Draw) -> Call:
    shape = d.any_shape()
    return (d.real(*shape), _with_kinks(d, *shape)), {}


@call("aten.mish_backward.default")
def _(d: Draw) -> Call:
    shape = d.any_shape()
    return (d.real(*shape), d.real(*shape)), {}


@call("aten.softshrink_backward.default", "aten.hardshrink_backward.default")
def _(d: Draw) -> Call:
    shape = d.any_shape()
    return (d.real(*shape), _with_kinks(d, *shape), 0.5), {}


@call("aten._prelu_kernel.default")
def _(d: Draw) -> Call:
    n, c = d.sizes(2)
    return (_with_kinks(d, n, c), d.real(1, c)), {}


@call("aten._prelu_kernel_backward.default")
def _(d: Draw) -> Call:
    n, c = d.sizes(2)
    return (d.real(n, c), _with_kinks(d, n, c), d.real(1, c)), {}


def _sixth(gradient: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """The kernel has a sixth in single precision for tensors in double precision too."""
    return gradient * ((x > -3) & (x < 3)) / 6


REFERENCES["aten.hardsigmoid_backward.default"] = _sixth
REFERENCES["aten.pow_.Scalar"] = torch.ops.aten.pow.Tensor_Scalar  # which leaves its operand


def _even(d: Draw) -> tuple[list[int], int]:
    shape = list(d.any_shape(1))
    dim = d.below(len(shape))
    shape[dim] *= 2
    return shape, dim


@call("aten.glu.default")
def _(d: Draw) -> Call:
    shape, dim = _even(d)
    return (d.real(*shape), dim), {}


@call("aten.glu_backward.default")
def _(d: Draw) -> Call:
    shape, dim = _even(d)
    half = [n // 2 if i == dim else n for i, n in enumerate(shape)]
    return (d.real(*half), d.real(*shape), dim), {}


@call("aten.soft_margin_loss_backward.default")
def _(d: Draw) -> Call:
    shape = d.any_shape()
    reduction = d.below(3)
    gradient = d.real(*shape) if reduction == 0 else d.real()
    return (gradient, d.real(*shape), d.real(*shape).sign(), reduction), {}


@call("aten.norm.ScalarOpt_dim")
def _(d: Draw) -> Call:
    shape = d.any_shape(1)
    order = [None, 1, 2, float("inf")][d.below(4)]
    return (d.real(*shape), order, [d.below(len(shape))], bool(d.below(2))), {}


@call("aten.linalg_vector_norm.default")
def _(d: Draw) -> Call:
    shape = d.any_shape(1)
    return (d.real(*shape), float("inf"), [d.below(len(shape))], bool(d.below(2))), {}


# -- flags and order -------------------------------------------------------------------------------


def _flags(d: Draw, *shape: int) -> Both:
    """A mask as comparisons make it is a value of 0 and 1: here a constant one."""
    value = d.below(2)
    return Both(Const(Fraction(value), shape, "bool"), torch.full(shape, bool(value)))


@call("aten.any.default", "aten.all.default")
def _(d: Draw) -> Call:
    return (_flags(d, *d.any_shape(1)),), {}


@call("aten.any.dims", "aten.all.dims")
def _(d: Draw) -> Call:
    shape = d.any_shape(1)
    return (_flags(d, *shape), [d.below(len(shape))], bool(d.below(2))), {}


@call("aten.any.dim", "aten.all.dim")
def _(d: Draw) -> Call:
    shape = d.any_shape(1)
    return (_flags(d, *shape), d.below(len(shape)), bool(d.below(2))), {}


@call("aten.kthvalue.default")
def _(d: Draw) -> Call:
    shape = d.any_shape(1)
    dim = d.below(len(shape))
    return (d.real(*shape), 1 + d.below(shape[dim]), dim, bool(d.below(2))), {}


@call("aten.median.dim")
def _(d: Draw) -> Call:
    shape = d.any_shape(1)
    return (d.real(*shape), d.below(len(shape)), bool(d.below(2))), {}


@call("aten.quantile.scalar")
def _(d: Draw) -> Call:
    shape = d.any_shape(1)
    q = (0.0, 0.25, 0.5, 0.9, 1.0)[d.below(5)]
    way = ("linear", "lower", "higher", "midpoint", "nearest")[d.below(5)]
    dim = (None, d.below(len(shape)))[d.below(2)]
    return (d.real(*shape), q, dim, bool(d.below(2))), {"interpolation": way}


@call("aten.tril.default", "aten.triu.default")
def _(d: Draw) -> Call:
    return (d.real(*d.sizes(2 + d.below(2))), d.below(3) - 1), {}


def _along(d: Draw) -> tuple[list[int], int, Any]:
    """A shape, a dimension that is not the first, and ids (or positions in steps) along it."""
    shape = list(d.sizes(2 + d.below(2)))
    dim = 1 + d.below(len(shape) - 1)
    shape[dim] += 4
    if d.below(2):
        return shape, dim, d.ids(shape[dim], 1 + d.below(4))
    last = Positions(4, (-2,), (3,), "int64")
    return shape, dim, Both(last, torch.tensor([4, 2, 0]))


@call("aten.index.Tensor")
def _(d: Draw) -> Call:
    shape, dim, index = _along(d)
    return (d.real(*shape), [*(None for _ in range(dim)), index]), {}


@call("aten.index_put.default")
def _(d: Draw) -> Call:
    shape, dim, index = _along(d)
    (count,) = index.tensor.shape if isinstance(index, Both) else index.shape
    own = [count if i == dim else n for i, n in enumerate(shape)]
    return (d.real(*shape), [*(None for _ in range(dim)), index], d.real(*own), True), {}


@call("aten.index.Tensor")
def _(d: Draw) -> Call:
    """An entry of each row of as many columns: of the diagonal, or beside it, in either order."""
    n = 2 + d.below(3)
    rows = Both(Positions(0, (1,), (n,), "int64"), torch.arange(n))
    back = Both(Positions(n - 1, (-1,), (n,), "int64"), torch.arange(n).flip(0))
    return (d.real(n, n + d.below(2)), [rows, (rows, back)[d.below(2)]]), {}


# -- weights and images ----------------------------------------------------------------------------


@call("aten._weight_norm_interface.default")
def _(d: Draw) -> Call:
    n, m = d.sizes(2)
    return (d.real(n, m), d.real(n, 1), 0), {}


@call("aten._weight_norm.default")
def _(d: Draw) -> Call:
    """By the first dimension, the last one, or another."""
    shape = d.any_shape(1)
    dim = d.below(len(shape))
    sides = [n if i == dim else 1 for i, n in enumerate(shape)]
    return (d.real(*shape), d.real(*sides), dim), {}


@call("aten._weight_norm_interface_backward.default")
def _(d: Draw) -> Call:
    n, m = d.sizes(2)
    v, g = d.real(n, m), d.real(n, 1)
    _, length = torch.ops.aten._weight_norm_interface(v, g, 0)
    return (d.real(n, m), v, g, length, 0), {}


def _pixels(d: Draw) -> tuple[torch.Tensor, torch.Tensor, int]:
    n, c, h, w = d.sizes(4)
    logs = d.real(n, c, h, w).log_softmax(1)
    labels = torch.tensor(d.rng.integers(0, c, size=(n, h, w)))
    labels.view(-1)[0] = c - 1
    return logs, labels, d.below(3)


@call("aten.nll_loss2d_forward.default")
def _(d: Draw) -> Call:
    logs, labels, reduction = _pixels(d)
    return (logs, labels, None, reduction, -100), {}


@call("aten.nll_loss2d_backward.default")
def _(d: Draw) -> Call:
    logs, labels, reduction = _pixels(d)
    gradient = d.real(*labels.shape) if reduction == 0 else d.real()
    count = torch.tensor(float(labels.numel()), dtype=torch.float64)
    return (gradient, logs, labels, None, reduction, -100, count), {}


@call("aten.pixel_shuffle.default")
def _(d: Draw) -> Call:
    c, h, w, factor = d.sizes(4)
    return (d.real(2, c * factor**2, h, w), factor), {}


@call("aten.pixel_unshuffle.default")
def _(d: Draw) -> Call:
    c, h, w, factor = d.sizes(4)
    return (d.real(2, c, h * factor, w * factor), factor), {}


@call("aten.channel_shuffle.default")
def _(d: Draw) -> Call:
    n, groups, k, h = d.sizes(4)
    return (d.real(n, groups * k, h, 2), groups), {}


# -- optimizers ------------------------------------------------------------------------------------


def _written(name: str) -> Callable[..., list[torch.Tensor]]:
    """What an operator leaves in the lists that it writes: all but the numbers of steps."""

    def run(*lists: list[torch.Tensor], **settings: Any) -> list[torch.Tensor]:
        copies = [[x.clone() for x in tensors] for tensors in lists]
        overload, kind = name.split(".")
        getattr(getattr(torch.ops.aten, overload), kind)(*copies, **settings)
        return [x for tensors in copies[: 3 if "sgd" in name else 5] for x in tensors]

    return run


def _of_adam(name: str) -> None:
    REFERENCES[f"aten.{name}"] = _written(name)

    @call(f"aten.{name}")
    def _(d: Draw) -> Call:
        shapes = [d.sizes(2), d.sizes(1)]
        parameters, gradients, firsts = ([d.real(*s) for s in shapes] for _ in range(3))
        seconds, largest = ([d.positive(*s) for s in shapes] for _ in range(2))
        amsgrad, step = bool(d.below(2)), 1 + d.below(5)
        number = torch.tensor(float(step))
        steps = [Both(Const(Fraction(step), (), "float32"), number) for _ in shapes]
        rate = Both(Const(Fraction(1, 10), (), "float64"), torch.tensor(0.1, dtype=torch.float64))
        return (parameters, gradients, firsts, seconds, largest if amsgrad else [], steps), {
            "lr": rate if "tensor" in name else 0.1,
            "beta1": 0.9,
            "beta2": 0.99,
            "weight_decay": 0.1 * d.below(2),
            "eps": 1e-8,
            "amsgrad": amsgrad,
            "maximize": bool(d.below(2)),
        }


for _name in ("_fused_adam_", "_fused_adamw_"):
    for _kind in ("default", "tensor_lr"):
        _of_adam(f"{_name}.{_kind}")


def _of_sgd(name: str) -> None:
    REFERENCES[f"aten.{name}"] = _written(name)

    @call(f"aten.{name}")
    def _(d: Draw) -> Call:
        shapes = [d.sizes(2), d.sizes(1)]
        parameters, gradients, buffers = ([d.real(*s) for s in shapes] for _ in range(3))
        momentum = 0.9 * d.below(2)
        rate = Both(Const(Fraction(1, 10), (), "float64"), torch.tensor(0.1, dtype=torch.float64))
        return (parameters, gradients, buffers if momentum else []), {
            "lr": rate if "tensor" in name else 0.1,
            "weight_decay": 0.1 * d.below(2),
            "momentum": momentum,
            "dampening": 0.0,
            "nesterov": bool(momentum) and bool(d.below(2)),
            "maximize": bool(d.below(2)),
            "is_first_step": bool(d.below(2)),
        }


for _kind in ("default", "tensor_lr"):
    _of_sgd(f"_fused_sgd_.{_kind}")


# -- the gamma function, and what undoes the error function -----------------------------------------


@call("aten.lgamma.default", "aten.digamma.default")
def _(d: Draw) -> Call:
    return (d.real(*d.any_shape()) * 4,), {}


@call("aten.polygamma.default")
def _(d: Draw) -> Call:
    return (d.below(2), d.real(*d.any_shape()) * 4), {}


@call("aten.erfinv.default")
def _(d: Draw) -> Call:
    return (torch.tanh(d.real(*d.any_shape())),), {}


def _classes(d: Draw) -> tuple[torch.Tensor, torch.Tensor]:
    """Scores of rows, or of one, and their labels."""
    rows, count = d.sizes(2)
    if d.below(4) == 0:
        return d.real(count), torch.tensor(d.below(count))
    return d.real(rows, count), d.ids(count, rows)


@call("aten.multi_margin_loss.default")
def _(d: Draw) -> Call:
    return (*_classes(d), 1 + d.below(2), d.number(), None, d.below(3)), {}


@call("aten.multi_margin_loss_backward.default")
def _(d: Draw) -> Call:
    x, labels = _classes(d)
    reduction = d.below(3)
    gradient = d.real(*labels.shape) if reduction == 0 else d.real()
    return (gradient, x, labels, 1 + d.below(2), d.number(), None, reduction), {}
