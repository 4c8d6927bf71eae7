"""Upsampling and downsampling of ATen: one matrix of weights for every dimension.

Where every entry becomes a block of copies, that is a view; any other matrix is a table of weights,
computed as PyTorch computes them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import floor
from typing import Any, TypeAlias

import numpy as np

from shardproof.engine.errors import Unsupported
from shardproof.frontends.aten.lowering import Lowered, Lowering
from shardproof.frontends.aten.rules import lowers
from shardproof.frontends.aten.tables import Array
from shardproof.frontends.aten.windows import matrix, through

#: Positions, results, whether corners are aligned, the scale that was given; the matrix
#: [positions, results].
Weights: TypeAlias = Callable[[int, int, bool, "float | None"], Array]


def _ratio(size: int, results: int, aligned: bool, scale: float | None) -> float:
    """Positions for each result."""
    if aligned:
        return (size - 1) / (results - 1) if results > 1 else 0.0
    return 1 / scale if scale is not None and scale > 0 else size / results


def _copied(half: float) -> Weights:
    """Each result is the position below its place, which is ``half`` a step further."""

    def weights(size: int, results: int, aligned: bool, scale: float | None) -> Array:
        made = np.zeros((size, results), dtype=np.float32)
        ratio = np.float32(_ratio(size, results, aligned, scale))
        for step in range(results):
            at = int(np.floor(np.float32(step + half) * ratio))
            made[min(at, size - 1), step] = 1
        return made

    return weights


def _linear(size: int, results: int, aligned: bool, scale: float | None) -> Array:
    """Each result is between two neighbours."""
    made = np.zeros((size, results))
    ratio = _ratio(size, results, aligned, scale)
    for step in range(results):
        place = ratio * step if aligned else max(0.0, ratio * (step + 0.5) - 0.5)
        low = min(int(place), size - 1)
        part = min(max(place - low, 0.0), 1.0)
        made[low, step] += 1 - part
        made[min(low + 1, size - 1), step] += part
    return made


def _kernel_cubic(x: float, a: float) -> float:
    """Keys' cubic convolution kernel."""
    x = abs(x)
    if x < 1:
        return ((a + 2) * x - (a + 3)) * x * x + 1
    return (((x - 5) * x + 8) * x - 4) * a if x < 2 else 0.0


def _cubic(size: int, results: int, aligned: bool, scale: float | None) -> Array:
    """Each result is made of four neighbours, those outside being the ends."""
    made = np.zeros((size, results))
    ratio = _ratio(size, results, aligned, scale)
    for step in range(results):
        place = ratio * step if aligned else ratio * (step + 0.5) - 0.5
        low = floor(place)
        for tap in range(low - 1, low + 3):
            made[min(max(tap, 0), size - 1), step] += _kernel_cubic(place - tap, -0.75)
    return made


def _filtered(kernel: Callable[[float], float], reach: int) -> Weights:
    """Each result is a mean by a kernel that is as wide as the positions that it stands for."""

    def weights(size: int, results: int, aligned: bool, scale: float | None) -> Array:
        made = np.zeros((size, results))
        ratio = _ratio(size, results, aligned, scale)
        wide = max(ratio, 1.0)
        for step in range(results):
            centre = ratio * (step + 0.5)
            first = max(int(centre - reach * wide + 0.5), 0)
            last = min(int(centre + reach * wide + 0.5), size)
            for tap in range(first, last):
                made[tap, step] = kernel((tap - centre + 0.5) / wide)
            made[:, step] /= made[:, step].sum()
        return made

    return weights


def _resampled(
    lo: Lowering,
    x: Lowered,
    sizes: Sequence[int],
    results: Sequence[int],
    weights: Weights,
    aligned: bool,
    scales: Sequence[float | None],
    back: bool,
) -> Any:
    """The weights of every dimension applied; ``back``: transposed, from results to positions."""
    y: Any = lo.real(x)
    rank = len(sizes)
    for number, (size, result) in enumerate(zip(sizes, results, strict=True)):
        scale = scales[number] if scales else None
        made = weights(size, result, aligned, scale)
        at = len(y.shape) - rank + number
        if size == result and (made == np.eye(size)).all():
            continue
        block = result // size
        if result % size == 0 and (made == np.repeat(np.eye(size), block, axis=1)).all():
            y = _blocks(lo, y, at, size, block, back)
        else:
            y = through(lo, y, at, matrix(lo, made, back))
    return y


def _blocks(lo: Lowering, x: Lowered, dim: int, size: int, block: int, back: bool) -> Any:
    """Every position as a block of copies, or the sums of these blocks."""
    lead, rest = x.shape[:dim], x.shape[dim + 1 :]
    wide = (*lead, size, block, *rest)
    if back:
        return lo.sum(lo.reshape(x, wide), (dim + 1,))
    alone = lo.reshape(x, (*lead, size, 1, *rest))
    return lo.reshape(lo.expand(alone, wide), (*lead, size * block, *rest))


def _declare(name: str, rank: int, weights: Weights, corners: bool) -> None:
    """Forward and backward overloads; ``corners``: they say whether corners are aligned."""

    @lowers(f"aten.{name}.default")
    def rule(lo: Lowering, x: Lowered, size: Sequence[int], *given: Any) -> Any:
        aligned, scales = (given[0], given[1:]) if corners else (False, given)
        return _resampled(lo, x, x.shape[-rank:], size, weights, aligned, scales, False)

    @lowers(f"aten.{name}_backward.default")
    def backward(
        lo: Lowering, gradient: Lowered, size: Sequence[int], own: Sequence[int], *given: Any
    ) -> Any:
        aligned, scales = (given[0], given[1:]) if corners else (False, given)
        return _resampled(lo, gradient, own[-rank:], size, weights, aligned, scales, True)

    @lowers(f"aten.{name}.vec")
    def whole(lo: Lowering, x: Lowered, size: Sequence[int] | None, *given: Any) -> Any:
        """By a size, or by factors, which then say where positions lie, too."""
        *aligned, factors = given if len(given) > corners else (*given, None)
        if size is None and factors is None:
            raise Unsupported(f"{name} without a size")
        if size is None:
            size = [int(n * f) for n, f in zip(x.shape[-rank:], factors, strict=True)]
        return rule(lo, x, size, *aligned, *(factors or ()))


for _rank in (1, 2, 3):
    _declare(f"upsample_nearest{_rank}d", _rank, _copied(0), False)
    _declare(f"_upsample_nearest_exact{_rank}d", _rank, _copied(0.5), False)
    _declare(
        f"upsample_{('linear', 'bilinear', 'trilinear')[_rank - 1]}{_rank}d", _rank, _linear, True
    )
_declare("upsample_bicubic2d", 2, _cubic, True)
_declare("_upsample_bilinear2d_aa", 2, _filtered(lambda x: max(0.0, 1 - abs(x)), 1), True)
_declare("_upsample_bicubic2d_aa", 2, _filtered(lambda x: _kernel_cubic(x, -0.5), 2), True)
