"""One lineage for the members of a family that were read one by one."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from shardproof.engine.algebra.affine import Affine, affine
from shardproof.engine.lineage.lineage import Addend, Lineage, PartialRange, StridedInterval
from shardproof.engine.lineage.views import Misaligned

#: Members that are read one by one.
MOST_MEMBERS = 64


def along_axes(
    make: Callable[[Affine], Lineage], start: Affine, mesh: Mapping[str, int]
) -> Lineage:
    """What is made at a position, of which every member is a view and all together are one whose
    intervals move with the coordinates; raises `Misaligned` where they are none.

    Example: slices of 8 columns that begin at ``<4*tp>`` are read at 0 and at 4, and are
    ``n1[a0[4], a1[<4*tp> +4 of 8]]``.
    """
    if not start.terms:
        return make(start)
    axis = start.terms[-1][0]
    extent = mesh.get(axis, 0)
    if not 1 < extent <= MOST_MEMBERS:
        raise Misaligned
    members = [along_axes(make, start.fix(axis, i), mesh) for i in range(extent)]
    return fitted(members, axis)


def fitted(members: Sequence[Lineage], axis: str) -> Lineage:
    """The lineage of which ``members`` are those along an axis.

    Example: ``n1[a0[4], a1[0 +4 of 8]]``, ``n1[a0[4], a1[4 +4 of 8]]`` along ``tp`` are
    ``n1[a0[4], a1[<4*tp> +4 of 8]]``.
    """
    first = members[0]
    if any(len(m.addends) != len(first.addends) for m in members):
        raise Misaligned
    addends = [_addend([m.addends[i] for m in members], axis) for i in range(len(first.addends))]
    return Lineage(first.shape, tuple(addends))


def _addend(members: Sequence[Addend], axis: str) -> Addend:
    first = members[0]
    if any(
        (m.factor, m.node, m.places) != (first.factor, first.node, first.places) for m in members
    ):
        raise Misaligned
    views = [m.view for m in members]
    if len({tuple(map(len, x.dims)) for x in views}) > 1:
        raise Misaligned
    dims = tuple(
        tuple(_interval(column, axis) for column in zip(*dim, strict=True))
        for dim in zip(*(x.dims for x in views), strict=True)
    )
    if len({len(x.fixed) for x in views}) > 1 or len({len(m.partials) for m in members}) > 1:
        raise Misaligned
    fixed = tuple(_interval(column, axis) for column in zip(*(x.fixed for x in views), strict=True))
    partials = tuple(
        _partial(column, axis) for column in zip(*(m.partials for m in members), strict=True)
    )
    view = first.view._replace(dims=dims, fixed=fixed)
    return first._replace(view=view, partials=partials)


def _interval(members: Sequence[StridedInterval], axis: str) -> StridedInterval:
    first = members[0]
    if any(m[:3] != first[:3] or m.size != first.size for m in members):
        raise Misaligned
    return first._replace(start=_start([m.start for m in members], axis))


def _partial(members: Sequence[PartialRange], axis: str) -> PartialRange:
    first = members[0]
    if any(
        (m.reduction, m.size, m.extent) != (first.reduction, first.size, first.extent)
        for m in members
    ):
        raise Misaligned
    return first._replace(start=_start([m.start for m in members], axis))


def _start(members: Sequence[Affine], axis: str) -> Affine:
    """The position that moves by as much from member to member."""
    step = members[1] - members[0]
    if step.terms or any(m - members[0] != step * i for i, m in enumerate(members)):
        raise Misaligned
    return members[0] + affine(0, {axis: step.const})
