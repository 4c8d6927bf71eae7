"""Views that lie side by side in one tensor: splitting, cutting, moving and joining them.

A concatenation is a sum of views each of which is zero outside of its place
(`engine.lineage.lineage.Place`).  Where a place repeats along a dimension (the second half of every
head), the dimension is split first; then every place is one interval.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from fractions import Fraction
from itertools import pairwise
from math import prod

from shardproof.engine.algebra.affine import Affine, affine
from shardproof.engine.lineage.lineage import Addend, Dim, Lineage, Place, View
from shardproof.engine.lineage.views import (
    Misaligned,
    merge,
    narrow,
    regroup,
)

Shape = tuple[int, ...]
#: Regions into which places may divide a tensor.
MOST_REGIONS = 256


def of_dim(addend: Addend, dim: int) -> tuple[Place, ...]:
    """The places of an addend along one dimension, innermost first.

    Example: of ``n5[a0[8], a1[8]] in 0[8 +8 of 16]`` along dimension 0 that place, along 1 none.
    """
    return tuple(p for p in addend.places if p.dim == dim)


def normal(places: Iterable[Place]) -> tuple[Place, ...]:
    """Places in order of dimension and extent, without those that leave everything.

    Example: of ``1[0 +8 of 8]`` and ``0[8 +8 of 16]`` the latter alone.
    """
    return tuple(sorted((p for p in places if p.size != p.extent), key=lambda p: (p.dim, p.extent)))


def collapsed(addend: Addend) -> Addend:
    """An addend whose places of one dimension, inside one another, are one where they are one
    interval: the first half of the second half is the third quarter.

    Example: ``n5[a0[4]] in 0[4 +4 of 8], 0[8 +8 of 16]`` is ``n5[a0[4]] in 0[12 +4 of 16]``.
    """
    merged: list[Place] = []
    for place in addend.places:
        inner = merged[-1] if merged and merged[-1].dim == place.dim else None
        if inner and place.size == inner.extent and place.start % inner.extent == 0:
            merged[-1] = place._replace(start=place.start + inner.start, size=inner.size)
        else:
            merged.append(place)
    return addend._replace(places=tuple(merged))


def left(shape: Sequence[int], places: Sequence[Place]) -> Shape:
    """The sizes of the dimensions that places leave: places of one dimension are inside one
    another, and each leaves its share of what is there.

    Example: of [16, 8], the place ``0[0 +8 of 16]`` leaves [8, 8].
    """
    sizes = list(shape)
    for place in places:
        sizes[place.dim] *= place.size
    for place in places:
        sizes[place.dim] //= place.extent
    return tuple(sizes)


def local_positions(addend: Addend, index: Sequence[int]) -> tuple[int, ...] | None:
    """Where an addend's view is read for one entry of a tensor, whose dimensions of more than one
    position ``index`` has; None outside of its places, where the addend is zero.

    Example: of ``n5[a0[8]] in 0[8 +8 of 16]`` position 10 is 2 of the view, and 3 is none.
    """
    split_dims = [(dim, of_dim(addend, d)) for d, dim in enumerate(addend.view.dims)]
    sizes = [
        prod(a.size for a in dim) * prod(Fraction(p.extent, p.size) for p in places)
        for dim, places in split_dims
    ]
    if sum(size > 1 for size in sizes) != len(index):
        raise Misaligned
    at = iter(index)
    own = [next(at) if size > 1 else 0 for size in sizes]
    inside = [_inside(i, places) for i, (_, places) in zip(own, split_dims, strict=True)]
    read = tuple(i for i in inside if i is not None)
    return read if len(read) == len(inside) else None


def _inside(position: int, places: Sequence[Place]) -> int | None:
    """Where a position of a dimension is among those that places of it leave, innermost first.

    Example: of ``0[0 +2 of 4]`` position 5 is the third one that is left, and 6 is none.
    """
    # Outer places take whole periods of inner ones, of which so many positions are left.
    kept = Fraction(1)
    for place in places:
        start, size, extent = (n * kept for n in place[1:])
        if any(n.denominator != 1 for n in (start, size, extent)):
            raise Misaligned
        outer, rest = divmod(position, int(extent))
        if not start <= rest < start + size:
            return None
        position = outer * int(size) + rest - int(start)
        kept = Fraction(place.size, place.extent) * kept
    return position


def reshaped_addend(addend: Addend, shape: Shape, target: Shape) -> Addend:
    """Row-major reshape of an addend of a tensor; raises `Misaligned` where its places are none of
    the new dimensions.

    Example: ``n5[a0[8], a1[8]] in 0[0 +8 of 16]`` of a tensor [16, 8], reshaped to [4, 4, 8], is
    ``n5[a0/4[2], a0[4], a1[8]] in 0[0 +2 of 4]``.
    """
    if shape == target:
        return addend
    if not addend.places:
        return addend._replace(view=regroup(addend.view, target))
    flat = []
    for place in addend.places:
        inner = prod(shape[place.dim + 1 :])
        flat.append((place.start * inner, place.size * inner, place.extent * inner))
    places = normal(p for start, size, extent in flat for p in _placed(start, size, extent, target))
    if len({(p.dim, p.extent) for p in places}) < len(places):
        raise Misaligned
    view = _regrouped(addend.view, shape, target, left(target, places))
    return addend._replace(view=view, places=places)


def _regrouped(view: View, shape: Shape, target: Shape, sizes: Shape) -> View:
    """`regroup` of what lies in places of a tensor, which is reshaped from ``shape`` to ``target``;
    ``sizes``: what the places leave of that.  One position of an axis goes where its dimension
    went: what is done along another one afterwards has nothing to do with it.

    Example: ``[a0[8], a1[0 +1 of 8], a2[4]]`` in ``1[0 +1 of 8]`` of a tensor [8, 8, 4], which
    becomes [64, 4], is ``[a0[8] x a1[0 +1 of 8], a2[4]]``: no part of the sum over the last one.
    """
    dims: list[Dim] = []
    fixed = list(view.fixed)
    at = 0
    for own, others in blocks(shape, target):
        made = regroup(View(view.dims[at : at + own]), sizes[len(dims) : len(dims) + others])
        at += own
        apart = list(made.dims)
        if apart:
            apart[-1] = merge([*apart[-1], *made.fixed])
        else:
            fixed += made.fixed
        dims += apart
    return View(tuple(dims), tuple(fixed))


def blocks(shape: Shape, target: Shape) -> list[tuple[int, int]]:
    """How many dimensions of each of two shapes belong together in a reshape: the fewest that have
    as many positions.  Example: of [8, 8, 4] and [64, 4], two and one, then one and one."""
    together: list[tuple[int, int]] = []
    i = j = 0
    while i < len(shape) and j < len(target):
        first, other = i, j
        have, need = shape[i], target[j]
        i, j = i + 1, j + 1
        while have != need:
            if have < need and i < len(shape):
                have, i = have * shape[i], i + 1
            elif have > need and j < len(target):
                need, j = need * target[j], j + 1
            else:
                return [(len(shape), len(target))]
        together.append((i - first, j - other))
    if i < len(shape) or j < len(target):
        rest = (len(shape) - i, len(target) - j)
        last = together.pop() if together else (0, 0)
        together.append((last[0] + rest[0], last[1] + rest[1]))
    return together


def split(addend: Addend, dim: int, sizes: Shape) -> Addend:
    """An addend of a tensor of which one dimension is split into several; raises `Misaligned` as
    `reshaped_addend` does.

    Example: ``n5[a0[8]] in 0[0 +8 of 16]``, its 16 positions split into 4 by 4, is ``n5[a0/4[2],
    a0[4]] in 0[0 +2 of 4]``.
    """
    if len(sizes) == 1:
        return addend
    flat = (prod(sizes),)
    own = [p._replace(dim=0) for p in of_dim(addend, dim)]
    view = addend.view
    line = addend._replace(view=view._replace(dims=(view.dims[dim],)), places=normal(own))
    reshaped = reshaped_addend(line, flat, sizes)
    grown = len(sizes) - 1
    others = [p._replace(dim=p.dim + grown * (p.dim > dim)) for p in addend.places if p.dim != dim]
    places = [*others, *(p._replace(dim=p.dim + dim) for p in reshaped.places)]
    dims = (*view.dims[:dim], *reshaped.view.dims, *view.dims[dim + 1 :])
    return addend._replace(
        view=view._replace(dims=dims, fixed=reshaped.view.fixed), places=normal(places)
    )


def unsplit(addend: Addend, dim: int, sizes: Shape) -> Addend:
    """The inverse of `split`: of a tensor whose dimensions from ``dim`` on have these sizes.

    Example: ``n5[a0/4[2], a0[4]] in 0[0 +2 of 4]`` of 4 by 4 is ``n5[a0[8]] in 0[0 +8 of 16]``.
    """
    if len(sizes) == 1:
        return addend
    count, grown = len(sizes), len(sizes) - 1
    dims = addend.view.dims
    places: list[Place] = []
    for place in addend.places:
        if dim <= place.dim < dim + count:
            inner = prod(sizes[place.dim - dim + 1 :])
            bounds = place.start * inner, place.size * inner, place.extent * inner
            places.append(Place(dim, *bounds))
        else:
            places.append(place._replace(dim=place.dim - grown * (place.dim > dim)))
    whole = merge([interval for d in dims[dim : dim + count] for interval in d])
    return addend._replace(
        view=addend.view._replace(dims=(*dims[:dim], whole, *dims[dim + count :])),
        places=normal(places),
    )


def _placed(start: int, size: int, extent: int, shape: Shape) -> list[Place]:
    """An interval of a flat tensor as places of dimensions."""
    result: list[Place] = []
    for dim in range(len(shape)):
        inner = prod(shape[dim + 1 :])
        if inner >= extent:
            continue
        count, rest = divmod(extent, inner)
        if rest or shape[dim] % count:
            raise Misaligned
        if start % inner == 0 and size % inner == 0:
            return [*result, Place(dim, start // inner, size // inner, count)]
        if start // inner != (start + size - 1) // inner:
            raise Misaligned
        result.append(Place(dim, start // inner, 1, count))
        start, extent = start % inner, inner
    raise Misaligned


def radix(addends: Iterable[Addend], dim: int, size: int) -> Shape:
    """A dimension split so that every place of it is an interval of one of the parts, outermost
    first; raises `Misaligned` where that cannot be.

    Example: 16 positions with ``n5[a0[8]] in 0[2 +2 of 4]`` are 4 by 4; in the inner four it is in
    [2, 4).
    """
    return split_at((p.extent for t in addends for p in of_dim(t, dim)), size)


def split_at(periods: Iterable[int], size: int) -> Shape:
    """A dimension split at periods of places, outermost first; raises `Misaligned` where these are
    not inside one another.

    Example: 16 positions at periods of 4 are 4 by 4.
    """
    bounds = sorted({1, size, *periods})
    if any(high % low for low, high in pairwise(bounds)):
        raise Misaligned
    return tuple(high // low for low, high in reversed(list(pairwise(bounds)))) or (size,)


def cuts(addends: Iterable[Addend], dim: int, size: int) -> list[int]:
    """Where intervals of a dimension begin and end, of addends whose places are all intervals.

    Example: one place ``0[0 +8 of 16]`` gives 0, 8 and 16.
    """
    bounds = {0, size}
    for addend in addends:
        for place in of_dim(addend, dim):
            bounds.update((place.start, place.start + place.size))
    return sorted(bounds)


def clipped(addend: Addend, dim: int, start: int, size: int, whole: int) -> Addend | None:
    """Positions [start, start + size) of a dimension of ``whole`` in which an addend has one place
    at most; None where it is zero there.  Raises `Misaligned` where they are no view.

    Example: of ``n5[a0[8]] in 0[0 +8 of 16]`` positions [4, 12) are ``n5[a0[4 +4 of 8]] in 0[0 +4
    of 8]``; in [8, 16) it is zero.
    """
    own = of_dim(addend, dim)
    first, stop = (own[0].start, own[0].start + own[0].size) if own else (0, whole)
    if len(own) > 1 or any(p.extent != whole for p in own):
        raise Misaligned
    low, high = max(first, start), min(stop, start + size)
    if low >= high:
        return None
    dims = list(addend.view.dims)
    dims[dim] = narrow(dims[dim], affine(low - first), high - low)
    places = [p for p in addend.places if p.dim != dim]
    if high - low < size:
        places.append(Place(dim, low - start, high - low, size))
    return addend._replace(view=addend.view._replace(dims=tuple(dims)), places=normal(places))


def cut(addend: Addend, shape: Shape, dim: int, start: Affine, size: int) -> Addend | None:
    """Positions [start, start + size) of a dimension of a tensor's addend; None where it is zero.
    Raises `Misaligned` where they are no view.

    Example: of ``n5[a0[8]] in 0[0 +8 of 16]``, positions [4, 8) are ``n5[a0[4 +4 of 8]]``, and [8,
    16) are zero.
    """
    places = of_dim(addend, dim)
    if not places:
        dims = list(addend.view.dims)
        dims[dim] = narrow(dims[dim], start, size)
        return addend._replace(view=addend.view._replace(dims=tuple(dims)))
    period = max(p.extent for p in places)
    if start.divisible(period) and size % period == 0:
        count = prod(p.size for p in places) * period // prod(p.extent for p in places)
        dims = list(addend.view.dims)
        dims[dim] = narrow(dims[dim], start // period * count, size // period * count)
        return addend._replace(view=addend.view._replace(dims=tuple(dims)))
    if start.terms:
        # Whole periods that move with the coordinates, and an interval of these that does not.
        inside = start.const % period
        base = start - inside
        if not base.divisible(period):
            raise Misaligned
        whole = -(-(inside + size) // period) * period
        block = cut(addend, shape, dim, base, whole)
        periods = (*shape[:dim], whole, *shape[dim + 1 :])
        return None if block is None else cut(block, periods, dim, affine(inside), size)
    sizes = radix([addend], dim, shape[dim])
    part: Addend | None = split(addend, dim, sizes)
    kept: list[int] = []
    for place, (low, count) in enumerate(_intervals(sizes, start.const, size)):
        if part is not None:
            part = clipped(part, dim + place, low, count, sizes[place])
        kept.append(count)
    return None if part is None else unsplit(part, dim, tuple(kept))


def _intervals(sizes: Shape, start: int, size: int) -> list[tuple[int, int]]:
    """An interval of a dimension as intervals of the parts that it is split into."""
    result: list[tuple[int, int]] = []
    for extent in reversed(sizes):
        if start % extent == 0 and size % extent == 0:
            result.append((0, extent))
            start, size = start // extent, size // extent
        elif start // extent == (start + size - 1) // extent:
            result.append((start % extent, size))
            start, size = start // extent, 1
        else:
            raise Misaligned
    return list(reversed(result))


def side_by_side(x: Lineage, dim: int) -> list[Lineage]:
    """What lies in a dimension one after the other, of a tensor whose places along it are
    intervals.  Raises `Misaligned` where they are not, or where nothing lies.

    Example: of a concatenation of two tensors these two, one after the other.
    """
    size = x.shape[dim]
    bounds = cuts(x.addends, dim, size)
    result = []
    for start, stop in pairwise(bounds):
        parts = (clipped(addend, dim, start, stop - start, size) for addend in x.addends)
        addends = tuple(addend for addend in parts if addend is not None)
        if not addends:
            raise Misaligned
        result.append(Lineage((*x.shape[:dim], stop - start, *x.shape[dim + 1 :]), addends))
    return result


def placed(addend: Addend, dim: int, start: int, size: int, whole: int) -> Addend:
    """An addend of a tensor of ``size`` positions as one of ``whole`` positions, from ``start`` on;
    raises `Misaligned` where its places do not repeat along it.

    Example: ``n5[a0[8]]`` from 8 on among 16 positions is ``n5[a0[8]] in 0[8 +8 of 16]``.
    """
    places = [p for p in addend.places if p.dim != dim]
    outer = Place(dim, start, size, whole)
    for place in of_dim(addend, dim):
        if place.extent == size:
            outer = Place(dim, start + place.start, place.size, whole)
        elif start % place.extent or size % place.extent or whole % place.extent:
            raise Misaligned
        else:
            places.append(place)
    return addend._replace(places=normal([*places, outer]))


def has_places(*lineages: Lineage) -> bool:
    """Whether any addend lies in part of a dimension only.

    Example: ``[16] = n5[a0[8]] in 0[0 +8 of 16]`` has one, ``[8] = n5[a0[8]]`` has none.
    """
    for x in lineages:
        for addend in x.addends:
            if addend.places:
                return True
    return False


def alone(addend: Addend, dim: int) -> Addend:
    """An addend along one of its dimensions.

    Example: ``n5[a0[16], a1[8]]`` along dimension 0 is ``n5[a0[16]]``.
    """
    return addend._replace(
        view=View((addend.view.dims[dim],)),
        places=tuple(p._replace(dim=0) for p in of_dim(addend, dim)),
    )
