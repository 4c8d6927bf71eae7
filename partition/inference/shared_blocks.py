"""Blocks of values as the single device multiplies them, beside each other.

A product over some rows of a value and as many rows of another one, that begin elsewhere, is one of
two blocks. One row of each has no block; it is read as a row of the blocks of which the single
device has the product.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from fractions import Fraction
from typing import TypeAlias

from shardproof.engine.algebra.affine import ZERO, Affine
from shardproof.engine.lineage.expressions import Einsum
from shardproof.engine.lineage.lineage import BROADCAST, Addend, StridedInterval, View
from shardproof.engine.lineage.nodes import NodeTable
from shardproof.partition.inference.blocks import uncut

#: What blocks are of, sorted; and the blocks of a product.
_Names: TypeAlias = tuple[int, ...]


class SharedBlocks:
    """The products of the single device, nodes below ``reference_size``, in which there are blocks.

    Example: where it has the product of ``n4`` and ``n5``, which is ``n3 where a0[4 +10 of 16]``,
    ``n4[1] at a0[2 +1 of 10]`` and ``n3[1] at a0[6 +1 of 16]`` are positions 2 of both.
    """

    def __init__(self, table: NodeTable, reference_size: int, mesh: Mapping[str, int]) -> None:
        self._table = table
        self._size = reference_size
        self._mesh = mesh
        self._products: dict[_Names, dict[_Names, None]] | None = None

    def readings(self, addends: Sequence[Addend]) -> Iterator[list[Addend]]:
        """Operands of a product as views of the blocks that the single device multiplies.

        Example: ``n3[1] at a0[6 +1 of 16]`` beside a view of ``n4`` as ``n5[1] at a0[2 +1 of 10]``.
        """
        if len(addends) < 2 or any(t.partials or t.places for t in addends):
            return
        whole = [uncut(self._table, t) or t for t in addends]
        names = tuple(sorted(t.node for t in whole))
        for blocks in self._all().get(names, ()):
            left, made = list(blocks), []
            for t in whole:
                own = next((b for b in left if based(self._table, b)[0] == t.node), None)
                inside = None if own is None else self._inside(t, own)
                if own is None or inside is None:
                    break
                left.remove(own)
                made.append(inside)
            if len(made) == len(whole) and made != list(addends):
                yield made

    def _all(self) -> dict[_Names, dict[_Names, None]]:
        if self._products is None:
            self._products = {}
            for number in range(self._size):
                definition = self._table[number].definition
                if not isinstance(definition, Einsum) or len(definition.operands) < 2:
                    continue
                nodes = tuple(o.node for o in definition.operands)
                names = tuple(sorted(based(self._table, n)[0] for n in nodes))
                if names != tuple(sorted(nodes)):
                    self._products.setdefault(names, {})[nodes] = None
        return self._products

    def _inside(self, addend: Addend, block: int) -> Addend | None:
        """A view of a node as one of a block of it; None where it is not inside."""
        base, starts = based(self._table, block)
        if block == base:
            return addend
        mine, theirs = self._table[block].extents, self._table[base].extents

        def read(interval: StridedInterval) -> StridedInterval | None:
            axis = interval.axis
            if axis == BROADCAST:
                return interval
            return inside(interval, starts[axis], theirs[axis], mine[axis], self._mesh)

        dims = [[read(a) for a in dim] for dim in addend.view.dims]
        fixed = [read(a) for a in addend.view.fixed]
        if any(a is None for dim in (*dims, fixed) for a in dim):
            return None
        view = View(
            tuple(tuple(a for a in dim if a is not None) for dim in dims),
            tuple(a for a in fixed if a is not None),
        )
        return addend._replace(node=block, view=view)


def based(table: NodeTable, number: int) -> tuple[int, dict[int, int]]:
    """What a node is a block of, and where the block begins along each axis; itself, where it is
    none.

    Example: of ``n5``, which is ``n3 where a0[4 +10 of 16]``, ``(3, {0: 4})``.
    """
    extents = table[number].extents
    whole = tuple((StridedInterval(a, 1, n, ZERO, n),) for a, n in enumerate(extents))
    base = uncut(table, Addend(Fraction(1), number, View(whole)))
    if base is None:
        return number, {}
    return base.node, {dim[0].axis: dim[0].start.const for dim in base.view.dims}


def inside(
    interval: StridedInterval, start: int, full: int, size: int, mesh: Mapping[str, int]
) -> StridedInterval | None:
    """An interval of an axis of ``full`` positions as one of its block [start, start + size); None
    where it is not inside, or runs along a digit.

    Example: ``a0[6 +2 of 16]`` is ``a0[2 +2 of 10]`` of the block [4, 14).
    """
    if (start, full) == (0, size):
        return interval
    if interval.stride != 1 or interval.extent != full:
        return None
    begin = interval.start - Affine(start)
    try:
        low, high = begin.span(mesh)
    except KeyError:
        return None
    if low < 0 or high + interval.size > size:
        return None
    return interval._replace(extent=size, start=begin)
