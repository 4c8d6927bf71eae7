"""Whether the terms of lineages are views: atoms inside the axes of their node, sizes that make up
the local shape, partial sums of what is summed, positions inside at every coordinate."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod

from shardproof.checker.result import Problems
from shardproof.checker.values.ranges import IllFormed, bounds, nested
from shardproof.checker.values.sides import Side
from shardproof.engine.algebra.affine import Affine
from shardproof.engine.lineage.expressions import Amax, Einsum, Operand
from shardproof.engine.lineage.layout import constant_atom
from shardproof.engine.lineage.lineage import ABSOLUTE, BROADCAST, Dim, Lineage, Part, Term
from shardproof.engine.lineage.nodes import Node, NodeTable
from shardproof.engine.plan.ir import MICROBATCH

#: Which reductions a partial result may be of, by the kind of its node.
_REDUCES = {"sum": "einsum", "max": "amax", "via": "einsum"}


class ViewChecker:
    """Raises `IllFormed`."""

    def __init__(self, nodes: NodeTable) -> None:
        self.nodes = nodes
        self._reduced: dict[int, int] = {}

    @staticmethod
    def size(dim: Dim) -> int:
        return prod(atom.size for atom in dim)

    @staticmethod
    def axis(node: Node, axis: int, strides: Sequence[tuple[int, int]]) -> None:
        """(stride, extent) pairs must be digits of one axis of a node."""
        if not 0 <= axis < len(node.extents):
            raise IllFormed(f"axis {axis} of a node with {len(node.extents)}")
        full = node.extents[axis]
        if full == ABSOLUTE:
            if len(strides) > 1 or strides[0][0] != 1:
                raise IllFormed("an axis without end is read at strides")
            return
        nested(strides, full)

    def lineage(self, lineage: Lineage, mesh: Mapping[str, int]) -> None:
        if any(n < 1 for n in lineage.shape):
            raise IllFormed(f"a tensor of shape {list(lineage.shape)}")
        for term in lineage.terms:
            missing = self.nodes[term.node].coordinates - mesh.keys()
            if missing:
                raise IllFormed(
                    f"node {term.node} depends on {sorted(missing)}, which the tensor has not"
                )
            self.term(term, lineage.shape, mesh)

    def term(self, term: Term, shape: Sequence[int], mesh: Mapping[str, int]) -> set[str]:
        """Check a term as a tensor of ``shape``; the coordinates that its positions depend on."""
        node = self.nodes[term.node]
        found: set[str] = set()
        by_axis: dict[int, list[tuple[int, int]]] = {}
        if len(term.layout.dims) != len(shape):
            raise IllFormed(f"{len(term.layout.dims)} dimensions, expected {len(shape)}")
        for dim, size in zip(term.layout.dims, self.left(term, shape), strict=True):
            if self.size(dim) != size:
                raise IllFormed(f"atoms of sizes {[a.size for a in dim]} for a dimension of {size}")
        dims = [(atom, False) for dim in term.layout.dims for atom in dim]
        for atom, fixed in (*dims, *((atom, True) for atom in term.layout.fixed)):
            if fixed and (atom.size != 1 or atom.axis == BROADCAST):
                raise IllFormed(f"a fixed position of size {atom.size}")
            if atom.axis == BROADCAST:
                if atom != constant_atom(atom.size):
                    raise IllFormed("an interval of no axis")
                continue
            by_axis.setdefault(atom.axis, []).append((atom.stride, atom.extent))
            self.interval(atom.start, atom.size, atom.extent, mesh)
            found.update(atom.start.axes)
        for axis, strides in by_axis.items():
            self.axis(node, axis, strides)
        ranges = [(part.token, part.extent) for part in term.parts]
        if ranges != sorted(set(ranges)):
            raise IllFormed("parts that are not in order, or of one range")
        periods: dict[int, int] = {}
        for part in term.parts:
            self.part(term.node, part, periods.get(part.token, 1), mesh)
            periods[part.token] = part.extent
            found.update(part.start.axes)
        return found

    @staticmethod
    def left(term: Term, shape: Sequence[int]) -> list[int]:
        """How many positions of each dimension the places of a term leave: each place takes whole
        periods of the one inside it."""
        sizes = list(shape)
        taken = [1] * len(shape)
        held = [(p.dim, p.extent) for p in term.places]
        if held != sorted(set(held)):
            raise IllFormed("places that are not in order, or of one period")
        inside: dict[int, int] = {}
        for dim, start, size, extent in term.places:
            if not 0 <= dim < len(sizes):
                raise IllFormed(f"a place of dimension {dim} of {len(sizes)}")
            period = inside.get(dim, 1)
            if extent < 1 or shape[dim] % extent or not 0 <= start < start + size <= extent:
                raise IllFormed(f"a place [{start}, +{size}) of {extent} of {shape[dim]} positions")
            if size == extent or extent % period or start % period or size % period:
                raise IllFormed(f"a place [{start}, +{size}) of periods of {period}")
            inside[dim] = extent
            sizes[dim] *= size
            taken[dim] *= extent
        return [size // extent for size, extent in zip(sizes, taken, strict=True)]

    @staticmethod
    def interval(start: Affine, size: int, extent: int, mesh: Mapping[str, int]) -> None:
        low, high = bounds(start, mesh)
        if size < 1 or low < 0 or (extent != ABSOLUTE and high + size > extent):
            raise IllFormed(f"[{start}, +{size}) is not inside [0, {extent})")

    def part(self, node: int, part: Part, period: int, mesh: Mapping[str, int]) -> None:
        """``period``: of the part inside this one, of which it must take whole ones (1: none)."""
        if self.nodes.tokens[part.token].node != node:
            raise IllFormed(f"a part of node {self.nodes.tokens[part.token].node}")
        extent = self.reduced_extent(part.token)
        if part.extent < 1 or extent % part.extent:
            raise IllFormed(f"a part of {part.extent} positions, {extent} are reduced")
        if part.extent % period or part.size % period or not part.start.divisible(period):
            raise IllFormed(f"[{part.start}, +{part.size}) cuts through periods of {period}")
        self.interval(part.start, part.size, part.extent, mesh)

    def reduced_extent(self, number: int) -> int:
        """How many positions a token's reduction is over."""
        if number in self._reduced:
            return self._reduced[number]
        token = self.nodes.tokens[number]
        node = self.nodes[token.node]
        definition = node.definition
        if not isinstance(definition, Einsum | Amax) or _REDUCES[token.kind] != definition.kind:
            raise IllFormed(f"a partial {token.kind} of a node of kind {node.kind}")
        operands, outputs = definition.reads(), definition.outputs
        if token.kind == "via":
            inner = self.nodes.tokens[token.inner]
            if token.where >= len(operands) or operands[token.where].node != inner.node:
                raise IllFormed(f"operand {token.where} is not what is partial")
            if inner.kind == "max" or inner.node >= token.node:
                raise IllFormed("a product is not linear in a maximum")
            found = self.reduced_extent(token.inner)
        else:
            found = self._extent(operands, token.where)
            if token.where in outputs or found == ABSOLUTE:
                raise IllFormed(f"label {token.where} is not reduced")
        self._reduced[number] = found
        return found

    @staticmethod
    def _extent(operands: Sequence[Operand], label: int) -> int:
        return max((e for o in operands for _, _, e, x in o.atoms if x == label), default=ABSOLUTE)


def check_lineages(side: Side, nodes: NodeTable, problems: Problems) -> None:
    """Every tensor's lineage must be of its shape and well-formed over the coordinates it has."""
    views = ViewChecker(nodes)
    known: dict[tuple[int, bool, int], str] = {}
    if len(side.lineages) != len(side.unrolled.tensors):
        problems.add(
            "lineage",
            f"tensors.arrow: {len(side.lineages)} lineages for the "
            f"{len(side.unrolled.tensors)} tensors of the {side.name} side",
        )
        return
    for value, (tensor, lineage) in enumerate(
        zip(side.unrolled.tensors, side.lineages, strict=True)
    ):
        if lineage is None:
            continue
        if lineage.shape != tensor.shape:
            problems.add(
                "lineage",
                f"{side.tensor(value)} has shape {list(tensor.shape)}, its "
                f"lineage {list(lineage.shape)}",
            )
            continue
        per_microbatch = side.unrolled.symbolic and tensor.batched
        key = (tensor.program, per_microbatch, id(lineage))
        if key not in known:
            mesh = dict(side.programs[tensor.program].extents)
            if per_microbatch:
                mesh[MICROBATCH] = side.microbatches
            try:
                views.lineage(lineage, mesh)
                known[key] = ""
            except IllFormed as error:
                known[key] = str(error)
        if known[key]:
            problems.add("lineage", f"{side.tensor(value)}: {known[key]}")
