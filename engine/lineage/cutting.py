"""What is no one view as several side by side: the rest of a row, whole rows, part of another one.

A shard of a flat buffer begins inside a parameter: of a weight of 16 rows of 8, laid flat, 12 to
100 are half a row, ten rows and half of the next.
"""

from __future__ import annotations

from math import prod

from shardproof.engine.algebra.affine import Affine, affine
from shardproof.engine.lineage.lineage import Addend, Dim, Place
from shardproof.engine.lineage.places import (
    MOST_REGIONS,
    Shape,
    blocks,
    collapsed,
    cut,
    normal,
    of_dim,
    placed,
    reshaped_addend,
    split,
)
from shardproof.engine.lineage.views import Misaligned, narrow, regroup

#: Blocks into which a dimension is taken apart because its view has none.
MOST_BLOCKS = 64


def cut_up(addend: Addend, shape: Shape, dim: int, start: Affine, size: int) -> list[Addend]:
    """`cut`, as several addends side by side where the positions are no one view: the rest of a
    row, whole rows, the beginning of another one.

    Example: of a weight of 16 rows of 8, laid flat, the 88 positions from 12 on are half of row 1
    (``in 0[0 +4 of 88]``), rows 2 to 11 (``in 0[4 +80 of 88]``) and half of row 12 (``in 0[84 +4 of
    88]``).
    """
    try:
        piece = cut(addend, shape, dim, start, size)
        return [] if piece is None else [piece]
    except Misaligned:
        addend = collapsed(addend)
        places = of_dim(addend, dim)
        if start.terms:
            raise
        if len(places) > 1 or any(p.extent != shape[dim] for p in places):
            return _periods(addend, shape, dim, start.const, size)
    first = places[0].start if places else 0
    count = places[0].size if places else shape[dim]
    low, high = max(first, start.const), min(first + count, start.const + size)
    if low >= high:
        return []
    others = [p for p in addend.places if p.dim != dim]
    result = []
    for at, own in _runs(addend.view.dims[dim], low - first, high - low):
        dims = list(addend.view.dims)
        dims[dim] = narrow(dims[dim], affine(at), own)
        place = Place(dim, first + at - start.const, own, size)
        view = addend.view._replace(dims=tuple(dims))
        result.append(addend._replace(view=view, places=normal([*others, place])))
    return result


def _periods(addend: Addend, shape: Shape, dim: int, start: int, size: int) -> list[Addend]:
    """`cut_up` of what repeats along a dimension: the rest of a period, each whole one, the
    beginning of another one; raises `Misaligned` where these are too many.

    Example: of ``n5[a0[4]] in 0[0 +1 of 2]`` (every other one of eight positions) the first five
    are ``n5[a0[0 +1 of 4]]``, ``n5[a0[1 +1 of 4]]`` and ``n5[a0[2 +1 of 4]]``, at 0, 2 and 4.
    """
    period, stop = max(p.extent for p in of_dim(addend, dim)), start + size
    firsts = [start, *range(start // period * period + period, stop, period)]
    if period == shape[dim] or len(firsts) > MOST_BLOCKS:
        raise Misaligned
    result = []
    for first, last in zip(firsts, [*firsts[1:], stop], strict=True):
        part = cut(addend, shape, dim, affine(first), last - first)
        if part is not None:
            result.append(placed(part, dim, first - start, last - first, size))
    return result


def _runs(dim: Dim, start: int, size: int) -> list[tuple[int, int]]:
    """Positions of a dimension as runs each of which is a view: (start, size)."""
    lead = next((i for i, interval in enumerate(dim) if interval.size != 1), len(dim))
    rest = dim[lead + 1 :]
    inner = prod(interval.size for interval in rest)
    if inner == 1 or (start % inner == 0 and size % inner == 0):
        return [(start, size)]
    stop = start + size
    if start // inner == (stop - 1) // inner:
        base = start // inner * inner
        return [(base + at, own) for at, own in _runs(rest, start - base, size)]
    head, tail = -(-start // inner) * inner, stop // inner * inner
    result = _runs(dim, start, head - start) if head > start else []
    result += [(head, tail - head)] if tail > head else []
    return result + (_runs(dim, tail, stop - tail) if stop > tail else [])


def moved_apart(addend: Addend, shape: Shape, target: Shape) -> list[Addend]:
    """`reshaped_addend`, as several addends side by side where what lies in one interval of a flat
    tensor lies in several of its rows; raises `Misaligned` where it is none.

    Example: ``n5[a0[12]] in 0[4 +12 of 24]``, reshaped to [3, 8], is the second half of row 0, ``in
    0[0 +1 of 3], 1[4 +4 of 8]``, beside all of row 1, ``in 0[1 +1 of 3]``.
    """
    try:
        return [reshaped_addend(addend, shape, target)]
    except Misaligned:
        if not addend.places:
            return _blocks_apart(addend, shape, target)
        if len(addend.places) != 1:
            return _groups_apart(addend, shape, target)
    (place,) = addend.places
    inner = prod(shape[place.dim + 1 :])
    total = prod(shape)
    if place.extent * inner != total:
        return _groups_apart(addend, shape, target)
    start, size = place.start * inner, place.size * inner
    flat = addend._replace(
        view=regroup(addend.view, (size,)), places=(Place(0, start, size, total),)
    )
    return _rows_apart(flat, total, (start, size), target)


def _groups_apart(addend: Addend, shape: Shape, target: Shape) -> list[Addend]:
    """What lies in one interval of a dimension that becomes several, as an addend for each box of
    these; raises `Misaligned` where it is none.

    Example: ``n5[a0[8], a1[8]] in 1[4 +8 of 12]``, eight of twelve channels, reshaped to [8, 2, 6],
    two groups, is ``n5[a0[8], a1[0 +2 of 8]] in 1[0 +1 of 2], 2[4 +2 of 6]`` beside ``n5[a0[8],
    a1[2 +6 of 8]] in 1[1 +1 of 2]``.
    """
    at = to = 0
    for own, others in blocks(shape, target):
        places = of_dim(addend, at)
        if own == 1 and len(places) == 1 and places[0].extent == shape[at]:
            boxes = _boxes(places[0].start, places[0].size, target[to : to + others])
            if 1 < len(boxes) <= MOST_REGIONS:
                break
        at, to = at + own, to + others
    else:
        raise Misaligned
    result: list[Addend] = []
    for start, size in boxes:
        for part in cut_up(addend, shape, at, affine(start), size):
            inside = next(iter(of_dim(part, at)), Place(at, 0, size, size))
            others_of = [p for p in part.places if p.dim != at]
            place = Place(at, start + inside.start, inside.size, shape[at])
            moved = part._replace(places=normal([*others_of, place]))
            result += moved_apart(moved, shape, target)
    return result


def _blocks_apart(addend: Addend, shape: Shape, target: Shape) -> list[Addend]:
    """A view of which one dimension becomes several, as an addend for each position of the first of
    these; raises `Misaligned` where it is none.

    Example: the classes ``n5[a0[0 +24 of *]]`` of one-hots, whose axis has no blocks, reshaped to
    [4, 6], are ``n5[a0[0 +6 of *]] in 0[0 +1 of 4]``, ``n5[a0[6 +6 of *]] in 0[1 +1 of 4]``, ...
    """
    at = to = 0
    for own, others in blocks(shape, target):
        sizes = [n for n in target[to : to + others] if n != 1]
        if own == 1 and len(sizes) > 1 and sizes[0] <= MOST_BLOCKS:
            try:
                split(addend, at, target[to : to + others])
            except Misaligned:
                break
        at, to = at + own, to + others
    else:
        raise Misaligned
    inner = shape[at] // sizes[0]
    result: list[Addend] = []
    for start in range(0, shape[at], inner):
        dims = list(addend.view.dims)
        dims[at] = narrow(dims[at], affine(start), inner)
        places = (Place(at, start, inner, shape[at]),)
        part = addend._replace(view=addend.view._replace(dims=tuple(dims)), places=places)
        result.append(reshaped_addend(part, shape, target))
    return result


def _rows_apart(flat: Addend, total: int, interval: tuple[int, int], target: Shape) -> list[Addend]:
    """An interval of a flat tensor as addends of a shape; raises `Misaligned` where it is none."""
    parts = [
        (at + p.start, p.size, t) if (p := next(iter(t.places), None)) else (at, own, t)
        for at, own in _boxes(*interval, target)
        for t in cut_up(flat, (total,), 0, affine(at), own)
    ]
    result: list[Addend] = []
    for at, own, part in parts:
        placed = part._replace(places=normal([Place(0, at, own, total)]))
        try:
            result.append(reshaped_addend(placed, (total,), target))
        except Misaligned:
            finer = [(at, own)]
            if finer == [interval]:
                # A box of the shape and a run of the view, which divide it in unlike ways.
                inner = max(
                    prod(target[i:]) for i in range(len(target) + 1) if prod(target[i:]) < own
                )
                finer = [(first, inner) for first in range(at, at + own, inner)]
            if len(result) + len(finer) > MOST_REGIONS:
                raise
            result += [t for one in finer for t in _rows_apart(flat, total, one, target)]
    return result


def _boxes(start: int, size: int, shape: Shape) -> list[tuple[int, int]]:
    """An interval of a flat tensor as intervals that are boxes of a shape."""
    inner = prod(shape[1:])
    if inner == 1 or (start % inner == 0 and size % inner == 0):
        return [(start, size)]
    stop = start + size
    if start // inner == (stop - 1) // inner:
        base = start // inner * inner
        return [(base + at, own) for at, own in _boxes(start - base, size, shape[1:])]
    head, tail = -(-start // inner) * inner, stop // inner * inner
    result = _boxes(start, head - start, shape) if head > start else []
    result += [(head, tail - head)] if tail > head else []
    return result + (_boxes(tail, stop - tail, shape) if stop > tail else [])
