"""Random calls of overloads that choose by ids, and of statistics, norms and further losses."""

from __future__ import annotations

from fractions import Fraction
from math import prod
from typing import Any

import torch

from shardproof.frontends.aten import Const
from shardproof.frontends.aten.bits import Additive
from shardproof.frontends.aten.positions import Compared, Positions
from tests.frontends.aten.calls import Both, Call, Draw, call


def _ids(d: Draw, stop: int, *shape: int) -> torch.Tensor:
    """Ids of which the largest is there, so that the domain is all of them."""
    found = d.ids(stop, *shape)
    if found.numel():
        found.view(-1)[0], found.view(-1)[-1] = 0, stop - 1
    return found


@call("aten.gather.default")
def _(d: Draw) -> Call:
    shape = list(d.sizes(1 + d.below(3)))
    dim = d.below(len(shape))
    index = [1 + d.below(n) for n in shape]
    x = d.real(*shape)
    if d.below(2):  # positions that follow each other
        start = d.below(shape[dim])
        index[dim] = 1 + d.below(shape[dim] - start)
        rises = [int(i == dim and n > 1) for i, n in enumerate(index)]
        known = torch.arange(start, start + index[dim])
        wide = [n if i == dim else 1 for i, n in enumerate(index)]
        positions = Positions(start, tuple(rises), tuple(index), "int64")
        return (x, dim, Both(positions, known.view(wide).expand(index))), {}
    index[dim] = 1 + d.below(3)
    return (x, dim - len(shape) * d.below(2), d.ids(shape[dim], *index)), {}


def _brought(d: Draw) -> tuple[Any, ...]:
    """A tensor, a dimension, ids of its places there, and a value for each id."""
    shape = list(d.sizes(1 + d.below(3)))
    dim = d.below(len(shape))
    index = list(shape)
    index[dim] = 1 + d.below(3)
    return d.real(*shape), dim, d.ids(shape[dim], *index), d.real(*index)


@call("aten.scatter_add.default")
def _(d: Draw) -> Call:
    return _brought(d), {}


@call("aten.scatter_reduce.two")
def _(d: Draw) -> Call:
    return (*_brought(d), ("sum", "mean")[d.below(2)]), {"include_self": bool(d.below(2))}


@call("aten.scatter.src")
def _(d: Draw) -> Call:
    shape = list(d.sizes(2))
    dim = d.below(2)
    index = list(shape)
    index[dim] = 1
    return (d.real(*shape), dim, d.ids(shape[dim], *index), d.real(*index)), {}


@call("aten.scatter.value")
def _(d: Draw) -> Call:
    shape = list(d.sizes(2))
    dim = d.below(2)
    index = list(shape)
    index[dim] = 1 + d.below(3)
    return (d.real(*shape), dim, d.ids(shape[dim], *index), d.number()), {}


@call("aten.slice.Tensor")
def _(d: Draw) -> Call:
    a, b = 2 + d.below(7), d.below(4) + 1
    low, step = d.below(a), 2 + d.below(3)
    return (d.real(a, b), 0, low, min(a, low + 1 + d.below(a)), step), {}


@call("aten.index_select.default")
def _(d: Draw) -> Call:
    shape = d.sizes(1 + d.below(3))
    dim = d.below(len(shape))
    return (d.real(*shape), dim, d.ids(shape[dim], 1 + d.below(4))), {}


@call("aten.index_select.default")
def _(d: Draw) -> Call:
    n, m = d.sizes(2)
    start = d.below(n)
    count = 1 + d.below(n - start)
    positions = Positions(start, (1,), (count,), "int64")
    return (d.real(m, n), 1, Both(positions, torch.arange(start, start + count))), {}


@call("aten.index_select.default")
def _(d: Draw) -> Call:
    n, step = d.sizes(2)
    n, start = n + 2, d.below(2)
    rows = torch.arange(start, n, step)
    positions = Positions(start, (step,), tuple(rows.shape), "int64")
    return (d.real(n, 3), 0, Both(positions, rows)), {}


@call("aten.index_add.default")
def _(d: Draw) -> Call:
    shape = list(d.sizes(1 + d.below(3)))
    dim = d.below(len(shape))
    count = 1 + d.below(4)
    source = list(shape)
    source[dim] = count
    alpha = {"alpha": d.number()} if d.below(2) else {}
    return (d.real(*shape), dim, d.ids(shape[dim], count), d.real(*source)), alpha


@call("aten.topk.default")
def _(d: Draw) -> Call:
    shape = d.sizes(1 + d.below(3))
    dim = d.below(len(shape))
    return (d.real(*shape), 1 + d.below(shape[dim]), dim, bool(d.below(2))), {}


@call("aten.sort.default")
def _(d: Draw) -> Call:
    shape = d.sizes(1 + d.below(3))
    return (d.real(*shape), d.below(len(shape)), bool(d.below(2))), {}


@call("aten.sort.stable")
def _(d: Draw) -> Call:
    shape = d.sizes(1 + d.below(2))
    return (d.real(*shape),), {"stable": True, "descending": bool(d.below(2))}


@call("aten.max.dim", "aten.min.dim", "aten.argmax.default", "aten.argmin.default")
def _(d: Draw) -> Call:
    shape = d.sizes(1 + d.below(3))
    return (d.real(*shape), d.below(len(shape)), bool(d.below(2))), {}


@call("aten.argmax.default", "aten.argmin.default", "aten.max.default", "aten.min.default")
def _(d: Draw) -> Call:
    return (d.real(*d.sizes(2)),), {}


@call("aten.amin.default")
def _(d: Draw) -> Call:
    shape = d.sizes(2)
    return (d.real(*shape), [d.below(2)], bool(d.below(2))), {}


@call("aten.roll.default")
def _(d: Draw) -> Call:
    shape = d.sizes(2)
    by, dims = [d.below(7) - 3 for _ in range(2)], [[0, 1], [1, 0], [1, 1]][d.below(3)]
    return (d.real(*shape), by, dims) if d.below(2) else (d.real(*shape), by[:1]), {}


@call("aten.flip.default")
def _(d: Draw) -> Call:
    return (d.real(*d.sizes(2)), [[0], [1], [-1, 0], []][d.below(4)]), {}


@call("aten.repeat.default")
def _(d: Draw) -> Call:
    shape = d.sizes(1 + d.below(2))
    return (d.real(*shape), list(d.sizes(len(shape) + d.below(2)))), {}


@call("aten.cumsum.default")
def _(d: Draw) -> Call:
    shape = d.any_shape(1)
    return (d.real(*shape), d.below(len(shape))), {}


@call("aten.prod.dim_int")
def _(d: Draw) -> Call:
    shape = d.any_shape(1)
    return (d.real(*shape), d.below(len(shape)), bool(d.below(2))), {}


@call("aten.select_scatter.default")
def _(d: Draw) -> Call:
    n, m = d.sizes(2)
    return (d.real(n, m), d.real(n), 1, d.below(m)), {}


@call("aten.isnan.default", "aten.isinf.default", "aten.frac.default")
def _(d: Draw) -> Call:
    return (d.real(*d.any_shape()),), {}


@call("aten.outer.default")
def _(d: Draw) -> Call:
    n, m = d.sizes(2)
    return (d.real(n), d.real(m)), {}


@call("aten.where.self")
def _(d: Draw) -> Call:
    """A mask that is no value of the input, for both of what is chosen."""
    n = 2 + d.below(3)
    later = Positions(-1, (-1, 1), (n, n), "int64")
    mask = torch.ones(n, n, dtype=torch.bool).triu(1)
    return (Both(Compared(later), mask), d.real(n, n), d.real(n, n)), {}


@call("aten.where.ScalarOther")
def _(d: Draw) -> Call:
    """Minus infinity where the key comes after the query."""
    n = 1 + d.below(4)
    kept = Positions(0, (1, -1), (n, n), "int64")
    mask = torch.ones(n, n, dtype=torch.bool).tril()
    return (Both(Compared(kept), mask), d.real(2, n, n), float("-inf")), {}


@call("aten.where.ScalarSelf")
def _(d: Draw) -> Call:
    n = 1 + d.below(4)
    later = Positions(-1, (-1, 1), (n, n), "int64")
    mask = torch.ones(n, n, dtype=torch.bool).triu(1)
    return (Both(Compared(later), mask), float("-inf"), d.real(n, n)), {}


@call("aten.masked_fill.Scalar")
def _(d: Draw) -> Call:
    """Queries of which the first is not at position 0."""
    first, queries = d.below(3), 1 + d.below(3)
    keys = first + queries - (d.below(2) if first + queries > 1 else 0)
    mask = torch.arange(keys)[None, :] > torch.arange(first, first + queries)[:, None]
    compared = Compared(Positions(-1 - first, (-1, 1), (queries, keys), "int64"))
    return (d.real(2, queries, keys), Both(compared, mask), float("-inf")), {}


@call("aten.add.Tensor")
def _(d: Draw) -> Call:
    n = 1 + d.below(4)
    mask = torch.full((n, n), float("-inf"), dtype=torch.float64).triu(1)
    additive = Additive(Compared(Positions(-1, (-1, 1), (n, n), "int64")), "float64")
    return (d.real(2, n, n), Both(additive, mask)), {}


# -- statistics ----------------------------------------------------------------------------------


@call("aten.logsumexp.default")
def _(d: Draw) -> Call:
    shape = d.any_shape(1)
    return (d.real(*shape), [d.below(len(shape))], bool(d.below(2))), {}


@call(
    "aten.var.correction",
    "aten.std.correction",
    "aten.var_mean.correction",
    "aten.std_mean.correction",
)
def _(d: Draw) -> Call:
    n, m, k = 2 + d.below(3), *d.sizes(2)
    dims = [[0], [0, 2], None][d.below(3)]
    return (d.real(n, m, k), dims), {"correction": d.below(2), "keepdim": bool(d.below(2))}


def _normed(d: Draw) -> tuple[torch.Tensor, Any, Any, int]:
    channels = 1 + d.below(3)
    x = d.real(2 + d.below(3), channels, *d.sizes(d.below(3)))
    given = d.below(2)
    weight = d.real(channels) if given else None
    return x, weight, d.real(channels) if given else None, channels


@call("aten.native_batch_norm.default")
def _(d: Draw) -> Call:
    x, weight, bias, channels = _normed(d)
    if d.below(2):
        return (x, weight, bias, None, None, True, 0.1, 1e-5), {}
    return (x, weight, bias, d.real(channels), d.positive(channels), False, 0.1, 1e-5), {}


@call("aten._native_batch_norm_legit.no_stats")
def _(d: Draw) -> Call:
    x, weight, bias, _ = _normed(d)
    return (x, weight, bias, True, 0.1, 1e-5), {}


@call("aten._native_batch_norm_legit_functional.default")
def _(d: Draw) -> Call:
    x, weight, bias, channels = _normed(d)
    return (x, weight, bias, d.real(channels), d.positive(channels), True, 0.3, 1e-5), {}


@call("aten._native_batch_norm_legit_no_training.default")
def _(d: Draw) -> Call:
    x, weight, bias, channels = _normed(d)
    return (x, weight, bias, d.real(channels), d.positive(channels), 0.1, 1e-5), {}


@call("aten.native_batch_norm_backward.default")
def _(d: Draw) -> Call:
    x, weight, bias, channels = _normed(d)
    mean, spread = d.real(channels), d.positive(channels)
    if d.below(2):
        _, own, scale = torch.ops.aten.native_batch_norm(
            x, weight, bias, None, None, True, 0.1, 1e-5
        )
        given = (None, None, own, scale, True)
    else:
        given = (mean, spread, None, None, False)
    return (d.real(*x.shape), x, weight, *given, 1e-5, [True, weight is not None, True]), {}


def _grouped(d: Draw) -> tuple[torch.Tensor, Any, Any, tuple[int, ...]]:
    groups, size = d.sizes(2)
    x = d.real(1 + d.below(3), groups * size, *d.sizes(d.below(3)))
    weight = d.real(groups * size)
    n, channels, *rest = x.shape
    return x, weight, weight, (n, channels, prod(rest), groups)


@call("aten.native_group_norm.default")
def _(d: Draw) -> Call:
    x, weight, bias, counts = _grouped(d)
    return (x, weight, bias, *counts, 1e-5), {}


@call("aten.native_group_norm_backward.default")
def _(d: Draw) -> Call:
    x, weight, bias, counts = _grouped(d)
    _, mean, scale = torch.ops.aten.native_group_norm(x, weight, bias, *counts, 1e-5)
    return (d.real(*x.shape), x, mean, scale, weight, *counts, [True, True, True]), {}


# -- losses --------------------------------------------------------------------------------------


@call("aten.smooth_l1_loss.default", "aten.huber_loss.default")
def _(d: Draw) -> Call:
    shape = d.any_shape()
    return (d.real(*shape), d.real(*shape), d.below(3), 0.25 + d.below(3)), {}


@call("aten.smooth_l1_loss_backward.default", "aten.huber_loss_backward.default")
def _(d: Draw) -> Call:
    shape, reduction = d.any_shape(), d.below(3)
    gradient = d.real(*shape) if reduction == 0 else d.real()
    return (gradient, d.real(*shape), d.real(*shape), reduction, 0.25 + d.below(3)), {}


@call("aten.smooth_l1_loss.default")
def _(d: Draw) -> Call:
    shape = d.any_shape()
    return (d.real(*shape), d.real(*shape), d.below(3), 0.0), {}


@call("aten.soft_margin_loss.default")
def _(d: Draw) -> Call:
    shape = d.any_shape()
    return (d.real(*shape), d.real(*shape), d.below(3)), {}


def _weight(d: Draw, shape: tuple[int, ...]) -> torch.Tensor | None:
    return d.positive(*shape) if d.below(2) else None


@call("aten.binary_cross_entropy_with_logits.default")
def _(d: Draw) -> Call:
    shape = d.any_shape(1)
    given = _weight(d, shape), _weight(d, shape[-1:])
    return (d.real(*shape), d.real(*shape).sigmoid(), *given, d.below(3)), {}


@call("aten.binary_cross_entropy.default")
def _(d: Draw) -> Call:
    shape = d.any_shape()
    x = d.real(*shape).sigmoid()
    return (x, d.real(*shape).sigmoid(), _weight(d, shape), d.below(3)), {}


@call("aten.binary_cross_entropy_backward.default")
def _(d: Draw) -> Call:
    shape, reduction = d.any_shape(), d.below(3)
    x, y = d.real(*shape).sigmoid(), d.real(*shape).sigmoid()
    gradient = d.real(*shape) if reduction == 0 else d.real()
    return (gradient, x, y, _weight(d, shape), reduction), {}


@call("aten.xlogy.Tensor")
def _(d: Draw) -> Call:
    """0 wherever x is, whatever y is."""
    x, y = d.pair()
    x = x.relu()
    return (x, torch.where(x > 0, y.abs() + 0.5, y)), {}


@call("aten.xlogy.Scalar_Self")
def _(d: Draw) -> Call:
    return (d.number(), d.positive(*d.any_shape())), {}


@call("aten.xlogy.Scalar_Other")
def _(d: Draw) -> Call:
    return (d.real(*d.any_shape()), abs(d.number()) + 0.5), {}


@call("aten.softplus.default")
def _(d: Draw) -> Call:
    return (d.real(*d.any_shape()), 0.5 + d.below(3)), {}


@call("aten.softplus_backward.default")
def _(d: Draw) -> Call:
    shape = d.any_shape()
    return (d.real(*shape), d.real(*shape), 0.5 + d.below(3), 20), {}


@call("aten.elu.default")
def _(d: Draw) -> Call:
    return (d.real(*d.any_shape()), 0.5 + d.below(3), 1.5, 0.75), {}


@call("aten.elu_backward.default")
def _(d: Draw) -> Call:
    shape = d.any_shape()
    return (d.real(*shape), 0.5 + d.below(3), 1.5, 0.75, False, d.real(*shape)), {}


@call("aten.hardsigmoid.default", "aten.hardswish.default", "aten.mish.default")
def _(d: Draw) -> Call:
    return (4 * d.real(*d.any_shape()),), {}


@call("aten.lerp.Tensor")
def _(d: Draw) -> Call:
    shape = d.any_shape()
    return (d.real(*shape), d.real(*shape), d.real(*shape)), {}


@call("aten.clamp.Tensor")
def _(d: Draw) -> Call:
    x, least = d.pair()
    return (x, least) if d.below(2) else (x, least, least + 0.5), {}


@call("aten.clamp_min.Tensor", "aten.clamp_max.Tensor")
def _(d: Draw) -> Call:
    return d.pair(), {}


@call("aten.embedding_dense_backward.default")
def _(d: Draw) -> Call:
    """Rows of the padding get no gradient."""
    n, rows, width = d.sizes(3)
    return (d.real(n, width), _ids(d, rows, n), rows, d.below(rows), False), {}


@call("aten.to.device")
def _(d: Draw) -> Call:
    return (d.real(*d.any_shape()), torch.device("cpu"), torch.float64), {}


@call("aten.eq.Tensor", "aten.ne.Tensor")
def _(d: Draw) -> Call:
    """Ids against all positions, as `one_hot` has them."""
    n, size = d.sizes(2)
    size += 1
    positions = Positions(0, (1,), (size,), "int64")
    return (d.ids(size, n, 1), Both(positions, torch.arange(size))), {}


@call("aten.index.Tensor")
def _(d: Draw) -> Call:
    """Ids of several dimensions, of a dimension that is not the first."""
    shape = d.sizes(3)
    dim = 1 + d.below(2)
    return (d.real(*shape), [*[None] * dim, d.ids(shape[dim], *d.sizes(2 + d.below(2)))]), {}


@call("aten.index.Tensor")
def _(d: Draw) -> Call:
    """A known position of one dimension, counted from its front or its end."""
    shape = d.sizes(3)
    dim = d.below(3)
    place = d.below(2 * shape[dim]) - shape[dim]
    index = Both(Const(Fraction(place), (1,), "int64"), torch.tensor([place]))
    return (d.real(*shape), [None] * dim + [index]), {}
