"""Random calls of indices of two dimensions: both by ids, or each row and ids of its own."""

from __future__ import annotations

import torch

from shardproof.frontends.aten.positions import Positions
from tests.frontends.aten.calls import Both, Call, Draw, call


def _pairs(d: Draw, *rest: int) -> tuple[torch.Tensor, list[torch.Tensor]]:
    """Entries of n rows and m columns by ids of both, which may come again."""
    n, m, *shape = d.sizes(4)
    return d.real(n, m, *rest), [d.ids(n, *shape), d.ids(m, *shape)]


@call("aten.index.Tensor")
def _(d: Draw) -> Call:
    return _pairs(d), {}


@call("aten.index.Tensor")
def _(d: Draw) -> Call:
    """Rows of entries."""
    return _pairs(d, *d.sizes(1)), {}


@call("aten.index.Tensor")
def _(d: Draw) -> Call:
    """Ids along dimensions of their own."""
    x, (rows, columns) = _pairs(d)
    return (x, [rows[:, :1], columns[:1]]), {}


@call("aten.index_put.default")
def _(d: Draw) -> Call:
    x, indices = _pairs(d)
    return (x, indices, d.real(*indices[0].shape), True), {}


@call("aten.index_put.default")
def _(d: Draw) -> Call:
    """Rows of entries."""
    x, indices = _pairs(d, *d.sizes(1))
    return (x, indices, d.real(*indices[0].shape, x.shape[2]), True), {}


def _in_each_row(d: Draw, *rest: int) -> tuple[torch.Tensor, list[Both | torch.Tensor]]:
    """Of each of n rows k entries by ids of its own, which may come again."""
    n, m, k = d.sizes(3)
    every = Both(Positions(0, (1, 0), (n, 1), "int64"), torch.arange(n)[:, None])
    return d.real(n, m, *rest), [every, d.ids(m, n, k)]


@call("aten.index.Tensor")
def _(d: Draw) -> Call:
    return _in_each_row(d), {}


@call("aten.index.Tensor")
def _(d: Draw) -> Call:
    """Rows of entries."""
    return _in_each_row(d, *d.sizes(2)), {}


@call("aten.index_put.default")
def _(d: Draw) -> Call:
    x, indices = _in_each_row(d)
    return (x, indices, d.real(*indices[1].shape), True), {}


@call("aten.index_put.default")
def _(d: Draw) -> Call:
    """Rows of entries."""
    x, indices = _in_each_row(d, *d.sizes(2))
    return (x, indices, d.real(*indices[1].shape, *x.shape[2:]), True), {}
