"""The algebra of views: splitting, merging, aligning and regrouping intervals.

Pure functions over `engine.lineage.lineage` values.  Where a view cannot be expressed exactly (an
interval that does not start at a block boundary), they raise `Misaligned`; the caller then takes
the tensor as it is.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby, pairwise
from math import prod

from shardproof.engine.algebra.affine import ZERO, Affine, affine
from shardproof.engine.lineage.lineage import ABSOLUTE, BROADCAST, Dim, StridedInterval, View


class Misaligned(Exception):
    """The result is no strided view."""


def constant_interval(size: int) -> StridedInterval:
    """An interval along which the tensor does not vary.

    Example: ``_[4]``, four positions at which a bias is the same.
    """
    return StridedInterval(BROADCAST, 0, size, ZERO, size)


def split(interval: StridedInterval, inner: int) -> tuple[StridedInterval, StridedInterval]:
    """The interval as (outer, inner) with ``inner`` positions in the inner one.

    Example: ``a0[<8*tp> +8 of 16]`` with 4 inner positions is ``a0/4[<2*tp> +2 of 4]``, ``a0[4]``;
    eight positions that begin at 2 do not split so.
    """
    if interval.size % inner:
        raise Misaligned
    if interval.axis == BROADCAST:
        return constant_interval(interval.size // inner), constant_interval(inner)
    if (
        interval.extent == ABSOLUTE
        or interval.extent % inner
        or not interval.start.divisible(inner)
    ):
        raise Misaligned
    outer = StridedInterval(
        interval.axis,
        interval.stride * inner,
        interval.extent // inner,
        interval.start // inner,
        interval.size // inner,
    )
    return outer, StridedInterval(interval.axis, interval.stride, inner, ZERO, inner)


def is_block(interval: StridedInterval) -> bool:
    """Whether an interval is one of several equal blocks of its axis, not all of it.

    Example: ``a0[<8*tp> +8 of 16]`` is, ``a0[16]`` and ``a0[4 +8 of 16]`` are not.
    """
    return (
        interval.axis != BROADCAST
        and interval.extent != ABSOLUTE
        and not interval.full
        and interval.extent % interval.size == 0
        and interval.start.divisible(interval.size)
    )


def merge(intervals: Sequence[StridedInterval]) -> Dim:
    """Adjacent intervals of one dimension joined where the outer one strides over the whole
    inner.

    Example: ``a0/4[4]``, ``a0[4]`` is ``a0[16]``.
    """
    if len(intervals) < 2:
        return tuple(intervals)
    result: list[StridedInterval] = []
    for interval in _by_stride(intervals):
        if result:
            joined = _join(result[-1], interval)
            if joined is not None:
                result[-1] = joined
                continue
        result.append(interval)
    return tuple(result)


def _by_stride(intervals: Sequence[StridedInterval]) -> Sequence[StridedInterval]:
    """Intervals with digits of one axis that are one position each in the order of that axis,
    outermost first: they are which block it is, in whatever order they come.

    Example: ``a0/4[1 +1 of 2]``, ``a0/8[0 +1 of 2]``, ``a0[4]`` is the block that ``a0/8[0 +1 of
    2]``, ``a0/4[1 +1 of 2]``, ``a0[4]`` is: ``a0[4 +4 of 16]``.
    """
    for one, other in pairwise(intervals):
        if one.size == other.size == 1 and one.axis == other.axis and one.stride < other.stride:
            break
    else:
        return intervals
    result: list[StridedInterval] = []
    for (axis, single), run in groupby(intervals, key=lambda a: (a.axis, a.size == 1)):
        own = list(run)
        if single and axis != BROADCAST:
            own.sort(key=lambda a: -a.stride)
        result += own
    return result


def _join(outer: StridedInterval, inner: StridedInterval) -> StridedInterval | None:
    if outer.axis != inner.axis:
        return None
    if outer.axis == BROADCAST:
        return constant_interval(outer.size * inner.size)
    if inner.extent == ABSOLUTE or outer.extent == ABSOLUTE:
        return None
    if outer.stride != inner.stride * inner.extent:
        return None
    if inner.full:
        return StridedInterval(
            inner.axis,
            inner.stride,
            outer.extent * inner.extent,
            outer.start * inner.extent,
            outer.size * inner.extent,
        )
    if outer.size == 1:
        return StridedInterval(
            inner.axis,
            inner.stride,
            outer.extent * inner.extent,
            outer.start * inner.extent + inner.start,
            inner.size,
        )
    return None


def align(dims: Sequence[Dim]) -> list[list[StridedInterval | None]]:
    """Refine views of one dimension to common factors.

    Returns positions, outermost first; each lists one interval per view (None where the view has no
    interval of that size: a broadcast dimension of size 1).

    Example: ``a0[16]`` and ``a1/4[4]``, ``a1[4]`` are refined to the positions (``a0/4[4]``,
    ``a1/4[4]``) and (``a0[4]``, ``a1[4]``).
    """
    if all(len(d) == 1 for d in dims) and len({d[0].size for d in dims}) == 1:
        return [[d[0] for d in dims]]
    stacks = [list(d) for d in dims]
    positions: list[list[StridedInterval | None]] = []
    while any(stacks):
        sizes = [s[-1].size for s in stacks if s]
        smallest = min(sizes)
        if smallest == 1:
            position: list[StridedInterval | None] = [
                s.pop() if s and s[-1].size == 1 else None for s in stacks
            ]
        else:
            if not all(stacks):
                raise Misaligned
            position = []
            for stack in stacks:
                interval = stack.pop()
                if interval.size != smallest:
                    outer, interval = split(interval, smallest)
                    stack.append(outer)
                position.append(interval)
            _split_blocks(stacks, position)
        positions.append(position)
    positions.reverse()
    return positions


def _split_blocks(
    stacks: Sequence[list[StridedInterval]], position: list[StridedInterval | None]
) -> None:
    """Where one view says which block it is (an interval of size 1 outside), make the others say
    so, of as many blocks; another position outside (a step in time) tells nothing of a block."""
    single = [s[-1] for s in stacks if s and s[-1].size == 1 and not s[-1].full]
    for k, (stack, interval) in enumerate(zip(stacks, position, strict=True)):
        if single and not stack and interval is not None and is_block(interval):
            outer, inner = split(interval, interval.size)
            if any(_may_be_block(outer, a) for a in single if a.axis != BROADCAST):
                stack.append(outer)
                position[k] = inner


def _may_be_block(block: StridedInterval, other: StridedInterval) -> bool:
    """Whether a position may say which block one is: of as many, and moving as it does."""
    return block.extent == other.extent and block.start.axes == other.start.axes


def regroup(view: View, shape: tuple[int, ...]) -> View:
    """Row-major reshape of a view.

    Example: ``[a0[16], a1[8]]`` as [4, 4, 8] is ``[a0/4[4], a0[4], a1[8]]``, and as [128] ``[a0[16]
    x a1[8]]``.
    """
    intervals = [interval for dim in view.dims for interval in dim]
    intervals.reverse()
    dims: list[Dim] = []
    for size in shape:
        pieces: list[StridedInterval] = []
        have = 1
        if size == 1 and intervals:
            if intervals[-1].size == 1:
                pieces.append(intervals.pop())
            elif is_block(intervals[-1]):
                # One block of a larger axis: the new dimension is which block it is.
                outer, inner = split(intervals[-1], intervals[-1].size)
                pieces.append(outer)
                intervals[-1] = inner
        while have < size:
            if not intervals:
                raise Misaligned
            interval = intervals.pop()
            need = size // have
            if (
                size % have
                or (interval.size > need and interval.size % need)
                or (interval.size < need and need % interval.size)
            ):
                raise Misaligned
            if interval.size > need:
                outer, inner = split(interval, interval.size // need)
                intervals.append(inner)
                interval = outer
            pieces.append(interval)
            have *= interval.size
        dims.append(merge(pieces))
    if any(interval.size != 1 for interval in intervals):
        raise Misaligned
    rest = tuple(a for a in reversed(intervals) if a.axis != BROADCAST)
    return View(tuple(dims), view.fixed + rest)


def narrow(dim: Dim, start: Affine, size: int) -> Dim:
    """Positions [start, start + size) of a dimension: an interval of its outermost interval, or of
    the inner ones at one position of it.

    Example: eight positions of ``a0[16]`` from ``8*tp`` on are ``a0[<8*tp> +8 of 16]``.
    """
    lead = next((i for i, interval in enumerate(dim) if interval.size != 1), len(dim) - 1)
    if lead < 0:
        return dim
    rest = dim[lead + 1 :]
    inner = prod(interval.size for interval in rest)
    if size % inner or not start.divisible(inner):
        within = affine(start.const % inner)
        if within.const + size > inner:
            raise Misaligned
        start -= within
        rest = narrow(rest, within, size)
        size = inner
    if not start.divisible(inner):
        raise Misaligned
    if dim[lead].axis == BROADCAST:
        cut = constant_interval(size // inner)
    else:
        cut = dim[lead]._replace(start=dim[lead].start + start // inner, size=size // inner)
    return merge((*dim[:lead], cut, *rest))


def adjoin(dims: Sequence[Dim]) -> Dim:
    """Dimensions one after the other, where together they are one interval of a view.

    Example: ``a0[0 +8 of 16]`` and ``a0[8 +8 of 16]`` are ``a0[16]``.
    """
    if all(len(d) == 1 and d[0].axis == BROADCAST for d in dims):
        return (constant_interval(sum(d[0].size for d in dims)),)
    if not all(dims):
        raise Misaligned
    if any(d[1:] != dims[0][1:] for d in dims):
        if any(d[0].size != 1 for d in dims):
            raise Misaligned
        runs = [(h, [d[1:] for d in run]) for h, run in groupby(dims, key=lambda d: d[0])]
        dims = [(head, *adjoin(rests)) for head, rests in runs]
        if len(dims) == 1:
            return merge(dims[0])
    return _adjoin_heads(dims)


def _adjoin_heads(dims: Sequence[Dim]) -> Dim:
    """`adjoin` of dimensions that differ in their outermost interval only."""
    head, *rest = dims[0]
    if any(list(d[1:]) != rest for d in dims) or head.axis == BROADCAST:
        raise Misaligned
    if not all(a.axis == BROADCAST or a.full for a in rest):
        raise Misaligned
    end = head.start
    for interval, *_ in dims:
        if interval[:3] != head[:3] or interval.start != end:
            raise Misaligned
        end = interval.start + interval.size
    return merge((head._replace(size=sum(d[0].size for d in dims)), *rest))


def interleave(dims: Sequence[Dim]) -> Dim:
    """Equal blocks one after the other, in an order that exchanges digits of their numbers; raises
    `Misaligned` for another order, or where a block is missing.

    Example: of ``a0[8]`` the blocks ``a0[0 +2 of 8]``, ``a0[4 +2 of 8]``, ``a0[2 +2 of 8]`` and
    ``a0[6 +2 of 8]`` are ``a0/2[2] x a0/4[2] x a0[2]``.
    """
    moving = len({_runs(dim)[:1] for dim in dims}) > 1
    blocks = [_numbered(dim, moving) for dim in dims]
    first, rest = blocks[0]
    numbers = []
    for ones, runs in blocks:
        if runs != rest or [a._replace(start=ZERO) for a in ones] != [
            a._replace(start=ZERO) for a in first
        ]:
            raise Misaligned
        offsets = [a.start - b.start for a, b in zip(ones, first, strict=True)]
        if any(offset.terms for offset in offsets):
            raise Misaligned
        numbers.append(tuple(offset.const for offset in offsets))
    digits = _digits(numbers)
    kept: list[StridedInterval] = []
    intervals: dict[tuple[int, int], StridedInterval] = {}
    for column, one in enumerate(first):
        own = sorted((step, count) for c, step, count in digits if c == column)
        if not own:
            kept.append(one)
            continue
        outer, covered = one._replace(size=prod(count for _, count in own)), 1
        for step, count in own:
            if step != covered:
                raise Misaligned
            covered *= count
            intervals[column, step] = outer
            if covered < prod(n for _, n in own):
                outer, intervals[column, step] = split(outer, count)
    return merge((*kept, *(intervals[column, step] for column, step, _ in digits), *rest))


def _runs(dim: Dim) -> Dim:
    """The intervals of more than one position."""
    return tuple(interval for interval in dim if interval.size != 1)


def _numbered(dim: Dim, moving: bool) -> tuple[list[StridedInterval], Dim]:
    """Intervals of one position, in the order of their axes (``moving``: with the number of the
    block that the first longer one is), and the longer ones."""
    ones = [a for a in dim if a.size == 1 and a.axis != BROADCAST]
    runs = _runs(dim)
    if moving:
        if not runs or runs[0].axis == BROADCAST:
            raise Misaligned
        number, block = split(runs[0], runs[0].size)
        ones.append(number)
        runs = (block, *runs[1:])
    return sorted(ones, key=lambda a: (a.axis, -a.stride)), runs


def _digits(numbers: Sequence[tuple[int, ...]]) -> list[tuple[int, int, int]]:
    """Numbers in columns as sums of digits: for each digit, outermost first, its column, its weight
    and how many values it takes.  Raises `Misaligned` where they are none.

    Example: 0, 4, 1, 5 in one column are two digits of two values, of weight 1 and of weight 4.
    """
    if len(numbers) == 1:
        return []
    steps = [
        (column, n - m) for column, (m, n) in enumerate(zip(*numbers[:2], strict=True)) if n != m
    ]
    if len(steps) != 1 or steps[0][1] < 0:
        raise Misaligned
    (column, step), count = steps[0], 2

    def after(number: tuple[int, ...], times: int) -> tuple[int, ...]:
        return (*number[:column], number[column] + times * step, *number[column + 1 :])

    while count < len(numbers) and numbers[count] == after(numbers[0], count):
        count += 1
    heads = numbers[::count]
    if [after(head, i) for head in heads for i in range(count)] != list(numbers):
        raise Misaligned
    return [*_digits(heads), (column, step, count)]
