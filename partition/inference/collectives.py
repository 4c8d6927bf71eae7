"""Lineages through communication: sums, gathers and slices over ranks and microbatches.

Members are explicit (one lineage per program of the group) or implicit (one lineage that stands
for all coordinates along mesh axes).  Partial sums over the intervals of one digit of a position
join to the sum over their union; complete copies add up to a multiple.  What is neither is taken as
it is.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from math import prod
from operator import ne
from typing import Final

from shardproof.engine.algebra.affine import Affine, affine
from shardproof.engine.lineage.expressions import AcrossRanks, AtCoordinate, Maximum, Opaque
from shardproof.engine.lineage.lineage import BROADCAST, Addend, Lineage, StridedInterval, View
from shardproof.engine.lineage.members import axes_of
from shardproof.engine.lineage.places import has_places
from shardproof.engine.lineage.sums import Over, addend_over_axis, merge_partials, root_kinds
from shardproof.engine.lineage.views import Misaligned, merge
from shardproof.partition.inference.interpreter import LineageInterpreter
from shardproof.partition.inference.pieces import each
from shardproof.partition.inference.views import local_view

#: Kinds of instances that put parts side by side.
JOINS: Final = frozenset({"all_gather", "all_to_all"})


def is_stray(
    kind: str, inputs: Sequence[Lineage | None], outputs: Sequence[Lineage], size: int | None
) -> bool:
    """Whether an instance joins parts of single-device values, which are the nodes below ``size``,
    to what is none of them, alone or with what another rank has that is none of them.

    Example: an ``all_gather`` of the rows [32, 64) and [0, 32) of one value, in this order; an
    ``all_gather`` of the rows of one value, of which one rank's are made with another epsilon.
    """
    if size is None or kind not in JOINS:
        return False
    made = any(t.node >= size for x in outputs for t in x.addends)
    return made and any(
        x is not None and x.addends and all(t.node < size for t in x.addends) for x in inputs
    )


def total(
    interpreter: LineageInterpreter, members: Sequence[Lineage], over: Over, kind: str = "sum"
) -> Lineage:
    """The sum (or maximum) over explicit members and over mesh axes.

    Example: ``n4[a0[4], a1[6]] part #1[<4*tp> +4 of 8]`` over ``tp`` of 2 is ``n4[a0[4], a1[6]]``;
    the complete value on two ranks is ``2*n4[a0[4], a1[6]]``.
    """
    joined = [
        reduce(lambda x, a: _over_axis(interpreter, x, a[0], a[1], kind), over, m) for m in members
    ]
    shape = joined[0].shape
    if kind == "max":
        return _maximum(interpreter, joined)
    addends = merge_partials(
        interpreter.table, [addend for x in joined for addend in x.addends], interpreter.mesh
    )
    return interpreter.ended(interpreter.fold(Lineage(shape, tuple(addends))))


def _maximum(interpreter: LineageInterpreter, members: Sequence[Lineage]) -> Lineage:
    """The elementwise maximum: copies of one tensor, or partial maxima of one."""
    first = members[0]
    if all(m == first for m in members):
        return first
    parts = [
        m.addends[0] if m.addends[0].partials else interpreter.reads.part(m.addends[0], "max")
        for m in members
        if len(m.addends) == 1
    ]
    views = [
        part
        for part in parts
        if part is not None
        and part.factor > 0
        and root_kinds(interpreter.table, part.partials) == {"max"}
    ]
    if len(views) == len(members):
        addends = merge_partials(interpreter.table, views, interpreter.mesh, add=False)
        if len(addends) == 1:
            return Lineage(first.shape, tuple(addends))
    try:
        return interpreter.most(members)
    except Misaligned:
        pass
    pieces = tuple(interpreter.piece(m).addends[0] for m in members)
    node = interpreter.local_node(Maximum(pieces), first.shape, pieces)
    return local_view(node, first.shape)


def _over_axis(
    interpreter: LineageInterpreter, x: Lineage, axis: str, extent: int, kind: str
) -> Lineage:
    """The sum (maximum) of a family of tensors along one mesh axis."""

    def over(addend: Addend) -> Addend:
        """One addend's sum; of a position of many that moves along the axis as part of a sum."""
        try:
            return addend_over_axis(interpreter.table, addend, axis, extent, kind, interpreter.mesh)
        except Misaligned:
            part = None if addend.partials else interpreter.part_of_sum(addend, kind)
            if part is None:
                raise
            return addend_over_axis(interpreter.table, part, axis, extent, kind, interpreter.mesh)

    try:
        if kind == "max" and has_places(x):
            return each([x], lambda own: _over_axis(interpreter, own[0], axis, extent, kind))
        addends = [over(t) for t in x.addends]
        if kind == "max" and sum(map(ne, addends, x.addends)) > 1:
            raise Misaligned  # the largest sum is not the sum of what is largest
    except Misaligned:
        return _piece_over_axis(interpreter, x, axis, extent, kind)
    return Lineage(x.shape, tuple(addends))


def _piece_over_axis(
    interpreter: LineageInterpreter, x: Lineage, axis: str, extent: int, kind: str
) -> Lineage:
    """The sum (maximum) along an axis of a tensor that is none of the single device's: the same
    view of the sum of the node that it is of, which may lack dimensions along which nothing varies.
    """
    piece = interpreter.piece(x)
    if axis in axes_of(piece):
        # A part of a larger node that moves along the axis: it is summed as a node of its own.
        piece = local_view(
            interpreter.local_node(Opaque(piece.addends), x.shape, piece.addends), x.shape
        )
    (own,) = piece.addends
    inner = interpreter.table[own.node]
    node = interpreter.table.define(
        AcrossRanks(axis, extent, kind, own.node), inner.extents, inner.coordinates - {axis}
    )
    return Lineage(x.shape, (own._replace(node=node),))


def gather(
    interpreter: LineageInterpreter, members: Sequence[Lineage], over: Over, dim: int
) -> Lineage:
    """Concatenation along ``dim`` in group order, over explicit members or one mesh axis.

    Example: ``n1[a0[4], a1[<4*tp> +4 of 8]]`` along dimension 1 over ``tp`` of 2 is
    ``n1[a0[4], a1[8]]``.
    """
    if not over:
        return interpreter.concat(members, dim)
    result = members[0]
    for axis, extent in reversed(over):
        result = _gather_axis(interpreter, result, axis, extent, dim)
    return result


def _gather_axis(
    interpreter: LineageInterpreter, x: Lineage, axis: str, extent: int, dim: int
) -> Lineage:
    shape = (*x.shape[:dim], x.shape[dim] * extent, *x.shape[dim + 1 :])
    try:
        return Lineage(shape, tuple(_grow(interpreter, t, axis, extent, dim) for t in x.addends))
    except Misaligned:
        members = [at_coordinate(interpreter, x, axis, i) for i in range(extent)]
        return interpreter.concat(members, dim)


def _grow(
    interpreter: LineageInterpreter, addend: Addend, axis: str, extent: int, dim: int
) -> Addend:
    """The union along ``axis`` of an addend's views, as one view longer in ``dim``."""
    if axis in interpreter.table[addend.node].coordinates:
        raise Misaligned
    if any(p.start.coefficient(axis) for p in addend.partials):
        raise Misaligned
    dims = list(addend.view.dims)
    for i, intervals in enumerate(dims):
        if i != dim and any(a.start.coefficient(axis) for a in intervals):
            raise Misaligned
    if any(a.start.coefficient(axis) for a in addend.view.fixed):
        raise Misaligned
    lead = next((i for i, a in enumerate(dims[dim]) if a.size != 1), len(dims[dim]) - 1)
    if lead < 0:
        raise Misaligned
    interval = dims[dim][lead]
    rest = dims[dim][lead + 1 :]
    if any(a.start.coefficient(axis) for a in dims[dim][:lead]):
        raise Misaligned  # which block it is, outside of what every member has
    if interval.axis == BROADCAST:
        if any(a.start.coefficient(axis) for a in rest):
            raise Misaligned
        grown = interval._replace(size=interval.size * extent, extent=interval.size * extent)
    else:
        if interval.start.coefficient(axis) != interval.size or any(
            a.axis != BROADCAST and not a.full for a in rest
        ):
            raise Misaligned
        grown = interval._replace(start=interval.start.fix(axis, 0), size=interval.size * extent)
    dims[dim] = merge((*dims[dim][:lead], grown, *rest))
    return addend._replace(view=addend.view._replace(dims=tuple(dims)))


def at_coordinate(interpreter: LineageInterpreter, x: Lineage, axis: str, position: int) -> Lineage:
    """The member of a family at one coordinate (a value of its own where the family's node
    depends on the coordinate).

    Example: ``n1[a0[4], a1[<4*tp> +4 of 8]]`` at ``tp`` 1 is ``n1[a0[4], a1[4 +4 of 8]]``.
    """

    def fixed(interval: StridedInterval) -> StridedInterval:
        return interval._replace(start=interval.start.fix(axis, position))

    addends = []
    for addend in x.addends:
        node = addend.node
        if axis in interpreter.table[node].coordinates:
            family = interpreter.table[node]
            node = interpreter.table.define(
                AtCoordinate(axis, position, node), family.extents, family.coordinates - {axis}
            )
        view = View(
            tuple(tuple(fixed(a) for a in dim) for dim in addend.view.dims),
            tuple(fixed(a) for a in addend.view.fixed),
        )
        partials = tuple(p._replace(start=p.start.fix(axis, position)) for p in addend.partials)
        addends.append(Addend(addend.factor, node, view, partials, addend.places))
    return Lineage(x.shape, tuple(addends))


def own_slice(
    interpreter: LineageInterpreter, x: Lineage, over: Over, dim: int, position: int, count: int
) -> Lineage:
    """What one rank keeps of ``x`` when ``dim`` is scattered over a group.

    Example: of ``n4[a0[4], a1[6]]``, dimension 1 over ``tp`` of 2,
    ``n4[a0[4], a1[<3*tp> +3 of 6]]``.
    """
    size = x.shape[dim]
    if count == 1 and len(over) > 1 and size % prod(extent for _, extent in over) == 0:
        # Axis by axis: a dimension of several intervals is cut in one of them at a time.
        for axis, extent in over:
            step = x.shape[dim] // extent
            x = interpreter.slice(x, dim, affine(0, {axis: step}), step)
        return x
    start: Affine = affine(0)
    for axis, extent in over:
        count *= extent
        start = start * extent + affine(0, {axis: 1})
    step = -(-size // count)
    start = (start + position) * step
    kept = step if start.terms else max(0, min(step, size - start.const))
    return interpreter.slice(x, dim, start, kept)
