"""Boxes of nodes: the positions that views of them read, and that what they are made of is read at.

They may be larger than what is read: a row too many is asked about, never one too few.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final

from shardproof.engine.lineage.expressions import Labelled, Operand, Unary
from shardproof.engine.lineage.lineage import ABSOLUTE, BROADCAST, Addend, StridedInterval
from shardproof.engine.lineage.nodes import NodeTable

#: First and last position of every axis of a node.
Box = tuple[tuple[int, int], ...]

#: No position of an axis without an end is further out.
_END: Final = 1 << 62


def whole(nodes: NodeTable, number: int) -> Box:
    """All of a node; for example ``((0, 3), (0, 7))`` of one of 4 by 8 entries."""
    return tuple(_all_of(extent) for extent in nodes[number].extents)


def box_of(nodes: NodeTable, addend: Addend) -> Box:
    """A box that has all positions of its node that a view reads.

    Example: of ``n4[a0[4], a1[2 +2 of 8]]`` it is ``((0, 3), (2, 3))``; where a start depends on
    coordinates, all of the axis.
    """
    read = [a for dim in addend.view.dims for a in dim if a.axis != BROADCAST]
    box = []
    for axis, full in enumerate(whole(nodes, addend.node)):
        own = [_span(a) for a in (*read, *addend.view.fixed) if a.axis == axis]
        low, high = (sum(end) for end in zip(*own, strict=True)) if own else full
        box.append((max(low, full[0]), min(high, full[1])))
    return tuple(box)


def read_at(nodes: NodeTable, addends: Iterable[Addend]) -> dict[int, Box]:
    """Boxes of all nodes that views read, directly or by what they are made of.

    Example: of a view of queries 4 to 7 of a softmax, these rows of its scores; all keys.
    """
    boxes: dict[int, Box] = {}
    parts: dict[int, list[Mapping[int, tuple[int, int]]]] = {}
    for addend in addends:
        _join(boxes, addend.node, box_of(nodes, addend))
        parts.setdefault(addend.node, []).append(_parts(nodes, addend))
    done: set[int] = set()
    while left := boxes.keys() - done:
        number = max(left)  # a node is made of earlier ones
        done.add(number)
        for child, box in _below(nodes, number, boxes[number], parts.get(number, [])):
            _join(boxes, child, box)
            parts.setdefault(child, []).append({})
    return boxes


def _join(boxes: dict[int, Box], number: int, box: Box) -> None:
    known = boxes.get(number, box)
    boxes[number] = tuple((min(a, c), max(b, d)) for (a, b), (c, d) in zip(known, box, strict=True))


def _all_of(extent: int) -> tuple[int, int]:
    return (-_END, _END) if extent == ABSOLUTE else (0, extent - 1)


def _span(interval: StridedInterval) -> tuple[int, int]:
    """The first and the last place that an interval adds to a position of its axis."""
    stride, start = interval.stride, interval.start
    if start.terms:
        low, high = _all_of(interval.extent)
        return (low, high) if interval.extent == ABSOLUTE else (low * stride, high * stride)
    return stride * start.const, stride * (start.const + interval.size - 1)


def _parts(nodes: NodeTable, addend: Addend) -> dict[int, tuple[int, int]]:
    """Which positions of the labels of its node's definition an addend is the sum over, where it is
    part of one in one interval."""
    parts: dict[int, tuple[int, int]] = {}
    for partial in addend.partials:
        reduction = nodes.reductions[partial.reduction]
        known = partial.extent in _extents(nodes, addend.node, reduction.where)
        if reduction.node == addend.node and reduction.kind != "via" and known:
            own = StridedInterval(0, 1, partial.extent, partial.start, partial.size)
            parts[reduction.where] = _span(own)
    return parts


def _extents(nodes: NodeTable, number: int, label: int) -> set[int]:
    reads = nodes[number].definition.reads()
    return {n for operand in reads for _, _, n, own in operand.intervals if own == label}


def _below(
    nodes: NodeTable, number: int, box: Box, parts: Sequence[Mapping[int, tuple[int, int]]]
) -> Iterator[tuple[int, Box]]:
    """The boxes of the nodes that a node's definition names, for a box of it."""
    definition = nodes[number].definition
    if isinstance(definition, Unary):
        yield definition.node, box
    elif isinstance(definition, Labelled):
        labels = dict(zip(definition.outputs, box, strict=True))
        for operand in definition.reads():
            yield operand.node, operand_box(nodes, operand, labels, parts)
    else:
        for child in definition.children():
            yield child, whole(nodes, child)


def operand_box(
    nodes: NodeTable,
    operand: Operand,
    labels: Mapping[int, tuple[int, int]],
    parts: Sequence[Mapping[int, tuple[int, int]]] = (),
) -> Box:
    """The box of a node that an operand reads where some labels run from a position to another;
    ``parts``: between which ones others do, where that is not as far as they go.

    Example: of ``n9[a:2, b:8, c:2, a2/2=3 of 4]`` with the label ``b`` from 0 to 1 it is ``((0, 1),
    (0, 1), (6, 7))``.
    """
    own: dict[int, list[tuple[int, int]]] = {}
    for axis, stride, extent, label in operand.intervals:
        spans = [part.get(label, _all_of(extent)) for part in parts] or [_all_of(extent)]
        low, high = labels.get(label, (min(a for a, _ in spans), max(b for _, b in spans)))
        own.setdefault(axis, []).append((low * stride, high * stride))
    for axis, stride, extent, start in operand.fixed:
        own.setdefault(axis, []).append(_span(StridedInterval(axis, stride, extent, start, 1)))
    return tuple(
        tuple(map(sum, zip(*own[axis], strict=True))) if axis in own else full  # type: ignore[misc]
        for axis, full in enumerate(whole(nodes, operand.node))
    )
