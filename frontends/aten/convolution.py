"""Convolutions and pooling of ATen, as products with tables of 0 and 1.

Entry (s, k, a) of a table is 1 where position a of the result reads position s by tap k, so that

    y[n, o, a, b] = sum over c, s, t, k, l of x[n, c, s, t] T[s, k, a] T'[t, l, b] w[o, c, k, l]

Tables are named inputs of both sides, by their contents: a proof holds whatever they are.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from math import prod
from typing import Any, NamedTuple

import numpy as np

from shardproof.engine.errors import Unsupported
from shardproof.frontends.aten.constants import table
from shardproof.frontends.aten.lowering import Const, Lowered, Lowering, Real, Undefined
from shardproof.frontends.aten.rules import lowers


class Axis(NamedTuple):
    """One dimension that taps move along: ``size`` positions, ``taps`` of them ``dilation`` apart,
    ``steps`` results ``stride`` apart, ``before``: zeros in front.

    Example: ``Axis(8, 3, 4, 2, 1, 1)`` is a convolution of 3 taps over 8 positions with stride 2
    and padding 1, which has 4 results.
    """

    size: int
    taps: int
    steps: int
    stride: int
    before: int
    dilation: int

    @property
    def trivial(self) -> bool:
        """Whether every position is a result of its own."""
        return (self.taps, self.steps, self.stride, self.before) == (1, self.size, 1, 0)


def _axes(
    sizes: Sequence[int],
    taps: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
) -> tuple[Axis, ...]:
    axes = []
    for number, (size, count) in enumerate(zip(sizes, taps, strict=True)):
        step, before, apart = (
            given[number if len(given) > 1 else 0] for given in (stride, padding, dilation)
        )
        steps = (size + 2 * before - apart * (count - 1) - 1) // step + 1
        if steps < 1:
            raise Unsupported(f"{count} taps over {size} positions")
        axes.append(Axis(size, count, steps, step, before, apart))
    return tuple(axes)


def _table(lo: Lowering, axis: Axis) -> Real:
    """[positions, taps * results]."""
    reads = np.zeros((axis.size, axis.taps, axis.steps), dtype=np.float32)
    for tap in range(axis.taps):
        for step in range(axis.steps):
            at = step * axis.stride - axis.before + tap * axis.dilation
            if 0 <= at < axis.size:
                reads[at, tap, step] = 1
    flat = reads.reshape(axis.size, axis.taps * axis.steps)
    return lo.real(table(lo, flat, "float32"))


def _unfolded(lo: Lowering, x: Lowered, axes: Sequence[Axis]) -> Any:
    """x [n, c, *sizes] as [n, *results, c, *taps]."""
    windows: Any = lo.real(x)
    rank = len(axes)
    # Every turn takes the first dimension that is left and puts taps and results behind.
    for axis in axes:
        order = (0, 1, *range(3, len(windows.shape)), 2)
        if axis.trivial:
            windows = lo.permute(windows, order)
            windows = lo.reshape(windows, (*windows.shape[:-1], 1, axis.steps))
            continue
        made = lo.emit("matmul", lo.real(lo.permute(windows, order)), _table(lo, axis))
        windows = lo.reshape(made, (*made.shape[:-1], axis.taps, axis.steps))
    taps, steps = range(2, 2 + 2 * rank, 2), range(3, 3 + 2 * rank, 2)
    return lo.permute(windows, (0, *steps, 1, *taps))


def _folded(lo: Lowering, x: Lowered, axes: Sequence[Axis]) -> Any:
    """The transpose of `_unfolded`: [n, *results, c, *taps] as [n, c, *sizes]."""
    rank = len(axes)
    pairs = [d for i in range(rank) for d in (2 + rank + i, 1 + i)]
    sums: Any = lo.permute(x, (0, 1 + rank, *pairs))
    for axis in reversed(axes):
        *rest, taps, steps = sums.shape
        if axis.trivial:
            made = lo.reshape(sums, (*rest, axis.size))
        else:
            flat = lo.real(lo.reshape(sums, (*rest, taps * steps)))
            made = lo.emit("matmul", flat, lo.real(lo.transpose(_table(lo, axis), 0, 1)))
        last = len(made.shape) - 1
        sums = lo.permute(made, (0, 1, last, *range(2, last)))
    return sums


class _Sizes(NamedTuple):
    """``groups`` of channels, ``inner`` taps and channels of a group, ``outer`` results of it."""

    axes: tuple[Axis, ...]
    groups: int
    inner: int
    outer: int
    rows: int


def _sizes(
    x: Lowered,
    weight: Lowered,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    transposed: bool,
    groups: int,
) -> _Sizes:
    if transposed:
        raise Unsupported("a transposed convolution")
    axes = _axes(x.shape[2:], weight.shape[2:], stride, padding, dilation)
    rows = x.shape[0] * prod(axis.steps for axis in axes)
    return _Sizes(axes, groups, prod(weight.shape[1:]), weight.shape[0] // groups, rows)


def _by_group(lo: Lowering, x: Lowered, s: _Sizes) -> Real:
    """What the taps read: [rows, inner], or [groups, rows, inner]."""
    rows = _unfolded(lo, x, s.axes)
    if s.groups == 1:
        return lo.real(lo.reshape(rows, (s.rows, s.inner)))
    split = lo.reshape(rows, (s.rows, s.groups, s.inner))
    return lo.real(lo.permute(split, (1, 0, 2)))


def _weights(lo: Lowering, weight: Lowered, s: _Sizes) -> Real:
    """[outer, inner], or [groups, outer, inner]."""
    lead = () if s.groups == 1 else (s.groups,)
    return lo.real(lo.reshape(lo.real(weight), (*lead, s.outer, s.inner)))


def _last_two(lo: Lowering, x: Real) -> Real:
    rank = len(x.shape)
    return lo.real(lo.transpose(x, rank - 2, rank - 1))


@lowers("aten.convolution.default")
def _convolution(
    lo: Lowering,
    x: Lowered,
    weight: Lowered,
    bias: Lowered | None,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    transposed: bool,
    output_padding: Sequence[int],
    groups: int,
) -> Any:
    s = _sizes(x, weight, stride, padding, dilation, transposed, groups)
    y: Any = lo.emit("matmul", _by_group(lo, x, s), _last_two(lo, _weights(lo, weight, s)))
    if groups > 1:
        y = lo.permute(y, (1, 0, 2))
    rank = len(s.axes)
    y = lo.reshape(y, (x.shape[0], *(a.steps for a in s.axes), weight.shape[0]))
    y = lo.permute(y, (0, rank + 1, *range(1, rank + 1)))
    if bias is None:
        return y
    return lo.add(y, lo.reshape(bias, (1, weight.shape[0], *(1 for _ in s.axes))))


@lowers("aten.convolution_backward.default")
def _convolution_backward(
    lo: Lowering,
    gradient: Lowered,
    x: Lowered,
    weight: Lowered,
    bias_sizes: Sequence[int] | None,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    transposed: bool,
    output_padding: Sequence[int],
    groups: int,
    mask: Sequence[bool],
) -> Any:
    s = _sizes(x, weight, stride, padding, dilation, transposed, groups)
    rank = len(s.axes)
    rows: Any = lo.permute(lo.real(gradient), (0, *range(2, rank + 2), 1))
    rows = lo.reshape(rows, (s.rows, weight.shape[0]))
    if groups > 1:
        rows = lo.permute(lo.reshape(rows, (s.rows, groups, s.outer)), (1, 0, 2))
    rows = lo.real(rows)
    gradients: list[Any] = [None, None, None]
    if mask[0]:
        taps: Any = lo.emit("matmul", rows, _weights(lo, weight, s))
        if groups > 1:
            taps = lo.permute(taps, (1, 0, 2))
        split = (x.shape[0], *(a.steps for a in s.axes), x.shape[1], *(a.taps for a in s.axes))
        gradients[0] = _folded(lo, lo.reshape(taps, split), s.axes)
    if mask[1]:
        made = lo.emit("matmul", _last_two(lo, rows), _by_group(lo, x, s))
        gradients[1] = lo.reshape(made, weight.shape)
    if mask[2]:
        gradients[2] = lo.sum(gradient, (0, *range(2, rank + 2)))
    return tuple(gradients)


# -- pooling -------------------------------------------------------------------------------------


def _pooled(
    x: Lowered,
    taps: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    ceil: bool,
) -> tuple[Axis, ...]:
    if ceil or len(x.shape) != 2 + len(taps):
        raise Unsupported("pooling that rounds up, or without a batch")
    return _axes(x.shape[2:], taps, stride or taps, padding, dilation)


@lowers("aten.avg_pool2d.default", "aten.avg_pool1d.default")
def _average(
    lo: Lowering,
    x: Lowered,
    taps: Sequence[int],
    stride: Sequence[int] = (),
    padding: Sequence[int] = (0,),
    ceil: bool = False,
    counts_padding: bool = True,
    divisor: int | None = None,
) -> Any:
    axes = _pooled(x, taps, stride, padding, (1,), ceil)
    if not counts_padding and any(a.before for a in axes):
        raise Unsupported("an average that does not count its padding")
    rank = len(axes)
    total = lo.sum(_unfolded(lo, x, axes), tuple(range(2 + rank, 2 + 2 * rank)))
    turned = lo.permute(total, (0, rank + 1, *range(1, rank + 1)))
    return lo.scale(turned, Fraction(1, divisor or prod(taps)))


@lowers("aten.avg_pool2d_backward.default")
def _average_backward(
    lo: Lowering,
    gradient: Lowered,
    x: Lowered,
    taps: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    ceil: bool,
    counts_padding: bool,
    divisor: int | None,
) -> Any:
    axes = _pooled(x, taps, stride, padding, (1,), ceil)
    if not counts_padding and any(a.before for a in axes):
        raise Unsupported("an average that does not count its padding")
    each = lo.scale(lo.real(gradient), Fraction(1, divisor or prod(taps)))
    turned = lo.permute(each, (0, *range(2, 2 + len(axes)), 1))
    ones = tuple(1 for _ in axes)
    wide = (*turned.shape, *(a.taps for a in axes))
    return _folded(lo, lo.expand(lo.reshape(turned, (*turned.shape, *ones)), wide), axes)


def _windows(lo: Lowering, x: Lowered, axes: Sequence[Axis]) -> Real:
    """[n, *results, c, taps]; raises `Unsupported` where padding could be the largest."""
    if any(a.before for a in axes):
        raise Unsupported("a maximum over padding")
    rows = _unfolded(lo, x, axes)
    return lo.real(lo.reshape(rows, (*rows.shape[: 2 + len(axes)], prod(a.taps for a in axes))))


@lowers("aten.max_pool2d_with_indices.default")
def _maximum(
    lo: Lowering,
    x: Lowered,
    taps: Sequence[int],
    stride: Sequence[int] = (),
    padding: Sequence[int] = (0,),
    dilation: Sequence[int] = (1,),
    ceil: bool = False,
) -> Any:
    axes = _pooled(x, taps, stride, padding, dilation, ceil)
    rank = len(axes)
    most = lo.emit("amax", _windows(lo, x, axes), dim=(rank + 2,), keepdim=False)
    result = lo.permute(most, (0, rank + 1, *range(1, rank + 1)))
    return result, Undefined(result.shape, "int64", "the places of maxima of a pooling")


@lowers("aten.max_pool2d_with_indices_backward.default")
def _maximum_backward(
    lo: Lowering,
    gradient: Lowered,
    x: Lowered,
    taps: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    ceil: bool,
    indices: Lowered,
) -> Any:
    """Where the largest is of each window, found anew."""
    axes = _pooled(x, taps, stride, padding, dilation, ceil)
    rank = len(axes)
    windows = _windows(lo, x, axes)
    attrs = {"topk": 1, "dim": rank + 2, "largest": True}
    _, index = lo.emits("topk", [windows], attrs)
    place = lo.real(
        lo.reshape(lo.whole(index, (0, windows.shape[-1]), "int64"), windows.shape[:-1])
    )
    turned = lo.real(lo.permute(lo.real(gradient), (0, *range(2, rank + 2), 1)))
    zero = lo.real(Const(Fraction(0), windows.shape, windows.dtype))
    spread = lo.derivative("pick", [zero, place], turned)
    split = (*windows.shape[:-1], *(a.taps for a in axes))
    return _folded(lo, lo.reshape(spread, split), axes)
