"""The box of a value that a demand is about, as a view of the value."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress

from shardproof.engine.algebra.affine import Affine, affine
from shardproof.engine.lineage.cutting import cut_up
from shardproof.engine.lineage.joining import joined
from shardproof.engine.lineage.lineage import Addend, Lineage
from shardproof.engine.lineage.places import of_dim
from shardproof.engine.lineage.views import Misaligned, narrow


def _blocks(start: Affine, size: int, extents: Mapping[str, int]) -> list[tuple[Affine, int]]:
    """Positions [start, start + size), which move along several axes, axis by axis: each block of
    (start, size) within the one before it.

    Example: 8 positions from ``64*dp + 8*tp`` on, with ``tp`` of 8, are 8 from ``8*tp`` on of the
    64 from ``64*dp`` on.
    """
    blocks = []
    while len(start.terms) > 1:
        axis, block = max(start.terms, key=lambda term: term[1])
        rest = start - affine(0, {axis: block})
        reach = [c * (extents[a] - 1) for a, c in rest.terms]
        if any(x < 0 for x in (rest.const, *reach)) or rest.const + sum(reach) + size > block:
            break
        blocks.append((start - rest, block))
        start = rest
    return [*blocks, (start, size)]


def box_of(
    lineage: Lineage, offset: Sequence[Affine], shape: tuple[int, ...], extents: Mapping[str, int]
) -> Lineage:
    """The box of a tensor at ``offset``, on ranks along axes of ``extents``; raises `Misaligned` if
    it is neither a view nor several side by side.

    Example: of ``[4, 16] = n11[a0[4], a1[16]]`` the box of 8 columns at ``8*tp`` is
    ``[4, 8] = n11[a0[4], a1[<8*tp> +8 of 16]]``.
    """
    addends = list(lineage.addends)
    here = lineage.shape
    for i, (size, full) in enumerate(zip(shape, lineage.shape, strict=True)):
        if size != full:
            start = offset[i].settled(extents)
            addends = [
                part
                for addend in addends
                for part in _box_along(addend, here, i, start, size, extents)
            ]
            here = (*here[:i], size, *here[i + 1 :])
    return Lineage(shape, tuple(joined(addends)))


def _box_along(
    addend: Addend,
    shape: tuple[int, ...],
    dim: int,
    start: Affine,
    size: int,
    extents: Mapping[str, int],
) -> list[Addend]:
    """An addend of a box along one dimension; several where its rows lie in digits that the box
    ends within (nine rows of heads of four); none where it is zero there."""
    blocks = _blocks(start, size, extents)
    if of_dim(addend, dim):
        with suppress(Misaligned):
            return cut_up(addend, shape, dim, start, size)
        return _within_places(addend, shape, dim, blocks)
    own = addend.view.dims[dim]
    try:
        for place, count in blocks:
            own = narrow(own, place, count)
    except Misaligned:
        return cut_up(addend, shape, dim, start, size)
    dims = (*addend.view.dims[:dim], own, *addend.view.dims[dim + 1 :])
    return [addend._replace(view=addend.view._replace(dims=dims))]


def _within_places(
    addend: Addend, shape: tuple[int, ...], dim: int, blocks: Sequence[tuple[Affine, int]]
) -> list[Addend]:
    """`_box_along`, of what lies in places along the dimension, block by block."""
    addends = [addend]
    for start, size in blocks:
        addends = [part for one in addends for part in cut_up(one, shape, dim, start, size)]
        shape = (*shape[:dim], size, *shape[dim + 1 :])
    return addends
