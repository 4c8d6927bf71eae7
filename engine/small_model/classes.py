"""Which digits of a claim one index runs along."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from shardproof.engine.claims.cone import Cone
from shardproof.engine.lineage.expressions import Comparison
from shardproof.engine.lineage.lineage import ABSOLUTE, Lineage
from shardproof.engine.lineage.nodes import NodeTable
from shardproof.engine.small_model.mixed_radix import Axis, MixedRadix, Relation
from shardproof.engine.small_model.shared_dims import ALIKE

#: A class of digits, by one of them.
Class = tuple[Axis, int]
Count = Counter[Class]


class Classes:
    """Which digits one index runs along. ``grid``: with all relations carried; ``relations``: what
    an operator takes for one another; ``joined``: coordinates that it sums or gathers over.

    Example: of ``linear(x, w)`` the columns of ``x`` and of ``w`` are one class, and the rows of
    each are classes of their own, with the rows and the columns of the result.

    Raises `Unsupported` where digits do not fit one another.
    """

    def __init__(
        self,
        nodes: NodeTable,
        grid: MixedRadix,
        lineages: Sequence[Lineage],
        cone: Cone,
        relations: Iterable[Relation],
        joined: Sequence[str],
    ) -> None:
        self.grid = grid
        self.above: dict[Class, Class] = {}
        for number in sorted(cone.defined):
            self._relate(grid.relations(number))
            for shift in grid.shifts(number):
                self._one(shift.inside, shift.around)
        for side in grid.sides(lineages):
            self._one(side.inside, side.around)
        self._relate(grid.views(lineages))
        self._relate(relations)
        self._coordinates(lineages, joined)
        self.ordered = dict(self.above)
        for number in cone.defined | cone.opaque:
            if isinstance(nodes[number].definition, Comparison):
                self._compare((number, 0), (number, 1))

    def _relate(self, relations: Iterable[Relation]) -> None:
        for one, a, other, b, extent in relations:
            if extent == ALIKE:
                self._one(one, other)
            for stride, _ in self.grid.within(one, a, extent):
                self._join((one, stride), (other, stride // a * b))

    def _one(self, inside: Axis, around: Axis) -> None:
        """All digits of a block's axis, and of the axis that it is of, are one class."""
        first, *others = (
            (axis, stride)
            for axis in (around, inside)
            for stride, _ in self.grid.within(axis, 1, ABSOLUTE)
        )
        for other in others:
            self._join(first, other)

    def _coordinates(self, lineages: Sequence[Lineage], joined: Sequence[str]) -> None:
        """A coordinate that is joined runs along the digits that move with it."""
        for lineage in lineages:
            for axis, stride, _, start in self.grid.intervals(lineage):
                for place, name in enumerate(joined):
                    if step := abs(start.coefficient(name)):
                        self._join(coordinate(place), (axis, stride * step))

    def _join(self, one: Class, other: Class) -> None:
        first, second = self.of(one), self.of(other)
        if first != second:
            self.above[second] = first

    def _compare(self, queries: Axis, keys: Axis) -> None:
        """A mask compares positions of two classes: together they are one order."""
        for one in self.along(queries, 1, ABSOLUTE):
            for other in self.along(keys, 1, ABSOLUTE):
                first, second = self.order(one), self.order(other)
                if first != second:
                    self.ordered[second] = first

    def of(self, digit: Class) -> Class:
        """The class that a class was joined to, at last."""
        while (above := self.above.get(digit)) is not None:
            digit = above
        return digit

    def order(self, top: Class) -> Class:
        """The class together with those that masks compare it with."""
        while (above := self.ordered.get(top)) is not None:
            top = above
        return top

    def along(self, axis: Axis, stride: int, extent: int) -> list[Class]:
        """The classes of the digits of an axis from ``stride`` up to ``stride * extent``."""
        return [self.of((axis, s)) for s, _ in self.grid.within(axis, stride, extent)]


def coordinate(place: int) -> Class:
    """The class of a mesh axis that an operator sums or gathers over.

    Example: the first one is ``((-(1 << 40), 0), 1)``, an axis that no node has.
    """
    return ((-(1 << 40) - place, 0), 1)
