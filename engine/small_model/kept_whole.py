"""Axes along which an operator is not uniform, and what is kept of them.

No rule of reduction holds there, so none is applied: a choice reads its row as a unit, so its
function is named by all of the row; a class has a number, so the boundaries between classes and the
numbers are the true ones; a mask compares positions, so representatives keep their order; a table
of constants is small and is taken as it is.
"""

from __future__ import annotations

from collections.abc import Iterator

from shardproof.engine.lineage.expressions import Causal, Constant, Onehot, Order, Select
from shardproof.engine.lineage.nodes import Node, NodeTable


def kept_whole(nodes: NodeTable) -> tuple[str, ...]:
    """What is not reduced in the values of a plan, each with its reason, sorted.

    Example: "the constant table complex_product: it is small, and taken as it is".
    """
    return tuple(sorted(set(_reasons(nodes))))


def _reasons(nodes: NodeTable) -> Iterator[str]:
    for node in nodes.nodes:
        match node.definition:
            case Select(operand=operand, row=row, selection=how):
                extent = next(e for _, _, e, label in operand.intervals if label == row)
                yield (
                    f"a row of {extent:,} of which {how.topk} are chosen: the choice depends on all"
                    " of it, so it is one function of the row, named by its full length"
                )
            case Causal():
                yield (
                    "positions that a causal mask compares: they keep their order, and what is"
                    " masked does not enter sums"
                )
            case Order():
                yield (
                    "positions that are compared as numbers: they keep their order, and the "
                    "representatives of the rest are counted as the last row has them"
                )
            case Constant(name=name):
                yield f"the constant table {name}: it is small, and taken as it is"
        for extent in _classes(nodes, node):
            yield (
                f"{extent:,} numbered classes (rows of a table, experts): an index names one, so"
                " classes keep their numbers and every boundary between shards"
            )


def _classes(nodes: NodeTable, node: Node) -> Iterator[int]:
    """Over how many classes of one-hots a definition runs."""
    for operand in node.definition.reads():
        read = nodes[operand.node]
        if isinstance(read.definition, Onehot):
            last = len(read.extents) - 1
            yield from (e for axis, _, e, _ in operand.intervals if axis == last and e)
