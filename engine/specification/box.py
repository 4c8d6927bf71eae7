"""The box of a value that a demand is about, as a view of the value."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from shardproof.engine.algebra.affine import Affine, affine
from shardproof.engine.lineage.cutting import cut_up
from shardproof.engine.lineage.joining import joined
from shardproof.engine.lineage.lineage import Addend, Dim, Lineage
from shardproof.engine.lineage.places import of_dim
from shardproof.engine.lineage.views import Misaligned, narrow


def _interval(dim: Dim, start: Affine, size: int, extents: Mapping[str, int]) -> Dim:
    """Positions [start, start + size) of a dimension; raises `Misaligned` if they are no view.

    A position along several axes is taken axis by axis, each within the block of the one outside:
    a dimension of several atoms is cut in one of them at a time.
    """
    outer = max(start.terms, key=lambda term: term[1], default=None)
    if outer is not None and len(start.terms) > 1:
        axis, block = outer
        rest = start - affine(0, {axis: block})
        reach = [c * (extents[a] - 1) for a, c in rest.terms]
        if all(x >= 0 for x in (rest.const, *reach)) and rest.const + sum(reach) + size <= block:
            return _interval(narrow(dim, start - rest, block), rest, size, extents)
    return narrow(dim, start, size)


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
    if of_dim(addend, dim):
        return cut_up(addend, shape, dim, start, size)
    dims = list(addend.view.dims)
    try:
        dims[dim] = _interval(dims[dim], start, size, extents)
    except Misaligned:
        return cut_up(addend, shape, dim, start, size)
    return [addend._replace(view=addend.view._replace(dims=tuple(dims)))]
