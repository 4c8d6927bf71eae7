"""Operators on each row of tensors in an order, and sums over all rows, which no order changes.

Source: PyTorch's documentation of each operator.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from shardproof.frontends.aten.arranged import (
    Arranged,
    Numbers,
    Tally,
    again,
    called,
    reads,
    settled,
)
from shardproof.frontends.aten.grouped import counts, more_kinds
from shardproof.frontends.aten.lowering import Const, Lowering, Real, dimensions


@reads("aten.floor_divide.default", "aten.floor_divide.Scalar")
def _floor_divided(lo: Lowering, x: Any, y: Any) -> Any:
    """The token of each pair, in the order."""
    if not isinstance(x, Arranged) or not isinstance(x.base, Numbers):
        return None
    by = int(y.value) if isinstance(y, Const) and y.value.denominator == 1 else y
    if type(by) is not int or by < 1:
        return None
    return replace(x, base=replace(x.base, by=x.base.by * by))


@reads("aten.div.Tensor_mode", "aten.div.Scalar_mode")
def _divided(lo: Lowering, x: Any, y: Any, *, rounding_mode: str | None = None) -> Any:
    return _floor_divided(lo, x, y) if rounding_mode in ("floor", "trunc") else None


@reads("aten.mm.default")
def _product(lo: Lowering, x: Any, y: Any) -> Any:
    """Rows times a matrix; or the sum over the rows of both, which no order changes."""
    if isinstance(x, Arranged) and x.at == 0 and not isinstance(y, Arranged):
        return again(lo, called(lo, "aten.mm.default", x.base, settled(lo, y)), x, 0)
    if not isinstance(x, Arranged) or not isinstance(y, Arranged):
        return None
    if x.order is not y.order or (x.at, y.at) != (1, 0):
        return None
    return called(lo, "aten.mm.default", x.base, y.base)


@reads("aten.addmm.default")
def _affine(lo: Lowering, bias: Any, x: Any, y: Any, *, beta: float = 1, alpha: float = 1) -> Any:
    """Rows times a matrix, plus the same numbers for every row."""
    if not isinstance(x, Arranged) or x.at != 0 or isinstance(bias, Arranged) or alpha != 1:
        return None
    if isinstance(y, Arranged) or (len(bias.shape) == 2 and bias.shape[0] != 1):
        return None
    given = (settled(lo, bias), x.base, settled(lo, y))
    return again(lo, called(lo, "aten.addmm.default", *given, beta=beta), x, 0)


@reads("aten.bmm.default")
def _batches(lo: Lowering, x: Any, y: Any) -> Any:
    """A product of matrices for each row."""
    if not isinstance(x, Arranged) or x.at != 0 or not x.beside(y):
        return None
    return again(lo, called(lo, "aten.bmm.default", x.base, y.base), x, 0)


@reads("aten.slice_backward.default")
def _widened(lo: Lowering, x: Any, sizes: Sequence[int], dim: int, *bounds: int) -> Any:
    """Rows with zeros beside them."""
    if not isinstance(x, Arranged) or dimensions(x.shape, dim) == (x.at,):
        return None
    return again(
        lo, called(lo, "aten.slice_backward.default", x.base, sizes, dim, *bounds), x, x.at
    )


@reads("aten._fused_rms_norm.default", "aten.native_layer_norm.default")
def _normed(lo: Lowering, x: Any, shape: Sequence[int], weight: Any, *rest: Any) -> Any:
    """Norms of rows, and the numbers by which they are scaled."""
    if not isinstance(x, Arranged) or x.at >= len(x.shape) - len(shape):
        return None
    if any(isinstance(p, Arranged) for p in (weight, *rest)):
        return None
    norm = "aten._fused_rms_norm.default" if len(rest) == 1 else "aten.native_layer_norm.default"
    return tuple(replace(x, base=y) for y in called(lo, norm, x.base, shape, weight, *rest))


@reads("aten._fused_rms_norm_backward.default")
def _rms_backward(lo: Lowering, gradient: Any, *args: Any) -> Any:
    return _norm_backward(lo, "aten._fused_rms_norm_backward.default", gradient, args)


@reads("aten.native_layer_norm_backward.default")
def _layer_backward(lo: Lowering, gradient: Any, *args: Any) -> Any:
    return _norm_backward(lo, "aten.native_layer_norm_backward.default", gradient, args)


def _norm_backward(lo: Lowering, name: str, gradient: Any, args: Sequence[Any]) -> Any:
    """The gradient of rows, in their order, and those of parameters, which are sums over rows."""
    if not isinstance(gradient, Arranged) or gradient.at >= len(gradient.shape) - len(args[1]):
        return None
    if any(isinstance(x, Arranged) and not gradient.beside(x) for x in args):
        return None
    whole = (x for x in args if isinstance(x, (Real, Const)) and len(x.shape) > len(args[1]))
    if any(not isinstance(x, Const) for x in whole):
        return None
    bases = [x.base if isinstance(x, Arranged) else x for x in args]
    own, *others = called(lo, name, gradient.base, *bases)
    return (None if own is None else replace(gradient, base=own), *others)


@reads("aten._softmax.default")
def _softmax(lo: Lowering, x: Any, dim: int, half: bool = False) -> Any:
    if not isinstance(x, Arranged) or dimensions(x.shape, dim) == (x.at,):
        return None
    return again(lo, called(lo, "aten._softmax.default", x.base, dim, half), x, x.at)


@reads("aten._softmax_backward_data.default")
def _softmax_backward(lo: Lowering, gradient: Any, y: Any, dim: int, dtype: str = "") -> Any:
    if not isinstance(gradient, Arranged) or not gradient.beside(y):
        return None
    if dimensions(y.shape, dim) == (y.at,):
        return None
    name = "aten._softmax_backward_data.default"
    return again(lo, called(lo, name, gradient.base, y.base, dim, dtype), gradient, gradient.at)


def _reduction(name: str) -> None:
    """A sum, or what is like one, over the rows, which no order changes, or of each row."""

    @reads(name)
    def rule(lo: Lowering, x: Any, dim: Any = None, keepdim: bool = False, **_: Any) -> Any:
        if isinstance(x, Tally) and name == "aten.sum.dim_IntList":
            return counts(lo, x, dim, keepdim)
        if not isinstance(x, Arranged) or isinstance(x.base, Numbers):
            return None
        dims = dimensions(x.shape, dim)
        total = called(lo, name, x.base, list(dims), keepdim)
        if x.at in dims:
            return total
        before = 0 if keepdim else sum(d < x.at for d in dims)
        return again(lo, total, x, x.at - before)


for _name in ("sum.dim_IntList", "mean.dim", "amax.default", "amin.default"):
    _reduction(f"aten.{_name}")


@reads("move.concat", "aten.cat.default")
def _joined(lo: Lowering, xs: Sequence[Any], dim: int = 0) -> Any:
    """Rows of several tensors side by side, all in one order."""
    first = xs[0]
    if isinstance(first, Tally):
        return more_kinds(lo, first, xs[1:])
    if not isinstance(first, Arranged) or not all(first.beside(x) for x in xs):
        return None
    if any(isinstance(x.base, Numbers) for x in xs):
        return None
    (at,) = dimensions(first.shape, dim)
    if at == first.at:
        return None
    return again(lo, lo.concat([x.base for x in xs], at), first, first.at)
