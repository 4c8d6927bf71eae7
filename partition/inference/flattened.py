"""A sum of sums over other labels is one sum over all of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from shardproof.engine.algebra.affine import ZERO, Affine
from shardproof.engine.lineage.expressions import Einsum
from shardproof.engine.lineage.lineage import ABSOLUTE, BROADCAST, Addend, StridedInterval, View
from shardproof.engine.lineage.nodes import NodeTable
from shardproof.partition.inference.laws import Factor


class Flat(NamedTuple):
    """What is added up, in one sum: how it is read, and how far all labels run.

    Example: of the sum over rows of ``n8``, the sum of ``n4`` over its columns, ``read`` is of
    ``n4`` and has labels for rows and columns.
    """

    read: Factor
    extents: dict[int, int]
    intervals: dict[int, StridedInterval]


def flattened(
    table: NodeTable,
    read: Factor,
    extents: Mapping[int, int],
    intervals: Mapping[int, StridedInterval],
) -> Flat | None:
    """A sum over what is a sum of one operand itself as one sum over that operand; None where it is
    no such sum, or part of one that is no interval of each label.

    Example: the gradient of a bias that each row has for itself, added up over rows, as that of one
    that all rows and places have.
    """
    addend = read.addend
    own = table[addend.node].definition
    if not isinstance(own, Einsum) or len(own.operands) != 1 or table[addend.node].coordinates:
        return None
    (operand,) = own.operands
    places = {label: (axis, stride) for axis, stride, _, label in operand.intervals}
    parts = _parts(table, addend)
    if len(places) < len(operand.intervals) or parts is None:
        return None

    def inside(interval: StridedInterval) -> StridedInterval:
        if interval.axis == BROADCAST:
            return interval
        axis, stride = places[own.outputs[interval.axis]]
        return interval._replace(axis=axis, stride=stride * interval.stride)

    atoms = [(inside(interval), label) for interval, label in read.intervals]
    all_extents, all_intervals = dict(extents), dict(intervals)
    for axis, stride, extent, label in operand.intervals:
        if label in own.outputs:
            continue
        if extent == ABSOLUTE:
            return None
        start, size = parts.get(label, (ZERO, extent))
        interval = StridedInterval(axis, stride, extent, start, size)
        number = max(all_extents, default=-1) + 1
        all_extents[number], all_intervals[number] = extent, interval
        atoms.append((interval, number))
    fixed = tuple(StridedInterval(a, s, e, start, 1) for a, s, e, start in operand.fixed)
    at = tuple(inside(a) for a in addend.view.fixed)
    view = View((), (*at, *fixed))
    return Flat(
        Factor(Addend(addend.factor, operand.node, view), tuple(atoms)), all_extents, all_intervals
    )


def _parts(table: NodeTable, addend: Addend) -> dict[int, tuple[Affine, int]] | None:
    """Which positions of each of its labels a sum is of, those that are not all; None where they
    are no interval of a label."""
    extents = {}
    definition = table[addend.node].definition
    if isinstance(definition, Einsum):
        extents = {x: n for o in definition.operands for *_, n, x in o.intervals}
    parts: dict[int, tuple[Affine, int]] = {}
    for part in addend.partials:
        reduction = table.reductions[part.reduction]
        label = reduction.where
        if (reduction.kind, reduction.node) != ("sum", addend.node) or label in parts:
            return None
        if part.extent != extents.get(label):
            return None
        parts[label] = part.start, part.size
    return parts
