"""Families whose members are one claim, moved.

Along a coordinate every interval of a claim moves by so many positions.  If every reference node
that the claim reads moves as a whole, by one vector, then the member at any coordinate is the
member at another one with the entries of every node renamed, and one of them stands for all.  The
vectors of what is claimed are carried down through the definitions; a partial sum moves the range
that it sums.  Whatever does not fit (a node with two vectors, a moving mask or attribute, a sum
that occurs in full as well) makes the family uneven.

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
from shardproof.engine.lineage.lineage import BROADCAST, Addend
from shardproof.engine.lineage.nodes import NodeTable
from shardproof.engine.obligations.obligation import Claim
from shardproof.engine.plan.ir import Attr

Vector = tuple[int, ...]
#: A reduced label of a definition: (node, label).
Label = tuple[int, int]


class Asymmetric(Exception):
    """The members of the family are not one claim, moved."""


def attribute_axes(value: Attr) -> set[str]:
    """The coordinates that an attribute depends on."""
    if isinstance(value, Affine):
        return set(value.axes)
    if isinstance(value, tuple):
        return {axis for part in value for axis in attribute_axes(part)}
    return set()


class _Moves:
    """The vector of every node along one coordinate."""

    def __init__(self, nodes: NodeTable, cone: Cone, axis: str) -> None:
        self.nodes = nodes
        self.here = cone
        self.axis = axis
        self.vectors: dict[int, Vector] = {}
        self.ranges: dict[Label, int] = {}
        self.complete: set[int] = set()

    def sums(self, addends: Sequence[Addend]) -> None:
        """How far the range of every partial sum moves, and which nodes' sums occur in full."""
        inside: set[tuple[int, int]] = set()
        for addend in addends:
            if not addend.partials:
                self.complete.add(addend.node)
            moved: Counter[Label] = Counter()
            for partial in addend.partials:
                reduction = self.nodes.reductions[partial.reduction]
                while reduction.kind == "via":
                    inside.add((reduction.node, reduction.where))
                    reduction = self.nodes.reductions[reduction.inner]
                moved[reduction.node, reduction.where] += partial.start.coefficient(self.axis)
            for label, step in moved.items():
                if self.ranges.setdefault(label, step) != step:
                    raise Asymmetric
        for number in self.here.defined:
            for place, operand in enumerate(operand_nodes(self.nodes, number)):
                if (number, place) not in inside:
                    self.complete.add(operand)

    def view(self, addend: Addend) -> None:
        vector = [0] * len(self.nodes[addend.node].extents)
        for interval in (*(a for dim in addend.view.dims for a in dim), *addend.view.fixed):
            if interval.axis != BROADCAST:
                vector[interval.axis] += interval.stride * interval.start.coefficient(self.axis)
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
            if any(start.coefficient(self.axis) for *_, start in operand.fixed):
                raise Asymmetric
            below = [0] * len(self.nodes[operand.node].extents)
            for axis, stride, _, label in operand.intervals:
                below[axis] += stride * steps[label]
            self.node(operand.node, tuple(below))


def is_even(nodes: NodeTable, cone: Cone, claim: Claim, axis: str) -> bool:
    """Whether the claims along a coordinate are one claim, moved; ``here`` is the claim's cone."""
    if any(axis in attribute_axes(value) for value in claim.attrs.values()):
        return False
    lineages = [x for x in (*claim.inputs, *claim.outputs) if x is not None]
    addends = [addend for lineage in lineages for addend in lineage.addends]
    moves = _Moves(nodes, cone, axis)
    try:
        moves.sums(addends)
        for addend in addends:
            moves.view(addend)
    except Asymmetric:
        return False
    return True
