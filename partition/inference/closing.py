"""Sums over part of a range, taken as the values that they are.

A sum over a constant block of a range is a partial sum as long as it is added to others: two halves
are the whole.  Where it is used as a value (by a function, a maximum), it is complete over that
block: the sum of the same product over the block alone.  The single-device program says which
blocks those are; a parallel program's partial sum is taken for such a value only where the
single-device program has it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction

from shardproof.engine.algebra.affine import ZERO
from shardproof.engine.lineage.expressions import Einsum, Operand
from shardproof.engine.lineage.lineage import (
    BROADCAST,
    Addend,
    Dim,
    Lineage,
    PartialRange,
    StridedInterval,
    View,
)
from shardproof.engine.lineage.nodes import NodeTable
from shardproof.engine.lineage.views import Misaligned, merge
from shardproof.engine.ops.primitives import labels

ONE = Fraction(1)
#: (spec of an einsum, addends of its operands, labels that run along what these have) -> its
#: addend.
Product = Callable[[str, Sequence[Addend], frozenset[str]], Addend]
#: What several addends add up to, as one where it can be.
Fold = Callable[[Lineage], Lineage]


def closed(nodes: NodeTable, addend: Addend, product: Product) -> Addend:
    """A view of a partial sum as a view of a complete one; raises `Misaligned` where its parts are
    no constant intervals.

    Example: ``n12[a0[4]] part #0[0 +4 of 8]``, the sum over the first four of eight columns, is all
    of the node that is the sum over these four columns alone.
    """
    if not addend.partials:
        return addend
    definition = nodes[addend.node].definition
    if not isinstance(definition, Einsum) or any(p.start.terms for p in addend.partials):
        raise Misaligned
    operands = definition.operands
    own: dict[int, PartialRange] = {}
    inner: dict[int, list[PartialRange]] = {}
    for partial in addend.partials:
        reduction = nodes.reductions[partial.reduction]
        if reduction.kind == "via":
            inner.setdefault(reduction.where, []).append(
                partial._replace(reduction=reduction.inner)
            )
        elif reduction.kind != "sum" or reduction.where in own:
            raise Misaligned
        else:
            own[reduction.where] = partial
    names = labels(len({label for o in operands for *_, label in o.intervals}))
    reads = [
        closed(nodes, _view(o, own, tuple(inner.get(i, ()))), product)
        for i, o in enumerate(operands)
    ]
    whole = product(_spec(definition), reads, frozenset(names[label] for label in own))
    return composed(addend, whole)


def closed_parts(nodes: NodeTable, x: Lineage, product: Product, fold: Fold) -> Addend:
    """Parts of one sum over several blocks as a view of the sum over these; raises `Misaligned`
    where they are parts of several, or no constant intervals.

    Example: of a sum over twelve positions, what a ring has after two turns: ``n12[a0[4]] part #0[0
    +4 of 12]`` and ``part #0[8 +4 of 12]``; it is the sum of the sums over each block.
    """
    first = x.addends[0]
    if len(x.addends) == 1:
        return closed(nodes, first, product)
    if any(len(t.partials) != 1 or _but_for_place(t) != _but_for_place(first) for t in x.addends):
        raise Misaligned
    reduction = nodes.reductions[first.partials[0].reduction]
    definition = nodes[first.node].definition
    if reduction.kind != "via" or not isinstance(definition, Einsum):
        whole = fold(Lineage(x.shape, tuple(closed(nodes, t, product) for t in x.addends)))
        if len(whole.addends) != 1:
            raise Misaligned
        return whole.addends[0]
    operands = definition.operands
    inner = [t.partials[0]._replace(reduction=reduction.inner) for t in x.addends]
    parts = [_view(operands[reduction.where], {}, (partial,)) for partial in inner]
    shape = tuple(dim[0].size for dim in parts[0].view.dims)
    reads = [_view(o, {}, ()) for o in operands]
    reads[reduction.where] = closed_parts(nodes, Lineage(shape, tuple(parts)), product, fold)
    return composed(first, product(_spec(definition), reads, frozenset()))


def _but_for_place(addend: Addend) -> Addend:
    """An addend, with its part of a sum at the beginning."""
    own = tuple(p._replace(start=ZERO, size=0) for p in addend.partials)
    return addend._replace(partials=own)


def _spec(definition: Einsum) -> str:
    """The product as ``einsum`` writes it."""
    count = len({label for o in definition.operands for *_, label in o.intervals})
    names = labels(count)
    left = ("".join(names[label] for *_, label in o.intervals) for o in definition.operands)
    return f"{','.join(left)}->{''.join(names[label] for label in definition.outputs)}"


def _view(
    operand: Operand, own: Mapping[int, PartialRange], partials: tuple[PartialRange, ...]
) -> Addend:
    """An operand as a view with a dimension for each of its labels."""
    dims: list[Dim] = []
    for axis, stride, extent, label in operand.intervals:
        partial = own.get(label)
        if partial is None:
            dims.append((StridedInterval(axis, stride, extent, ZERO, extent),))
        elif partial.extent != extent:
            raise Misaligned  # every so many positions
        else:
            dims.append((StridedInterval(axis, stride, extent, partial.start, partial.size),))
    fixed = tuple(StridedInterval(a, s, e, start, 1) for a, s, e, start in operand.fixed)
    return Addend(ONE, operand.node, View(tuple(dims), fixed), partials)


def composed(view: Addend, of: Addend) -> Addend:
    """A view of a node, where that node is a view of another one.

    Example: of the node ``n9``, which is ``n1[a1[6], a0[4]]``, the view
    ``n9[a0[6], a1[2 +1 of 4]]`` is ``n1[a1[6], a0[2 +1 of 4]]``.
    """
    if of.partials:
        raise Misaligned

    def base_interval(interval: StridedInterval) -> StridedInterval:
        if interval.axis == BROADCAST:
            return interval
        dim = of.view.dims[interval.axis]
        if len(dim) != 1 or not dim[0].full or dim[0].axis == BROADCAST:
            raise Misaligned
        return interval._replace(axis=dim[0].axis, stride=interval.stride * dim[0].stride)

    dims = tuple(merge([base_interval(a) for a in dim]) for dim in view.view.dims)
    fixed = tuple(base_interval(a) for a in view.view.fixed) + of.view.fixed
    return Addend(view.factor * of.factor, of.node, View(dims, fixed))
