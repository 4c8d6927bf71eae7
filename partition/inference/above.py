"""Reference nodes that may be a value that only the parallel side has: above what it is made of."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from shardproof.engine.claims.cone import operands
from shardproof.engine.lineage.expressions import Combine, Einsum, Operand
from shardproof.engine.lineage.nodes import NodeTable
from shardproof.partition.inference.chains import in_blocks

#: Reference nodes that are compared with one value, and how far above its leaves they may be.
MOST_CANDIDATES, HIGHEST = 100, 6
#: Definitions that are gone down by from a node.
DOWN = 8
#: Nodes below a candidate that are looked at.
MOST_BELOW = 64


class Above:
    """Which reference nodes (those below ``reference_size``) read a node, and what they end at.

    Example: above ``a`` and ``b`` lie ``a c + b c`` and all that reads that.
    """

    def __init__(self, table: NodeTable, reference_size: int) -> None:
        self._table = table
        self._reference_size = reference_size
        self._users: dict[int, list[int]] = {}
        self._shapes: set[tuple[int, ...]] = set()
        #: Nodes that were looked at.
        self.looked = 0

    def has_shape(self, extents: Sequence[int]) -> bool:
        """Whether any reference node has these extents, in some order.

        Example: no node is of (2, 4, 8) where all tensors of the single device are matrices.
        """
        self._read()
        return tuple(sorted(extents)) in self._shapes

    def candidates(self, leaves: frozenset[int], extents: Sequence[int]) -> Iterator[int]:
        """Reference nodes of these extents above the leaf that is read least.

        Example: for a product of ``a``, which much reads, and ``b``, which one product reads, that
        product and what is made of it.
        """
        self._read()
        if not leaves:
            return
        shape = tuple(sorted(extents))
        first = min(leaves, key=lambda n: len(self._users.get(n, ())))
        level, seen = [first], {first}
        for _ in range(HIGHEST):
            for number in level:
                own = number >= self._reference_size
                if not own and tuple(sorted(self._table[number].extents)) == shape:
                    yield number
            above = [u for n in level for u in self._users.get(n, ()) if u not in seen]
            level = list(dict.fromkeys(above))[: MOST_CANDIDATES - len(seen)]
            seen.update(level)

    def ends_at(self, number: int, leaves: frozenset[int]) -> bool:
        """Whether sums and products below a node end at all of these leaves and at nothing else,
        as far as that is looked at.

        Example: ``a c + b c`` ends at a, b and c, and not at a and c alone.
        """
        met: set[int] = set()
        seen, todo = {number}, [number]
        while todo:
            node = todo.pop()
            self.looked += 1
            if node in leaves and node != number:
                met.add(node)
                continue
            read = self._reads(node)
            if not read and node != self._table.one:
                return False
            todo += [n for n in dict.fromkeys(o.node for o in read) if n not in seen]
            seen.update(todo)
            if len(seen) > MOST_BELOW:
                return True
        return met == leaves

    def openable(self, numbers: frozenset[int]) -> set[int]:
        """The sums and products among some nodes.

        Example: of ``a b``, ``exp(a)`` and an input the first.
        """
        return {n for n in numbers if isinstance(self._table[n].definition, Einsum | Combine)}

    def below(self, number: int) -> frozenset[int]:
        """The nodes that a node is made of by sums and products, as far down as it is opened.

        Example: of ``a (b + exp(c))``: a, ``b + exp(c)``, b and ``exp(c)``.
        """
        reached: set[int] = set()
        level = {number}
        for _ in range(DOWN):
            opens = self.openable(frozenset(level))
            level = {o.node for n in opens for o in operands(self._table, n)} - reached
            reached |= level
        return frozenset(reached)

    def _read(self) -> None:
        """Note what reads each reference node."""
        if not self._shapes:
            for number in range(self._reference_size):
                self._shapes.add(tuple(sorted(self._table[number].extents)))
                self._note_users(number)

    def _note_users(self, number: int) -> None:
        """That a node reads its operands; a block of a sum or product, blocks of that's operands,
        which only the parallel side may have."""
        apart = in_blocks(self._table, self._table[number].definition)
        for operand in operands(self._table, number) if apart is None else apart.operands:
            users = self._users.setdefault(operand.node, [])
            if not users and operand.node >= self._reference_size:
                self._note_users(operand.node)
            users.append(number)

    def _reads(self, number: int) -> tuple[Operand, ...]:
        """What a sum or product, or a block of one, reads; nothing of others."""
        definition = self._table[number].definition
        apart = in_blocks(self._table, definition) or definition
        return apart.operands if isinstance(apart, Einsum | Combine) else ()
