"""Windows that move over dimensions, as views where they do not overlap, else by tables of 0 and 1,
or by slices where ranks divide the positions (`taps`).

Entry (s, k, a) of a table is 1 where position a of the result reads position s by tap k, so that

    y[n, o, a, b] = sum over c, s, t, k, l of x[n, c, s, t] T[s, k, a] T'[t, l, b] w[o, c, k, l]

is a convolution. Tables are named inputs of both sides, by their contents: a proof holds whatever
they are.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from typing import Any

import numpy as np

from shardproof.engine.errors import Unsupported
from shardproof.frontends.aten.lowering import Const, Lowered, Lowering, Real
from shardproof.frontends.aten.tables import Array, table
from shardproof.frontends.aten.taps import Axis, is_sliced, joints, read, turned, written


def each(given: Sequence[int], rank: int) -> tuple[int, ...]:
    """One number for every dimension, where ATen gives one for all.

    Example: ``each([2], 3)`` is ``(2, 2, 2)``.
    """
    return tuple(given) * rank if len(given) == 1 else tuple(given)


def axes_of(
    sizes: Sequence[int],
    taps: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    ceil: bool = False,
) -> tuple[Axis, ...]:
    """The axes of windows over ``sizes``; ``ceil``: a last one that begins inside may end outside.

    Example: 2 taps over 5 positions with stride 2 have 2 results, with ``ceil`` 3.
    """
    rank = len(sizes)
    axes = []
    for size, count, step, before, apart in zip(
        sizes,
        each(taps, rank),
        each(stride, rank),
        each(padding, rank),
        each(dilation, rank),
        strict=True,
    ):
        rest = size + 2 * before - apart * (count - 1) - 1
        steps = (rest + (step - 1 if ceil else 0)) // step + 1
        if ceil and (steps - 1) * step >= size + before:
            steps -= 1
        if steps < 1:
            raise Unsupported(f"{count} taps over {size} positions")
        axes.append(Axis(size, count, steps, step, before, apart))
    return tuple(axes)


def through(lo: Lowering, x: Lowered, dim: int, weights: Real) -> Any:
    """The matrix ``weights`` [positions, results] applied along a dimension.

    Example: with the 4 by 2 table [[1, 0], [1, 0], [0, 1], [0, 1]] along the last dimension of
    [3, 4], sums of neighbours, [3, 2].
    """
    rank = len(x.shape)
    order = (*(d for d in range(rank) if d != dim), dim)
    made = lo.emit("matmul", lo.real(lo.permute(x, order)), weights)
    return lo.permute(made, tuple(order.index(d) for d in range(rank)))


def matrix(lo: Lowering, array: Array, transposed: bool = False) -> Real:
    """A table by its contents; ``transposed``: the same table, with its dimensions exchanged.

    Example: the gradient of what ``matrix(lo, w)`` maps is mapped by ``matrix(lo, w, True)``.
    """
    made = lo.real(table(lo, array, str(array.dtype)))
    return lo.real(lo.transpose(made, 0, 1)) if transposed else made


def _table(lo: Lowering, axis: Axis, transposed: bool = False) -> Real:
    """[positions, taps * results]."""
    reads = np.zeros((axis.size, axis.taps, axis.steps), dtype=np.float32)
    for tap in range(axis.taps):
        for step in range(axis.steps):
            at = step * axis.stride - axis.before + tap * axis.dilation
            if 0 <= at < axis.size:
                reads[at, tap, step] = 1
    return matrix(lo, reads.reshape(axis.size, axis.taps * axis.steps), transposed)


def unfolded(lo: Lowering, x: Lowered, axes: Sequence[Axis]) -> Any:
    """x [n, c, *sizes] as [n, *results, c, *taps], in the order of `as_read`.

    Example: [1, 1, 4] with two blocks of two taps is [1, 2, 1, 2].
    """
    windows: Any = lo.real(x)
    rank = len(axes)
    sizes = [joints(lo, windows, 2 + number) for number in range(rank)]
    # Every turn takes the first dimension that is left and puts taps and results behind.
    for number, axis in enumerate(axes):
        last = len(windows.shape) - 1
        windows = lo.permute(windows, (0, 1, *range(3, last + 1), 2))
        lead = windows.shape[:-1]
        if axis.blocks:
            own = lo.slice(windows, last, 0, axis.steps * axis.taps)
            own = lo.reshape(own, (*lead, axis.steps, axis.taps))
            windows = lo.transpose(own, last, last + 1)
        elif is_sliced(lo, axis, number):
            windows = read(lo, windows, axis, sizes[number])
        else:
            made = lo.emit("matmul", lo.real(windows), _table(lo, axis))
            windows = lo.reshape(made, (*lead, axis.taps, axis.steps))
    taps, steps = range(2, 2 + 2 * rank, 2), range(3, 3 + 2 * rank, 2)
    return lo.permute(windows, (0, *steps, 1, *taps))


def folded(lo: Lowering, x: Lowered, axes: Sequence[Axis], like: Lowered | None = None) -> Any:
    """The transpose of `unfolded`: [n, *results, c, *taps] as [n, c, *sizes]; ``like``: what was
    unfolded, put together as the result is.

    Example: [1, 2, 1, 2] of two blocks of two taps is [1, 1, 4].
    """
    rank = len(axes)
    pairs = [d for i in range(rank) for d in (2 + rank + i, 1 + i)]
    sums: Any = lo.permute(x, (0, 1 + rank, *pairs))
    whole = [(axis.size,) for axis in axes]
    sizes = whole if like is None else [joints(lo, like, 2 + i) for i in range(rank)]
    for number, axis in reversed(list(enumerate(axes))):
        *rest, taps, steps = sums.shape
        last = len(rest)
        if axis.blocks:
            own = lo.reshape(lo.transpose(sums, last, last + 1), (*rest, steps * taps))
            made = zeros_around(lo, own, last, 0, axis.size)
        elif is_sliced(lo, axis, number):
            made = written(lo, sums, axis, sizes[number])
        else:
            flat = lo.real(lo.reshape(sums, (*rest, taps * steps)))
            made = lo.emit("matmul", flat, _table(lo, axis, transposed=True))
        sums = lo.permute(made, (0, 1, last, *range(2, last)))
    return sums


def as_read(lo: Lowering, x: Lowered, axes: Sequence[Axis], dim: int) -> Any:
    """A tensor with a dimension for the taps of each axis, from ``dim`` on, in the order in which
    they are read, and back: where they are read by slices, the last one first.

    Example: a kernel [c, o, 3] of a convolution whose positions ranks divide, with its taps in the
    order 2, 1, 0; any other one as it is.
    """
    for number, axis in enumerate(axes):
        if not axis.blocks and is_sliced(lo, axis, number):
            x = turned(lo, x, dim + number)
    return x


def zeros_around(lo: Lowering, x: Lowered, dim: int, start: int, size: int) -> Any:
    """``x`` at ``start`` of ``size`` positions of a dimension, zero at the others.

    Example: of [2, 3] along dimension 1 at 1 of 5 it is [2, 5], whose columns 0 and 4 are zero.
    """
    after = size - start - x.shape[dim]

    def zeros(count: int) -> list[Const]:
        shape = (*x.shape[:dim], count, *x.shape[dim + 1 :])
        return [Const(Fraction(0), shape, x.dtype)] if count else []

    return lo.concat([*zeros(start), x, *zeros(after)], dim)
