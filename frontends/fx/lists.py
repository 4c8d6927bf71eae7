"""Lists of tensors that ranks divide (experts, tables), of which each counts its own from 0.

A rank that has some of the modules of a list calls them by their numbers in its own list, the
single device by those in the whole one.  Where a rank has fewer of a name with a number than the
single device, and the single device reads those that no rank seems to have, they are divided in
the order of ranks, as a dimension would be.  For example, of ``experts_0`` to ``experts_3`` rank 1
of two has the last two, as its ``experts_0`` and ``experts_1``.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Final, NamedTuple

from shardproof.frontends.fx.layouts import Layout
from shardproof.frontends.fx.place import NUMBERED
from shardproof.frontends.fx.records import Graph, Node, operands

_NUMBER: Final = re.compile(r"(\d+)")


class List(NamedTuple):
    """A name with a number at one place: how many the single side has of it, and every rank.

    Example: ``List("p_experts_#_up", 4, 2)`` of ``p_experts_0_up`` to ``p_experts_3_up``.
    """

    name: str
    full: int
    part: int

    def named(self, number: int) -> str:
        """The name of one of them.

        Example: number 2 of ``experts_#`` is ``experts_2``.
        """
        return self.name.replace("#", str(number))

    def owners(self, layout: Layout) -> dict[str, tuple[str, ...]]:
        """Of each that ranks have, the single side's name of it on every rank, if the ranks have
        these parts of the list.

        Example: of ``experts_#`` (4 of which ranks have 2) and the parts (0, 1), ``experts_1`` is
        ``experts_1`` and ``experts_3``.
        """
        return {
            self.named(n): tuple(self.named(part * self.part + n) for part in layout)
            for n in range(self.part)
        }


def divided(single: Graph, ranks: Sequence[Graph]) -> list[List]:
    """Lists of which ranks have a part each, if they explain all inputs that the single side reads
    and no rank has by name.

    Example: of ranks with ``experts_0_up`` and ``experts_1_up``, where the single side reads four,
    ``experts_#_up``; nothing where the single side reads a ``bias`` that no rank has, too.
    """
    own = {node.name: node for node in single.inputs}
    theirs = {node.name: node for node in ranks[0].inputs}
    if any({node.name for node in graph.inputs} != theirs.keys() for graph in ranks):
        return []
    read = {name for node in single.nodes for x in (node.args, node.kwargs) for name in operands(x)}
    lists: dict[str, List] = {}
    for name in (name for name in own if name not in theirs and name in read):
        fit = [one for one in map(partial(_counted, own, theirs), _of_name(name)) if one]
        if len(fit) != 1 or NUMBERED.match(name):
            return []
        lists[fit[0].name] = fit[0]
    return list(lists.values())


def _of_name(name: str) -> Iterator[str]:
    """A name with each of its numbers left open."""
    parts = _NUMBER.split(name)
    for place in range(1, len(parts), 2):
        if str(int(parts[place])) == parts[place]:
            yield "".join([*parts[:place], "#", *parts[place + 1 :]])


def _counted(own: Mapping[str, Node], theirs: Mapping[str, Node], name: str) -> List | None:
    """How many of a name both sides have, counted from 0; None: it is no list that is divided."""
    full, part = _count(name, own), _count(name, theirs)
    one = List(name, full, part)
    if not 0 < part < full or full % part:
        return None
    pairs = ((own[one.named(n)], theirs[one.named(n % part)]) for n in range(full))
    return one if all((a.shape, a.dtype) == (b.shape, b.dtype) for a, b in pairs) else None


def _count(name: str, among: Mapping[str, Node]) -> int:
    count = 0
    while name.replace("#", str(count)) in among:
        count += 1
    return count
