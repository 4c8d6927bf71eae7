"""How one strided view of a memory is made from a tensor that fills an interval of it.

A `Recipe` reads: reshape to ``factors``, slice every factor, reshape to ``merged``, permute,
then expand.  `recipe` finds one, exactly, or says that there is none (diagonals, and windows that
overlap: `unrolled` says along which dimension there is one for every entry).

Example: of a [4, 6] tensor, the view of shape [6, 2] and strides [1, 12] at 0 is: factors
[2, 12], slices [0, 2), [0, 6), reshape to [2, 6], permuted to [6, 2].
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache
from math import prod
from typing import Final, NamedTuple, TypeAlias

import numpy as np

#: Factors of a tensor, (start, size) in each, and how far apart the positions are.
Cuts: TypeAlias = tuple[tuple[int, ...], tuple[tuple[int, int], ...], tuple[int, ...]]
#: Entries of a dimension that are read one by one.
MOST_ENTRIES: Final = 256


class Recipe(NamedTuple):
    """How a view is made of a contiguous tensor, which is first reshaped to ``factors``.
    ``slices``: (start, size) of every factor, ``steps``: how far apart these positions are;
    ``merged``: the shape before the permutation;
    ``order``: dimension ``order[i]`` of ``merged`` becomes dimension i; ``shape``: the result's,
    which has a size in place of a 1 where it is expanded.

    Example: ``Recipe((4, 6), ((1, 3), (2, 2)), (1, 1), (3, 2), (0, 1), (3, 2))`` is
    ``x[1:4, 2:4]``, with the steps ``(1, 2)`` it is ``x[1:4, 2:6:2]``.
    """

    factors: tuple[int, ...]
    slices: tuple[tuple[int, int], ...]
    steps: tuple[int, ...]
    merged: tuple[int, ...]
    order: tuple[int, ...]
    shape: tuple[int, ...]


def contiguous(shape: Sequence[int]) -> tuple[int, ...]:
    """Strides of a tensor whose elements follow each other in order.

    Example: ``contiguous((2, 3, 4))`` is ``(12, 4, 1)``.
    """
    strides = [1] * len(shape)
    for i in range(len(shape) - 2, -1, -1):
        strides[i] = strides[i + 1] * max(1, shape[i + 1])
    return tuple(strides)


def in_order(shape: Sequence[int], strides: Sequence[int]) -> bool:
    """Whether the elements of a view follow each other in order, without gaps.

    Example: shape (2, 1, 3) with strides (3, 7, 1) do: there is one position along the 7.
    """
    plain = contiguous(shape)
    return all(n == 1 or s == p for n, s, p in zip(shape, strides, plain, strict=True))


def dense_order(shape: Sequence[int], strides: Sequence[int]) -> tuple[int, ...] | None:
    """The dimensions by falling stride, if the tensor fills an interval without gaps or overlap in
    that order; None otherwise.

    Example: shape ``(2, 3)`` with strides ``(1, 2)`` is the order ``(1, 0)``: a transposed tensor.
    """
    order = sorted(range(len(shape)), key=lambda i: (-strides[i], shape[i] != 1, i))
    expected = 1
    for i in reversed(order):
        if shape[i] == 1:
            continue
        if strides[i] != expected:
            return None
        expected *= shape[i]
    return tuple(order)


def extent(shape: Sequence[int], strides: Sequence[int]) -> int:
    """How many elements of the memory there are from the first to the last one of the view.

    Example: shape (6, 2) with strides (1, 12) has 18.
    """
    if 0 in shape:
        return 0
    return 1 + sum((n - 1) * s for n, s in zip(shape, strides, strict=True))


#: Where a tensor lies in its memory: offset, shape and strides.
Place: TypeAlias = tuple[int, Sequence[int], Sequence[int]]


def meet(x: Place, y: Place) -> bool:
    """Whether two tensors of one memory have an element of it in common.

    Example: columns 0 and 1 of a [4, 6] tensor, shape (4,) with strides (6,) at 0 and at 1, have
    none; the first row and column 0 have one.
    """
    ends = [(offset, offset + extent(shape, strides)) for offset, shape, strides in (x, y)]
    (first, last), (begin, end) = ends
    if first >= end or begin >= last:
        return False
    return np.shares_memory(np.asarray(_Lying(x)), np.asarray(_Lying(y)))


def collide(places: Sequence[tuple[Place, int, bool]]) -> bool:
    """Whether one of several tensors of a memory is written (True) that meets another one, but for
    itself as an operand of the same number.

    Example: of ``torch._foreach_mul_([x, y], [x, z])`` none is, of ``torch._foreach_mul_([x, x],
    2)`` the first.
    """
    ordered = sorted(places, key=lambda item: item[0][0])
    for at, (place, number, written) in enumerate(ordered):
        last = place[0] + extent(place[1], place[2])
        for other, index, also in ordered[at + 1 :]:
            if other[0] >= last:
                break
            itself = number == index and place == other
            if (written or also) and not itself and meet(place, other):
                return True
    return False


class _Lying:
    """What NumPy takes for bytes that lie so in a memory, of which none is read."""

    def __init__(self, place: Place) -> None:
        offset, shape, strides = place
        self.__array_interface__ = {
            "version": 3,
            "typestr": "|u1",
            "data": (_BEGIN + offset, True),
            "shape": tuple(shape),
            "strides": tuple(strides),
        }


#: An address, of which nothing is read.
_BEGIN: Final = 1 << 12


#: How many recipes are kept: layers of a model repeat those of the first one.
KEPT: Final = 1 << 14


@lru_cache(KEPT)
def recipe(
    base: tuple[int, ...], offset: int, shape: tuple[int, ...], strides: tuple[int, ...]
) -> Recipe | None:
    """How the view at ``offset`` is made of a contiguous tensor of shape ``base``.

    Example: of [4, 6], shape (3, 2) with strides (6, 1) at 8 is ``x[1:4, 2:4]``, shape (4, 2) with
    strides (6, 4) at 0 is ``x[:, ::4]``; shape (3, 4) with strides (1, 1) has windows that overlap:
    None.
    """
    count = prod(base)
    real = [i for i in range(len(shape)) if shape[i] != 1 and strides[i] != 0]
    real.sort(key=lambda i: (-strides[i], i))
    plain = [(shape[i], strides[i]) for i in real]
    stepped = _stepped(base, offset, plain)
    several = sum(n > 1 for n in base) > 1  # A flat buffer is rather divided into factors.
    for cut in (
        _sliced(base, offset, plain),
        stepped if several else None,
        _factored(count, offset, plain),
        _factored(count, offset, _joined(plain)),
        stepped,
    ):
        if cut is not None:
            factors, slices, steps = cut
            expanded = [i for i in range(len(shape)) if i not in real]
            merged = tuple(shape[i] for i in real) + (1,) * len(expanded)
            place = {i: position for position, i in enumerate([*real, *expanded])}
            order = tuple(place[i] for i in range(len(shape)))
            return Recipe(factors, slices, steps, merged, order, tuple(shape))
    return None


def _sliced(base: Sequence[int], offset: int, dims: Sequence[tuple[int, int]]) -> Cuts | None:
    """The view as a slice of every dimension of the tensor, where it is one."""
    wanted = {stride: size for size, stride in dims}
    if len(wanted) < len(dims):
        return None
    slices: list[tuple[int, int]] = []
    rest = offset
    for length, stride in zip(base, contiguous(base), strict=True):
        start = rest // stride if length > 1 else 0
        rest -= start * stride
        size = wanted.pop(stride, 1) if length > 1 else 1
        if start + size > length:
            return None
        slices.append((start, size))
    return None if wanted or rest else (tuple(base), tuple(slices), (1,) * len(base))


def _joined(dims: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """Dimensions that follow each other without a gap, as one."""
    result: list[tuple[int, int]] = []
    for size, stride in dims:
        if result and result[-1][1] == size * stride:
            result[-1] = (result[-1][0] * size, stride)
        else:
            result.append((size, stride))
    return result


def _factored(count: int, offset: int, dims: Sequence[tuple[int, int]]) -> Cuts | None:
    """The memory as a tensor with a factor for each dimension, and where in each the view lies."""
    factors: list[int] = []
    slices: list[tuple[int, int]] = []
    outer = count
    rest = offset
    for size, stride in dims:
        if outer % stride:
            return None
        start = rest // stride
        rest -= start * stride
        if start + size > outer // stride:
            return None
        factors.append(outer // stride)
        slices.append((start, size))
        outer = stride
    if outer > 1:
        factors.append(outer)
        slices.append((rest, 1))
        rest = 0
    if rest or prod(factors) != count:
        return None
    return tuple(factors), tuple(slices), (1,) * len(factors)


def _stepped(base: Sequence[int], offset: int, dims: Sequence[tuple[int, int]]) -> Cuts | None:
    """The view as every so many positions of every dimension of the tensor, where it is that."""
    wanted = list(dims)
    slices: list[tuple[int, int]] = []
    steps: list[int] = []
    rest = offset
    for length, stride in zip(base, contiguous(base), strict=True):
        start = rest // stride if length > 1 else 0
        rest -= start * stride
        size = step = 1
        if wanted and length > 1 and wanted[0][1] >= stride:
            size, apart = wanted.pop(0)
            step = apart // stride
            if apart % stride:
                return None
        if start + step * (size - 1) >= length:
            return None
        slices.append((start, size))
        steps.append(step)
    return None if wanted or rest else (tuple(base), tuple(slices), tuple(steps))


def unrolled(
    base: Sequence[int], offset: int, shape: Sequence[int], strides: Sequence[int]
) -> int | None:
    """The dimension every entry of which is a view that has a recipe, the shortest one; None: there
    is none with at most `MOST_ENTRIES`.

    Example: of [3, 3], the diagonal of shape (3,) and stride (4,) has dimension 0; of [6], windows
    of shape (4, 3) and strides (1, 1) have dimension 1.
    """
    several = [d for d, n in enumerate(shape) if 1 < n <= MOST_ENTRIES]
    for dim in sorted(several, key=lambda d: shape[d]):
        one = (*shape[:dim], 1, *shape[dim + 1 :])
        starts = (offset + i * strides[dim] for i in range(shape[dim]))
        if all(recipe(base, start, one, strides) is not None for start in starts):
            return dim
    return None


def distinct(shape: Sequence[int], strides: Sequence[int]) -> bool:
    """Whether every entry has a place of its own in memory: each dimension steps over all of those
    with smaller strides.

    Example: the diagonal of shape (2, 3) and strides (9, 4) has; windows (4, 3) and (1, 1) do not.
    """
    end = 0
    for stride, size in sorted((s, n) for n, s in zip(shape, strides, strict=True) if n > 1):
        if stride <= end:
            return False
        end += stride * (size - 1)
    return True


def aligned(offset: int, shape: Sequence[int], strides: Sequence[int]) -> tuple[int, int]:
    """The interval of memory of whole rows of the outermost dimension that has the view.

    Example: shape (2, 2) with strides (4, 1) at 5 lies in [4, 12).
    """
    rows = [(s, n) for n, s in zip(shape, strides, strict=True) if n > 1]
    stride, size = max(rows, default=(1, 1))
    begin = offset - offset % max(1, stride)
    return begin, max(begin + stride * size, offset + extent(shape, strides))


def boxes(
    shape: Sequence[int], start: int, stop: int
) -> Iterator[tuple[tuple[int, ...], tuple[int, ...]]]:
    """The boxes (offset and shape) that entries [start, stop) of a tensor are, in their order.

    Example: of shape (4, 3) the entries 2 to 9 are ((0, 2), (1, 1)), ((1, 0), (2, 3)) and
    ((3, 0), (1, 1)).
    """
    if start >= stop:
        return
    if len(shape) < 2:
        yield ((start,), (stop - start,)) if shape else ((), ())
        return
    row = prod(shape[1:])
    first, last = -(-start // row), stop // row
    if first > last:  # inside of one row
        for offset, own in boxes(shape[1:], start - last * row, stop - last * row):
            yield (last, *offset), (1, *own)
        return
    if start < first * row:
        for offset, own in boxes(shape[1:], start - (first - 1) * row, row):
            yield (first - 1, *offset), (1, *own)
    if first < last:
        yield (first, *(0 for _ in shape[1:])), (last - first, *shape[1:])
    for offset, own in boxes(shape[1:], 0, stop - last * row):
        yield (last, *offset), (1, *own)
