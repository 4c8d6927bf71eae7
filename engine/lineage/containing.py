"""The local tensor that a value is a box of.

Where ranks divide rows that are several single-device values side by side, and one rank's rows lie
in one of them and another's in the next, what a rank gets is a box of a tensor that is no
single-device value: a node that is defined as the sum of these values (`Opaque`).
"""

from __future__ import annotations

from math import prod

from shardproof.engine.algebra.affine import ZERO, Affine
from shardproof.engine.lineage.expressions import Opaque
from shardproof.engine.lineage.lineage import Addend, Lineage
from shardproof.engine.lineage.nodes import NodeTable


def containing(nodes: NodeTable, x: Lineage) -> tuple[Lineage, tuple[Affine, ...]] | None:
    """All of the local tensor that a value is a box of, as the sum that it is defined as, and where
    the box begins in it; None: the value is no such box.

    Example: with ``n9 = piece(n6[a0[64]] in 0[0 +64 of 128])`` rows ``n9[a0[<16*dp> +16 of 128]]``
    are those from ``16*dp`` on of ``[128] = n6[a0[64]] in 0[0 +64 of 128]``.
    """
    if len(x.addends) != 1:
        return None
    (addend,) = x.addends
    node = nodes[addend.node]
    starts = _starts(addend, node.extents)
    if starts is None or not isinstance(node.definition, Opaque):
        return None
    axes = iter(node.extents)
    shape = tuple(next(axes) if dim else 1 for dim in addend.view.dims)
    if any(_shape(part) != shape for part in node.definition.addends):
        return None
    parts = (t._replace(factor=t.factor * addend.factor) for t in node.definition.addends)
    return Lineage(shape, tuple(parts)), starts


def _starts(addend: Addend, extents: tuple[int, ...]) -> tuple[Affine, ...] | None:
    """Where a view begins along each dimension; None: it is no box of its node, with the axes of
    that as its dimensions."""
    dims = addend.view.dims
    if addend.partials or addend.places or addend.view.fixed or any(len(dim) > 1 for dim in dims):
        return None
    digits = [(a.axis, a.stride, a.extent) for dim in dims for a in dim]
    if digits != [(axis, 1, extent) for axis, extent in enumerate(extents)]:
        return None
    return tuple(dim[0].start if dim else ZERO for dim in dims)


def _shape(addend: Addend) -> tuple[int, ...]:
    """The shape of the tensor that an addend is part of a sum of: that of its view, and of what its
    places leave out."""
    sizes = [prod(interval.size for interval in dim) for dim in addend.view.dims]
    for place in addend.places:
        sizes[place.dim] = sizes[place.dim] * place.extent // place.size
    return tuple(sizes)
