"""Random calls of what lies between bounds, what runs along a dimension, and what a mask writes."""

from __future__ import annotations

import torch

from tests.frontends.aten.calls import Call, Draw, call


def bounds(d: Draw, *shape: int) -> torch.Tensor:
    """Sorted along the last dimension; some numbers of `halves` are bounds."""
    return halves(d, *shape).sort(-1)[0]


def halves(d: Draw, *shape: int) -> torch.Tensor:
    return d.ids(9, *shape).double() / 2 - 2


@call("aten.bucketize.Tensor")
def _(d: Draw) -> Call:
    return (halves(d, *d.any_shape()), bounds(d, *d.sizes(1))), {"right": bool(d.below(2))}


@call("aten.bucketize.Tensor")
def _(d: Draw) -> Call:
    """Whole numbers."""
    return (d.ids(5, *d.any_shape()), bounds(d, *d.sizes(1))), {"right": bool(d.below(2))}


@call("aten.bucketize.Scalar")
def _(d: Draw) -> Call:
    return (d.number(), bounds(d, *d.sizes(1))), {}


@call("aten.searchsorted.Tensor")
def _(d: Draw) -> Call:
    *lead, n, m = d.any_shape(2)
    side = [{"right": True}, {"side": "right"}, {"side": "left"}, {}][d.below(4)]
    return (bounds(d, *lead, n), halves(d, *lead, m)), side


@call("aten.searchsorted.Tensor")
def _(d: Draw) -> Call:
    """One row of bounds for all."""
    return (bounds(d, *d.sizes(1)), halves(d, *d.any_shape())), {}


@call("aten.searchsorted.Scalar")
def _(d: Draw) -> Call:
    return (bounds(d, *d.sizes(1)), d.number()), {"right": bool(d.below(2))}


@call("aten.histc.default")
def _(d: Draw) -> Call:
    """Numbers on the edges, and outside."""
    low = d.below(3) - 2
    return (halves(d, *d.any_shape(1)), 1 + d.below(5), low, low + 1 + d.below(2)), {}


@call("aten.cummax.default", "aten.cummin.default")
def _(d: Draw) -> Call:
    shape = d.any_shape(1)
    return (d.real(*shape), d.below(len(shape))), {}


@call("aten.renorm.default")
def _(d: Draw) -> Call:
    shape = d.any_shape(2)
    return (d.real(*shape), [1, 2, 3][d.below(3)], d.below(len(shape)), 1.25), {}


@call("aten.atan2.default")
def _(d: Draw) -> Call:
    return d.pair(), {}


@call("aten.atan2.default")
def _(d: Draw) -> Call:
    """On the axes, where the sign of zero is plus."""
    shape = d.any_shape()
    return (d.ids(3, *shape).double() - 1, d.ids(3, *shape).double() - 1), {}


@call("aten.masked_scatter.default")
def _(d: Draw) -> Call:
    """Any entries, of more numbers than are written."""
    shape = d.any_shape(1)
    mask = d.real(*shape) > 0
    return (d.real(*shape), mask, d.real(mask.numel() + d.below(3))), {}


@call("aten.masked_scatter.default")
def _(d: Draw) -> Call:
    """Whole rows."""
    *lead, width = d.any_shape(2)
    mask = (d.real(*lead, 1) > 0).expand(*lead, width)
    return (d.real(*lead, width), mask, d.real(mask.numel() // width, width)), {}


@call("aten.bincount.default")
def _(d: Draw) -> Call:
    return (d.ids(5, *d.any_shape(1)[:1]),), {"minlength": 5 + d.below(2)}
