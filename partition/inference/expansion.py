"""Values multiplied out: sums of products, down to nodes that both programs have."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from fractions import Fraction
from itertools import product
from math import prod
from typing import NamedTuple

from shardproof.engine.lineage.expressions import Combine, Einsum, Restrict
from shardproof.engine.lineage.lineage import ABSOLUTE
from shardproof.engine.lineage.nodes import NodeTable
from shardproof.partition.inference.chains import in_blocks
from shardproof.partition.inference.classes import alone, complete, shown
from shardproof.partition.inference.substitution import Labels, Path, Read, TooLarge

#: Products that an expansion may have, and factors of a product.
MOST_PRODUCTS, MOST_FACTORS = 24, 8
#: Products looked at in one expansion.
MOST_STEPS = 400

#: Where a reduced label is: the operands that lead to its definition, and its number there.
Inside = tuple[Path, int]


class Product(NamedTuple):
    """A factor and the reads that are multiplied.

    Example: ``Product(Fraction(2), (x, w))`` is twice the product of two reads.
    """

    factor: Fraction
    leaves: tuple[Read, ...]


@dataclass(slots=True)
class Expansion:
    """Multiplies a node out, by a number of definitions of reference nodes one under the other, but
    never those of ``stop``.

    Example: ``(a + b) c`` is the two products ``a c`` and ``b c``.
    """

    table: NodeTable
    reference_size: int
    stop: frozenset[int]
    labels: Labels = field(default_factory=Labels)
    reduced: dict[Inside, int] = field(default_factory=dict)
    opened: set[int] = field(default_factory=set)
    #: One-hots that were left out.
    named: set[int] = field(default_factory=set)
    work: int = 0

    def whole(self, number: int, depth: int) -> tuple[list[Product], list[int]]:
        """The node as a sum of products, and the label of each of its axes.

        Example: of ``(a + b) c`` with two axes two products, and the labels 0 and 1.
        """
        labels = [self.labels.new(n) for n in self.table[number].extents]
        atoms = tuple(
            (axis, 1, self.labels.extents[label], label) for axis, label in enumerate(labels)
        )
        products = self._open(Read(number, atoms), Fraction(1), depth)
        return products, labels

    def _open(self, leaf: Read, factor: Fraction, depth: int) -> list[Product]:
        if leaf.node == self.table.one:
            return [Product(factor, ())]
        own = leaf.node >= self.reference_size
        definition = self.table[leaf.node].definition
        opens = own or (depth > 0 and leaf.node not in self.stop)
        if opens and isinstance(definition, Einsum | Combine):
            self.opened.add(leaf.node)
            return self._definition(definition, leaf, factor, depth if own else depth - 1)
        if opens and isinstance(definition, Restrict):
            if self._begins(definition, leaf):
                self.opened.add(leaf.node)
                return self._open(leaf._replace(node=definition.node), factor, depth)
            apart = in_blocks(self.table, definition)
            if apart is not None:
                self.opened.add(leaf.node)
                return self._definition(apart, leaf, factor, depth if own else depth - 1)
            own &= definition.node >= self.reference_size
        if own:
            raise TooLarge
        return [Product(factor, (leaf,))]

    def _begins(self, definition: Restrict, leaf: Read) -> bool:
        """Whether what is left of a sum or product are the first positions of axes without an end,
        and all of these are read: it is itself read so, then."""
        if not isinstance(self.table[definition.node].definition, Einsum | Combine):
            return False
        ends = self.table[definition.node].extents
        read = {axis: (stride, extent) for axis, stride, extent, _ in leaf.intervals}
        return len(read) == len(leaf.intervals) and all(
            ends[block.axis] == ABSOLUTE
            and (block.start, block.extent) == (0, ABSOLUTE)
            and read.get(block.axis) == (1, block.size)
            for block in definition.blocks
        )

    def _definition(
        self, definition: Einsum | Combine, leaf: Read, factor: Fraction, depth: int
    ) -> list[Product]:
        inner: dict[int, int] = {}
        below = [
            self.labels.substituted(o, leaf, definition.outputs, inner, place)
            for place, o in enumerate(definition.operands)
        ]
        self.reduced |= {(leaf.path, label): own for label, own in inner.items()}
        if isinstance(definition, Combine):
            terms: list[Product] = []
            for f, o in zip(definition.factors, below, strict=True):
                terms = self._bounded(terms + self._open(o, factor * f, depth))
            return terms
        products = [Product(factor, ())]
        for o in below:
            opened = self._open(o, Fraction(1), depth)
            products = self._bounded(
                [
                    Product(p.factor * q.factor, p.leaves + q.leaves)
                    for p, q in product(products, opened)
                ]
            )
        return [self._summed(one, frozenset(inner.values())) for one in products]

    def _summed(self, one: Product, reduced: frozenset[int]) -> Product:
        """A product that is summed along labels, without one-hots that add up to 1 over them."""
        kept = frozenset(x for leaf in one.leaves for x in leaf.labels()) - reduced
        left = alone(self.table, one.leaves, kept)
        classes = {complete(self.table, one.leaves[place]) for place in left}
        self.named.update(*(shown(self.table, one.leaves[place].node) for place in left))
        rest = tuple(leaf for place, leaf in enumerate(one.leaves) if place not in left)
        return self._counted(one._replace(leaves=rest), reduced - classes)

    def _counted(self, one: Product, reduced: Iterable[int]) -> Product:
        """A product that is summed along labels: as often as there are positions of those along
        which no factor varies."""
        read = frozenset(label for leaf in one.leaves for label in leaf.labels())
        times = prod(self.labels.extents[label] for label in reduced if label not in read)
        return one._replace(factor=one.factor * times)

    def _bounded(self, products: list[Product]) -> list[Product]:
        self.work += len(products)
        many = self.work > MOST_STEPS or len(products) > MOST_PRODUCTS
        if many or any(len(p.leaves) > MOST_FACTORS for p in products):
            raise TooLarge
        return products
