"""Blocks of an axis that all factors of a product read: as part of the whole product.

A product with a local value (what a rank has of rows 4 to 7, as it is) reads the others block by
block: its label runs over four rows, and which block these are of is fixed.  Once the local value
has cancelled, the block is part of all rows, and the product is part of the one of all rows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from shardproof.engine.algebra.affine import ZERO, Affine
from shardproof.engine.lineage.blocks import Block, extents, is_shift
from shardproof.engine.lineage.expressions import Einsum, Operand, Restrict
from shardproof.engine.lineage.lineage import (
    ABSOLUTE,
    BROADCAST,
    Addend,
    Lineage,
    PartialRange,
    StridedInterval,
    View,
)
from shardproof.engine.lineage.nodes import NodeTable, Reduction
from shardproof.engine.lineage.views import Misaligned
from shardproof.partition.inference.laws import Factor
from shardproof.partition.inference.opened import opened


class Product(NamedTuple):
    """The factors of a product, how far its labels run, and where.

    Example: ``x[a0[4] at a0/4[1 +1 of 2]]`` with a label of 4 positions; as part of all rows it is
    ``x[a0[4 +4 of 8]]``, and the label runs from 4 on of 8.
    """

    factors: list[Factor]
    extents: dict[int, int]
    intervals: dict[int, StridedInterval]

    @property
    def read(self) -> tuple[list[Addend], list[tuple[tuple[StridedInterval, int], ...]]]:
        """The nodes that are multiplied, and the labels that each is read along."""
        return [x.addend for x in self.factors], [x.intervals for x in self.factors]


def ended(table: NodeTable, addend: Addend, dims: Sequence[int]) -> Addend:
    """A view that runs along an axis without an end in one of ``dims``, from a known position on,
    as all of that axis of the block that it reads: an axis of so many positions has digits, which
    one without an end has not.  It is the same view: the block is these positions of the node, and
    has its other axes whole.

    Example: of ``n4[a0[0 +6 of *], a1[8]]`` along dimension 0 it is ``n9[a0[6], a1[8]]``, where
    ``n9`` is ``n4`` where a0[0 +6 of *].
    """
    if addend.partials or addend.places or any(a.extent == ABSOLUTE for a in addend.view.fixed):
        return addend
    read = [(d, addend.view.dims[d][0]) for d in dims if len(addend.view.dims[d]) == 1]
    endless = {
        d: a
        for d, a in read
        if a.axis != BROADCAST and a.extent == ABSOLUTE and a.stride == 1 and not a.start.terms
    }
    if not endless:
        return addend
    node = table[addend.node]
    blocks = tuple(sorted(Block(a.axis, a.start.const, a.size, ABSOLUTE) for a in endless.values()))
    try:
        full = extents(blocks, node.extents)
    except ValueError:
        return addend
    part = table.define(Restrict(addend.node, blocks), full, node.coordinates)
    own = [
        (endless[d]._replace(extent=endless[d].size, start=ZERO),) if d in endless else dim
        for d, dim in enumerate(addend.view.dims)
    ]
    return addend._replace(node=part, view=addend.view._replace(dims=tuple(own)))


def uncut(table: NodeTable, addend: Addend) -> Addend | None:
    """A view of a block as a view of the node that it is a block of; None where it is no view of
    one, or the block is none interval of an axis.

    Example: of ``n9``, which is ``n4`` where a1[2 +10 of 12], the view ``n9[a0[4], a1[10]]`` is
    ``n4[a0[4], a1[2 +10 of 12]]``.
    """
    definition = table[addend.node].definition
    if not isinstance(definition, Restrict) or addend.partials or addend.places:
        return None
    inner = table[definition.node].extents
    first = {b.axis: b.start for b in definition.blocks}
    alone = len(first) == len(definition.blocks)
    if not alone or not all(is_shift(definition.blocks, a, inner[a]) for a in first):
        return None

    def read(interval: StridedInterval) -> StridedInterval:
        if interval.axis not in first:
            return interval
        if interval.stride != 1 or interval.extent != table[addend.node].extents[interval.axis]:
            raise Misaligned
        start = interval.start + Affine(first[interval.axis])
        return interval._replace(extent=inner[interval.axis], start=start)

    try:
        dims = tuple(tuple(map(read, dim)) for dim in addend.view.dims)
        fixed = tuple(map(read, addend.view.fixed))
    except Misaligned:
        return None
    return addend._replace(node=definition.node, view=View(dims, fixed))


def ended_operands(table: NodeTable, names: Sequence[str], xs: Sequence[Lineage]) -> list[Lineage]:
    """The operands of a product in regions, axes without an end as blocks of them where another
    operand has parts of every so many positions.

    Example: columns chosen by a table (a one-hot) beside numbers that are pairs.
    """
    periodic = {
        own[p.dim]
        for own, x in zip(names, xs, strict=True)
        for t in x.addends
        for p in t.places
        if p.extent != x.shape[p.dim]
    }
    if not periodic:
        return list(xs)
    pairs = [
        ([d for d, a in enumerate(own) if a in periodic], x)
        for own, x in zip(names, xs, strict=True)
    ]
    return [
        x._replace(addends=tuple(ended(table, t, dims) for t in x.addends)) for dims, x in pairs
    ]


def widened(
    factors: Sequence[Factor],
    outputs: frozenset[int],
    extents: Mapping[int, int],
    intervals: Mapping[int, StridedInterval],
) -> Product:
    """A product of which those labels of the result run over the whole axis of which every factor
    reads the same block; the product as it is where there is none.

    Example: in ``x[a0[4] at a0/4[1 +1 of 2]] y[a1[4] at a1/4[1 +1 of 2]]`` the label of 4 positions
    is one of 8, from 4 on.
    """
    product = Product(list(factors), dict(extents), dict(intervals))
    for label in sorted(outputs & extents.keys()):
        readers = [n for n, one in enumerate(product.factors) if _axes(one, label)]
        blocks = {_block(product.factors[n], label) for n in readers}
        block = blocks.pop() if len(blocks) == 1 else None
        size = product.extents[label]
        if block is None or product.intervals[label].size != size:
            continue
        for n in readers:
            product.factors[n] = _joined(product.factors[n], label, block)
        product.extents[label] = size * block.extent
        product.intervals[label] = product.intervals[label]._replace(
            extent=size * block.extent, start=block.start * size, size=size
        )
    return product


def narrowed(factor: Factor, extents: Mapping[int, int]) -> Factor | None:
    """A factor whose labels run as far as ``extents`` say: where it reads part of a longer axis,
    the block that this part is; None where the part is no block.

    Example: ``n9[a0[4 +4 of 8]]`` for a label of 4 positions is ``n9[a0[4] at a0/4[1 +1 of 2]]``.
    """
    intervals = []
    fixed = list(factor.addend.view.fixed)
    for interval, label in factor.intervals:
        size = extents[label]
        if interval.extent == size or interval.axis == BROADCAST:
            intervals.append((interval, label))
            continue
        whole = interval.extent != ABSOLUTE and interval.extent % size == 0
        if not whole or interval.size != size or not interval.start.divisible(size):
            return None
        intervals.append((interval._replace(extent=size, start=ZERO), label))
        stride, count = interval.stride * size, interval.extent // size
        fixed.append(StridedInterval(interval.axis, stride, count, interval.start // size, 1))
    view = factor.addend.view._replace(fixed=tuple(sorted(fixed)))
    return Factor(factor.addend._replace(view=view), tuple(intervals))


def parts_of(table: NodeTable, addend: Addend, known: int) -> list[Addend]:
    """A view of the sum over blocks of a range as parts of the sum over all of it, where that is
    one of the first ``known`` nodes; empty: it is no such sum.

    Example: where ``n4`` is ``x[a:4, b:8]`` summed over ``b``, a view of the sum of
    ``x[a:4, b:4, a1/4=1 of 2]`` over ``b`` is that view of ``n4``, part ``[4 +4 of 8]``.
    """
    own = [_part_of(table, t, known) for t in opened(table, addend) or [addend]]
    return [] if None in own else [t for t in own if t is not None]


def _part_of(table: NodeTable, addend: Addend, known: int) -> Addend | None:
    definition = table[addend.node].definition
    if not isinstance(definition, Einsum) or addend.partials or addend.places:
        return None
    read = {(label, extent) for o in definition.operands for *_, extent, label in o.intervals}
    summed = [(label, n) for label, n in read if label not in definition.outputs]
    if len(summed) != 1:
        return None
    ((label, size),) = summed
    wide = [_of_all(table, o, label, size) for o in definition.operands]
    blocks = {w[1] for w in wide if w is not None and w[1] is not None}
    if None in wide or len(blocks) != 1:
        return None
    ((start, extent),) = blocks
    whole = Einsum(tuple(w[0] for w in wide if w is not None), definition.outputs)
    node = table.find(whole)
    if node is None or node >= known or start.terms:
        return None
    token = table.reduction(Reduction("sum", node, label))
    part = PartialRange(token, start, size, extent)
    return addend._replace(node=node, partials=(part,))


def _of_all(
    table: NodeTable, operand: Operand, label: int, size: int
) -> tuple[Operand, tuple[Affine, int] | None] | None:
    """An operand along all of the axis of which it reads a block along a label, and where the block
    begins of how many positions (None: it has not the label); None where it reads no block."""
    own = [i for i in operand.intervals if i[3] == label]
    if not own:
        return operand, None
    if len(own) > 1:
        return None
    axis, stride, extent, _ = own[0]
    blocks = [f for f in operand.fixed if (f[0], f[1]) == (axis, stride * size)]
    if extent != size or len(blocks) > 1:
        return None
    if not blocks:
        return _of_uncut(table, operand, label)
    (_, _, count, start) = blocks[0]
    intervals = tuple(
        (axis, stride, size * count, label) if i == own[0] else i for i in operand.intervals
    )
    fixed = tuple(f for f in operand.fixed if f != blocks[0])
    return operand._replace(intervals=intervals, fixed=fixed), (start * size, size * count)


def _of_uncut(
    table: NodeTable, operand: Operand, label: int
) -> tuple[Operand, tuple[Affine, int]] | None:
    """`_of_all` of an operand that is a block of a node itself, along the label's axis alone."""
    definition = table[operand.node].definition
    if not isinstance(definition, Restrict) or len(definition.blocks) != 1:
        return None
    (block,) = definition.blocks
    read = [i for i in operand.intervals if i[0] == block.axis]
    if read != [(block.axis, 1, block.size, label)] or block.extent == ABSOLUTE:
        return None
    if block.extent != table[definition.node].extents[block.axis]:
        return None
    intervals = tuple(
        (block.axis, 1, block.extent, label) if i == read[0] else i for i in operand.intervals
    )
    whole = operand._replace(node=definition.node, intervals=intervals)
    return whole, (Affine(block.start), block.extent)


def _axes(factor: Factor, label: int) -> list[StridedInterval]:
    return [interval for interval, own in factor.intervals if own == label]


def _block(factor: Factor, label: int) -> StridedInterval | None:
    """Which block of an axis a factor reads along a label, by its stride, extent and start; None:
    the label is no whole block of one axis."""
    read = _axes(factor, label)
    if len(read) != 1 or not read[0].full or read[0].extent == ABSOLUTE:
        return None
    outer = read[0].stride * read[0].size
    blocks = [a for a in factor.addend.view.fixed if (a.axis, a.stride) == (read[0].axis, outer)]
    return blocks[0]._replace(axis=0, stride=read[0].size) if len(blocks) == 1 else None


def _joined(factor: Factor, label: int, block: StridedInterval) -> Factor:
    """A factor whose label runs over the whole axis, as far as it reads it."""
    (read,) = _axes(factor, label)
    outer = read.stride * read.size
    size = read.size
    wide = read._replace(extent=size * block.extent, start=block.start * size)
    fixed = tuple(a for a in factor.addend.view.fixed if (a.axis, a.stride) != (read.axis, outer))
    view = factor.addend.view._replace(fixed=fixed)
    return Factor(
        factor.addend._replace(view=view),
        tuple((wide, own) if own == label else (i, own) for i, own in factor.intervals),
    )
