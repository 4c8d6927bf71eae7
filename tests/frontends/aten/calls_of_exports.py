"""Random calls of what torch.export leaves: overloads of shapes, constants and views."""

from __future__ import annotations

import torch

from shardproof.frontends.aten.positions import Compared, Positions
from tests.frontends.aten.calls import Both, Call, Draw, call


@call("aten.floor.default", "aten.ceil.default", "aten.trunc.default")
def _(d: Draw) -> Call:
    return (d.real(*d.any_shape()),), {}


@call("aten.atan.out", "aten.round.out", "aten.floor.out", "aten.ceil.out", "aten.trunc.out")
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


@call("aten.rms_norm.default")
def _(d: Draw) -> Call:
    """Numbers of the size of the epsilon that it has by itself."""
    shape = d.any_shape(1)
    return (d.real(*shape) * 2.0**-26, [shape[-1]]), {}


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


@call("aten.scaled_dot_product_attention.default")
def _(d: Draw) -> Call:
    """Two heads of queries or three for each of keys and values."""
    b, h, s, n = d.sizes(4)
    q, k, v = d.real(b, h * (2 + d.below(2)), s, n), d.real(b, h, s, n), d.real(b, h, s, n)
    return (q, k, v), {"is_causal": bool(d.below(2)), "enable_gqa": True}


@call("aten.scaled_dot_product_attention.default")
def _(d: Draw) -> Call:
    """Without heads, with a mask that is added or none."""
    b, s, t, n = d.sizes(4)
    mask = [d.real(b, s, t)] if d.below(2) else []
    return (d.real(b, s, n), d.real(b, t, n), d.real(b, t, n), *mask), {}


@call("aten.scaled_dot_product_attention.default")
def _(d: Draw) -> Call:
    """With truth values that say which keys are seen."""
    b, h, s, t, n = d.sizes(5)
    seen = d.real(b, 1, s, t) > 0
    return (d.real(b, h, s, n), d.real(b, h, t, n), d.real(b, h, t, n), seen), {}


@call("aten.scaled_dot_product_attention.default")
def _(d: Draw) -> Call:
    """With truth values of positions: the second half of a causal mask."""
    b, h, s, n = d.sizes(4)
    place = Positions(s, (1, -1), (s, 2 * s), "int64")
    seen = Both(Compared(place), torch.ones(2 * s, 2 * s, dtype=torch.bool).tril()[s:])
    return (d.real(b, h, s, n), d.real(b, h, 2 * s, n), d.real(b, h, 2 * s, n), seen), {}


@call("aten.scaled_dot_product_attention.default")
def _(d: Draw) -> Call:
    """One head of keys for all of queries; leads of three dimensions, or none."""
    s, t, n = d.sizes(3)
    lead = [d.sizes(2), d.sizes(3), ()][d.below(3)]
    other = tuple(1 if d.below(2) else size for size in lead)
    mask = [d.real(*(lead if d.below(2) else ()), s, t)] if d.below(2) else []
    return (d.real(*lead, s, n), d.real(*other, t, n), d.real(*other, t, n), *mask), {}


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


@call("aten.cdist.default")
def _(d: Draw) -> Call:
    b, n, m, k = d.sizes(4)
    return (d.real(b, n, k), d.real(b, m, k), [1.0, 2.0][d.below(2)]), {}


@call("aten.dist.default")
def _(d: Draw) -> Call:
    return (*d.pair(), [1.0, 2.0][d.below(2)]), {}


@call("aten.cross.default", "aten.linalg_cross.default")
def _(d: Draw) -> Call:
    n = d.sizes(1)
    return (d.real(*n, 3, 2), d.real(*n, 3, 2)), {"dim": [1, -2][d.below(2)]}


@call("aten.heaviside.default")
def _(d: Draw) -> Call:
    shape = d.any_shape(1)
    return (torch.relu(d.real(*shape)) - torch.relu(d.real(*shape)), d.real(*shape)), {}


@call("aten.nanmean.default")
def _(d: Draw) -> Call:
    shape = d.any_shape(1)
    return (d.real(*shape), [d.below(len(shape))], bool(d.below(2))), {}


@call("aten.alpha_dropout.default")
def _(d: Draw) -> Call:
    return (d.real(*d.any_shape()), 0.5, False), {}


@call("aten.rrelu.default")
def _(d: Draw) -> Call:
    return (d.real(*d.any_shape()), 0.1, 0.4), {}
