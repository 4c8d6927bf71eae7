"""Tensors of different values side by side, as addends: region by region, put together."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from itertools import accumulate, pairwise, product
from math import prod

import numpy as np

from shardproof.engine.algebra.terms import Term
from shardproof.engine.errors import Unsupported
from shardproof.engine.interpreters.base import Array
from shardproof.engine.interpreters.dims import (
    Dim,
    Weighted,
    adjoin,
    count,
    narrow,
    normal,
    regroup,
)
from shardproof.engine.lineage.lineage import Addend as View
from shardproof.engine.lineage.lineage import Lineage
from shardproof.engine.lineage.places import (
    MOST_REGIONS,
    clipped,
    cuts,
    of_dim,
    split,
    split_at,
)
from shardproof.engine.lineage.views import Misaligned
from shardproof.engine.small_model.representatives import Representatives

Interval = tuple[int, int]


def side_by_side(
    lineage: Lineage,
    like: Sequence[Dim] | None,
    representatives: Representatives,
    tensor: Callable[[Lineage], Weighted],
    zero: Term,
) -> Weighted:
    """The local tensor of a lineage whose addends lie in parts of its dimensions, put together from
    regions.

    Example: ``[16] = n5[a0[8]] in 0[0 +8 of 16] + n6[a0[8]] in 0[8 +8 of 16]`` is two regions, the
    representatives of n5 and those of n6.

    ``like``: how what is zero is represented, if that can be; ``tensor``: of a lineage without
    places.  Raises `Unsupported` where these are no regions, or where what lies in a region is
    represented in two ways.
    """
    try:
        sizes = [_sizes(representatives, lineage, dim) for dim in range(len(lineage.shape))]
        addends = list(lineage.addends)
        for dim in reversed(range(len(sizes))):
            addends = [split(addend, dim, sizes[dim]) for addend in addends]
        whole = [n for parts in sizes for n in parts]
        beside = _beside(representatives, lineage, sizes)
        bounds = [
            list(pairwise(sorted(_bounds(addends, dim, n, beside[dim]))))
            for dim, n in enumerate(whole)
        ]
        if prod(map(len, bounds)) > MOST_REGIONS:
            raise Unsupported(f"a tensor of more than {MOST_REGIONS} regions")
        regions = {
            place: _region(
                tensor, addends, [b[i] for b, i in zip(bounds, place, strict=True)], whole
            )
            for place in product(*(range(len(b)) for b in bounds))
        }
    except Misaligned:
        raise Unsupported("parts of a tensor that do not lie side by side") from None
    given = _split_like(like, sizes)
    parts = [(d, part) for d, own in enumerate(sizes) for part in range(len(own))]

    def zeros(dim: int, start: int, stop: int) -> Dim:
        """How positions at which nothing lies are represented."""
        whole = given[dim]
        with suppress(Unsupported):
            if whole is not None:
                return narrow(whole, start, stop - start)[0]
        d, part = parts[dim]
        size = lineage.shape[d]
        return normal(representatives.represented(size, sizes[d], part, start, stop))

    dims = [
        [_represented(regions, dim, i) or zeros(dim, *bound) for i, bound in enumerate(b)]
        for dim, b in enumerate(bounds)
    ]
    data = _assembled(zero, regions, dims)
    joined = [adjoin(parts) for parts in dims]
    grouped: list[Dim] = []
    for split_into in sizes:
        own, joined = joined[: len(split_into)], joined[len(split_into) :]
        grouped.append(tuple(factor for dim in own for factor in dim))
    return Weighted(data.reshape([count(dim) for dim in grouped]), tuple(grouped))


def _bounds(addends: Sequence[View], dim: int, size: int, beside: set[int]) -> set[int]:
    """Where regions begin and end along a dimension: where addends do, and where others do that lie
    beside, unless that is within a row of an addend."""
    bounds = set(cuts(addends, dim, size))
    for place in beside - bounds:
        with suppress(Misaligned):
            for addend in addends:
                for start, stop in ((0, place), (place, size)):
                    clipped(addend, dim, start, stop - start, size)
            bounds.add(place)
    return bounds


def _region(
    tensor: Callable[[Lineage], Weighted],
    addends: Sequence[View],
    region: Sequence[Interval],
    whole: Sequence[int],
) -> Weighted | None:
    """What lies in a region: (start, stop) along every dimension; None: nothing."""
    kept: list[View] = []
    for addend in addends:
        part: View | None = addend
        for dim, (start, stop) in enumerate(region):
            if part is not None and stop - start < whole[dim]:
                part = clipped(part, dim, start, stop - start, whole[dim])
        if part is not None:
            kept.append(part)
    if not kept:
        return None
    return tensor(Lineage(tuple(stop - start for start, stop in region), tuple(kept)))


def _represented(
    regions: dict[tuple[int, ...], Weighted | None], dim: int, part: int
) -> Dim | None:
    """How the positions of one part of a dimension are represented, alike in all its regions; None
    where nothing lies there."""
    ways = {x.dims[dim] for place, x in regions.items() if place[dim] == part and x is not None}
    if len(ways) > 1:
        raise Unsupported(f"a part of a tensor represented as {sorted(ways)}")
    return ways.pop() if ways else None


def _split_like(like: Sequence[Dim] | None, sizes: Sequence[Sequence[int]]) -> list[Dim | None]:
    result: list[Dim | None] = []
    for dim, parts in enumerate(sizes):
        try:
            result += [None] * len(parts) if like is None else regroup([like[dim]], parts)
        except Unsupported:
            result += [None] * len(parts)
    return result


def _sizes(representatives: Representatives, lineage: Lineage, dim: int) -> tuple[int, ...]:
    """Into what a dimension is split, so that places of it, and of all dimensions of its size, are
    intervals."""
    size = lineage.shape[dim]
    others = representatives.placed.get(size, ())
    periods = {p.extent for t in lineage.addends for p in of_dim(t, dim)}
    if not periods:
        return (size,)
    try:
        return split_at(periods | {p.extent for t in others for p in t.places}, size)
    except Misaligned:
        return split_at(periods, size)


def _beside(
    representatives: Representatives, lineage: Lineage, sizes: Sequence[tuple[int, ...]]
) -> list[set[int]]:
    """Where other tensors have places along dimensions of the sizes of those that have."""
    placed = {place.dim for addend in lineage.addends for place in addend.places}
    result: list[set[int]] = []
    for dim, (size, own) in enumerate(zip(lineage.shape, sizes, strict=True)):
        bounds: list[set[int]] = [set() for _ in own]
        for addend in representatives.placed.get(size, ()) if dim in placed else ():
            try:
                spread = split(addend, 0, own)
            except Misaligned:
                continue
            for part, n in enumerate(own):
                bounds[part].update(cuts([spread], part, n))
        result += bounds
    return result


def _assembled(
    zero: Term,
    regions: dict[tuple[int, ...], Weighted | None],
    dims: Sequence[Sequence[Dim]],
) -> Array:
    data = np.full([sum(map(count, parts)) for parts in dims], zero, dtype=object)
    starts = [[0, *accumulate(map(count, parts))] for parts in dims]
    for place, x in regions.items():
        if x is not None:
            box = tuple(slice(s[i], s[i + 1]) for s, i in zip(starts, place, strict=True))
            data[box] = x.data
    return data
