"""Views that lie side by side and are one view together: joining what was cut."""

from __future__ import annotations

from collections.abc import Iterable, Sequence, Set
from math import prod

from shardproof.engine.algebra.affine import Affine
from shardproof.engine.lineage.floating import sunk
from shardproof.engine.lineage.lineage import (
    BROADCAST,
    Addend,
    Dim,
    Lineage,
    StridedInterval,
    View,
)
from shardproof.engine.lineage.places import normal, of_dim
from shardproof.engine.lineage.views import Misaligned, adjoin, constant_interval, merge


def joined(addends: Sequence[Addend]) -> list[Addend]:
    """Terms that lie side by side and are one view together, as that view; in order of place.

    Example: ``n5[a0[0 +8 of 16]] in 0[0 +8 of 16]`` and ``n5[a0[8 +8 of 16]] in 0[8 +8 of 16]`` are
    ``n5[a0[16]]``.
    """
    result = list(addends)
    if not any(t.places for t in result):
        return result
    result.sort(key=_order)
    changed = True
    while changed:
        changed = False
        for dim in sorted({p.dim for t in result for p in t.places}):
            result, again = _joined_along(result, dim)
            changed |= again
    return sorted(result, key=_order)


def _order(addend: Addend) -> tuple[object, ...]:
    return (addend.places, addend.node)


def _joined_along(addends: Sequence[Addend], dim: int) -> tuple[list[Addend], bool]:
    result, changed = _adjoined(addends, dim)
    # One half of an axis, and all of a digit at one of two positions outside of it, are the same.
    spelled = {t._replace(view=sunk(t.view)): t for t in result}
    loose = {_loosened(t, dim, list(spelled)): addend for t, addend in spelled.items()}
    if any(a is not b for a, b in loose.items()):
        # What is still alone stays as it was.
        wider, again = _adjoined(list(loose), dim)
        return [loose.get(addend, addend) for addend in wider], changed or again
    return result, changed


def _loosened(addend: Addend, dim: int, others: Sequence[Addend]) -> Addend:
    """One position along a dimension as one of an axis that it has at no dimension, or at another
    one, if others of the same node lie at the next positions of that axis: then they may be one
    view together.

    Example: ``n5[1, a1[8]] at a0[0 +1 of 4]`` in ``0[0 +1 of 4]`` is ``n5[a0[0 +1 of 4], a1[8]]``
    there, beside ``n5[a0[1 +3 of 4], a1[8]]`` in ``0[1 +3 of 4]``; and so is
    ``n5[1, a0[0 +1 of 4] x a1[8]]``. One position of another axis that the dimension has itself,
    such as the only row of ``n5[a2[3 +1 of 9], a0[0 +1 of 4] x a1[8]]``, is of no dimension then.
    """
    single, mine = _single(addend), _varying(addend, dim)
    if not single or not of_dim(addend, dim):
        return addend
    if not mine and (digit := _as_digit(addend, single, dim, others)) is not None:
        return digit
    beside = {
        interval[:3]
        for other in others
        if other.node == addend.node and _next_to(addend, other, dim)
        for interval in _continued(single, mine, _single(other), _varying(other, dim))
    }
    own = [interval for interval in single if interval[:3] in beside]
    if len(own) != 1:
        return _as_beside(addend, dim, others) if own and not mine else addend
    dims = [merge(tuple(a for a in d if a != own[0])) for d in addend.view.dims]
    dims[dim] = (own[0], *mine)
    alone = [a for a in addend.view.dims[dim] if a.size == 1 and a.axis != BROADCAST]
    fixed = tuple(a for a in (*addend.view.fixed, *alone) if a != own[0])
    return addend._replace(view=View(tuple(dims), fixed))


def _as_digit(
    addend: Addend, single: Set[StridedInterval], dim: int, others: Sequence[Addend]
) -> Addend | None:
    """One position along a dimension as one of every so many, of which others have the next ones;
    None where they have none.

    Example: ``n5[a0[7 +1 of 16]]`` in ``0[0 +1 of 4]`` is ``n5[a0/2[3 +1 of 8]] at a0[1 +1 of 2]``
    there, beside ``n5[a0/2[4 +3 of 8]] at a0[1 +1 of 2]`` in ``0[1 +3 of 4]``.
    """
    for other in others:
        if other.node != addend.node or not _next_to(addend, other, dim):
            continue
        theirs = _varying(other, dim)
        mine = [a for a in single if theirs and a.axis == theirs[0].axis]
        if len(theirs) != 1 or len(mine) != 1:
            continue
        (row,), (own,) = theirs, mine
        count, rest = divmod(row.stride, own.stride)
        inside = Affine(own.start.const % max(count, 1))
        if count < 2 or rest or own.extent != count * row.extent:
            continue
        inner = StridedInterval(own.axis, own.stride, count, inside, 1)
        if not (own.start - inside).divisible(count) or inner not in _single(other):
            continue
        outer = row._replace(start=(own.start - inside) // count, size=1)
        dims = [tuple(a for a in d if a != own) for d in addend.view.dims]
        dims[dim] = (outer,)
        fixed = (*(a for a in addend.view.fixed if a != own), inner)
        return addend._replace(view=View(tuple(dims), fixed))
    return None


def _as_beside(addend: Addend, dim: int, others: Sequence[Addend]) -> Addend:
    """One position along a dimension as the next one of a row of which others have the rest.

    Example: ``n5[1] at a0[1 +1 of 4] a1[5 +1 of 6]`` behind ``n5[a0[1 +1 of 4] x a1[0 +5 of 6]]``
    is ``n5[a0[1 +1 of 4] x a1[5 +1 of 6]]``, also where whole rows lie behind it.
    """
    single = _single(addend)
    at = {interval[:3]: interval for interval in single}
    for other in others:
        if other.node != addend.node or not _next_to(addend, other, dim):
            continue
        row = other.view.dims[dim]
        rest = [a for a in row if a.size == 1 and a.axis != BROADCAST]
        if len(_varying(other, dim)) == 1 and single.issuperset(rest):
            own = tuple(at.get(a[:3], a) for a in row)
            if any(a.size != 1 for a in own):
                continue
            dims = [merge(tuple(a for a in d if a not in own)) for d in addend.view.dims]
            dims[dim] = own
            fixed = tuple(a for a in addend.view.fixed if a not in own)
            return addend._replace(view=View(tuple(dims), fixed))
    return addend


def _next_to(one: Addend, other: Addend, dim: int) -> bool:
    """Whether one lies right before or behind the other along a dimension."""
    mine, theirs = of_dim(one, dim), of_dim(other, dim)
    if not theirs or mine[:-1] != theirs[:-1]:
        return False
    a, b = mine[-1], theirs[-1]
    return a.start + a.size == b.start or b.start + b.size == a.start


def _continued(
    single: Set[StridedInterval], mine: Dim, others: Set[StridedInterval], theirs: Dim
) -> Iterable[StridedInterval]:
    """The axis along which a neighbour goes on: its dimension's, or where alone it differs."""
    if theirs and not mine:
        return theirs
    apart = others - single
    return apart if theirs == mine and len(apart) == 1 else ()


def _varying(addend: Addend, dim: int) -> Dim:
    """A dimension without its single positions."""
    return tuple(a for a in addend.view.dims[dim] if a.size != 1)


def _single(addend: Addend) -> set[StridedInterval]:
    """The one positions that a view reads of axes, wherever it has them."""
    inside = (a for d in addend.view.dims for a in d if a.size == 1 and a.axis != BROADCAST)
    return {*inside, *(a for a in addend.view.fixed if a.size == 1)}


def _adjoined(addends: Sequence[Addend], dim: int) -> tuple[list[Addend], bool]:
    result: list[Addend] = []
    last: dict[object, int] = {}
    changed = False
    for addend in sorted(addends, key=lambda t: tuple(p.start for p in of_dim(t, dim))):
        key = _key(addend, dim)
        at = last.get(key)
        both = None if at is None else _both(result[at], addend, dim)
        if at is None or both is None:
            last[key] = len(result)
            result.append(addend)
        else:
            result[at] = both
            changed = True
    return result, changed


def _key(addend: Addend, dim: int) -> object:
    dims = (d for i, d in enumerate(addend.view.dims) if i != dim)
    # One position along which nothing varies is written in two ways.
    others = tuple(tuple(a for a in d if (a.axis, a.size) != (BROADCAST, 1)) for d in dims)
    places = of_dim(addend, dim)
    rest = tuple(p for p in addend.places if p.dim != dim)
    extents = tuple(p.extent for p in places)
    inner = places[:-1]
    return (
        addend.factor,
        addend.node,
        addend.view.fixed,
        others,
        addend.partials,
        rest,
        extents,
        inner,
    )


def _both(one: Addend, other: Addend, dim: int) -> Addend | None:
    """Two addends of one `_key` as one, if they lie side by side and together are a view."""
    mine, next_to = of_dim(one, dim), of_dim(other, dim)
    if not mine or mine[-1].start + mine[-1].size != next_to[-1].start:
        return None
    if _alternates(one, other, dim):
        return None
    dims = list(one.view.dims)
    try:
        dims[dim] = adjoin([one.view.dims[dim], other.view.dims[dim]])
    except Misaligned:
        again = _repeated(one.view.dims[dim], other.view.dims[dim])
        if again is None:
            return None
        dims[dim] = again
    whole = mine[-1]._replace(size=mine[-1].size + next_to[-1].size)
    places = normal([*(p for p in one.places if p != mine[-1]), whole])
    return one._replace(view=one.view._replace(dims=tuple(dims)), places=places)


def _alternates(one: Addend, other: Addend, dim: int) -> bool:
    """Whether places repeat along a dimension along which something varies: then the positions of
    two such addends take turns, and are not those of one behind those of the other.

    Example: ``n5[a0[0 +2 of 4]] in 0[0 +1 of 2]`` and ``n5[a0[2 +2 of 4]] in 0[1 +1 of 2]`` are the
    positions 0, 2, 1 and 3 of ``n5``.
    """
    dims = one.view.dims[dim], other.view.dims[dim]
    if all(interval.axis == BROADCAST for d in dims for interval in d):
        return False
    places = of_dim(one, dim)
    period = places[-1].extent * prod(p.size for p in places) // prod(p.extent for p in places)
    return _positions(dims[0]) != period


def _repeated(one: Dim, other: Dim) -> Dim | None:
    """A view, once or several times, and then once more; or what does not vary, and more of it."""
    if all(interval.axis == BROADCAST for interval in (*one, *other)):
        return (constant_interval(_positions(one) + _positions(other)),)
    if one == other:
        return (constant_interval(2), *one)
    if one[1:] == other and one[0].axis == BROADCAST:
        return (constant_interval(one[0].size + 1), *other)
    return None


def _positions(dim: Dim) -> int:
    return prod(interval.size for interval in dim)


def permuted(x: Lineage, order: Sequence[int]) -> Lineage:
    """A tensor with its dimensions in another order.

    Example: ``n5[a0[16], a1[8]]`` in the order (1, 0) is ``n5[a1[8], a0[16]]``.
    """
    addends = [
        addend._replace(
            view=addend.view._replace(dims=tuple(addend.view.dims[i] for i in order)),
            places=normal(p._replace(dim=order.index(p.dim)) for p in addend.places),
        )
        for addend in x.addends
    ]
    return Lineage(tuple(x.shape[i] for i in order), tuple(joined(addends)))
