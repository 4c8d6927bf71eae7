"""Random calls of the overloads that read ids, labels, positions and masks."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import torch
import torch.nn.modules.linear_cross_entropy  # which registers its operators

from shardproof.frontends.aten.bits import Additive
from shardproof.frontends.aten.lowering import Const
from shardproof.frontends.aten.positions import Compared, Positions
from tests.frontends.aten.calls import Both, Call, Draw, call


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


def _class_weights(d: Draw, logs: torch.Tensor) -> torch.Tensor:
    return d.positive(logs.shape[1])


@call("aten.nll_loss_forward.default")
def _(d: Draw) -> Call:
    logs, labels = _labels(d)
    return (logs, labels, _class_weights(d, logs), d.below(3), -100), {}


@call("aten.nll_loss_backward.default")
def _(d: Draw) -> Call:
    logs, labels = _labels(d)
    weight, reduction = _class_weights(d, logs), d.below(3)
    _, count = torch.ops.aten.nll_loss_forward(logs, labels, weight, reduction, -100)
    gradient = d.real(*(labels.shape if reduction == 0 else ()))
    return (gradient, logs, labels, weight, reduction, -100, count), {}


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


def _in_a_column(d: Draw) -> tuple[torch.Tensor, Both, Both]:
    """Every row, and one column of each."""
    n, columns = d.sizes(2)
    column = d.below(2 * columns) - columns
    chosen = Both(Const(Fraction(column), (n,), "int64"), torch.full((n,), column))
    every = Both(Positions(0, (1,), (n,), "int64"), torch.arange(n))
    return d.real(n, columns), every, chosen


@call("aten.index.Tensor")
def _(d: Draw) -> Call:
    x, every, chosen = _in_a_column(d)
    return (x, [every, chosen]), {}


@call("aten.index_put.default")
def _(d: Draw) -> Call:
    x, every, chosen = _in_a_column(d)
    zeros = Both(Const(Fraction(0), tuple(x.shape), "float64"), torch.zeros_like(x))
    return (zeros, [every, chosen], d.real(x.shape[0]), bool(d.below(2))), {}


@call("aten.max.dim", "aten.min.dim")
def _(d: Draw) -> Call:
    """Over one position."""
    return (d.real(*d.sizes(1), 1, *d.sizes(1)), 1, bool(d.below(2))), {}


@call("aten.index_put.default")
def _(d: Draw) -> Call:
    """One entry of each row, by the row's id."""
    n, columns = d.sizes(2)
    every = Both(Positions(0, (1,), (n,), "int64"), torch.arange(n))
    zeros = Both(Const(Fraction(0), (n, columns), "float64"), torch.zeros(n, columns).double())
    return (zeros, [every, d.ids(columns, n)], d.real(n), True), {}


def _around_the_end(d: Draw) -> tuple[torch.Tensor, list[Both]]:
    """Known positions in steps that begin before the first one, which is the last ones."""
    size, step = 3 + d.below(4), 1 if d.below(2) else -1
    count = 1 + d.below(3)
    first = -1 - d.below(size - count + 1) if step < 0 else -size + d.below(size - count + 1)
    index = Positions(first, (step,), (count,), "int64")
    places = torch.tensor([first + step * n for n in range(count)])
    return d.real(size, *d.sizes(1)), [Both(index, places)]


@call("aten.index.Tensor")
def _(d: Draw) -> Call:
    x, indices = _around_the_end(d)
    return (x, indices), {}


@call("aten.index_put.default")
def _(d: Draw) -> Call:
    x, indices = _around_the_end(d)
    values = d.real(indices[0].tensor.shape[0], x.shape[1])
    return (x, indices, values, True), {}


@call("aten.index_put.default")
def _(d: Draw) -> Call:
    """Numbers added at the entries that ids of two dimensions choose, some of them twice."""
    size = 2 + d.below(4)
    index = d.ids(size, *d.sizes(2))
    return (d.real(size), [index], d.real(*index.shape), True), {}


@call("aten.index.Tensor")
def _(d: Draw) -> Call:
    """The last position, then the first one."""
    size = 2 + d.below(3)
    index = Both(Positions(-1, (1,), (2,), "int64"), torch.tensor([-1, 0]))
    return (d.real(size, *d.sizes(1)), [index]), {}


@call("aten.floor_divide.default", "aten.remainder.Scalar", "aten.fmod.Scalar")
def _(d: Draw) -> Call:
    return (d.ids(50, *d.sizes(2)), 1 + d.below(9)), {}


@call("aten.remainder.Scalar")
def _(d: Draw) -> Call:
    """Of numbers that may be negative."""
    return (d.ids(50, *d.sizes(2)) - 25, 1 + d.below(9)), {}


@call("aten.div.Tensor_mode")
def _(d: Draw) -> Call:
    divisor = 1 + d.below(9)
    number = Both(Const(Fraction(divisor), (), "int64"), torch.tensor(divisor))
    mode = ("floor", "trunc")[d.below(2)]
    return (d.ids(50, *d.sizes(2)), number), {"rounding_mode": mode}


@call("aten.floor_divide.Scalar")
def _(d: Draw) -> Call:
    """Of positions."""
    n, step = 2 + d.below(4), 1 + d.below(3)
    positions = Both(Positions(-3, (step,), (n,), "int64"), torch.arange(n) * step - 3)
    return (positions, 1 + d.below(4)), {}


@call(
    "aten.__rshift__.Scalar",
    "aten.__lshift__.Scalar",
    "aten.bitwise_right_shift.Tensor_Scalar",
    "aten.bitwise_left_shift.Tensor_Scalar",
)
def _(d: Draw) -> Call:
    return (d.ids(50, *d.sizes(2)) - 9, d.below(4)), {}


@call("aten.bitwise_and.Scalar", "aten.__and__.Scalar")
def _(d: Draw) -> Call:
    """The lowest bits, and some that are not."""
    return (d.ids(16, *d.sizes(2)) - 7, ((2 << d.below(4)) - 1) << d.below(3)), {}


@call("aten.clamp.default")
def _(d: Draw) -> Call:
    least = d.below(5) - 2
    return (d.ids(9, *d.sizes(2)) - 3, least, least + d.below(5)), {}


@call("aten.clamp_min.default", "aten.clamp_max.default")
def _(d: Draw) -> Call:
    return (d.ids(9, *d.sizes(2)) - 3, d.below(5) - 2), {}


def _projected(d: Draw) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    rows, width, classes = d.sizes(3)
    labels = d.ids(classes, rows)
    labels[d.below(rows) :: 2] = -100
    labels[0] = 0
    return d.real(rows, width), d.real(classes, width), labels


@call("torch_nn._linear_cross_entropy_batch_chunked.default")
def _(d: Draw) -> Call:
    x, weight, labels = _projected(d)
    bias = d.real(weight.shape[0]) if d.below(2) else None
    needed = (bool(d.below(2)), bool(d.below(2)), bias is not None)
    of_classes = d.positive(weight.shape[0]) if d.below(2) else None
    reduction = ("mean", "sum")[d.below(2)]
    loss = (reduction, -100, 0.0, 2, "compact", torch.float64, True)
    return (x, weight, labels, bias, of_classes, *loss, *needed), {}


@call("torch_nn._linear_cross_entropy_batch_chunked_no_reduction.default")
def _(d: Draw) -> Call:
    x, weight, labels = _projected(d)
    return (x, weight, labels, None, None, -100, 2, "compact", torch.float64), {}


@call("aten.masked_fill.Scalar")
def _(d: Draw) -> Call:
    """A number over ids, by a mask that is none of them."""
    shape = d.any_shape(1)
    mask = torch.tensor(d.rng.integers(0, 2, size=shape).astype(bool))
    return (d.ids(6, *shape), mask, d.below(6)), {}


@call("aten.where.self")
def _(d: Draw) -> Call:
    """Ids where others are 0, a number elsewhere."""
    shape = d.any_shape(1)
    mask = torch.tensor(d.rng.integers(0, 2, size=shape).astype(bool))
    number = Both(Const(Fraction(3), (), "int64"), torch.tensor(3))
    return (mask, d.ids(6, *shape), number), {}


@call("aten.fill.Tensor")
def _(d: Draw) -> Call:
    number = Fraction(d.below(5))
    tensor = torch.tensor(float(number), dtype=torch.float64)
    return (d.real(*d.any_shape()), Both(Const(number, (), "float64"), tensor)), {}


def _a_place_of_each_row(d: Draw) -> tuple[torch.Tensor, list[Any]]:
    """x [n, s, w], and ``[arange(n), ids]``."""
    rows, places, width = d.sizes(3)
    every = Both(Positions(0, (1,), (rows,), "int64"), torch.arange(rows))
    return d.real(rows, places, width), [every, d.ids(places, rows)]


@call("aten.index.Tensor")
def _(d: Draw) -> Call:
    """A position of each row, of three dimensions."""
    return _a_place_of_each_row(d), {}


@call("aten.index_put.default")
def _(d: Draw) -> Call:
    """Values added to a position of each row, and written there."""
    x, indices = _a_place_of_each_row(d)
    return (x, indices, d.real(x.shape[0], x.shape[2]), bool(d.below(2))), {}


@call("aten.add.Tensor", "aten.mul.Tensor", "aten.sub.Tensor")
def _(d: Draw) -> Call:
    """Of ids of different tensors."""
    shape = d.any_shape(1)
    return (d.ids(6, *shape), d.ids(5, *shape)), {}


@call("aten.sum.dim_IntList", "aten.cumsum.default")
def _(d: Draw) -> Call:
    """Of ids."""
    shape = d.sizes(2)
    return (d.ids(6, *shape), 1), {}


@call("aten.index.Tensor")
def _(d: Draw) -> Call:
    """Boxes by positions that go along dimensions of their own, in either order: masks of padding
    that are made entry by entry; one index may stand still, and count from the end."""
    rows, places, width = d.sizes(3)
    first, size = d.below(places), 1 + d.below(places)
    size, turned, still = min(size, places - first), bool(d.below(2)), bool(d.below(2))
    lead = Positions(first - (places if d.below(2) else 0), (0, 1), (1, size), "int64")
    of_places = lead.permute((1, 0)) if turned else lead
    shape = (1, rows) if turned else (rows, 1)
    every = Positions(0, (0, 1) if turned else (1, 0), shape, "int64")
    row = d.below(rows)
    own: Positions | Const = Const(Fraction(row), (1, 1), "int64") if still else every
    chosen = torch.full((1, 1), row) if still else torch.arange(rows).reshape(shape)
    along = lead.const + torch.arange(size).reshape(of_places.shape)
    indices = [Both(own, chosen), Both(of_places, along)]
    return (d.real(rows, places, *([width] if d.below(2) else [])), indices), {}


@call("aten.eq.Tensor", "aten.ne.Tensor")
def _(d: Draw) -> Call:
    """Numbers that are whole against positions, in either order."""
    shape = d.sizes(2)
    of_input, at = d.real(*shape).mul(2).round(), positions(d, shape)
    return ((of_input, at) if d.below(2) else (at, of_input)), {}
