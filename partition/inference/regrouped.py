"""Sums of the single device that add up the same in other groups: they are one value.

A sum of three is a node, and so is the third added to the sum of two. Where a program has both (the
gradients of an LSTM's two biases, one added up over all steps at once and one step by step), what
ranks compute would be found as either, and what is made of it as that one's; so what comes second
is taken for the first, and is no node.
"""

from __future__ import annotations

from collections.abc import Sequence

from shardproof.engine.lineage.lineage import Addend, Lineage
from shardproof.engine.lineage.nodes import NodeTable
from shardproof.engine.lineage.sums import collect
from shardproof.partition.inference.opened import opened

#: Sums of more addends are taken as they are grouped: a chain of residuals has ever more.
MOST_ADDENDS = 12

#: What is added up, taken apart, and the sums whose definitions say so.
Flat = tuple[frozenset[Addend], frozenset[int]]


class Regrouped:
    """The sums of the single device by what they add up.

    Example: after ``n5 = n1 + n2 + n3``, ``n4 + n3`` with ``n4 = n1 + n2`` is ``n5``, which ``n4``
    and ``n5`` show.
    """

    def __init__(self, table: NodeTable) -> None:
        self.table = table
        self._first: dict[frozenset[Addend], tuple[Lineage, Sequence[Addend]]] = {}

    def flat(self, addends: Sequence[Addend]) -> Flat | None:
        """What addends add up, sums among them taken apart; None where that is too much."""
        sums: set[int] = set()
        parts: list[Addend] = []
        left = list(addends)
        while left:
            addend = left.pop()
            own = opened(self.table, addend)
            if own:
                sums.add(addend.node)
            else:
                parts.append(addend)
            left += own
            if len(left) + len(parts) > MOST_ADDENDS:
                return None
        return frozenset(collect(parts)), frozenset(sums)

    def known(self, flat: Flat, addends: Sequence[Addend]) -> tuple[Lineage, set[int]] | None:
        """The value that was added up before in other groups, and the sums that show it; None where
        there is none."""
        parts, sums = flat
        if parts not in self._first:
            return None
        lineage, before = self._first[parts]
        if frozenset(before) == frozenset(addends):
            return None
        other = self.flat(lineage.addends)
        return (lineage, {*sums, *other[1]}) if other is not None else None

    def note(self, flat: Flat, addends: Sequence[Addend], lineage: Lineage) -> None:
        """Remember what addends became."""
        self._first.setdefault(flat[0], (lineage, addends))
