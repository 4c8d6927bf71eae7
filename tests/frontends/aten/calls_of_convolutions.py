"""Random calls of convolutions and pooling."""

from __future__ import annotations

from typing import Any

import torch

from tests.frontends.aten.calls import Call, Draw, call


def _convolved(d: Draw) -> tuple[torch.Tensor, torch.Tensor, tuple[Any, ...], int]:
    rank, groups = 1 + d.below(2), 1 + d.below(2)
    inner, outer = groups * (1 + d.below(2)), groups * (1 + d.below(2))
    taps = [1 + d.below(3) for _ in range(rank)]
    sizes = [5 + d.below(2) for _ in range(rank)]
    each = [[1 + d.below(2) for _ in range(rank)] for _ in range(2)]
    padding = [d.below(2) for _ in range(rank)]
    given = (each[0], padding, each[1], False, [0] * rank, groups)
    weight = d.real(outer, inner // groups, *taps)
    return d.real(1 + d.below(2), inner, *sizes), weight, given, outer


@call("aten.convolution.default")
def _(d: Draw) -> Call:
    x, weight, given, outer = _convolved(d)
    return (x, weight, d.real(outer) if d.below(2) else None, *given), {}


@call("aten.convolution_backward.default")
def _(d: Draw) -> Call:
    x, weight, given, outer = _convolved(d)
    y = torch.ops.aten.convolution(x, weight, None, *given)
    return (d.real(*y.shape), x, weight, [outer], *given, [True, True, True]), {}


@call("aten.avg_pool2d.default")
def _(d: Draw) -> Call:
    padding = d.below(2)
    return (d.real(2, 2, 5, 4), [2, 2], [1 + d.below(2)] * 2, [padding] * 2), {}


@call("aten.avg_pool1d.default")
def _(d: Draw) -> Call:
    return (d.real(2, 2, 5), [2]), {}


@call("aten.avg_pool2d_backward.default")
def _(d: Draw) -> Call:
    given = [2, 2], [1 + d.below(2)] * 2, [d.below(2)] * 2, False, True, None
    x = d.real(2, 2, 5, 4)
    y = torch.ops.aten.avg_pool2d(x, *given)
    return (d.real(*y.shape), x, *given), {}


@call("aten.max_pool2d_with_indices.default")
def _(d: Draw) -> Call:
    return (d.real(2, 2, 5, 4), [2, 3], [1 + d.below(2)] * 2), {}


@call("aten.max_pool2d_with_indices_backward.default")
def _(d: Draw) -> Call:
    given = [2, 2], [1 + d.below(2)] * 2, [0, 0], [1, 1], False
    x = d.real(2, 2, 5, 4)
    y, places = torch.ops.aten.max_pool2d_with_indices(x, *given)
    return (d.real(*y.shape), x, *given, places), {}
