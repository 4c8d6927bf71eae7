"""Positions that belong to no dimension: one of many.

A tensor of one head of eight has a position on the axis of heads, but no dimension for it: a
view may put it anywhere, or leave it out.  `settled` is the form of a view that does not depend
on where it was put.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from shardproof.engine.algebra.affine import Affine
from shardproof.engine.lineage.lineage import BROADCAST, Dim, StridedInterval, View
from shardproof.engine.lineage.views import is_block, merge, split


def is_floating(interval: StridedInterval) -> bool:
    """Whether an interval is one position of many.

    Example: ``a0[3 +1 of 16]`` is; ``a0[16]`` is not.
    """
    return interval.size == 1 and interval.axis != BROADCAST and not interval.full


def floating(view: View) -> tuple[tuple[Dim, ...], tuple[StridedInterval, ...]]:
    """The dimensions of a view without single positions (one of many), and these positions.

    Example: of ``[a0[<tp> +1 of 8] x a1[64], a2[8]]`` the dimensions ``a1[64]`` and ``a2[8]``, and
    the position ``a0[<tp> +1 of 8]``.
    """
    dims = tuple(tuple(a for a in dim if a.size != 1) for dim in view.dims)
    single = [a for dim in view.dims for a in dim if is_floating(a)]
    return dims, (*single, *view.fixed)


def picked(view: View, dims: Sequence[int]) -> View:
    """The same view, where a position of one of many that was cut out of a dimension is in none.

    Example: of ``[a1[4], a0[2 +1 of 3] x a2[5]]`` the second dimension runs along ``a2[5]``, at
    ``a0[2 +1 of 3]``: the third of three blocks of five.  So is ``a0/8[2 +1 of 3]`` alone where
    another dimension runs along ``a0[8]``.  ``a0[<tp> +1 of 3]`` stays, which is a rank's part of
    what others have the rest of.
    """
    result = list(view.dims)
    out: list[StridedInterval] = []
    axes = Counter(a.axis for dim in view.dims for a in dim)
    for i in dims:
        inside = any(a.size > 1 for a in result[i])
        own = [
            a
            for a in result[i]
            if is_floating(a) and not a.start.terms and (inside or axes[a.axis] > 1)
        ]
        if own:
            result[i] = tuple(a for a in result[i] if a not in own)
            out += own
    return View(tuple(result), (*out, *view.fixed)) if out else view


def within(
    interval: StridedInterval, outer: StridedInterval
) -> tuple[StridedInterval, StridedInterval, Affine] | None:
    """An interval as (which of as many blocks as ``outer`` is one of, where inside of that block,
    how far it begins from where ``outer`` says); None if its axis has no such blocks.

    Example: ``a0[12 +4 of 16]`` in ``a0/8[1 +1 of 2]`` is that half, ``a0[4 +4 of 8]`` inside of
    it, and 4 further on than it.
    """
    if interval.extent <= 0 or outer.extent <= 1 or interval.extent % outer.extent:
        return None
    inner = interval.extent // outer.extent
    if inner < interval.size:
        return None
    rest = interval.start - outer.start * inner
    which = StridedInterval(interval.axis, interval.stride * inner, outer.extent, outer.start, 1)
    return which, StridedInterval(interval.axis, interval.stride, inner, rest, interval.size), rest


def settled(view: View) -> View:
    """The form of a view that does not depend on where single positions were put; the only position
    of an axis is nowhere.

    Example: ``[a0[<tp> +1 of 8] x a1[64]]`` is ``[a1[64]] at a0[<tp> +1 of 8]``, and ``[a0[<8*tp>
    +8 of 16]]`` is ``[a0[8]] at a0/8[<tp> +1 of 2]``.
    """
    dims, single = floating(view)
    pool = [a for a in single if a.extent != 1]
    result: list[Dim] = []
    for dim in dims:
        intervals: list[StridedInterval] = []
        for interval in merge(dim):
            interval = _absorbed(interval, pool)
            if is_block(interval):
                outer, interval = split(interval, interval.size)
                pool.append(outer)
            intervals.append(interval)
        result.append(merge(intervals))
    return View(tuple(result), joined(pool))


def sunk(view: View, dim: int = -1) -> View:
    """The same view, where all of a digit beside one position of the next digit outside of it is
    one interval; ``dim``: only of positions in this dimension, which is of one position.

    Example: ``[a0[8]] at a0/8[1 +1 of 2]`` is ``[a0[8 +8 of 16]]``, and so is ``[a0/8[1 +1 of 2],
    a0[8]]`` with a first dimension along which nothing runs.
    """
    dims, single = floating(view if dim < 0 else View((view.dims[dim],), ()))
    if dim >= 0:
        single = (*single, *view.fixed)
        dims = (*view.dims[:dim], *dims, *view.dims[dim + 1 :])
    pool = list(single)
    result: list[Dim] = []
    for own in dims:
        intervals: list[StridedInterval] = []
        for interval in own:
            while outer := next(
                (o for o in pool if interval.extent and _is_outside(o, interval)), None
            ):
                pool.remove(outer)
                (interval,) = merge([outer, interval])
            intervals.append(interval)
        result.append(merge(intervals))
    if len(pool) == len(single):
        return view
    return View(tuple(result), tuple(pool))


def _absorbed(interval: StridedInterval, pool: list[StridedInterval]) -> StridedInterval:
    """An interval that is not all of its range, with the position just outside of it taken in."""
    while not interval.full and interval.axis != BROADCAST and interval.extent:
        outer = next((o for o in pool if _is_outside(o, interval)), None)
        if outer is None:
            break
        pool.remove(outer)
        (interval,) = merge([outer, interval])
    return interval


def _is_outside(outer: StridedInterval, inner: StridedInterval) -> bool:
    return (
        outer.axis == inner.axis
        and outer.extent > 0
        and outer.stride == inner.stride * inner.extent
    )


def joined(pool: Sequence[StridedInterval]) -> tuple[StridedInterval, ...]:
    """Single positions in an order of their own, those of neighbouring digits as one.

    Example: ``a1/2[1 +1 of 2]`` and ``a1[0 +1 of 2]`` are ``a1[2 +1 of 4]``.
    """
    ordered = sorted(pool, key=lambda a: (a.axis, -a.stride, a.extent, str(a.start)))
    result: list[StridedInterval] = []
    for interval in ordered:
        if result and interval.extent and _is_outside(result[-1], interval):
            (joined,) = merge([result.pop(), interval])
            result.append(joined)
        else:
            result.append(interval)
    return tuple(result)
