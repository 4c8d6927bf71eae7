"""Whether reference nodes are definitions: of earlier nodes, inside their extents, of the extents
and over the coordinates that are stored."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import assert_never

from shardproof.checker.result import Problems
from shardproof.checker.values.assumptions import Inputs
from shardproof.checker.values.ranges import IllFormed, bounds
from shardproof.checker.values.views import ViewChecker
from shardproof.engine.lineage.blocks import Block
from shardproof.engine.lineage.expressions import (
    AcrossRanks,
    Amax,
    AtCoordinate,
    Causal,
    Combine,
    Concatenated,
    Constant,
    Einsum,
    Input,
    Labelled,
    Local,
    Maximum,
    Most,
    One,
    Onehot,
    Opaque,
    Operand,
    Order,
    Restrict,
    Select,
    Unary,
)
from shardproof.engine.lineage.lineage import ABSOLUTE
from shardproof.engine.lineage.lineage import Addend as View
from shardproof.engine.lineage.nodes import Node, NodeTable
from shardproof.engine.ops.primitives import CONSTANTS, known_function

Extents = tuple[int, ...]
Coordinates = frozenset[str]


class DefinitionChecker:
    """Finds out what definitions of reference nodes mean, or that they mean nothing; ``mesh``:
    extents of all coordinates of the plan.

    Example: ``n24: [96, 4, 10] = einsum(n4[a:96, b:96], n23[b:96, c:4, d:10] -> a c
    d)`` is well-formed; it would not be if it read node 25, or if ``b`` were 48 in one of them.
    """

    def __init__(self, nodes: NodeTable, inputs: Inputs, mesh: Mapping[str, int]) -> None:
        self.nodes = nodes
        self.inputs = inputs
        self.mesh = mesh
        self.views = ViewChecker(nodes)

    def check(self, problems: Problems) -> None:
        """Report every ill-formed node (tokens are looked at where lineages use them)."""
        for number, node in enumerate(self.nodes.nodes):
            try:
                extents, coordinates = self.meaning(number, node)
                if extents != node.extents:
                    raise IllFormed(
                        f"has extents {list(node.extents)}, its definition {list(extents)}"
                    )
                if coordinates != node.coordinates:
                    raise IllFormed(
                        f"depends on {sorted(coordinates)}, stored are {sorted(node.coordinates)}"
                    )
            except IllFormed as error:
                problems.add("node", f"node {number} ({node.kind}): {error}")

    def meaning(self, number: int, node: Node) -> tuple[Extents, Coordinates]:
        """Extents and coordinates that follow from a definition; raises `IllFormed`."""
        none: Coordinates = frozenset()
        match node.definition:
            case One():
                return (), none
            case Input(name=name):
                full = self.inputs.shape(name)
                if full is None:
                    raise IllFormed(f"the plan has no input {name}")
                return tuple(n for n in full if n != 1), none
            case Constant(name=name):
                if name not in CONSTANTS:
                    raise IllFormed(f"there is no constant {name}")
                table = CONSTANTS[name]
                return (len(table), len(table[0]), len(table[0][0])), none
            case Causal() | Order():
                return (ABSOLUTE, ABSOLUTE), none
            case Unary(function=function, node=operand):
                if not self._known(function):
                    raise IllFormed(f"there is no function {function}")
                inner = self.earlier(number, operand)
                return inner.extents, inner.coordinates
            case Restrict(node=operand, blocks=blocks):
                return self.block(number, operand, blocks)
            case Onehot(node=operand):
                inner = self.earlier(number, operand)
                return (*inner.extents, ABSOLUTE), inner.coordinates
            case Einsum() | Combine() | Most() | Amax() | Select() as read:
                return self.product(number, read)
            case local:
                return self.local(number, node, local)

    def block(
        self, number: int, operand: int, blocks: Sequence[Block]
    ) -> tuple[Extents, Coordinates]:
        """What is left of the axes of a node: each block takes whole periods of the one before."""
        node = self.earlier(number, operand)
        ranked = sorted(blocks, key=lambda b: (b.axis, b.extent == ABSOLUTE, b.extent))
        if not blocks or list(blocks) != ranked:
            raise IllFormed("blocks that are none, or not in order")
        extents = list(node.extents)
        inside: dict[int, tuple[int, int]] = {}
        for axis, start, size, extent in blocks:
            if not 0 <= axis < len(extents):
                raise IllFormed(f"a block of axis {axis} of a node with {len(extents)}")
            period, left = inside.get(axis, (1, 1))
            full = node.extents[axis]
            whole = extent == ABSOLUTE if full == ABSOLUTE else extent > 0 and full % extent == 0
            if not whole or period == ABSOLUTE or extent % period or (extent and extent == period):
                raise IllFormed(f"a block of {extent} positions of an axis of {full}")
            below = start < 0 and extent != ABSOLUTE
            if start % period or size % period or below or size < 1:
                raise IllFormed(f"[{start}, +{size}) cuts through periods of {period}")
            if extent and start + size > extent:
                raise IllFormed(f"[{start}, +{size}) is no block of {extent}")
            if extent and start % size == 0 and extent % size == 0:
                # It is a fixed position of a digit, which counts as a label (5.3).
                raise IllFormed(f"[{start}, +{size}) is one of {extent // size} equal blocks")
            left = left * (size // period)
            inside[axis] = extent, left
            extents[axis] = left * (full // extent) if extent else left
        return tuple(extents), node.coordinates

    def product(self, number: int, definition: Labelled) -> tuple[Extents, Coordinates]:
        """Definitions that read operands by labels."""
        match definition:
            case Einsum(operands=operands, outputs=outputs):
                return self.multilinear(number, operands, outputs)
            case (
                Combine(factors=factors, operands=operands, outputs=outputs)
                | Most(factors=factors, operands=operands, outputs=outputs)
            ):
                if len(factors) != len(operands):
                    raise IllFormed(f"{len(factors)} factors of {len(operands)} operands")
                return self.multilinear(number, operands, outputs, reduces=False)
            case Amax(sign=sign, operand=operand, outputs=outputs):
                if sign not in (1, -1):
                    raise IllFormed(f"sign {sign}")
                return self.multilinear(number, (operand,), outputs)
            case Select():
                return self.choice(number, definition)
            case other:
                assert_never(other)

    def local(self, number: int, node: Node, definition: Local) -> tuple[Extents, Coordinates]:
        """Tensors that only the parallel program has: they are symbols wherever they occur."""
        match definition:
            case AcrossRanks(axis=axis, node=operand):
                inner = self.earlier(number, operand)
                return inner.extents, inner.coordinates - {axis}
            case AtCoordinate(axis=axis, position=position, node=operand):
                inner = self.earlier(number, operand)
                if not 0 <= position < self.mesh.get(axis, 0):
                    raise IllFormed(f"coordinate {position} of {axis}")
                return inner.extents, inner.coordinates - {axis}
            case Opaque(addends=addends) | Maximum(addends=addends) | Concatenated(addends=addends):
                return node.extents, self.pieces(number, node, addends)
            case other:
                assert_never(other)

    def pieces(self, number: int, node: Node, addends: Sequence[View]) -> Coordinates:
        """The coordinates that the tensors of which a local one is made depend on."""
        if any(n < 2 for n in node.extents):
            raise IllFormed(f"extents {list(node.extents)}")
        coordinates: set[str] = set()
        for addend in addends:
            inner = self.earlier(number, addend.node)
            # A local tensor is a symbol wherever it occurs: how it lies in itself says nothing.
            shape = tuple(self.views.size(dim) for dim in addend.view.dims)
            addend = addend._replace(places=())
            coordinates |= inner.coordinates | self.views.addend(addend, shape, self.mesh)
        return frozenset(coordinates)

    @staticmethod
    def _known(function: str) -> bool:
        if not function.startswith("pow:"):
            return known_function(function)
        try:
            return str(Fraction(function[4:])) == function[4:]
        except (ValueError, ZeroDivisionError):
            return False

    def earlier(self, number: int, operand: int) -> Node:
        """The node that an operand names; raises `IllFormed` unless it stands before."""
        if not 0 <= operand < number:
            raise IllFormed(f"is defined by node {operand}, which is not before it")
        return self.nodes[operand]

    def choice(self, number: int, choice: Select) -> tuple[Extents, Coordinates]:
        """Extents and coordinates of a choice among an operand's entries."""
        labels: dict[int, int] = {}
        coordinates = self.operand(number, choice.operand, labels)
        row, topk = choice.row, choice.selection.topk
        kept = tuple(sorted(label for label in labels if label != row))
        if row not in labels or kept != choice.outputs or not 1 <= topk <= labels[row]:
            raise IllFormed(f"chooses along label {row} of labels {sorted(labels)}")
        return (*(labels[x] for x in kept), topk), coordinates

    def multilinear(
        self,
        number: int,
        operands: Sequence[Operand],
        outputs: tuple[int, ...],
        *,
        reduces: bool = True,
    ) -> tuple[Extents, Coordinates]:
        """Extents and coordinates of a product or sum of operands over labels."""
        labels: dict[int, int] = {}
        coordinates: Coordinates = frozenset()
        for operand in operands:
            coordinates |= self.operand(number, operand, labels)
        if list(outputs) != sorted(set(outputs)) or not labels.keys() >= set(outputs):
            raise IllFormed(f"output labels {list(outputs)} of labels {sorted(labels)}")
        summed = labels.keys() - set(outputs)
        if summed and not reduces:
            raise IllFormed(f"a sum of tensors that also sums over labels {sorted(summed)}")
        if any(labels[x] == ABSOLUTE for x in summed):
            raise IllFormed("reduces an axis without end")
        return tuple(labels[x] for x in outputs), coordinates

    def operand(self, number: int, operand: Operand, labels: dict[int, int]) -> Coordinates:
        """Check how a definition reads a node, and note the extents of its labels."""
        node = self.earlier(number, operand.node)
        by_axis: dict[int, list[tuple[int, int]]] = {}
        coordinates = set(node.coordinates)
        seen: set[int] = set()
        for axis, stride, extent, label in operand.intervals:
            if label in seen or label < 0:
                raise IllFormed(f"label {label} occurs twice in one operand")
            seen.add(label)
            if labels.get(label, ABSOLUTE) not in (ABSOLUTE, extent) and extent != ABSOLUTE:
                raise IllFormed(f"label {label} has extents {labels[label]} and {extent}")
            labels[label] = max(labels.get(label, ABSOLUTE), extent)
            by_axis.setdefault(axis, []).append((stride, extent))
        for axis, stride, extent, start in operand.fixed:
            low, high = bounds(start, self.mesh)
            if extent != ABSOLUTE and not 0 <= low <= high < extent:
                raise IllFormed(f"position {start} of {extent}")
            coordinates.update(start.axes)
            by_axis.setdefault(axis, []).append((stride, extent))
        for axis, strides in by_axis.items():
            self.views.axis(node, axis, strides)
        return frozenset(coordinates)
