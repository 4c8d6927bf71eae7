"""Sums of many addends, which programs add up one by one: as the norm of all gradients is.

A chain ``((a + b) + c) + d`` has a definition for every addend, so what multiplies definitions out
one under the other (`partition.inference.match`) does not reach its end.  Here a sum of sums is
one sum, however deep, also of one over positions (the sum over rows of ``a + b`` is that of ``a``
and that of ``b``), and nothing else is multiplied out.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from fractions import Fraction
from math import prod

from shardproof.engine.claims.cone import operand_nodes
from shardproof.engine.lineage.blocks import Block, extents, is_shift
from shardproof.engine.lineage.expressions import Combine, Einsum, Expression, Operand, Restrict
from shardproof.engine.lineage.nodes import NodeTable
from shardproof.partition.inference.substitution import Labels, Read, TooLarge

#: Addends of one sum, and sums above one of its addends that are looked at.
MOST_ADDENDS, MOST_ABOVE = 400, 1_000


def _is_over_positions(definition: Expression) -> bool:
    """Whether a definition is the sum of one value over some of its positions."""
    return isinstance(definition, Einsum) and len(definition.operands) == 1


def in_blocks(table: NodeTable, definition: Expression) -> Combine | Einsum | None:
    """A block of a sum or product as the sum or product of these blocks of its operands; None where
    it is no block of one, or the block is of something that an operand reads otherwise.

    Example: ``n9 where a1[2 +5 of 8]``, where ``n9`` is ``sum(n3[a:4, b:8], n4[a:4] -> a b)``, is
    the sum of ``n3 where a1[2 +5 of 8]`` and ``n4``.
    """
    if not isinstance(definition, Restrict):
        return None
    whole = table[definition.node]
    if not isinstance(whole.definition, Combine | Einsum) or whole.coordinates:
        return None
    sizes = extents(definition.blocks, whole.extents)
    cut = {whole.definition.outputs[block.axis]: block for block in definition.blocks}
    if len(cut) < len(definition.blocks):
        return None
    operands = []
    for operand in whole.definition.operands:
        blocks, intervals = [], []
        for axis, stride, extent, label in operand.intervals:
            block = cut.get(label)
            if block is None:
                intervals.append((axis, stride, extent, label))
                continue
            if stride != 1 or extent != table[operand.node].extents[axis]:
                return None
            blocks.append(block._replace(axis=axis))
            intervals.append((axis, 1, sizes[whole.definition.outputs.index(label)], label))
        node = _block(table, operand.node, sorted(blocks)) if blocks else operand.node
        operands.append(Operand(node, tuple(intervals), operand.fixed))
    return replace(whole.definition, operands=tuple(operands))


def _block(table: NodeTable, node: int, blocks: Sequence[Block]) -> int:
    """Blocks of axes of a node; of what is itself blocks of another node, as blocks of that.

    Example: of ``n9``, which is ``n3 where a0[32 +32 of *]``, the first three positions of 32 are
    ``n3 where a0[32 +3 of *]``.
    """
    definition = table[node].definition
    if isinstance(definition, Restrict):
        full, own = table[definition.node].extents, table[node].extents
        there = {b.axis: b for b in definition.blocks}
        alone = len(there) == len(definition.blocks)
        if alone and all(
            is_shift(blocks, b.axis, own[b.axis])
            and is_shift(definition.blocks, b.axis, full[b.axis])
            for b in blocks
        ):
            for axis, start, size, extent in blocks:
                outer = there.get(axis, Block(axis, 0, extent, extent))
                there[axis] = Block(axis, outer.start + start, size, outer.extent)
            try:
                composed = tuple(sorted(there.values()))
                return table.define(Restrict(definition.node, composed), extents(composed, full))
            except ValueError:  # A position of a digit, which is no block of its own.
                pass
    return table.define(Restrict(node, tuple(blocks)), extents(blocks, table[node].extents))


def _sum_in_blocks(table: NodeTable, definition: Expression) -> Combine | None:
    """`in_blocks` of a sum alone."""
    apart = in_blocks(table, definition)
    return apart if isinstance(apart, Combine) else None


class Chains:
    """The sums of a node table; reference nodes are those below ``reference_size``.

    Example: ``((a + b) + c) + d`` has four addends, and opens three definitions.
    """

    def __init__(self, table: NodeTable, reference_size: int) -> None:
        self._table = table
        self._reference_size = reference_size
        self._above: dict[int, list[int]] = {}
        self._counts: dict[int, int] = {}

    def addends(
        self, number: int
    ) -> tuple[list[tuple[Fraction, Read]], list[int], Labels, frozenset[int]]:
        """The factors and reads of what a node is a sum of, the label of each of its axes, all
        labels, and the definitions that were opened; raises `TooLarge` where there are too many, or
        one that only the parallel side has.

        Example: of ``2 (a + b) + c`` these are twice a, twice b, and c.
        """
        labels = Labels()
        axes = [labels.new(n) for n in self._table[number].extents]
        whole = tuple((axis, 1, labels.extents[label], label) for axis, label in enumerate(axes))
        addends: list[tuple[Fraction, Read]] = []
        opened: set[int] = set()
        todo = [(Fraction(1), Read(number, whole))]
        while todo:
            factor, read = todo.pop()
            definition = self._table[read.node].definition
            inner: dict[int, int] = {}
            if (apart := _sum_in_blocks(self._table, definition)) is not None:
                opened.update((read.node, *operand_nodes(self._table, read.node)))
                definition = apart
            if isinstance(definition, Combine):
                opened.add(read.node)
                for place, (own, o) in enumerate(
                    zip(definition.factors, definition.operands, strict=True)
                ):
                    below = labels.substituted(o, read, definition.outputs, inner, place)
                    todo.append((factor * own * _missed(labels, read, below, axes), below))
            elif isinstance(definition, Einsum) and _is_over_positions(definition):
                opened.add(read.node)
                (o,) = definition.operands
                below = labels.substituted(o, read, definition.outputs, inner, 0)
                todo.append((factor * _missed(labels, read, below, axes), below))
            elif self._is_own(read.node):
                raise TooLarge
            else:
                addends.append((factor, read))
            if len(addends) + len(todo) > MOST_ADDENDS:
                raise TooLarge
        return addends, axes, labels, frozenset(opened)

    def _is_own(self, number: int) -> bool:
        """Whether only the parallel side has a node; blocks of what both have are of both."""
        definition = self._table[number].definition
        return (definition.node if isinstance(definition, Restrict) else number) >= (
            self._reference_size
        )

    def above(self, leaves: frozenset[int], extents: Sequence[int], count: int) -> Iterator[int]:
        """Reference nodes of these extents that are sums of ``count`` addends or somewhat more,
        above the leaf that is added least.

        Example: above d, of four addends, is ``((a + b) + c) + d``.
        """
        if not self._counts:
            self._count()
        if not leaves:
            return
        level = [min(leaves, key=lambda n: (len(self._above.get(n, ())), n))]
        seen = set(level)
        while level and len(seen) <= MOST_ABOVE:
            for n in level:
                alike = sorted(self._table[n].extents) == sorted(extents)
                if alike and count <= self._counts.get(n, 0) <= 2 * count:
                    yield n
            users = [u for n in level for u in self._above.get(n, ()) if u not in seen]
            level = list(dict.fromkeys(users))
            seen.update(level)

    def _count(self) -> None:
        """How many addends every sum has, and which sums read a node."""
        for number in range(self._reference_size):
            definition = self._table[number].definition
            apart = _sum_in_blocks(self._table, definition)
            if apart or isinstance(definition, Combine) or _is_over_positions(definition):
                reads = apart.operands if apart else ()
                below = [o.node for o in reads] or operand_nodes(self._table, number)
                self._counts[number] = sum(self._counts.get(n, 1) for n in below)
                for n in below:
                    self._above.setdefault(n, []).append(number)


def _missed(labels: Labels, read: Read, below: Read, axes: Sequence[int]) -> int:
    """How many positions a sum runs over along which what is added does not vary.

    Example: of the sum over 8 rows of ``x + b``, where ``b`` is the same in all rows: 8 for ``b``.
    """
    gone = read.labels() - below.labels() - frozenset(axes)
    return prod(labels.extents[label] for label in gone)
