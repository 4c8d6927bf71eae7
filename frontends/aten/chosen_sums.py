"""Sums over rows that a mask chooses, products with them, and losses of them (`chosen`)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction
from math import prod
from typing import Any

from shardproof.engine.errors import Unsupported
from shardproof.frontends.aten import cancelled
from shardproof.frontends.aten.chosen import applied, by_row, chosen_rows, of_rows
from shardproof.frontends.aten.ids import Ids
from shardproof.frontends.aten.ids import ids as ids_of
from shardproof.frontends.aten.losses import (
    MEAN,
    NONE,
    SUM,
    Picked,
    each_loss,
    exponentials_of,
    labels_of,
    weighted,
)
from shardproof.frontends.aten.lowering import Const, Lowered, Lowering, dimensions, reduced
from shardproof.frontends.aten.masks import numbers
from shardproof.frontends.aten.routed import Chosen
from shardproof.frontends.aten.rules import TABLE
from shardproof.frontends.builder import piecewise


def _total(lo: Lowering, x: Any, dim: Any, keepdim: bool) -> Any:
    """The sum over dimensions of which one is that of the rows."""
    dims = dimensions(x.shape, dim)
    if not isinstance(x, Chosen):
        raise Unsupported("a sum of positions")
    if x.at not in dims:
        shape = reduced(x.shape, dims, keepdim)
        return of_rows(lo, lo.sum(_numbers(lo, x).rows, dims, keepdim), shape)
    return lo.sum(_numbers(lo, x).counted(lo), dims, keepdim)


def _numbers(lo: Lowering, x: Chosen) -> Chosen:
    """Rows of truth values as 0 and 1, of which a sum counts."""
    flags = x.rows.dtype == "bool"
    return replace(x, rows=numbers(lo, lo.real(x.rows), "int64")) if flags else x


def _mean(lo: Lowering, x: Any, dim: Any, keepdim: bool) -> Any:
    """The sum divided by how many numbers it is of."""
    dims = dimensions(x.shape, dim)
    total = _total(lo, x, dim, keepdim)
    if x.at not in dims:
        return replace(total, rows=lo.scale(total.rows, _one_of(x, dims)))
    count = x.where.many(lo, x.dtype, prod(x.shape[d] for d in dims if d != x.at))
    return lo.div(total, lo.expand(count, total.shape))


def _one_of(x: Chosen, dims: Sequence[int]) -> Fraction:
    return Fraction(1, prod(x.shape[d] for d in dims))


@chosen_rows("aten.sum.default")
def _sum(lo: Lowering, x: Any, dtype: Any = None) -> Any:
    return _total(lo, x, None, False)


@chosen_rows("aten.sum.dim_IntList")
def _sum_along(lo: Lowering, x: Any, dim: Any, keepdim: bool = False, dtype: Any = None) -> Any:
    return _total(lo, x, dim, keepdim)


@chosen_rows("aten.mean.default")
def _mean_of_all(lo: Lowering, x: Any, dtype: Any = None) -> Any:
    return _mean(lo, x, None, False)


@chosen_rows("aten.mean.dim")
def _mean_along(lo: Lowering, x: Any, dim: Any, keepdim: bool = False, dtype: Any = None) -> Any:
    return _mean(lo, x, dim, keepdim)


@chosen_rows("comm.all_reduce")
def _over_ranks(lo: Lowering, x: Any, ranks: Sequence[int], op: str) -> Any:
    """What ranks add up, place by place: the rows of all of them are at the same positions where
    their masks are the same."""
    if not isinstance(x, Chosen) or not lo.alike:
        raise Unsupported("rows that ranks add up, and that other masks may choose on each of them")
    ((shape, dtype),) = lo.expected
    lo.expected = [(x.rows.shape, dtype)]
    return of_rows(lo, TABLE["comm.all_reduce"](lo, x.rows, ranks, op), shape)


# -- products ------------------------------------------------------------------------------------


@chosen_rows("aten.mm.default", "aten.bmm.default")
def _product(lo: Lowering, x: Any, y: Any) -> Any:
    """Rows times a matrix, a matrix times columns, or the sum over the rows of both."""
    ((shape, _),) = lo.expected
    rule = TABLE["aten.mm.default" if len(shape) == 2 else "aten.bmm.default"]
    last = len(shape) - 1
    if isinstance(x, Chosen) and isinstance(y, Chosen):
        if x.where is not y.where:
            raise Unsupported("a product of rows with rows that another mask chooses")
        if (x.at, y.at) == (last, last - 1):
            return rule(lo, x.counted(lo), y.rows)
        if x.at == y.at == 0 and last == 2:
            return of_rows(lo, rule(lo, x.rows, y.rows), shape)
    elif isinstance(x, Chosen) and x.at == last - 1 and hasattr(y, "shape"):
        return of_rows(lo, rule(lo, x.rows, y), shape)
    elif isinstance(y, Chosen) and y.at == last and hasattr(x, "shape"):
        return of_rows(lo, rule(lo, x, y.rows), shape)
    raise Unsupported("a product of rows of which data says how many there are")


@chosen_rows("aten.addmm.default")
def _affine(lo: Lowering, bias: Lowered, x: Any, y: Any, **factors: Any) -> Any:
    """Rows times a matrix, plus what every row gets."""
    if factors:
        raise Unsupported("a product of rows and a sum, times numbers")
    made = _product(lo, x, y)
    return applied(lo, "aten.add.Tensor", [made, bias], {})


# -- losses --------------------------------------------------------------------------------------


def _reduces(name: str, place: int) -> None:
    """A loss of every entry, added up over the rows that the mask chooses, or their mean."""

    @chosen_rows(f"aten.{name}.default")
    def _loss(lo: Lowering, *args: Any) -> Any:
        args = (*args, *[None] * (place - len(args)), *[MEAN] * (len(args) <= place))
        reduction = args[place]
        given = [*args[:place], NONE, *args[place + 1 :]]
        like = next(x for x in args if isinstance(x, Chosen))
        expected = lo.expected
        lo.expected = [(like.shape, expected[0][1])]
        each = by_row(lo, TABLE[f"aten.{name}.default"], given, {})
        lo.expected = expected
        if reduction == NONE:
            return each
        return (_mean if reduction == MEAN else _total)(lo, each, None, False)

    @chosen_rows(f"aten.{name}_backward.default")
    def _gradient(lo: Lowering, gradient: Any, *args: Any) -> Any:
        """Of a mean, the gradient of the sum by how many entries there are."""
        args = (*args, *[None] * (place - len(args)), *[MEAN] * (len(args) <= place))
        reduction, at = args[place], place
        if reduction == MEAN:
            like = next(x for x in (gradient, *args) if isinstance(x, Chosen))
            rest = prod(n for d, n in enumerate(like.shape) if d != like.at)
            gradient = cancelled.quotient(lo, gradient, like.where.many(lo, like.dtype, rest))
        given = [gradient, *args[:at], SUM if reduction == MEAN else reduction, *args[at + 1 :]]
        return by_row(lo, TABLE[f"aten.{name}_backward.default"], given, {})


for _name, _place in (("mse_loss", 2), ("smooth_l1_loss", 2), ("huber_loss", 2)):
    _reduces(_name, _place)
_reduces("binary_cross_entropy", 3)
_reduces("binary_cross_entropy_with_logits", 4)


def _labels(lo: Lowering, logs: Any, target: Any, weight: Any, ignored: int) -> tuple[Any, Any]:
    """Labels of all rows, and how much each counts: 0 where the mask does not choose it."""
    rows = isinstance(logs, Chosen) and isinstance(target, Chosen) and logs.where is target.where
    if not rows or (logs.at, target.at, len(logs.shape)) != (0, 0, 2):
        raise Unsupported("labels of rows that another mask chooses")
    if weight is not None and getattr(weight, "shape", ()) != (logs.shape[1],):
        raise Unsupported("weights that are no number for each class")
    ids, valid = labels_of(lo, target.rows, ignored, logs.shape[1])
    mask, own = lo.reshape(target.where.mask, target.rows.shape), ids_of(target.rows)
    if isinstance(mask, Ids) and own is not None and mask.at() == own.at():
        kept = piecewise.compare("NE", own.function, piecewise.constant(own.function, ignored))
        both = piecewise.combine("and", mask.function, kept)
        counts = replace(mask, function=both, dtype="bool").indicated(lo)
        live: Any = lo.reshape(counts, ids.shape)
    else:
        live = lo.mul(valid, target.where.counts(lo, replace(ids, dtype=logs.dtype), 0))
    return ids, weighted(lo, live, weight, ids, logs.rows.shape)


@chosen_rows("aten.nll_loss_forward.default")
def _nll(
    lo: Lowering, logs: Any, target: Any, weight: Any, reduction: int, ignored: int
) -> tuple[Any, Any]:
    """The loss of labels of rows that the mask chooses."""
    ids, counts = _labels(lo, logs, target, weight, ignored)
    each = each_loss(lo, lo.real(logs.rows), exponentials_of(lo, logs.rows), ids, counts)
    if reduction == NONE:
        return Chosen(each, target.where, only=True), Const(Fraction(0), (), logs.dtype)
    total, count = lo.sum(each, (0,)), lo.sum(counts, (0,))
    return (total if reduction == SUM else lo.div(total, count)), count


@chosen_rows("aten.nll_loss_backward.default")
def _nll_gradient(
    lo: Lowering,
    gradient: Any,
    logs: Any,
    target: Any,
    weight: Any,
    reduction: int,
    ignored: int,
    count: Lowered,
) -> Any:
    """Minus each row's share of the gradient at its label."""
    ids, counts = _labels(lo, logs, target, weight, ignored)
    each = cancelled.quotient(lo, gradient, count) if reduction == MEAN else gradient
    each = each.rows if isinstance(each, Chosen) else lo.expand(each, ids.shape)
    picked = Picked(lo.mul(each, counts), ids, logs.rows.shape, logs.dtype)
    return Chosen(picked, logs.where, only=True)
