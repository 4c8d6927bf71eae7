"""Families whose members are one claim, moved, and claims that are another one, moved.

Along a coordinate every interval of a claim moves by so many positions.  If every reference node
that the claim reads moves as a whole, by one vector, then the member at any coordinate is the
member at another one with the entries of every node renamed, and one of them stands for all.  The
vectors of what is claimed are carried down through the definitions; a partial sum moves the range
that it sums.  Whatever does not fit (a node with two vectors, a moving mask or attribute, a sum
that occurs in full as well) makes the family uneven.

Between two claims of one form the distances of their starts take the place of a step: the constant
parts and the coefficients of every coordinate, each by itself, since all that is asked of distances
is linear.

On purpose a second text of `engine.claims.symmetry`: the two are never merged.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from shardproof.engine.algebra.affine import Affine
from shardproof.engine.claims.cone import Cone, operand_nodes
from shardproof.engine.lineage.blocks import Block
from shardproof.engine.lineage.expressions import (
    Amax,
    Combine,
    Einsum,
    Expression,
    Most,
    One,
    Onehot,
    Operand,
    Restrict,
    Select,
    Unary,
)
from shardproof.engine.lineage.lineage import BROADCAST, Addend, StridedInterval
from shardproof.engine.lineage.nodes import NodeTable
from shardproof.engine.obligations.obligation import Claim
from shardproof.engine.plan.ir import Attr

Vector = tuple[int, ...]
#: A reduced label of a definition: (node, label).
Label = tuple[int, int]


class Asymmetric(Exception):
    """The members of the family are not one claim, moved."""


def attribute_axes(value: Attr) -> set[str]:
    """The coordinates that an attribute depends on.

    Example: ``start=112*tp`` depends on ``tp``, a tuple of plain numbers on nothing.
    """
    if isinstance(value, Affine):
        return set(value.axes)
    if isinstance(value, tuple):
        return {axis for part in value for axis in attribute_axes(part)}
    return set()


class _Moves:
    """The vector of every node; ``axis``: along this coordinate (None: between two claims, whose
    definitions are the same)."""

    def __init__(self, nodes: NodeTable, cone: Cone, axis: str | None) -> None:
        self.nodes = nodes
        self.here = cone
        self.axis = axis
        self.vectors: dict[int, Vector] = {}
        self.ranges: dict[Label, int] = {}
        self.complete: set[int] = set()

    def follow(self, addends: Sequence[Addend], steps: Sequence[Sequence[int]]) -> bool:
        """Whether all nodes move as wholes; ``steps``: by addend, how far its starts move."""
        try:
            self.sums(addends, steps)
            for addend, distances in zip(addends, steps, strict=True):
                self.view(addend, distances)
        except Asymmetric:
            return False
        return True

    def sums(self, addends: Sequence[Addend], steps: Sequence[Sequence[int]]) -> None:
        """How far the range of every partial sum moves, and which nodes' sums occur in full."""
        inside: set[tuple[int, int]] = set()
        for addend, distances in zip(addends, steps, strict=True):
            if not addend.partials:
                self.complete.add(addend.node)
            moved: Counter[Label] = Counter()
            ranges = distances[len(distances) - len(addend.partials) :]
            for partial, distance in zip(addend.partials, ranges, strict=True):
                reduction = self.nodes.reductions[partial.reduction]
                while reduction.kind == "via":
                    inside.add((reduction.node, reduction.where))
                    reduction = self.nodes.reductions[reduction.inner]
                moved[reduction.node, reduction.where] += distance
            for label, step in moved.items():
                if self.ranges.setdefault(label, step) != step:
                    raise Asymmetric
        for number in self.here.defined:
            for place, operand in enumerate(operand_nodes(self.nodes, number)):
                if (number, place) not in inside:
                    self.complete.add(operand)

    def view(self, addend: Addend, steps: Sequence[int]) -> None:
        vector = [0] * len(self.nodes[addend.node].extents)
        for interval, step in zip(_intervals(addend), steps, strict=False):
            if interval.axis != BROADCAST:
                vector[interval.axis] += interval.stride * step
        self.node(addend.node, tuple(vector))

    def node(self, number: int, vector: Vector) -> None:
        known = self.vectors.get(number)
        if known is not None:
            if known != vector:
                raise Asymmetric
            return
        self.vectors[number] = vector
        if number in self.here.defined or number in self.here.opened:
            self.definition(number, vector)

    def definition(self, number: int, vector: Vector) -> None:
        """Carry the vector of a node down to what it is defined by."""
        match self.nodes[number].definition:
            case One():
                pass
            case Unary(node=operand):
                self.node(operand, vector)
            case Onehot(node=operand):
                if vector[-1]:  # a class is read by its number
                    raise Asymmetric
                self.node(operand, vector[:-1])
            case Restrict(node=operand, blocks=blocks):
                self.block(operand, blocks, vector)
            case Einsum() | Combine() | Most() | Amax() as read:
                self.operands(number, read.reads(), read.outputs, vector)
            case Select() as choice:
                if vector[-1]:  # each of the chosen is a function of its own
                    raise Asymmetric
                self.operands(number, choice.reads(), choice.outputs, vector[:-1])
            case other:
                if any(vector):
                    raise Asymmetric
                self.still(other)

    def block(self, operand: int, blocks: Sequence[Block], vector: Vector) -> None:
        """Moved, what is left must be what was left: one interval of the whole axis."""
        extents = self.nodes[operand].extents
        for axis, _, _, extent in blocks:
            if vector[axis] and extent != extents[axis]:
                raise Asymmetric
        self.node(operand, vector)

    def still(self, definition: Expression) -> None:
        """A definition that does not move: nothing below it may."""
        for operand in definition.children():
            self.node(operand, (0,) * len(self.nodes[operand].extents))

    def operands(
        self, number: int, operands: Sequence[Operand], outputs: Sequence[int], vector: Vector
    ) -> None:
        steps = dict(zip(outputs, vector, strict=True))
        for label in {
            label for operand in operands for *_, label in operand.intervals
        } - steps.keys():
            steps[label] = self.ranges.get((number, label), 0)
            if steps[label] and number in self.complete:
                raise Asymmetric
        for operand in operands:
            along = self.axis
            if along is not None and any(start.coefficient(along) for *_, start in operand.fixed):
                raise Asymmetric
            below = [0] * len(self.nodes[operand.node].extents)
            for axis, stride, _, label in operand.intervals:
                below[axis] += stride * steps[label]
            self.node(operand.node, tuple(below))


def _intervals(addend: Addend) -> list[StridedInterval]:
    return [*(a for dim in addend.view.dims for a in dim), *addend.view.fixed]


def _starts(addend: Addend) -> list[Affine]:
    """Where the intervals of a view begin, then its partial ranges."""
    return [a.start for a in _intervals(addend)] + [p.start for p in addend.partials]


def _addends(claim: Claim) -> list[Addend]:
    lineages = [x for x in (*claim.inputs, *claim.outputs) if x is not None]
    return [addend for lineage in lineages for addend in lineage.addends]


def is_even(nodes: NodeTable, cone: Cone, claim: Claim, axis: str) -> bool:
    """Whether the claims along a coordinate are one claim, moved; ``cone`` is the claim's.

    Example: a ``linear`` of rows ``<48*tp> +48`` of its weight is, along ``tp``; an ``embedding``
    that starts at ``112*tp`` is not.
    """
    if any(axis in attribute_axes(value) for value in claim.attrs.values()):
        return False
    addends = _addends(claim)
    steps = [[start.coefficient(axis) for start in _starts(addend)] for addend in addends]
    return _Moves(nodes, cone, axis).follow(addends, steps)


def is_moved(nodes: NodeTable, cone: Cone, claim: Claim, other: Claim) -> bool:
    """Whether a claim is another one, moved; ``cone`` is the claim's.  Both have one form, but for
    where their intervals begin (`forms.form`).

    Example: rank 1's ``linear`` of rows 48 to 95 of a weight is rank 0's of rows 0 to 47, moved by
    48 along that axis.
    """
    addends = _addends(claim)
    distances = [
        [mine - theirs for mine, theirs in zip(_starts(addend), _starts(like), strict=True)]
        for addend, like in zip(addends, _addends(other), strict=True)
    ]
    axes = {axis for steps in distances for step in steps for axis in step.axes}
    constant = [[step.const for step in steps] for steps in distances]
    along = ([[step.coefficient(a) for step in steps] for steps in distances] for a in sorted(axes))
    return all(_Moves(nodes, cone, None).follow(addends, steps) for steps in (constant, *along))
