"""Random calls of convolutions."""

from __future__ import annotations

from typing import Any

import torch

from tests.frontends.aten.calls import Call, Draw, call


def _convolved(d: Draw) -> tuple[torch.Tensor, torch.Tensor, tuple[Any, ...], int]:
    """Of one to three dimensions, transposed or not; the number of channels that come out."""
    rank, groups, transposed = 1 + d.below(3), 1 + d.below(2), bool(d.below(2))
    inner, outer = groups * (1 + d.below(2)), groups * (1 + d.below(2))
    taps = [1 + d.below(3 if rank < 3 else 2) for _ in range(rank)]
    sizes = [(2 if transposed else 5 - (rank == 3)) + d.below(2) for _ in range(rank)]
    dilation = [1 + d.below(2) for _ in range(rank)]
    stride = list(taps) if d.below(3) == 0 else [1 + d.below(2) for _ in range(rank)]
    padding = [d.below(2) for _ in range(rank)] if d.below(2) and not transposed else [0] * rank
    if transposed and d.below(2):
        padding = [min(1, a * (k - 1) // 2) for a, k in zip(dilation, taps, strict=True)]
    more = [d.below(max(s, a)) if transposed else 0 for s, a in zip(stride, dilation, strict=True)]
    given = (stride, padding, dilation, transposed, more, groups)
    channels = (inner, outer // groups) if transposed else (outer, inner // groups)
    return d.real(1 + d.below(2), inner, *sizes), d.real(*channels, *taps), given, outer


@call("aten.convolution.default")
def _(d: Draw) -> Call:
    x, weight, given, outer = _convolved(d)
    return (x, weight, d.real(outer) if d.below(2) else None, *given), {}


@call("aten.convolution_backward.default")
def _(d: Draw) -> Call:
    x, weight, given, outer = _convolved(d)
    y = torch.ops.aten.convolution(x, weight, None, *given)
    return (d.real(*y.shape), x, weight, [outer], *given, [True, True, True]), {}


@call("aten.im2col.default")
def _(d: Draw) -> Call:
    x = d.real(*([2] if d.below(3) else []), 2, 5, 4)
    return (x, *_block(d)), {}


@call("aten.col2im.default")
def _(d: Draw) -> Call:
    given = _block(d)
    size = [5, 4]
    columns = torch.ops.aten.im2col(d.real(2, 2, *size), *given)
    x = d.real(*columns.shape)
    return (x if d.below(3) else x[0].clone(), size, *given), {}


def _block(d: Draw) -> list[list[int]]:
    """Taps, dilation, padding, stride."""
    taps, dilation = [1 + d.below(3) for _ in range(2)], [1 + d.below(2), 1]
    stride = list(taps) if d.below(2) else [1 + d.below(3) for _ in range(2)]
    return [taps, dilation, [d.below(2), d.below(2)], stride]
