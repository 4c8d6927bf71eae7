"""Views that lie side by side in one tensor: splitting, cutting, moving and joining them.

A concatenation is a sum of views each of which is zero outside of its place
(`engine.lineage.lineage.Place`).  Where a place repeats along a dimension (the second half of every
head), the dimension is split first; then every place is one interval.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise
from math import prod

from shardproof.engine.algebra.affine import Affine, affine
from shardproof.engine.lineage.layout import (
    Misaligned,
    adjoin,
    constant_atom,
    merge,
    narrow,
    regroup,
)
from shardproof.engine.lineage.lineage import BROADCAST, Dim, Layout, Lineage, Place, Term

Shape = tuple[int, ...]
#: Regions into which places may divide a tensor.
MOST_REGIONS = 256


def of_dim(term: Term, dim: int) -> tuple[Place, ...]:
    """The places of a term along one dimension, innermost first."""
    return tuple(p for p in term.places if p.dim == dim)


def normal(places: Iterable[Place]) -> tuple[Place, ...]:
    """Places in order, without those that leave everything."""
    return tuple(sorted((p for p in places if p.size != p.extent), key=lambda p: (p.dim, p.extent)))


def left(shape: Sequence[int], places: Sequence[Place]) -> Shape:
    """The sizes of the dimensions that places leave: places of one dimension are inside one
    another, and each leaves its share of what is there."""
    sizes = list(shape)
    for place in places:
        sizes[place.dim] *= place.size
    for place in places:
        sizes[place.dim] //= place.extent
    return tuple(sizes)


def moved(term: Term, shape: Shape, target: Shape) -> Term:
    """Row-major reshape of a term of a tensor; raises `Misaligned` where its places are none of
    the new dimensions."""
    if shape == target:
        return term
    if not term.places:
        return term._replace(layout=regroup(term.layout, target))
    flat = []
    for place in term.places:
        inner = prod(shape[place.dim + 1 :])
        flat.append((place.start * inner, place.size * inner, place.extent * inner))
    places = normal(p for start, size, extent in flat for p in _placed(start, size, extent, target))
    if len({(p.dim, p.extent) for p in places}) < len(places):
        raise Misaligned
    return term._replace(layout=regroup(term.layout, left(target, places)), places=places)


def split(term: Term, dim: int, sizes: Shape) -> Term:
    """A term of a tensor of which one dimension is split into several; raises `Misaligned` as
    `moved` does."""
    if len(sizes) == 1:
        return term
    flat = (prod(sizes),)
    own = [p._replace(dim=0) for p in of_dim(term, dim)]
    layout = term.layout
    held = term._replace(layout=layout._replace(dims=(layout.dims[dim],)), places=normal(own))
    found = moved(held, flat, sizes)
    grown = len(sizes) - 1
    others = [p._replace(dim=p.dim + grown * (p.dim > dim)) for p in term.places if p.dim != dim]
    places = [*others, *(p._replace(dim=p.dim + dim) for p in found.places)]
    dims = (*layout.dims[:dim], *found.layout.dims, *layout.dims[dim + 1 :])
    return term._replace(
        layout=layout._replace(dims=dims, fixed=found.layout.fixed), places=normal(places)
    )


def unsplit(term: Term, dim: int, sizes: Shape) -> Term:
    """The inverse of `split`: of a tensor whose dimensions from ``dim`` on have these sizes."""
    if len(sizes) == 1:
        return term
    count, grown = len(sizes), len(sizes) - 1
    dims = term.layout.dims
    places: list[Place] = []
    for place in term.places:
        if dim <= place.dim < dim + count:
            inner = prod(sizes[place.dim - dim + 1 :])
            bounds = place.start * inner, place.size * inner, place.extent * inner
            places.append(Place(dim, *bounds))
        else:
            places.append(place._replace(dim=place.dim - grown * (place.dim > dim)))
    whole = merge([atom for d in dims[dim : dim + count] for atom in d])
    return term._replace(
        layout=term.layout._replace(dims=(*dims[:dim], whole, *dims[dim + count :])),
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


def radix(terms: Iterable[Term], dim: int, size: int) -> Shape:
    """A dimension split so that every place of it is an interval of one of the parts, outermost
    first; raises `Misaligned` where that cannot be."""
    return split_at((p.extent for t in terms for p in of_dim(t, dim)), size)


def split_at(periods: Iterable[int], size: int) -> Shape:
    """A dimension split at periods of places, outermost first; raises `Misaligned` where these are
    not inside one another."""
    bounds = sorted({1, size, *periods})
    if any(high % low for low, high in pairwise(bounds)):
        raise Misaligned
    return tuple(high // low for low, high in reversed(list(pairwise(bounds)))) or (size,)


def cuts(terms: Iterable[Term], dim: int, size: int) -> list[int]:
    """Where intervals of a dimension begin and end, of terms whose places are all intervals."""
    found = {0, size}
    for term in terms:
        for place in of_dim(term, dim):
            found.update((place.start, place.start + place.size))
    return sorted(found)


def clipped(term: Term, dim: int, start: int, size: int, whole: int) -> Term | None:
    """Positions [start, start + size) of a dimension of ``whole`` in which a term has one place at
    most; None where it is zero there.  Raises `Misaligned` where they are no view."""
    held = of_dim(term, dim)
    first, stop = (held[0].start, held[0].start + held[0].size) if held else (0, whole)
    if len(held) > 1 or any(p.extent != whole for p in held):
        raise Misaligned
    low, high = max(first, start), min(stop, start + size)
    if low >= high:
        return None
    dims = list(term.layout.dims)
    dims[dim] = narrow(dims[dim], affine(low - first), high - low)
    places = [p for p in term.places if p.dim != dim]
    if high - low < size:
        places.append(Place(dim, low - start, high - low, size))
    return term._replace(layout=term.layout._replace(dims=tuple(dims)), places=normal(places))


def cut(term: Term, shape: Shape, dim: int, start: Affine, size: int) -> Term | None:
    """Positions [start, start + size) of a dimension of a tensor's term; None where it is zero.
    Raises `Misaligned` where they are no view."""
    held = of_dim(term, dim)
    if not held:
        dims = list(term.layout.dims)
        dims[dim] = narrow(dims[dim], start, size)
        return term._replace(layout=term.layout._replace(dims=tuple(dims)))
    period = max(p.extent for p in held)
    if start.divisible(period) and size % period == 0:
        count = prod(p.size for p in held) * period // prod(p.extent for p in held)
        dims = list(term.layout.dims)
        dims[dim] = narrow(dims[dim], start // period * count, size // period * count)
        return term._replace(layout=term.layout._replace(dims=tuple(dims)))
    if start.terms:
        # Whole periods that move with the coordinates, and an interval of these that does not.
        inside = start.const % period
        base = start - inside
        if not base.divisible(period):
            raise Misaligned
        whole = -(-(inside + size) // period) * period
        block = cut(term, shape, dim, base, whole)
        periods = (*shape[:dim], whole, *shape[dim + 1 :])
        return None if block is None else cut(block, periods, dim, affine(inside), size)
    sizes = radix([term], dim, shape[dim])
    found: Term | None = split(term, dim, sizes)
    kept: list[int] = []
    for place, (low, count) in enumerate(_intervals(sizes, start.const, size)):
        if found is not None:
            found = clipped(found, dim + place, low, count, sizes[place])
        kept.append(count)
    return None if found is None else unsplit(found, dim, tuple(kept))


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
    intervals.  Raises `Misaligned` where they are not, or where nothing lies."""
    size = x.shape[dim]
    bounds = cuts(x.terms, dim, size)
    result = []
    for start, stop in pairwise(bounds):
        found = (clipped(term, dim, start, stop - start, size) for term in x.terms)
        terms = tuple(term for term in found if term is not None)
        if not terms:
            raise Misaligned
        result.append(Lineage((*x.shape[:dim], stop - start, *x.shape[dim + 1 :]), terms))
    return result


def placed(term: Term, dim: int, start: int, size: int, whole: int) -> Term:
    """A term of a tensor of ``size`` positions as one of ``whole`` positions, from ``start`` on;
    raises `Misaligned` where its places do not repeat along it."""
    places = [p for p in term.places if p.dim != dim]
    outer = Place(dim, start, size, whole)
    for place in of_dim(term, dim):
        if place.extent == size:
            outer = Place(dim, start + place.start, place.size, whole)
        elif start % place.extent or size % place.extent or whole % place.extent:
            raise Misaligned
        else:
            places.append(place)
    return term._replace(places=normal([*places, outer]))


def joined(terms: Sequence[Term]) -> list[Term]:
    """Terms that lie side by side and are one view together, as that view; in order of place."""
    found = list(terms)
    if not any(t.places for t in found):
        return found
    found.sort(key=_order)
    changed = True
    while changed:
        changed = False
        for dim in sorted({p.dim for t in found for p in t.places}):
            found, again = _joined_along(found, dim)
            changed |= again
    return sorted(found, key=_order)


def _order(term: Term) -> tuple[object, ...]:
    return (term.places, term.node)


def _joined_along(terms: Sequence[Term], dim: int) -> tuple[list[Term], bool]:
    result: list[Term] = []
    last: dict[object, int] = {}
    changed = False
    for term in sorted(terms, key=lambda t: tuple(p.start for p in of_dim(t, dim))):
        key = _key(term, dim)
        at = last.get(key)
        both = None if at is None else _both(result[at], term, dim)
        if at is None or both is None:
            last[key] = len(result)
            result.append(term)
        else:
            result[at] = both
            changed = True
    return result, changed


def _key(term: Term, dim: int) -> object:
    others = tuple(d for i, d in enumerate(term.layout.dims) if i != dim)
    held = of_dim(term, dim)
    rest = tuple(p for p in term.places if p.dim != dim)
    extents = tuple(p.extent for p in held)
    inner = held[:-1]
    return (term.factor, term.node, term.layout.fixed, others, term.parts, rest, extents, inner)


def _both(one: Term, other: Term, dim: int) -> Term | None:
    """Two terms of one `_key` as one, if they lie side by side and together are a view."""
    mine, next_to = of_dim(one, dim), of_dim(other, dim)
    if not mine or mine[-1].start + mine[-1].size != next_to[-1].start:
        return None
    dims = list(one.layout.dims)
    try:
        dims[dim] = adjoin([one.layout.dims[dim], other.layout.dims[dim]])
    except Misaligned:
        again = _repeated(one.layout.dims[dim], other.layout.dims[dim])
        if again is None:
            return None
        dims[dim] = again
    whole = mine[-1]._replace(size=mine[-1].size + next_to[-1].size)
    places = normal([*(p for p in one.places if p != mine[-1]), whole])
    return one._replace(layout=one.layout._replace(dims=tuple(dims)), places=places)


def _repeated(one: Dim, other: Dim) -> Dim | None:
    """A view, once or several times, and then once more; or what does not vary, and more of it."""
    if all(atom.axis == BROADCAST for atom in (*one, *other)):
        return (constant_atom(_positions(one) + _positions(other)),)
    if one == other:
        return (constant_atom(2), *one)
    if one[1:] == other and one[0].axis == BROADCAST:
        return (constant_atom(one[0].size + 1), *other)
    return None


def _positions(dim: Dim) -> int:
    return prod(atom.size for atom in dim)


def has_places(*lineages: Lineage) -> bool:
    """Whether any term lies in part of a dimension only."""
    for x in lineages:
        for term in x.terms:
            if term.places:
                return True
    return False


def permuted(x: Lineage, order: Sequence[int]) -> Lineage:
    """A tensor with its dimensions in another order."""
    terms = [
        term._replace(
            layout=term.layout._replace(dims=tuple(term.layout.dims[i] for i in order)),
            places=normal(p._replace(dim=order.index(p.dim)) for p in term.places),
        )
        for term in x.terms
    ]
    return Lineage(tuple(x.shape[i] for i in order), tuple(joined(terms)))


def alone(term: Term, dim: int) -> Term:
    """A term along one of its dimensions."""
    return term._replace(
        layout=Layout((term.layout.dims[dim],)),
        places=tuple(p._replace(dim=0) for p in of_dim(term, dim)),
    )
