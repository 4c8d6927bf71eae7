"""Pooling of ATen, one dimension after the other: means of windows, and their maxima.

A window that ends outside, or in padding, reads a position inside twice instead: the largest entry
is the same, and so is where the gradient goes.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from typing import Any, TypeAlias

import numpy as np

from shardproof.engine.errors import ShapeMismatch
from shardproof.frontends.aten.lowering import Lowered, Lowering, Undefined
from shardproof.frontends.aten.rules import lowers
from shardproof.frontends.aten.windows import axes_of, each, matrix, through, zeros_around

#: For every result along a dimension the positions that it reads, and what their sum is divided by.
Windows: TypeAlias = list[tuple[tuple[int, ...], int]]


def _windows(
    sizes: Sequence[int],
    taps: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    ceil: bool,
    counts_padding: bool = True,
) -> list[Windows]:
    """The windows of every dimension."""
    dims = []
    for axis in axes_of(sizes, taps, stride or taps, padding, dilation, ceil):
        windows: Windows = []
        for step in range(axis.steps):
            first = step * axis.stride - axis.before
            reads = tuple(
                at
                for at in range(first, first + axis.taps * axis.dilation, axis.dilation)
                if 0 <= at < axis.size
            )
            end = min(first + axis.taps, axis.size + axis.before)
            windows.append((reads, end - first if counts_padding else len(reads)))
        dims.append(windows)
    return dims


def _adaptive(sizes: Sequence[int], results: Sequence[int]) -> list[Windows]:
    """Windows of as many positions as give so many results."""
    if any(n < 1 for n in results):
        raise ShapeMismatch(f"pooling of {list(sizes)} to {list(results)}")
    return [
        [
            (tuple(range(a * n // m, -(-(a + 1) * n // m))), -(-(a + 1) * n // m) - a * n // m)
            for a in range(m)
        ]
        for n, m in zip(sizes, results, strict=True)
    ]


def _block(windows: Windows) -> int:
    """The size of windows that stand one after the other over the first positions; 0: they do not
    stand so."""
    count = len(windows[0][0])
    beside = [tuple(range(i * count, (i + 1) * count)) for i in range(len(windows))]
    return count if beside == [reads for reads, _ in windows] else 0


# -- means -----------------------------------------------------------------------------------------


def _averaged(
    lo: Lowering, x: Lowered, dims: Sequence[Windows], sizes: Sequence[int], back: bool
) -> Any:
    """Sums over windows of the last dimensions, divided; ``back``: the transpose of that, from
    results to ``sizes`` positions."""
    for number, (windows, size) in enumerate(zip(dims, sizes, strict=True)):
        at = len(x.shape) - len(dims) + number
        counts = {count for _, count in windows}
        count = counts.pop() if len(counts) == 1 else 0
        block = _block(windows) if count else 0
        if block:
            x = _in_blocks(lo, x, at, len(windows), block, size if back else 0)
        else:
            weights = np.zeros((size, len(windows)), dtype=np.float64 if not count else np.float32)
            for step, (reads, own) in enumerate(windows):
                for place in reads:
                    weights[place, step] += 1 if count else 1 / own
            x = through(lo, x, at, matrix(lo, weights, back))
        x = lo.scale(x, Fraction(1, count or 1))
    return x


def _in_blocks(lo: Lowering, x: Lowered, dim: int, steps: int, block: int, size: int) -> Any:
    """Sums of blocks along a dimension, or (``size``: of so many positions) copies over blocks."""
    lead, rest = x.shape[:dim], x.shape[dim + 1 :]
    if not size:
        own = lo.slice(x, dim, 0, steps * block)
        return lo.sum(lo.reshape(own, (*lead, steps, block, *rest)), (dim + 1,))
    alone = lo.reshape(x, (*lead, steps, 1, *rest))
    copies = lo.reshape(
        lo.expand(alone, (*lead, steps, block, *rest)), (*lead, steps * block, *rest)
    )
    return zeros_around(lo, copies, dim, 0, size)


def _mean(rank: int) -> None:
    def windows(
        x: Lowered,
        taps: Sequence[int],
        stride: Sequence[int] = (),
        padding: Sequence[int] = (0,),
        ceil: bool = False,
        counts_padding: bool = True,
        divisor: int | None = None,
    ) -> tuple[tuple[int, ...], list[Windows], Fraction]:
        """The sizes, the windows over them, and by what their means are multiplied."""
        sizes = x.shape[-rank:]
        full = each(taps, rank)
        dims = _windows(sizes, full, stride, padding, (1,), ceil, counts_padding)
        if divisor is None:
            return sizes, dims, Fraction(1)
        return sizes, [[(r, 1) for r, _ in own] for own in dims], Fraction(1, divisor)

    @lowers(f"aten.avg_pool{rank}d.default")
    def average(lo: Lowering, x: Lowered, *given: Any) -> Any:
        sizes, dims, factor = windows(x, *given)
        return lo.scale(_averaged(lo, lo.real(x), dims, sizes, False), factor)

    if rank == 1:
        return

    @lowers(f"aten.avg_pool{rank}d_backward.default")
    def backward(lo: Lowering, gradient: Lowered, x: Lowered, *given: Any) -> Any:
        sizes, dims, factor = windows(x, *given)
        return lo.scale(_averaged(lo, lo.real(gradient), dims, sizes, True), factor)


def _adaptive_mean(rank: int) -> None:
    @lowers(*(f"aten.{'_' * n}adaptive_avg_pool{rank}d.default" for n in (0, 1) if n < rank))
    def rule(lo: Lowering, x: Lowered, size: Sequence[int]) -> Any:
        sizes = x.shape[-rank:]
        return _averaged(lo, lo.real(x), _adaptive(sizes, size), sizes, False)

    if rank == 1:
        return

    @lowers(f"aten._adaptive_avg_pool{rank}d_backward.default")
    def backward(lo: Lowering, gradient: Lowered, x: Lowered) -> Any:
        sizes = x.shape[-rank:]
        dims = _adaptive(sizes, gradient.shape[-rank:])
        return _averaged(lo, lo.real(gradient), dims, sizes, True)


# -- maxima ----------------------------------------------------------------------------------------


def _table(windows: Windows, size: int) -> np.ndarray[Any, Any]:
    """[positions, taps * results]: which position a result reads by a tap; the first one again,
    where a window has fewer."""
    most = max(len(reads) for reads, _ in windows)
    reads_at = np.zeros((size, most, len(windows)), dtype=np.float32)
    for step, (reads, _) in enumerate(windows):
        for tap in range(most):
            reads_at[reads[tap if tap < len(reads) else 0], tap, step] = 1
    return reads_at.reshape(size, most * len(windows))


def _rows(lo: Lowering, x: Lowered, windows: Windows) -> Any:
    """[..., taps, results] of the last dimension."""
    *lead, size = x.shape
    last = len(lead)
    block = _block(windows)
    if block:
        own = lo.slice(x, last, 0, len(windows) * block)
        return lo.transpose(lo.reshape(own, (*lead, len(windows), block)), last, last + 1)
    made = lo.emit("matmul", lo.real(x), matrix(lo, _table(windows, size)))
    return lo.reshape(made, (*lead, made.shape[-1] // len(windows), len(windows)))


def _largest(lo: Lowering, x: Lowered, dims: Sequence[Windows]) -> list[Any]:
    """What was there before each dimension, from the last one on, and the maxima of all."""
    stages: list[Any] = [lo.real(x)]
    rank = len(x.shape)
    for number, windows in enumerate(reversed(dims)):
        at = rank - 1 - number
        rows = _rows(lo, lo.transpose(stages[-1], at, rank - 1), windows)
        most = lo.emit("amax", lo.real(rows), dim=(rank - 1,), keepdim=False)
        stages.append(lo.transpose(most, at, rank - 1))
    return stages


def _to_largest(lo: Lowering, gradient: Lowered, x: Lowered, dims: Sequence[Windows]) -> Any:
    """Where the largest is of each window, found anew."""
    stages = _largest(lo, x, dims)
    rank = len(x.shape)
    for number, windows in reversed(list(enumerate(reversed(dims)))):
        at = rank - 1 - number
        before = lo.transpose(stages[number], at, rank - 1)
        rows = lo.real(_rows(lo, before, windows))
        turned = lo.real(lo.transpose(lo.real(gradient), at, rank - 1))
        spread: Any = lo.derivative("amax", [rows], turned, dim=(rank - 1,), keepdim=False)
        *lead, taps, steps = spread.shape
        if _block(windows):
            own = lo.reshape(lo.transpose(spread, rank - 1, rank), (*lead, steps * taps))
            own = zeros_around(lo, own, rank - 1, 0, before.shape[-1])
        else:
            flat = lo.real(lo.reshape(spread, (*lead, taps * steps)))
            own = lo.emit("matmul", flat, matrix(lo, _table(windows, before.shape[-1]), True))
        gradient = lo.transpose(own, at, rank - 1)
    return gradient


def _maximum(rank: int) -> None:
    def windows(
        x: Lowered,
        taps: Sequence[int],
        stride: Sequence[int] = (),
        padding: Sequence[int] = (0,),
        dilation: Sequence[int] = (1,),
        ceil: bool = False,
    ) -> list[Windows]:
        return _windows(x.shape[-rank:], each(taps, rank), stride, padding, dilation, ceil)

    @lowers(f"aten.max_pool{rank}d.default")
    def alone(lo: Lowering, x: Lowered, *given: Any) -> Any:
        return _largest(lo, x, windows(x, *given))[-1]

    @lowers(f"aten.max_pool{rank}d_with_indices.default")
    def rule(lo: Lowering, x: Lowered, *given: Any) -> Any:
        return _with_places(lo, x, windows(x, *given))

    if rank == 1:
        return

    @lowers(f"aten.max_pool{rank}d_with_indices_backward.default")
    def backward(lo: Lowering, gradient: Lowered, x: Lowered, *given: Any) -> Any:
        *attributes, _ = given
        return _to_largest(lo, gradient, x, windows(x, *attributes))


def _adaptive_maximum(rank: int) -> None:
    @lowers(f"aten.adaptive_max_pool{rank}d.default")
    def rule(lo: Lowering, x: Lowered, size: Sequence[int]) -> Any:
        return _with_places(lo, x, _adaptive(x.shape[-rank:], size))

    if rank == 1:
        return

    @lowers(f"aten.adaptive_max_pool{rank}d_backward.default")
    def backward(lo: Lowering, gradient: Lowered, x: Lowered, indices: Lowered) -> Any:
        return _to_largest(lo, gradient, x, _adaptive(x.shape[-rank:], gradient.shape[-rank:]))


def _with_places(lo: Lowering, x: Lowered, dims: Sequence[Windows]) -> Any:
    most = _largest(lo, x, dims)[-1]
    return most, Undefined(most.shape, "int64", "the places of maxima of a pooling")


for _rank in (1, 2, 3):
    for _declare in (_mean, _adaptive_mean, _maximum, _adaptive_maximum):
        _declare(_rank)
