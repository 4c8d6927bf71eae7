"""How a product of a sum of products reads its nodes, in labels of the whole.

A value that is multiplied out is a sum of products of reads of nodes.  Where a node is replaced by
its definition, each operand of the definition is read at the labels at which the node was read, and
at new ones where the definition reduces.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from shardproof.engine.algebra.affine import Affine
from shardproof.engine.lineage.expressions import Operand
from shardproof.engine.lineage.lineage import ABSOLUTE

#: The operands that lead to a node, from the value that is multiplied out.
Path = tuple[int, ...]


class TooLarge(Exception):
    """What is multiplied out is of too many products, or reaches what is not to be opened.

    Example: a sum of 40 products, where 24 are looked at.
    """


class Read(NamedTuple):
    """How a product reads a node: intervals (axis, stride, extent, label), and fixed positions
    (axis, stride, extent, start); ``path``: the operands that lead to it.

    Example: ``Read(7, ((0, 1, 4, 2),))`` reads a vector of 4 along label 2.
    """

    node: int
    intervals: tuple[tuple[int, int, int, int], ...]
    fixed: tuple[tuple[int, int, int, Affine], ...] = ()
    path: Path = ()

    def labels(self) -> frozenset[int]:
        """The labels along which the node is read.

        Example: of ``Read(7, ((0, 1, 4, 2),))`` that is label 2.
        """
        return frozenset(label for *_, label in self.intervals)


class Labels:
    """The labels of an expansion, numbered from 0, with their extents.  Axes without an end are
    read by labels that nothing reduces.

    Example: after ``new(4)`` and ``new(8)``, ``extents`` is ``{0: 4, 1: 8}``.
    """

    def __init__(self) -> None:
        self.extents: dict[int, int] = {}

    def new(self, extent: int) -> int:
        """A label that nothing reads yet.

        Example: the first label of an expansion is 0.
        """
        self.extents[len(self.extents)] = extent
        return len(self.extents) - 1

    def substituted(
        self,
        operand: Operand,
        read: Read,
        outputs: Sequence[int],
        inner: dict[int, int],
        place: int,
    ) -> Read:
        """How a definition with ``outputs`` reads its operand number ``place``, where its node is
        ``read``; ``inner``: the labels that the definition reduces, which get those of operands
        that came before and are given new ones here.  Raises `TooLarge` where it reduces an axis
        without an end.

        Example: in ``n2[i] = sum(n1[i, k] for k)``, read as ``n2[label 0]``, the operand is
        ``n1[label 0, label 1]``, and ``inner`` has that k is label 1.
        """
        intervals: list[tuple[int, int, int, int]] = []
        fixed = list(operand.fixed)
        for axis, stride, extent, label in operand.intervals:
            if extent == ABSOLUTE and label not in outputs:
                raise TooLarge
            if label not in outputs:
                if label not in inner:
                    inner[label] = self.new(extent)
                intervals.append((axis, stride, extent, inner[label]))
                continue
            here = outputs.index(label)
            intervals += [(axis, stride * s, n, x) for a, s, n, x in read.intervals if a == here]
            fixed += [(axis, stride * s, n, at) for a, s, n, at in read.fixed if a == here]
        return Read(operand.node, tuple(intervals), tuple(fixed), (*read.path, place))
