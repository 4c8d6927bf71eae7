"""Tensors of different values side by side, as terms: region by region, put together."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, pairwise, product
from math import prod
from typing import TYPE_CHECKING

import numpy as np

from engine.arrays.base import Array
from engine.arrays.dims import Dim, Weighted, adjoin, count, narrow, regroup
from engine.errors import Unsupported
from engine.layout import Misaligned
from engine.lineage import Lineage, Term
from engine.places import MOST_REGIONS, clipped, cuts, radix, split

if TYPE_CHECKING:
    from engine.meaning import Meaning

Interval = tuple[int, int]


def side_by_side(meaning: Meaning, lineage: Lineage, like: Sequence[Dim] | None) -> Weighted:
    """The local tensor of a lineage whose terms have places; ``like``: how what is zero is
    represented, if that can be.  Raises `Unsupported` where these are no regions, or where what
    lies in a region is represented in two ways."""
    try:
        sizes = [radix(lineage.terms, dim, size) for dim, size in enumerate(lineage.shape)]
        terms = list(lineage.terms)
        for dim in reversed(range(len(sizes))):
            terms = [split(term, dim, sizes[dim]) for term in terms]
        whole = [n for parts in sizes for n in parts]
        bounds = [list(pairwise(cuts(terms, dim, n))) for dim, n in enumerate(whole)]
        if prod(map(len, bounds)) > MOST_REGIONS:
            raise Unsupported(f"a tensor of more than {MOST_REGIONS} regions")
        found = {
            place: _region(meaning, terms, [b[i] for b, i in zip(bounds, place, strict=True)], whole)
            for place in product(*(range(len(b)) for b in bounds))
        }
    except Misaligned:
        raise Unsupported("parts of a tensor that do not lie side by side") from None
    given = _split_like(like, sizes)
    dims = [
        [
            _represented(found, dim, i) or _zeros(meaning, given[dim], start, stop - start)
            for i, (start, stop) in enumerate(b)
        ]
        for dim, b in enumerate(bounds)
    ]
    data = _assembled(meaning, found, dims)
    joined = [adjoin(parts) for parts in dims]
    grouped: list[Dim] = []
    for parts in sizes:
        own, joined = joined[: len(parts)], joined[len(parts) :]
        grouped.append(tuple(factor for dim in own for factor in dim))
    return Weighted(data.reshape([count(dim) for dim in grouped]), tuple(grouped))


def _region(
    meaning: Meaning, terms: Sequence[Term], region: Sequence[Interval], whole: Sequence[int]
) -> Weighted | None:
    """What lies in a region: (start, stop) along every dimension; None: nothing."""
    kept: list[Term] = []
    for term in terms:
        found: Term | None = term
        for dim, (start, stop) in enumerate(region):
            if found is not None and stop - start < whole[dim]:
                found = clipped(found, dim, start, stop - start, whole[dim])
        if found is not None:
            kept.append(found)
    if not kept:
        return None
    return meaning.tensor(Lineage(tuple(stop - start for start, stop in region), tuple(kept)))


def _represented(
    found: dict[tuple[int, ...], Weighted | None], dim: int, part: int
) -> Dim | None:
    """How the positions of one part of a dimension are represented, alike in all its regions; None
    where nothing lies there."""
    held = {x.dims[dim] for place, x in found.items() if place[dim] == part and x is not None}
    if len(held) > 1:
        raise Unsupported(f"a part of a tensor represented as {sorted(held)}")
    return held.pop() if held else None


def _split_like(like: Sequence[Dim] | None, sizes: Sequence[Sequence[int]]) -> list[Dim | None]:
    result: list[Dim | None] = []
    for dim, parts in enumerate(sizes):
        try:
            result += [None] * len(parts) if like is None else regroup([like[dim]], parts)
        except Unsupported:
            result += [None] * len(parts)
    return result


def _zeros(meaning: Meaning, like: Dim | None, start: int, size: int) -> Dim:
    """How positions at which nothing lies are represented."""
    try:
        return meaning.grid.constant_dim(size) if like is None else narrow(like, start, size)[0]
    except Unsupported:
        return meaning.grid.constant_dim(size)


def _assembled(
    meaning: Meaning,
    found: dict[tuple[int, ...], Weighted | None],
    dims: Sequence[Sequence[Dim]],
) -> Array:
    data = np.full([sum(map(count, parts)) for parts in dims], meaning.terms.zero, dtype=object)
    starts = [[0, *accumulate(map(count, parts))] for parts in dims]
    for place, x in found.items():
        if x is not None:
            box = tuple(slice(s[i], s[i + 1]) for s, i in zip(starts, place, strict=True))
            data[box] = x.data
    return data
