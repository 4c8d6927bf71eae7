"""Random calls of the overloads that graphs name, and recorded steps do not."""

from __future__ import annotations

from typing import Any

import torch

from shardproof.frontends.aten.lowering import Const, fraction
from shardproof.frontends.aten.positions import Positions
from tests.frontends.aten.calls import Both, Call, Draw, call
from tests.frontends.aten.calls_of_norms import REFERENCES


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
    return (
        d.real(a, b, c),
        ((a * b, c), (a, b * c), (-1, c), (a, -1), (a * b * c,), (a, c, b), (c, b, a))[d.below(7)],
    ), {}


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
    return (
        d.real(a, b, c),
        [d.real(a, b) > 0],
        Both(Const(fraction(number), (), "float64"), value),
    ), {}


@call(
    "aten.bitwise_and.Tensor",
    "aten.bitwise_or.Tensor",
    "aten.logical_and.default",
    "aten.logical_or.default",
)
def _(d: Draw) -> Call:
    shape = d.sizes(2)
    return (d.real(*shape) > 0, d.real(*shape) > 0), {}


@call("aten.add.Tensor", "aten.mul.Tensor")
def _(d: Draw) -> Call:
    """Of masks: "or" and "and"."""
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


# -- fused operators of an inference engine, and HLO's under a converter ------------------------


def _rms(x: Any, weight: Any, eps: float, dim: int = -1) -> Any:
    scale = (x.pow(2).mean(dim, keepdim=True) + eps).rsqrt()
    shape = [1] * x.dim()
    shape[dim] = -1
    return x * scale * weight.view(shape)


def _rotary(positions: Any, query: Any, key: Any, size: int, cache: Any, neox: bool) -> Any:
    cos, sin = cache[positions].chunk(2, -1)

    def turned(x: Any) -> Any:
        heads = x.view(len(positions), -1, size)
        a, b = heads.chunk(2, -1)
        c, s = cos[:, None], sin[:, None]
        return torch.cat((a * c - b * s, b * c + a * s), -1).view(x.shape)

    return turned(query), turned(key)


def _dot(x: Any, y: Any, summed: Any, others: Any, batch: Any, rows: Any) -> Any:
    """By moving dimensions and one product of matrices."""
    free = [d for d in range(x.dim()) if d not in (*batch, *summed)]
    last = [d for d in range(y.dim()) if d not in (*rows, *others)]
    lead = [x.shape[d] for d in batch]
    a = x.permute(*batch, *free, *summed).reshape(*lead, -1, _count(x, summed))
    b = y.permute(*rows, *others, *last).reshape(*lead, _count(x, summed), -1)
    return (a @ b).reshape(*lead, *(x.shape[d] for d in free), *(y.shape[d] for d in last))


def _count(x: Any, dims: Any) -> int:
    count = 1
    for d in dims:
        count *= x.shape[d]
    return count


def _spread(x: Any, dims: Any, shape: Any) -> Any:
    if not isinstance(x, torch.Tensor):
        return torch.full(shape, x, dtype=torch.float64)
    wide = [1] * len(shape)
    for i, d in enumerate(dims):
        wide[d] = x.shape[i]
    return x.view(wide).expand(shape)


REFERENCES.update(
    {
        "_C.rms_norm.default": lambda result, input, weight, epsilon: _rms(input, weight, epsilon),
        "_C.fused_add_rms_norm.default": lambda input, residual, weight, epsilon: (
            _rms(input + residual, weight, epsilon),
            input + residual,
        ),
        "_C.silu_and_mul.default": lambda out, input: (
            torch.nn.functional.silu(input.chunk(2, -1)[0]) * input.chunk(2, -1)[1]
        ),
        "_C.rotary_embedding.default": _rotary,
        "hlo.dot": _dot,
        "hlo.broadcast": _spread,
        "hlo.select": torch.where,
        "hlo.reduce_max": lambda x, dim: x.amax(dim),
        "hlo.logistic": torch.sigmoid,
        "hlo.AwsNeuronRmsNorm": lambda x, weight, eps: _rms(x, weight, eps, 0),
        "hlo.gather": lambda x, ids, *_: x[ids],
    }
)


@call("_C.rms_norm.default")
def _(d: Draw) -> Call:
    a, b = d.sizes(2)
    return (d.real(a, b), d.real(a, b), d.real(b), 0.1), {}


@call("_C.fused_add_rms_norm.default")
def _(d: Draw) -> Call:
    a, b = d.sizes(2)
    return (d.real(a, b), d.real(a, b), d.real(b), 0.1), {}


@call("_C.silu_and_mul.default")
def _(d: Draw) -> Call:
    a, b = d.sizes(2)
    return (d.real(a, b), d.real(a, 2 * b)), {}


@call("_C.rotary_embedding.default")
def _(d: Draw) -> Call:
    tokens, heads, half = d.sizes(3)
    q, k = d.real(tokens, heads * 2 * half), d.real(tokens, 2 * half)
    return (d.ids(5, tokens), q, k, 2 * half, d.real(5, 2 * half), True), {}


@call("hlo.dot")
def _(d: Draw) -> Call:
    a, b, c, e = d.sizes(4)
    return (
        ((d.real(a, b), d.real(c, b), [1], [1], [], []), {}),
        ((d.real(a, b, c), d.real(e, b, c), [2], [2], [1], [1]), {}),
        ((d.real(b, a, c), d.real(c, b, e), [2], [0], [0], [1]), {}),
    )[d.below(3)]  # fmt: skip


@call("hlo.broadcast")
def _(d: Draw) -> Call:
    a, b, c = d.sizes(3)
    if d.below(2):
        return (d.number(), [], [a, b]), {}
    return (d.real(a, c), [0, 2], [a, b, c]), {}


@call("hlo.select")
def _(d: Draw) -> Call:
    shape = d.sizes(2)
    return (d.real(*shape) > 0, d.real(*shape), d.real(*shape)), {}


@call("hlo.reduce_max")
def _(d: Draw) -> Call:
    return (d.real(*d.sizes(3)), d.below(3)), {}


@call("hlo.logistic", "aten.sin.default", "aten.cos.default")
def _(d: Draw) -> Call:
    return (d.real(*d.sizes(2)),), {}


@call("aten.sin.out", "aten.cos.out")
def _(d: Draw) -> Call:
    shape = d.sizes(2)
    return (d.real(*shape),), {"out": d.real(*shape)}


@call("hlo.AwsNeuronRmsNorm")
def _(d: Draw) -> Call:
    a, b, c = d.sizes(3)
    return (d.real(a, b, c), d.real(a), 0.1), {}


@call("hlo.gather")
def _(d: Draw) -> Call:
    a, b, c = d.sizes(3)
    return (d.real(a, b, c), d.ids(a, 1), [1, 2], [0], [0], 1, [1, b, c]), {}


# -- layers and losses that are left whole ---------------------------------------------------------


@call("aten.cross_entropy_loss.default", "aten.nll_loss_nd.default")
def _(d: Draw) -> Call:
    rows, classes = d.sizes(2)
    rest = d.sizes(d.below(3))
    labels = torch.tensor(d.rng.integers(0, classes, (rows, *rest)))
    labels.view(-1)[1:2] = -100
    x = d.real(rows, classes, *rest)
    if d.below(4) == 0:
        return (d.real(classes), torch.tensor(int(d.rng.integers(0, classes)))), {}
    return (x, labels, None, d.below(3)), {}


@call("aten.nll_loss.default")
def _(d: Draw) -> Call:
    rows, classes = d.sizes(2)
    labels = torch.tensor(d.rng.integers(0, classes, (rows,)))
    return (d.real(rows, classes), labels, None, d.below(3)), {}


@call("aten.conv1d.default")
def _(d: Draw) -> Call:
    groups, a, b = d.sizes(3)
    bias = d.real(groups * b) if d.below(2) else None
    weight = d.real(groups * b, a, 2)
    return (d.real(2, groups * a, 5), weight, bias, [1 + d.below(2)], [d.below(2)], [1], groups), {}


@call("aten.conv2d.default")
def _(d: Draw) -> Call:
    a, b, _ = d.sizes(3)
    shape = d.real(2, a, 4, 5), d.real(b, a, 2, 3)
    return (*shape, d.real(b) if d.below(2) else None, [1, 1 + d.below(2)], [d.below(2)]), {}


@call("aten.batch_norm.default")
def _(d: Draw) -> Call:
    (channels,) = d.sizes(1)
    x = d.real(3, channels, *d.sizes(d.below(3)))
    pair = d.real(channels), d.real(channels)
    running = d.real(channels), d.positive(channels)
    return (x, *pair, *running, bool(d.below(2)), 0.1, 1e-5, True), {}


@call("aten.group_norm.default")
def _(d: Draw) -> Call:
    groups, size, width = d.sizes(3)
    x = d.real(2, groups * size, width + 1)
    return (x, groups, d.real(groups * size), d.real(groups * size), 1e-3), {}


@call("aten.narrow.default")
def _(d: Draw) -> Call:
    a, b, c = d.sizes(3)
    return (d.real(a, b + 2, c), (1, -2)[d.below(2)], d.below(2), b), {}


@call("aten.unflatten.int")
def _(d: Draw) -> Call:
    a, b, c = d.sizes(3)
    return (d.real(c, a * b), (1, -1)[d.below(2)], ((a, b), (a, -1), (-1, b))[d.below(3)]), {}


@call("aten.movedim.int", "aten.swapaxes.default")
def _(d: Draw) -> Call:
    return (d.real(*d.sizes(3)), d.below(6) - 3, d.below(6) - 3), {}


@call("aten.mT.default")
def _(d: Draw) -> Call:
    return (d.real(*d.sizes(2 + d.below(2))),), {}


@call("aten.view_as.default", "aten.reshape_as.default")
def _(d: Draw) -> Call:
    a, b, c = d.sizes(3)
    return (d.real(a, b * c), d.real(a * b, c)), {}


@call("aten.expand_as.default")
def _(d: Draw) -> Call:
    a, b = d.sizes(2)
    return (d.real(1, b), d.real(a, b)), {}


@call("aten.type_as.default")
def _(d: Draw) -> Call:
    return (d.real(*d.sizes(2)), d.real(1)), {}


@call("aten.to.dtype_layout")
def _(d: Draw) -> Call:
    return (d.real(*d.sizes(2)),), {"dtype": torch.float64}
