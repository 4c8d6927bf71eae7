"""Blocks under a causal mask: where it hides nothing, what it hides altogether, and where on its
diagonal a block lies.

A ring of ranks has blocks of queries and of keys.  Of a block of earlier keys the mask hides
nothing, so its scores are those of the masked ones; keys behind all queries of a block add nothing
to sums of exponentials, so a sum over the others is whole; and a mask between positions is the same
wherever both are moved by as much.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TypeAlias

from shardproof.engine.algebra.affine import Affine
from shardproof.engine.lineage.blocks import is_shift
from shardproof.engine.lineage.expressions import (
    Amax,
    Causal,
    Combine,
    Comparison,
    Einsum,
    Operand,
    Restrict,
    Unary,
)
from shardproof.engine.lineage.lineage import (
    ABSOLUTE,
    BROADCAST,
    Addend,
    Dim,
    PartialRange,
    StridedInterval,
    View,
)
from shardproof.engine.lineage.nodes import NodeTable
from shardproof.engine.specification.boxes import Box, box_of, operand_box, whole
from shardproof.partition.inference.masks import hidden, is_mask

#: How often a part of a sum repeats whose intervals are looked at one by one.
MOST_PERIODS = 16

#: How many definitions below a node are looked at for a mask: gradients of scores are sums of
#: products of softmaxes, which are products of exponentials.
DEEPEST = 7

#: The definitions by which something is zero; None: it is not.
Zero: TypeAlias = frozenset[int] | None

#: Along each axis of a node the one interval that a view has of it.
Read = dict[int, StridedInterval]


def shows_all(nodes: NodeTable, mask: Addend) -> bool:
    """Whether a view is of a part of a causal mask that hides nothing: no key of it is behind a
    query.

    Example: the part ``[a0[2 +2 of *], a1[0 +2 of *]]`` does, ``[a0[0 +2 of *], a1[0 +2 of *]]``
    hides its entry (0, 1).
    """
    read = intervals_read(mask.view)
    if not is_mask(nodes, mask) or mask.factor <= 0 or len(read) < 2:
        return False
    last = read[1].start + (read[1].size - 1)
    return not_behind(last, read[0].start)


def hides_all(nodes: NodeTable, addend: Addend) -> bool:
    """Whether all entries that a view reads are minus infinity, or maxima over such entries alone.

    Example: the scores of the queries ``[0, 3)`` and the keys ``[3, 11)`` under a causal mask:
    every one of these keys is behind every query.
    """
    return addend.factor > 0 and _hides(nodes, addend.node, box_of(nodes, addend))


def _hides(nodes: NodeTable, number: int, box: Box) -> bool:
    match nodes[number].definition:
        case Causal():
            return box[0][1] < box[1][0]
        case Combine(factors=factors, operands=operands, outputs=outputs):
            labels = dict(zip(outputs, box, strict=True))
            return any(
                factor > 0 and _hides(nodes, read.node, operand_box(nodes, read, labels))
                for factor, read in zip(factors, operands, strict=True)
                if nodes.is_masked(read.node)
            )
        case Amax(operand=read, outputs=outputs, sign=1):
            labels = dict(zip(outputs, box, strict=True))
            masked = nodes.is_masked(read.node)
            return masked and _hides(nodes, read.node, operand_box(nodes, read, labels))
        case Restrict(node=node, blocks=blocks):
            starts = {b.axis: b.start for b in blocks}
            full = nodes[node].extents
            shift = len(starts) == len(blocks) and all(is_shift(blocks, a, full[a]) for a in starts)
            moved = (
                (low + starts.get(a, 0), high + starts.get(a, 0))
                for a, (low, high) in enumerate(box)
            )
            return shift and _hides(nodes, node, tuple(moved))
    return False


def zero_in(nodes: NodeTable, number: int, box: Box) -> frozenset[int] | None:
    """The definitions by which a node is zero in a box, as masks hide all of it (None: it is not,
    or that is further below than `DEEPEST` definitions).

    Example: the exponentials of scores in a window of three keys are, for the queries from 6 on and
    the keys up to 3.
    """
    return _zero_in(nodes, number, box, DEEPEST, {})


def _zero_in(
    nodes: NodeTable, number: int, box: Box, left: int, known: dict[tuple[int, Box], Zero]
) -> Zero:
    if not left:
        return None
    # What many ways lead to is looked at once.
    if (number, box) not in known:
        known[number, box] = _zero_of(
            nodes, number, box, lambda at, there: _zero_in(nodes, at, there, left - 1, known)
        )
    return known[number, box]


def _zero_of(nodes: NodeTable, number: int, box: Box, below: Callable[[int, Box], Zero]) -> Zero:
    match nodes[number].definition:
        case Unary(function="exp", factor=factor, node=node) if factor > 0:
            return frozenset({number}) if _hides(nodes, node, box) else None
        case Einsum(operands=operands, outputs=outputs):
            labels = dict(zip(outputs, box, strict=True))
            for operand in operands:
                by = below(operand.node, operand_box(nodes, operand, labels))
                if by is not None:
                    return by | {number}
        case Combine(operands=operands, outputs=outputs):
            labels = dict(zip(outputs, box, strict=True))
            every = frozenset({number})
            for operand in operands:
                by = below(operand.node, operand_box(nodes, operand, labels))
                if by is None:
                    return None
                every |= by
            return every
    return None


def completed(nodes: NodeTable, addend: Addend) -> tuple[Addend, frozenset[int]] | None:
    """Part of a sum as the whole one, where all that it leaves out is zero as a causal mask says,
    and the definitions that show it; None where it is no such part.

    Example: of the sum over keys of masked exponentials, for the queries ``[0, 2)``, the part over
    the keys ``[0, 2)``.
    """
    read = intervals_read(addend.view)
    if addend.places or not addend.partials:
        return None
    kept: list[PartialRange] = []
    shown: frozenset[int] = frozenset()
    for partial in addend.partials:
        by = _shown(nodes, addend.node, read, partial, partial.reduction, _hides_rest)
        if by is None:
            kept.append(partial)
        else:
            shown |= by
    if len(kept) == len(addend.partials):
        return None
    return addend._replace(partials=tuple(kept)), shown


def vanished(nodes: NodeTable, addend: Addend) -> frozenset[int] | None:
    """The definitions by which a part of a sum is zero, as a causal mask hides all of it (None: it
    is not).

    Example: of the sum over queries of masked exponentials, for the keys ``[6, 8)``, the part over
    the queries ``[0, 2)``.
    """
    read = intervals_read(addend.view)
    for partial in addend.partials:
        by = _shown(nodes, addend.node, read, partial, partial.reduction, _hides_part)
        if by is not None:
            return by
    return None


def in_one_period(nodes: NodeTable, addend: Addend) -> list[Addend]:
    """A part of a sum that repeats, as its intervals in the whole range of the sum, of which a
    causal mask may hide some; a part of something else as it is.

    Example: of the sum over twelve queries ``part #3[2 +2 of 6]`` is ``part #3[2 +2 of 12]`` and
    ``part #3[8 +2 of 12]``.
    """
    if len(addend.partials) != 1:
        return [addend]
    (part,) = addend.partials
    reduction = nodes.reductions[part.reduction]
    while reduction.kind == "via":
        reduction = nodes.reductions[reduction.inner]
    definition = nodes[reduction.node].definition
    if not isinstance(definition, Einsum):
        return [addend]
    intervals = [i for operand in definition.operands for i in operand.intervals]
    whole = max(
        (extent for _, _, extent, label in intervals if label == reduction.where), default=0
    )
    if whole % part.extent or whole // part.extent > MOST_PERIODS:
        return [addend]
    return [
        addend._replace(partials=(part._replace(start=part.start + n, extent=whole),))
        for n in range(0, whole, part.extent)
    ] or [addend]


#: By which definitions a node is zero where a part of a sum over its axis (the fifth argument) is,
#: or is not, at the positions that are read (the fourth) of another axis (the third).
Hides: TypeAlias = Callable[
    [NodeTable, int, int, StridedInterval, int, PartialRange], frozenset[int] | None
]


def _shown(
    nodes: NodeTable, number: int, read: Read, part: PartialRange, token: int, hides: Hides
) -> frozenset[int] | None:
    """The definitions by which what ``hides`` tells of a part of a sum is zero, or None."""
    reduction = nodes.reductions[token]
    definition = nodes[number].definition
    if not isinstance(definition, Einsum) or reduction.node != number:
        return None
    if reduction.kind == "via":
        operand = definition.operands[reduction.where]
        inside = {
            axis: read[definition.outputs.index(label)]
            for axis, stride, extent, label in operand.intervals
            if (stride, extent) == (1, nodes[operand.node].extents[axis])
            and label in definition.outputs
            and definition.outputs.index(label) in read
        }
        by = _shown(nodes, operand.node, inside, part, reduction.inner, hides)
        return None if by is None else by | {number}
    if reduction.kind != "sum":
        return None
    for operand in definition.operands:
        pairs = free_and_summed(nodes, operand, definition.outputs, reduction.where)
        for (axis, label), reduced in pairs:
            there = read.get(definition.outputs.index(label))
            by = None if there is None else hides(nodes, operand.node, axis, there, reduced, part)
            if by is not None:
                return by | {number}
    return None


def _hides_rest(
    nodes: NodeTable,
    number: int,
    free: int,
    there: StridedInterval,
    summed: int,
    part: PartialRange,
) -> frozenset[int] | None:
    """The definitions by which a node is zero at the positions of the axis ``summed`` that a part
    leaves out, for those of the axis ``free`` that are read (None: it is not)."""
    by = None
    to_end = part.start + (part.size - part.extent)
    if not part.start.terms and not part.start.const:
        last = there.start + (there.size - 1)
        if not_behind(last, part.start + (part.size - 1)):
            by = hidden(nodes, number, free, summed)
    elif not to_end.terms and not to_end.const and not_behind(part.start, there.start):
        by = hidden(nodes, number, summed, free)
    if by is not None:
        return by
    return _hides_around(nodes, number, free, there, summed, part)


def _hides_around(
    nodes: NodeTable,
    number: int,
    free: int,
    there: StridedInterval,
    summed: int,
    part: PartialRange,
) -> frozenset[int] | None:
    """As `_hides_rest`, of what masks of several kinds hide before and behind the part together.

    Example: a window of three keys shows to the queries ``[6, 12)`` no keys but ``[4, 12)``.
    """
    extent = nodes[number].extents[summed]
    if part.start.terms or there.start.terms or part.extent != extent or there.stride != 1:
        return None
    first, end = part.start.const, part.start.const + part.size
    box = dict(enumerate(whole(nodes, number)))
    box[free] = (there.start.const, there.start.const + there.size - 1)
    every: frozenset[int] = frozenset()
    for low, high in ((0, first - 1), (end, extent - 1)):
        if low <= high:
            box[summed] = (low, high)
            by = zero_in(nodes, number, tuple(box[axis] for axis in sorted(box)))
            if by is None:
                return None
            every |= by
    return every


def _hides_part(
    nodes: NodeTable,
    number: int,
    free: int,
    there: StridedInterval,
    summed: int,
    part: PartialRange,
) -> frozenset[int] | None:
    """The definitions by which a node is zero at the positions of the axis ``summed`` that a part
    has, for those of the axis ``free`` that are read (None: it is not)."""
    if part.extent != nodes[number].extents[summed]:
        return None
    if not_behind(part.start + part.size, there.start):
        return hidden(nodes, number, summed, free)
    if not_behind(there.start + there.size, part.start):
        return hidden(nodes, number, free, summed)
    return None


def free_and_summed(
    nodes: NodeTable, operand: Operand, outputs: Sequence[int], reduced: int
) -> Iterable[tuple[tuple[int, int], int]]:
    """Pairs of an axis (with its label) that is free and one that is summed, both whole.

    Example: of ``n4[a:8, b:8]`` summed over ``b``, axis 0 (with ``a``) and axis 1.
    """
    whole = [
        (axis, label)
        for axis, stride, extent, label in operand.intervals
        if stride == 1 and nodes[operand.node].extents[axis] in (extent, ABSOLUTE)
    ]
    summed = [axis for axis, label in whole if label == reduced]
    return [(one, axis) for one in whole if one[1] in outputs for axis in summed]


def along_diagonal(
    nodes: NodeTable, names: Sequence[str], addends: Sequence[Addend]
) -> list[Addend] | None:
    """Operands with causal masks and orders moved along their diagonal to where another operand is
    in the dimensions of the same ``names``, or behind it in one of them; None where none moves.

    Example: of scores at ``[a1[2 +2 of 4], a2[2 +2 of 4]]`` and the mask at ``[a0[0 +2 of *],
    a1[0 +2 of *]]``, the mask at ``[a0[2 +2 of *], a1[2 +2 of *]]``; of a window, at ``[a0[1 +2 of
    *], a1[0 +4 of *]]`` beside the rows 2 and 3 of all 4 keys, ``[a0[2 +2 of *], a1[1 +4 of *]]``.
    """
    named = [
        dict(zip(own, t.view.dims, strict=True)) for own, t in zip(names, addends, strict=True)
    ]
    moved = [
        _at_another(t, mine, [x for x in named if x is not mine])
        if isinstance(nodes[t.node].definition, Comparison) and not t.view.fixed
        else t
        for t, mine in zip(addends, named, strict=True)
    ]
    return moved if moved != list(addends) else None


def _at_another(
    mask: Addend, mine: Mapping[str, Dim], others: Iterable[Mapping[str, Dim]]
) -> Addend:
    for other in others:
        apart = _apart(mine, other)
        if apart is not None:
            dims = tuple(
                tuple(a if a.axis == BROADCAST else a._replace(start=a.start + apart) for a in dim)
                for dim in mask.view.dims
            )
            return mask._replace(view=View(dims))
    return mask


def _apart(mine: Mapping[str, Dim], other: Mapping[str, Dim]) -> Affine | None:
    """How far the axes of a mask are from where another view is in the same dimensions: of both the
    one that is further behind; None where that depends on the rank."""
    apart: dict[int, Affine] = {}
    for name, own in mine.items():
        dim, theirs = (_varying(d) for d in (own, other.get(name, ())))
        if all(a.axis == BROADCAST for a in dim) or name not in other:
            continue
        if len(dim) != 1 or len(theirs) != 1 or theirs[0].axis == BROADCAST:
            return None
        if (dim[0].stride, theirs[0].stride) != (1, 1):
            return None
        apart[dim[0].axis] = theirs[0].start - dim[0].start
    if len(apart) == 1:
        return next(iter(apart.values()))
    if len(apart) != 2 or (apart[0] - apart[1]).terms:
        return None
    return apart[0] if (apart[0] - apart[1]).const >= 0 else apart[1]


def _varying(dim: Dim) -> Dim:
    """A dimension without what is one position of nothing."""
    return tuple(a for a in dim if (a.axis, a.size) != (BROADCAST, 1))


class Masked:
    """The single-device program's products of a node with a causal order, by that node.

    Example: of the gradient of scores ``n27``, which a causal mask cuts off, the one product
    ``n29 = einsum(n27[a:2, b:4, c:4], n28[b:4, c:4] -> a b c)``.
    """

    def __init__(self, nodes: NodeTable, size: int) -> None:
        self._nodes = nodes
        self._products: dict[int, list[tuple[int, dict[int, int], int, int]]] = {}
        for number in range(size):
            self._note(number)

    def _note(self, number: int) -> None:
        node = self._nodes[number]
        if not isinstance(node.definition, Einsum) or len(node.definition.operands) != 2:
            return
        outputs = node.definition.outputs
        orders = [
            o
            for o in node.definition.operands
            if isinstance(self._nodes[o.node].definition, Comparison)
        ]
        others = [o for o in node.definition.operands if o not in orders]
        if len(orders) != 1 or orders[0].fixed or others[0].fixed:
            return
        read = {axis: label for axis, stride, _, label in orders[0].intervals if stride == 1}
        axes = {
            axis: outputs.index(label)
            for axis, stride, extent, label in others[0].intervals
            if label in outputs
            and (stride, extent) == (1, self._nodes[others[0].node].extents[axis])
        }
        if len(read) == 2 and len(axes) == len(node.extents) == len(others[0].intervals):
            back = {label: axis for axis, _, _, label in others[0].intervals}
            if read[0] in back and read[1] in back:
                own = (number, axes, back[read[0]], back[read[1]])
                self._products.setdefault(others[0].node, []).append(own)

    def of(self, addend: Addend) -> tuple[Addend, frozenset[int]] | None:
        """A view as one of the masked node, and the definitions that show it: of a block of which
        the mask shows all, or of a node that is zero wherever it hides; None where it is neither.

        Example: ``n27[a0[2], a1[2 +2 of 4], a2[0 +2 of 4]]`` is that block of ``n29``; the gradient
        of scores, of which causal weights are a factor, is masked by the weights already.
        """
        read = intervals_read(addend.view)
        for number, axes, query, key in self._products.get(addend.node, ()):
            if addend.places or addend.partials:
                continue
            shown: frozenset[int] | None = frozenset()
            both = query in read and key in read
            if not both or not not_behind(
                read[key].start + (read[key].size - 1), read[query].start
            ):
                shown = hidden(self._nodes, addend.node, query, key)
            if shown is not None:
                dims = tuple(tuple(_of_axis(a, axes) for a in dim) for dim in addend.view.dims)
                fixed = tuple(_of_axis(a, axes) for a in addend.view.fixed)
                return addend._replace(node=number, view=View(dims, fixed)), shown | {number}
        return None


def _of_axis(interval: StridedInterval, axes: Mapping[int, int]) -> StridedInterval:
    return interval if interval.axis == BROADCAST else interval._replace(axis=axes[interval.axis])


def intervals_read(view: View) -> Read:
    """Along each axis the one interval that a view has of it: one position of many, and all places
    of the block there, are an interval too.  Axes that are divided otherwise are left out.

    Example: of ``n9[a0[4], a1/4[2 +1 of 4] x a1[4]]``, all of axis 0, and of axis 1 the positions
    from 8 to 11.
    """
    own: dict[int, list[StridedInterval]] = {}
    for interval in (*(a for dim in view.dims for a in dim), *view.fixed):
        if interval.axis != BROADCAST:
            own.setdefault(interval.axis, []).append(interval)
    read: Read = {}
    for axis, intervals in own.items():
        *outer, inner = sorted(intervals, key=lambda a: -a.stride)
        if inner.stride == 1 and all(a.size == 1 for a in outer):
            start = inner.start
            for a in outer:
                start += a.start * a.stride
            read[axis] = inner._replace(start=start)
    return read


def not_behind(first: Affine, second: Affine) -> bool:
    """Whether ``first`` is at most ``second``, at every coordinate.

    Example: 4 and 7; of ``4*dp`` and ``7`` nobody says.
    """
    apart = second - first
    return not apart.terms and apart.const >= 0
