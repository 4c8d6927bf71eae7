"""Blocks under a causal mask: where it hides nothing, what it hides altogether, and where on its
diagonal a block lies.

A ring of ranks has blocks of queries and of keys.  Of a block of earlier keys the mask hides
nothing, so its scores are those of the masked ones; what it hides altogether adds nothing to sums
of exponentials (`masked_sums`); and a mask between positions is the same wherever both are moved by
as much.
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
    Restrict,
    Unary,
)
from shardproof.engine.lineage.lineage import (
    BROADCAST,
    Addend,
    Dim,
    StridedInterval,
    View,
)
from shardproof.engine.lineage.nodes import NodeTable
from shardproof.engine.specification.boxes import Box, box_of, operand_box
from shardproof.partition.inference.masks import hidden, is_mask

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
