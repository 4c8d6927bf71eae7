"""How many entries of a row are its largest: at least one, so that it may be divided by.

The derivative of a maximum is shared by the entries that are the largest; these are counted as
``sum(1 - sign(x - max(x))^2)``.
"""

from __future__ import annotations

from collections.abc import Mapping

from shardproof.engine.lineage.expressions import Amax, Combine, Einsum, Operand, Unary
from shardproof.engine.lineage.nodes import NodeTable


def sign_of_count(nodes: NodeTable, number: int) -> int:
    """1 where a node counts the largest entries of rows, times a number that is positive; -1 where
    that is negative; 0 where the node is something else.

    Example: 1 of ``sum over j of 1 - sign(x[i, j] - m[i])^2``, with ``m`` the largest of each row.
    """
    total = nodes[number].definition
    if not isinstance(total, Einsum) or len(total.operands) != 1:
        return 0
    read = total.operands[0]
    axes = _whole(nodes, read)
    entry = nodes[read.node].definition
    if axes is None or not isinstance(entry, Combine) or len(entry.operands) != 2:
        return 0
    summed = {axis for axis, label in axes.items() if label not in total.outputs}
    shares = {o.node: f for f, o in zip(entry.factors, entry.operands, strict=True)}
    one = shares.pop(nodes.one, None)
    square = next((o for o in entry.operands if o.node != nodes.one), None)
    if one is None or square is None or shares != {square.node: -one}:
        return 0
    if _read_as_it_is(nodes, square, entry.outputs) and _is_square(nodes, square.node, summed):
        return 1 if one > 0 else -1
    return 0


def _is_square(nodes: NodeTable, number: int, summed: set[int]) -> bool:
    """Whether a node is the square of the sign of what entries have less than the largest along
    ``summed``, axes of it."""
    square = nodes[number].definition
    if not isinstance(square, Einsum) or len(square.operands) != 2:
        return False
    first, second = square.operands
    if first != second or not _read_as_it_is(nodes, first, square.outputs):
        return False
    sign = nodes[first.node].definition
    if not isinstance(sign, Unary) or sign.function != "sign" or not sign.factor:
        return False
    gap = nodes[sign.node].definition
    if not isinstance(gap, Combine) or len(gap.operands) != 2:
        return False
    parts = zip(gap.factors, gap.operands, strict=True)
    (a, one), (b, other) = sorted(parts, key=lambda p: nodes[p[1].node].kind == Amax.kind)
    most = nodes[other.node].definition
    if not isinstance(most, Amax) or a != -b * most.sign:
        return False
    entries, rows = _whole(nodes, most.operand), _whole(nodes, other)
    if entries is None or rows is None or most.operand.node != one.node:
        return False
    if not _read_as_it_is(nodes, one, gap.outputs):
        return False
    # Along which axis of the entries each axis of their largest runs, there and in the gap.
    there = {i: gap.outputs.index(rows[i]) for i in rows}
    kept = {axis: label for axis, label in entries.items() if label in most.outputs}
    alike = all(there[most.outputs.index(label)] == axis for axis, label in kept.items())
    return alike and summed >= entries.keys() - kept.keys()


def _whole(nodes: NodeTable, read: Operand) -> Mapping[int, int] | None:
    """The label that each axis of an operand runs along; None unless all of it is read, along
    different ones."""
    extents = nodes[read.node].extents
    axes = {
        axis: label
        for axis, stride, n, label in read.intervals
        if (stride, n) == (1, extents[axis])
    }
    if read.fixed or len(axes) != len(read.intervals) or len(set(axes.values())) < len(extents):
        return None
    return axes


def _read_as_it_is(nodes: NodeTable, read: Operand, outputs: tuple[int, ...]) -> bool:
    """Whether an operand's axes are those of what reads it."""
    axes = _whole(nodes, read)
    return axes is not None and axes == dict(enumerate(outputs))
