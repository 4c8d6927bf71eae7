"""Random calls of the overloads that graphs name, and recorded steps do not."""

from __future__ import annotations

from typing import Any

import torch

from shardproof.frontends.aten.lowering import Const, fraction
from shardproof.frontends.aten.positions import Positions
from tests.frontends.aten.calls import REFERENCES, Both, Call, Draw, call


@call(
    "aten.clone.default",
    "aten.detach.default",
    "aten.alias.default",
    "aten.contiguous.default",
    "aten.lift_fresh_copy.default",
)
def _(d: Draw) -> Call:
    return (d.real(*d.any_shape()),), {}


@call("aten.view.default", "aten.reshape.default", "aten._unsafe_view.default")
def _(d: Draw) -> Call:
    a, b, c = d.sizes(3)
    return (d.real(a, b, c), ((a * b, c), (a, b * c), (-1, c), (a, -1), (a * b * c,))[d.below(5)]), {}


@call("aten.copy.default")
def _(d: Draw) -> Call:
    a, b = d.sizes(2)
    return (d.real(a, b), d.real(*((a, b), (b,), (1, b))[d.below(3)])), {}


@call("aten.t.default")
def _(d: Draw) -> Call:
    return (d.real(*d.sizes(d.below(3))),), {}


@call("aten.transpose.int")
def _(d: Draw) -> Call:
    return (d.real(*d.sizes(3)), d.below(6) - 3, d.below(6) - 3), {}


@call("aten.permute.default")
def _(d: Draw) -> Call:
    order = [int(i) - (3 if d.below(2) else 0) for i in d.rng.permutation(3)]
    return (d.real(*d.sizes(3)), order), {}


@call("aten.expand.default")
def _(d: Draw) -> Call:
    a, b, c = d.sizes(3)
    return (d.real(1, b), ((a, b), (c, a, b), (a, -1), (c, -1, b))[d.below(4)]), {}


@call("aten.unsqueeze.default")
def _(d: Draw) -> Call:
    return (d.real(*d.sizes(2)), d.below(6) - 3), {}


@call("aten.squeeze.dim")
def _(d: Draw) -> Call:
    a, b = d.sizes(2)
    return (d.real(a, 1, b), d.below(6) - 3), {}


@call("aten.squeeze.dims")
def _(d: Draw) -> Call:
    a, b = d.sizes(2)
    return (d.real(1, a, 1, b), ((0, 2), (0, 1), (-2,))[d.below(3)]), {}


@call("aten.slice.Tensor")
def _(d: Draw) -> Call:
    a, b = 2 + d.below(4), 2 + d.below(4)
    low, high = ((0, 1 << 62), (1, -1 if b > 2 else b), (-1, None), (None, 1), (1, 9))[d.below(5)]
    return (d.real(a, b), (1, -1)[d.below(2)], low, high), {}


@call("aten.select.int")
def _(d: Draw) -> Call:
    a, b = d.sizes(2)
    return (d.real(a, b), 0, d.below(2 * a) - a), {}


@call("aten.split_with_sizes.default")
def _(d: Draw) -> Call:
    a, b, c = d.sizes(3)
    return (d.real(b, a + c), [a, c], (1, -1)[d.below(2)]), {}


@call("aten.split.Tensor")
def _(d: Draw) -> Call:
    a, b, c = d.sizes(3)
    return (d.real(a + b, c), 1 + d.below(4)), {}


@call("aten.slice_scatter.default")
def _(d: Draw) -> Call:
    a, b = d.sizes(2)
    low = d.below(3)
    return (d.real(b, a + 2), d.real(b, a), 1, low, low + a), {}


@call("aten.max.dim")
def _(d: Draw) -> Call:
    return (d.real(*d.sizes(3)), d.below(6) - 3, bool(d.below(2))), {}


# -- ids ---------------------------------------------------------------------------------------


@call("aten.index.Tensor")
def _(d: Draw) -> Call:
    rows, width = d.sizes(2)
    return (d.real(rows, width), [d.ids(rows, *d.sizes(2))]), {}


@call("aten.lt.Scalar", "aten.le.Scalar", "aten.gt.Scalar", "aten.ge.Scalar")
def _(d: Draw) -> Call:
    return (d.ids(6, *d.sizes(2)), d.below(8) - 1), {}


@call("aten.add.Scalar", "aten.sub.Scalar", "aten.rsub.Scalar")
def _(d: Draw) -> Call:
    return (d.ids(6, *d.sizes(2)), d.below(8) - 4, 1 + d.below(3)), {}


@call("aten.mul.Scalar")
def _(d: Draw) -> Call:
    return (d.ids(6, *d.sizes(2)), d.below(8) - 4), {}


@call("aten.masked_fill.Scalar")
def _(d: Draw) -> Call:
    a, b, c = d.sizes(3)
    return (d.real(a, b, c), d.real(a, 1, c) > 0, d.number()), {}


@call("aten.index_put.default")
def _(d: Draw) -> Call:
    a, b, c = d.sizes(3)
    number = d.number()
    value = torch.tensor(number, dtype=torch.float64)
    return (d.real(a, b, c), [d.real(a, b) > 0], Both(Const(fraction(number), (), "float64"), value)), {}


@call(
    "aten.bitwise_and.Tensor",
    "aten.bitwise_or.Tensor",
    "aten.logical_and.default",
    "aten.logical_or.default",
)
def _(d: Draw) -> Call:
    shape = d.sizes(2)
    return (d.real(*shape) > 0, d.real(*shape) > 0), {}


@call("aten.logical_not.default", "aten.bitwise_not.default")
def _(d: Draw) -> Call:
    return (d.real(*d.sizes(2)) > 0,), {}


# -- others ------------------------------------------------------------------------------------


@call("aten.native_dropout.default")
def _(d: Draw) -> Call:
    shape = d.sizes(2)
    return ((d.real(*shape), 0.0, True), (d.real(*shape), 0.5, False))[d.below(2)], {}


def _apex_forward(x: Any, weight: Any, bias: Any, shape: Any, eps: float) -> Any:
    y, mean, scale = torch.native_layer_norm(x, shape, weight, bias, eps)
    return y, mean.flatten(), scale.flatten()


REFERENCES["apex.fused_layer_norm_affine_fwd.default"] = _apex_forward


def _apex_backward(
    gradient: Any, mean: Any, scale: Any, x: Any, shape: Any, weight: Any, bias: Any, eps: float
) -> Any:
    lead = [*x.shape[: len(x.shape) - len(shape)], *(1 for _ in shape)]
    return torch.ops.aten.native_layer_norm_backward(
        gradient, x, shape, mean.view(lead), scale.view(lead), weight, bias, [True, True, True]
    )


REFERENCES["apex.fused_layer_norm_affine_bwd.default"] = _apex_backward


@call("apex.fused_layer_norm_affine_bwd.default")
def _(d: Draw) -> Call:
    a, b = d.sizes(2)
    c = 2 + d.below(3)
    x, w = d.real(a, b, c), d.real(c)
    _, mean, scale = _apex_forward(x, w, w, [c], 0.1)
    return (d.real(a, b, c), mean, scale, x, [c], w, d.real(c), 0.1), {}


def _log(x: Any, name: str) -> Any:
    return x


REFERENCES["tg.log_tensor.default"] = _log


@call("tg.log_tensor.default")
def _(d: Draw) -> Call:
    return (d.real(*d.sizes(2)), "x"), {}


REFERENCES["tg.inplace_log_tensor.default"] = lambda s, _t_base_index, _all_bases: _all_bases[0]


@call("tg.inplace_log_tensor.default")
def _(d: Draw) -> Call:
    return (), {"s": "x", "_t_base_index": 0, "_all_bases": [d.real(*d.sizes(2))]}


# Entries of rows by all positions and ids: read, and written after something was taken off.


@call("aten.index.Tensor")
def _(d: Draw) -> Call:
    n, v = d.sizes(2)
    every = Both(Positions(0, (1,), (n,), "int64"), torch.arange(n))
    return (d.real(n, v), [every, d.ids(v, n)]), {}


@call("apex.fused_layer_norm_affine_fwd.default")
def _(d: Draw) -> Call:
    a, b = d.sizes(2)
    c = 2 + d.below(3)
    return (d.real(a, b, c), d.real(c), d.real(c), [c], 0.1), {}
