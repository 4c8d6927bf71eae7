"""Which numbers are the same on every rank, by how they are made: what chooses among computations
that join ranks has to be.

Where ranks chose unlike computations, some would wait in a collective that others never reach.  A
number is the same everywhere if it is made of inputs that every rank has as a whole, of constants,
and of what all ranks have joined, by operators that do the same on every rank.
"""

from __future__ import annotations

from collections.abc import Sequence

from shardproof.frontends.graphs.graph import Input, Node, PerRank, Shape, Value
from shardproof.frontends.hlo.known import Known

#: Operators whose result is the same on all ranks of a group.
_JOINING = frozenset({"all-reduce", "all-gather"})


def agreed(
    item: object,
    nodes: Sequence[Node],
    inputs: Sequence[Input],
    values: Sequence[Value],
    ranks: int,
) -> bool:
    """Whether a value of a graph with these operators, inputs and values, by its number, is the
    same on all ranks; not what is no value of the graph (a number that differs by rank).

    Example: ``compare(n, 0)`` of a scalar input is, and so is the all-reduce of any value over all
    ranks; the same of a row that each rank has for itself is not.
    """
    makers = {v: node for node in nodes for v in node.results}
    given = {x.value: x for x in inputs}
    if not isinstance(item, int):
        return False
    waiting, visited = [item], {item}
    while waiting:
        value = waiting.pop()
        node = makers.get(value)
        if node is None:
            if value not in given or not _whole(given[value], values[value].shape):
                return False
        elif not _joins_all(node, ranks):
            if node.groups or node.pairs or node.target == "custom-call" or not _alike(node.attrs):
                return False
            waiting.extend(v for v in node.operands if v not in visited)
            visited.update(node.operands)
    return True


def _whole(x: Input, shape: Shape) -> bool:
    """Whether every rank has all of an input: a number that is no tensor has no parts."""
    if x.placement is None:
        return not shape
    return len(set(x.placement.starts)) == 1 and x.placement.full == shape


def _joins_all(node: Node, ranks: int) -> bool:
    groups = node.groups
    return node.target in _JOINING and bool(groups) and set(map(len, groups)) == {ranks}


def _alike(attr: object) -> bool:
    """Whether attributes say the same for every rank."""
    match attr:
        case PerRank(values):
            return len(set(values)) == 1
        case Known(arrays):
            return len(arrays) == 1
        case dict():
            return all(_alike(v) for v in attr.values())
        case tuple() | list():
            return all(_alike(v) for v in attr)
    return True
