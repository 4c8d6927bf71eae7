"""Random calls with ids that are distances of two positions, as biases of attention have them."""

from __future__ import annotations

import torch

from shardproof.frontends.aten.positions import Positions
from tests.frontends.aten.calls import Both, Call, Draw, call


def _distances(d: Draw) -> tuple[int, Both]:
    """How many rows there are, and the distances of queries and keys, or every second row."""
    queries, keys = 2 + d.below(3), 2 + d.below(3)
    if not d.below(4):
        rows = Positions(0, (2,), (queries,), "int64")
        return 2 * queries, Both(rows, torch.arange(0, 2 * queries, 2))
    turned = 1 if d.below(2) else -1
    const = keys - 1 if turned == 1 else queries - 1
    at = Positions(const, (turned, -turned), (queries, keys), "int64")
    own = torch.arange(queries)[:, None] - torch.arange(keys)
    return queries + keys - 1 + d.below(2), Both(at, const + turned * own)


@call("aten.embedding.default")
def _(d: Draw) -> Call:
    rows, ids = _distances(d)
    return (d.real(rows, *d.sizes(1)), ids), {}


@call("aten.embedding_dense_backward.default")
def _(d: Draw) -> Call:
    rows, ids = _distances(d)
    return (d.real(*ids.tensor.shape, *d.sizes(1)), ids, rows, -1, False), {}


@call("aten.index.Tensor")
def _(d: Draw) -> Call:
    """Along the first dimension, and along the last one of two."""
    (width,), (rows, ids) = d.sizes(1), _distances(d)
    if d.below(2):
        return (d.real(width, rows), [None, ids]), {}
    return (d.real(rows, width), [ids]), {}


@call("aten.index_put.default")
def _(d: Draw) -> Call:
    """Added along the first dimension, and along the last one of two."""
    (width,), (rows, ids) = d.sizes(1), _distances(d)
    shape = ids.tensor.shape
    if d.below(2):
        return (d.real(width, rows), [None, ids], d.real(width, *shape), True), {}
    return (d.real(rows, width), [ids], d.real(*shape, width), True), {}
