"""Random calls of products, further functions, distances, bags, diagonals and written rows."""

from __future__ import annotations

from typing import Any

import torch

from tests.frontends.aten.calls import Both, Call, Draw, call
from tests.frontends.aten.calls_of_norms import REFERENCES


@call(
    "aten.atan.default",
    "aten.asinh.default",
    "aten.round.default",
    "aten.deg2rad.default",
    "aten.rad2deg.default",
    "aten.special_log_ndtr.default",
    "aten.nan_to_num.default",
    "aten.nansum.default",
    "aten.prod.default",
)
def _(d: Draw) -> Call:
    return (d.real(*d.any_shape()),), {}


@call("aten.round.default")
def _(d: Draw) -> Call:
    """Halves, of which the even neighbour is the one."""
    return (d.ids(9, *d.any_shape()).double() / 2 - 2,), {}


@call("aten.round.decimals")
def _(d: Draw) -> Call:
    return (d.real(*d.any_shape()),), {"decimals": d.below(4) - 1}


@call("aten.acosh.default")
def _(d: Draw) -> Call:
    return (d.positive(*d.any_shape()) + 1,), {}


@call("aten.atanh.default", "aten.asin.default", "aten.acos.default", "aten.logit.default")
def _(d: Draw) -> Call:
    return (d.positive(*d.any_shape()) / 2.5,), {}


@call("aten.logit.default")
def _(d: Draw) -> Call:
    return (d.positive(*d.any_shape()) - 0.5, 0.1), {}


@call("aten.logit_backward.default")
def _(d: Draw) -> Call:
    shape = d.any_shape()
    eps = [None, 0.4][d.below(2)]
    return (d.real(*shape), d.positive(*shape) / 2.5, eps), {}


@call("aten.special_entr.default")
def _(d: Draw) -> Call:
    return (d.positive(*d.any_shape()),), {}


@call("aten.special_xlog1py.default")
def _(d: Draw) -> Call:
    shape = d.any_shape()
    return (d.real(*shape), d.positive(*shape)), {}


@call("aten.threshold.default")
def _(d: Draw) -> Call:
    return (d.real(*d.any_shape()), 0.1, d.number()), {}


@call("aten.logaddexp.default", "aten.logaddexp2.default", "aten.fmax.default", "aten.fmin.default")
def _(d: Draw) -> Call:
    return d.pair(), {}


@call("aten.copysign.Tensor")
def _(d: Draw) -> Call:
    return d.pair(), {}


@call("aten.copysign.Scalar")
def _(d: Draw) -> Call:
    return (d.real(*d.any_shape()), d.number()), {}


@call("aten.div.Tensor_mode")
def _(d: Draw) -> Call:
    x, y = d.pair()
    return (x * 3, y + y.sign() / 2), {"rounding_mode": [None, "floor", "trunc"][d.below(3)]}


@call("aten.div.Scalar_mode")
def _(d: Draw) -> Call:
    mode = [None, "floor", "trunc"][d.below(3)]
    return (d.real(*d.any_shape()), d.number() or 1.5), {"rounding_mode": mode}


@call("aten.floor_divide.default")
def _(d: Draw) -> Call:
    x, y = d.pair()
    return (x * 3, y + y.sign() / 2), {}


@call("aten.floor_divide.Scalar")
def _(d: Draw) -> Call:
    return (d.real(*d.any_shape()), d.number() or 1.5), {}


@call("aten.pow.Tensor_Tensor")
def _(d: Draw) -> Call:
    from fractions import Fraction

    from shardproof.frontends.aten import Const
    from tests.frontends.aten.calls import Both

    power = Fraction([2, 3, -1, Fraction(1, 2)][d.below(4)])
    shape = d.any_shape()
    if d.below(2):
        base = Both(Const(abs(power), (), "float64"), torch.tensor(float(abs(power))).double())
        return (base, d.real(*shape)), {}
    given = Both(Const(power, (), "float64"), torch.tensor(float(power)).double())
    return (d.positive(*shape), given), {}


@call("aten.pow_.Scalar")
def _(d: Draw) -> Call:
    return (d.positive(*d.any_shape()), [2, 3, -1, 0.5][d.below(4)]), {}


REFERENCES["aten.pow_.Scalar"] = lambda x, power: x.pow(power)


@call("aten.cumprod.default", "aten.logcumsumexp.default")
def _(d: Draw) -> Call:
    shape = d.any_shape()
    return (d.real(*shape), d.below(len(shape)) - len(shape) if shape else 0), {}


@call("aten.nansum.default")
def _(d: Draw) -> Call:
    shape = d.any_shape(1)
    return (d.real(*shape), [d.below(len(shape))], bool(d.below(2))), {}


@call("aten.aminmax.default")
def _(d: Draw) -> Call:
    shape = d.any_shape(1)
    dim = [None, d.below(len(shape))][d.below(2)]
    return (d.real(*shape),), {"dim": dim, "keepdim": bool(d.below(2))}


@call("aten.count_nonzero.default")
def _(d: Draw) -> Call:
    return (d.real(*d.any_shape()).relu(),), {}


@call("aten.count_nonzero.dim_IntList")
def _(d: Draw) -> Call:
    shape = d.any_shape(1)
    return (d.real(*shape).relu(), [d.below(len(shape))]), {}


@call("aten.masked_fill.Tensor")
def _(d: Draw) -> Call:
    shape = d.any_shape()
    return (d.real(*shape), d.ids(2, *shape).bool(), d.real()), {}


@call("aten.linalg_vector_norm.default")
def _(d: Draw) -> Call:
    shape = d.any_shape(1)
    order = [0, 0.5, 3, 4, -float("inf")][d.below(5)]
    x = d.real(*shape)
    return (x.relu() if order == 0 else x, order, [d.below(len(shape))], bool(d.below(2))), {}


@call("aten.addmv.default")
def _(d: Draw) -> Call:
    n, m = d.sizes(2)
    return (d.real(n), d.real(n, m), d.real(m)), {"beta": d.number(), "alpha": d.number()}


@call("aten.addr.default")
def _(d: Draw) -> Call:
    n, m = d.sizes(2)
    return (d.real(n, m), d.real(n), d.real(m)), {"beta": d.number(), "alpha": d.number()}


@call("aten.addbmm.default")
def _(d: Draw) -> Call:
    b, n, k, m = d.sizes(4)
    scales = {"beta": d.number(), "alpha": d.number()}
    return (d.real(n, m), d.real(b, n, k), d.real(b, k, m)), scales


@call("aten._trilinear.default")
def _(d: Draw) -> Call:
    """As `torch.nn.Bilinear` calls it."""
    n, i, j, o = d.sizes(4)
    return (d.real(n, i), d.real(o, i, j), d.real(n, j), [1, 3], [0], [1, 2], [2, 3]), {}


@call("aten.einsum.default")
def _(d: Draw) -> Call:
    b, n, m, k = d.sizes(4)
    return [
        (("bij,bjk->bki", [d.real(b, n, m), d.real(b, m, k)]), {}),
        (("...ij,jk", [d.real(b, 2, n, m), d.real(m, k)]), {}),
        (("te,edf,td->tf", [d.real(b, n), d.real(n, m, k), d.real(b, m)]), {}),
        (("bi,bi->b", [d.real(b, n), d.real(1, n)]), {}),
        (("ij->", [d.real(n, m)]), {}),
    ][d.below(5)]


# -- distances -------------------------------------------------------------------------------------


@call("aten._cdist_forward.default")
def _(d: Draw) -> Call:
    b, n, m, k = d.sizes(4)
    return (d.real(b, n, k), d.real(b, m, k), [1.0, 2.0, 3.0, float("inf")][d.below(4)], None), {}


@call("aten._euclidean_dist.default")
def _(d: Draw) -> Call:
    n, m, k = d.sizes(3)
    return (d.real(n, k), d.real(m, k)), {}


@call("aten._cdist_backward.default")
def _(d: Draw) -> Call:
    b, n, m, k = d.sizes(4)
    x, y, p = d.real(b, n, k), d.real(b, m, k), float(d.below(2) + 1)
    if d.below(2):
        y[:, :1] = x[:, :1]
    return (d.real(b, n, m), x, y, p, torch.cdist(x, y, p)), {}


# -- bags ------------------------------------------------------------------------------------------


def _bags(d: Draw) -> tuple[torch.Tensor, torch.Tensor, Any]:
    from shardproof.frontends.aten.positions import Positions
    from tests.frontends.aten.calls import Both

    rows, width, count, size = d.sizes(4)
    offsets = Both(Positions(0, (size,), (count,), "int64"), torch.arange(count) * size)
    return d.real(rows, width), d.ids(rows, count * size + d.below(3)), offsets


@call("aten._embedding_bag.default", "aten._embedding_bag_forward_only.default")
def _(d: Draw) -> Call:
    weight, indices, offsets = _bags(d)
    return (weight, indices, offsets, False, d.below(2)), {}


@call("aten._embedding_bag.default", "aten._embedding_bag_forward_only.default")
def _(d: Draw) -> Call:
    weight, indices, offsets = _bags(d)
    return (weight, indices, offsets, False, 0, False, d.real(*indices.shape)), {}


def _of_bags(d: Draw, mode: int) -> list[Any]:
    weight, indices, offsets = _bags(d)
    made = torch.ops.aten._embedding_bag(weight, indices, offsets.tensor, False, mode)
    return [d.real(*made[0].shape), weight, indices, offsets, *made[1:]]


@call("aten._embedding_bag_backward.default")
def _(d: Draw) -> Call:
    mode = d.below(2)
    gradient, weight, *rest = _of_bags(d, mode)
    return (gradient, *rest, weight.shape[0], False, mode, False, None), {}


@call("aten._embedding_bag_backward.default")
def _(d: Draw) -> Call:
    gradient, weight, *rest = _of_bags(d, 0)
    each = d.real(*rest[0].shape)
    return (gradient, *rest, weight.shape[0], False, 0, False, each), {}


@call("aten._embedding_bag_per_sample_weights_backward.default")
def _(d: Draw) -> Call:
    gradient, weight, indices, offsets, bags, *_ = _of_bags(d, 0)
    return (gradient, weight, indices, offsets, bags, 0), {}


# -- diagonals, windows ----------------------------------------------------------------------------


def _matrices(d: Draw) -> tuple[list[int], int, int, int]:
    shape = list(d.any_shape(2))
    a = d.below(len(shape))
    b = (a + 1 + d.below(len(shape) - 1)) % len(shape)
    return shape, d.below(shape[a] + shape[b] - 1) - shape[a] + 1, a, b


@call("aten.diagonal_copy.default")
def _(d: Draw) -> Call:
    shape, *rest = _matrices(d)
    return (d.real(*shape), *rest), {}


@call("aten.diag_embed.default")
def _(d: Draw) -> Call:
    shape, offset, a, b = _matrices(d)
    return (d.real(*shape[1:]), offset, a, b), {}


def _windows(d: Draw) -> tuple[list[int], int, int, int]:
    shape = list(d.any_shape(1))
    dim = d.below(len(shape))
    return shape, dim, d.below(shape[dim]) + 1, d.below(3) + 1


@call("aten.unfold_copy.default")
def _(d: Draw) -> Call:
    shape, *rest = _windows(d)
    return (d.real(*shape), *rest), {}


# -- rows that are written -------------------------------------------------------------------------


def _rows(d: Draw) -> tuple[list[int], int, int]:
    shape = list(d.any_shape(1))
    dim = d.below(len(shape))
    return shape, dim, shape[dim]


def _of_both_ends(d: Draw, size: int, *shape: int) -> torch.Tensor:
    """Ids of ``size`` places, of which some count from the end."""
    return d.ids(2 * size, *shape) - size


@call("aten.index_fill.int_Scalar")
def _(d: Draw) -> Call:
    shape, dim, size = _rows(d)
    return (d.real(*shape), dim, _of_both_ends(d, size, *d.sizes(1)), d.number()), {}


@call("aten.index_fill.int_Scalar")
def _(d: Draw) -> Call:
    from shardproof.frontends.aten.positions import Positions

    shape, dim, size = _rows(d)
    last = Both(Positions(-1, (0,), (1,), "int64"), torch.tensor([-1]))
    return (d.real(*shape), dim, last if d.below(2) else d.ids(size, 1), d.number()), {}


@call("aten.index_fill.int_Tensor")
def _(d: Draw) -> Call:
    shape, dim, size = _rows(d)
    return (d.real(*shape), dim, _of_both_ends(d, size, *d.sizes(1)), d.real()), {}


@call("aten.index_copy.default")
def _(d: Draw) -> Call:
    from shardproof.frontends.aten.positions import Positions
    from tests.frontends.aten.calls import Both

    shape, dim, size = _rows(d)
    count = d.below(size) + 1
    source = [count if i == dim else n for i, n in enumerate(shape)]
    places = Both(Positions(size - 1, (-1,), (count,), "int64"), size - 1 - torch.arange(count))
    return (d.real(*shape), dim, places, d.real(*source)), {}


@call("aten.take.default")
def _(d: Draw) -> Call:
    x = d.real(*d.any_shape())
    return (x, _of_both_ends(d, x.numel(), *d.sizes(2))), {}


@call("aten.put.default")
def _(d: Draw) -> Call:
    x, shape = d.real(*d.any_shape()), d.sizes(2)
    return (x, _of_both_ends(d, x.numel(), *shape), d.real(*shape), True), {}


@call("aten.ne.Scalar", "aten.eq.Scalar", "aten.lt.Scalar", "aten.ge.Scalar")
def _(d: Draw) -> Call:
    """No number is infinite."""
    return (d.real(*d.any_shape()), float("inf") * (1 - 2 * d.below(2))), {}
