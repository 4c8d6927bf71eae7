"""Convolutions of ATen, as products with what their taps read (`windows` says how).

A convolution reads windows of a *wide* tensor and gives a *narrow* one, entry by window; a
transposed one writes windows of a wide tensor from a narrow one, as the gradient of the other does.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any, NamedTuple

from shardproof.engine.errors import Unsupported
from shardproof.frontends.aten.lowering import Lowered, Lowering, Real, Shape
from shardproof.frontends.aten.rules import lowers
from shardproof.frontends.aten.taps import Axis
from shardproof.frontends.aten.windows import as_read, axes_of, each, folded, unfolded


class _Sizes(NamedTuple):
    """``groups`` of channels, ``inner`` taps and wide channels of a group, ``outer`` narrow ones;
    ``rows``: windows of the whole batch."""

    axes: tuple[Axis, ...]
    groups: int
    inner: int
    outer: int
    rows: int
    wide: Shape


def _sizes(
    x: Lowered,
    weight: Lowered,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    transposed: bool,
    output_padding: Sequence[int],
    groups: int,
) -> _Sizes:
    taps, rank = weight.shape[2:], len(weight.shape) - 2
    if len(x.shape) != rank + 2:
        raise Unsupported("a convolution without a batch")
    stride, padding, dilation = each(stride, rank), each(padding, rank), each(dilation, rank)
    if transposed:
        more = each(output_padding, rank)
        axes = tuple(
            Axis((n - 1) * s - 2 * p + d * (k - 1) + 1 + m, k, n, s, p, d)
            for n, k, s, p, d, m in zip(
                x.shape[2:], taps, stride, padding, dilation, more, strict=True
            )
        )
        wide = (x.shape[0], weight.shape[1] * groups, *(a.size for a in axes))
    else:
        axes, wide = axes_of(x.shape[2:], taps, stride, padding, dilation), x.shape
    rows = x.shape[0] * prod(a.steps for a in axes)
    return _Sizes(axes, groups, prod(weight.shape[1:]), weight.shape[0] // groups, rows, wide)


def _read_by_taps(lo: Lowering, wide: Lowered, s: _Sizes) -> Real:
    """What the taps read: [rows, inner], or [groups, rows, inner]."""
    rows = unfolded(lo, wide, s.axes)
    if s.groups == 1:
        return lo.real(lo.reshape(rows, (s.rows, s.inner)))
    split = lo.reshape(rows, (s.rows, s.groups, s.inner))
    return lo.real(lo.permute(split, (1, 0, 2)))


def _rows_of(lo: Lowering, narrow: Lowered, s: _Sizes) -> Real:
    """[rows, outer], or [groups, rows, outer]."""
    rank = len(s.axes)
    rows: Any = lo.permute(lo.real(narrow), (0, *range(2, rank + 2), 1))
    if s.groups == 1:
        return lo.real(lo.reshape(rows, (s.rows, s.outer)))
    return lo.real(lo.permute(lo.reshape(rows, (s.rows, s.groups, s.outer)), (1, 0, 2)))


def _weights(lo: Lowering, weight: Lowered, s: _Sizes) -> Real:
    """[outer, inner], or [groups, outer, inner]."""
    lead = () if s.groups == 1 else (s.groups,)
    read = as_read(lo, lo.real(weight), s.axes, 2)
    return lo.real(lo.reshape(read, (*lead, s.outer, s.inner)))


def _last_two(lo: Lowering, x: Real) -> Real:
    rank = len(x.shape)
    return lo.real(lo.transpose(x, rank - 2, rank - 1))


def _narrowed(lo: Lowering, wide: Lowered, weight: Lowered, s: _Sizes) -> Any:
    """The narrow tensor that the weights make of what the taps read."""
    made: Any = lo.emit(
        "matmul", _read_by_taps(lo, wide, s), _last_two(lo, _weights(lo, weight, s))
    )
    if s.groups > 1:
        made = lo.permute(made, (1, 0, 2))
    rank = len(s.axes)
    made = lo.reshape(made, (s.wide[0], *(a.steps for a in s.axes), weight.shape[0]))
    return lo.permute(made, (0, rank + 1, *range(1, rank + 1)))


def _widened(
    lo: Lowering, narrow: Lowered, weight: Lowered, s: _Sizes, like: Lowered | None = None
) -> Any:
    """The wide tensor that the taps write: the transpose of `_narrowed`; ``like``: as `folded`."""
    taps: Any = lo.emit("matmul", _rows_of(lo, narrow, s), _weights(lo, weight, s))
    if s.groups > 1:
        taps = lo.permute(taps, (1, 0, 2))
    split = (s.wide[0], *(a.steps for a in s.axes), s.wide[1], *(a.taps for a in s.axes))
    return folded(lo, lo.reshape(taps, split), s.axes, like)


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
    s = _sizes(x, weight, stride, padding, dilation, transposed, output_padding, groups)
    y = (_widened if transposed else _narrowed)(lo, x, weight, s)
    if bias is None:
        return y
    return lo.add(y, lo.reshape(bias, (1, y.shape[1], *(1 for _ in s.axes))))


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
    s = _sizes(x, weight, stride, padding, dilation, transposed, output_padding, groups)
    gradients: list[Any] = [None, None, None]
    if mask[0]:
        gradients[0] = (
            _narrowed(lo, gradient, weight, s)
            if transposed
            else _widened(lo, gradient, weight, s, x)
        )
    if mask[1]:
        wide, narrow = (gradient, x) if transposed else (x, gradient)
        rows = _last_two(lo, _rows_of(lo, narrow, s))
        read = lo.reshape(lo.emit("matmul", rows, _read_by_taps(lo, wide, s)), weight.shape)
        gradients[1] = as_read(lo, read, s.axes, 2)
    if mask[2]:
        gradients[2] = lo.sum(gradient, (0, *range(2, len(s.axes) + 2)))
    return tuple(gradients)


@lowers("aten.im2col.default")
def _im2col(
    lo: Lowering,
    x: Lowered,
    taps: Sequence[int],
    dilation: Sequence[int],
    padding: Sequence[int],
    stride: Sequence[int],
) -> Any:
    """[n, c, h, w] to [n, c taps, windows]."""
    one = (1,) * (4 - len(x.shape))
    whole = lo.reshape(x, (*one, *x.shape))
    axes = axes_of(whole.shape[2:], each(taps, 2), stride, padding, dilation)
    columns = lo.permute(as_read(lo, unfolded(lo, whole, axes), axes, 4), (0, 3, 4, 5, 1, 2))
    shape = (whole.shape[1] * prod(a.taps for a in axes), prod(a.steps for a in axes))
    return lo.reshape(columns, (*(() if one else x.shape[:1]), *shape))


@lowers("aten.col2im.default")
def _col2im(
    lo: Lowering,
    x: Lowered,
    size: Sequence[int],
    taps: Sequence[int],
    dilation: Sequence[int],
    padding: Sequence[int],
    stride: Sequence[int],
) -> Any:
    """The transpose of `_im2col`: windows that overlap are added."""
    *lead, channels, _ = x.shape
    axes = axes_of(size, each(taps, 2), stride, padding, dilation)
    counts, steps = tuple(a.taps for a in axes), tuple(a.steps for a in axes)
    split = lo.reshape(x, (prod(lead), channels // prod(counts), *counts, *steps))
    own = lo.permute(as_read(lo, split, axes, 2), (0, 4, 5, 1, 2, 3))
    wide = folded(lo, own, axes)
    return lo.reshape(wide, (*lead, *wide.shape[1:]))
