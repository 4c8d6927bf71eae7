"""Whether the addends of lineages are views: intervals inside the axes of their node, sizes that
make up the local shape, partial sums of what is summed, positions inside at every coordinate."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod

from shardproof.checker.result import Problems
from shardproof.checker.values.ranges import IllFormed, bounds, nested, tiled
from shardproof.checker.values.sides import Side
from shardproof.engine.algebra.affine import Affine
from shardproof.engine.lineage.expressions import Amax, Einsum, Operand
from shardproof.engine.lineage.lineage import (
    ABSOLUTE,
    BROADCAST,
    Addend,
    Dim,
    Lineage,
    PartialRange,
)
from shardproof.engine.lineage.nodes import Node, NodeTable
from shardproof.engine.lineage.views import constant_interval
from shardproof.engine.plan.ir import MICROBATCH

#: Which reductions a partial result may be of, by the kind of its node.
_REDUCES = {"sum": "einsum", "max": "amax", "via": "einsum"}


class ViewChecker:
    """Checks that lineages are views of their nodes; raises `IllFormed` for what is
    none.

    Example: 112 positions from ``112*tp`` on of 224 are inside on both ranks; from ``112 + 112*tp``
    on: "[112*tp + 112, +112) is not inside [0, 224)".
    """

    def __init__(self, nodes: NodeTable) -> None:
        self.nodes = nodes
        self._reduced: dict[int, int] = {}

    @staticmethod
    def size(dim: Dim) -> int:
        """How many positions a dimension has."""
        return prod(interval.size for interval in dim)

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
        """Check every addend of a lineage."""
        if any(n < 1 for n in lineage.shape):
            raise IllFormed(f"a tensor of shape {list(lineage.shape)}")
        for addend in lineage.addends:
            missing = self.nodes[addend.node].coordinates - mesh.keys()
            if missing:
                raise IllFormed(
                    f"node {addend.node} depends on {sorted(missing)}, which the tensor has not"
                )
            self.addend(addend, lineage.shape, mesh)

    def addend(self, addend: Addend, shape: Sequence[int], mesh: Mapping[str, int]) -> set[str]:
        """Check an addend as a tensor of ``shape``; the coordinates that its positions depend
        on."""
        node = self.nodes[addend.node]
        axes: set[str] = set()
        by_axis: dict[int, list[tuple[int, int]]] = {}
        if len(addend.view.dims) != len(shape):
            raise IllFormed(f"{len(addend.view.dims)} dimensions, expected {len(shape)}")
        for dim, size in zip(addend.view.dims, self.left(addend, shape), strict=True):
            if self.size(dim) != size:
                raise IllFormed(f"atoms of sizes {[a.size for a in dim]} for a dimension of {size}")
        dims = [(interval, False) for dim in addend.view.dims for interval in dim]
        for interval, fixed in (*dims, *((interval, True) for interval in addend.view.fixed)):
            if fixed and (interval.size != 1 or interval.axis == BROADCAST):
                raise IllFormed(f"a fixed position of size {interval.size}")
            if interval.axis == BROADCAST:
                if interval != constant_interval(interval.size):
                    raise IllFormed("an interval of no axis")
                continue
            by_axis.setdefault(interval.axis, []).append((interval.stride, interval.extent))
            self.interval(interval.start, interval.size, interval.extent, mesh)
            axes.update(interval.start.axes)
        for axis, strides in by_axis.items():
            self.axis(node, axis, strides)
            tiled(strides, node.extents[axis])
        ranges = [(partial.reduction, partial.extent) for partial in addend.partials]
        if ranges != sorted(set(ranges)):
            raise IllFormed("parts that are not in order, or of one range")
        periods: dict[int, int] = {}
        for partial in addend.partials:
            self.partial(addend.node, partial, periods.get(partial.reduction, 1), mesh)
            periods[partial.reduction] = partial.extent
            axes.update(partial.start.axes)
        return axes

    @staticmethod
    def left(addend: Addend, shape: Sequence[int]) -> list[int]:
        """How many positions of each dimension the places of an addend leave: each place takes
        whole periods of the one inside it."""
        sizes = list(shape)
        divided = [1] * len(shape)
        periods = [(p.dim, p.extent) for p in addend.places]
        if periods != sorted(set(periods)):
            raise IllFormed("places that are not in order, or of one period")
        inside: dict[int, int] = {}
        for dim, start, size, extent in addend.places:
            if not 0 <= dim < len(sizes):
                raise IllFormed(f"a place of dimension {dim} of {len(sizes)}")
            period = inside.get(dim, 1)
            if extent < 1 or shape[dim] % extent or not 0 <= start < start + size <= extent:
                raise IllFormed(f"a place [{start}, +{size}) of {extent} of {shape[dim]} positions")
            if size == extent or extent % period or start % period or size % period:
                raise IllFormed(f"a place [{start}, +{size}) of periods of {period}")
            inside[dim] = extent
            sizes[dim] *= size
            divided[dim] *= extent
        return [size // extent for size, extent in zip(sizes, divided, strict=True)]

    @staticmethod
    def interval(start: Affine, size: int, extent: int, mesh: Mapping[str, int]) -> None:
        """Check that an interval lies inside what it is of, at every coordinate; an axis without
        an end has all integers as positions (docs/soundness.md, 5.5)."""
        low, high = bounds(start, mesh)
        if size < 1 or (extent != ABSOLUTE and not 0 <= low <= high + size <= extent):
            raise IllFormed(f"[{start}, +{size}) is not inside [0, {extent})")

    def partial(
        self, node: int, partial: PartialRange, period: int, mesh: Mapping[str, int]
    ) -> None:
        """``period``: of the part inside this one, of which it must take whole ones (1: none)."""
        if not 0 <= partial.reduction < len(self.nodes.reductions):
            raise IllFormed(f"a part of sum #{partial.reduction}, which there is not")
        if self.nodes.reductions[partial.reduction].node != node:
            raise IllFormed(f"a part of node {self.nodes.reductions[partial.reduction].node}")
        extent = self.reduced_extent(partial.reduction)
        if partial.extent < 1 or extent % partial.extent:
            raise IllFormed(f"a part of {partial.extent} positions, {extent} are reduced")
        if partial.extent % period or partial.size % period or not partial.start.divisible(period):
            raise IllFormed(f"[{partial.start}, +{partial.size}) cuts through periods of {period}")
        self.interval(partial.start, partial.size, partial.extent, mesh)

    def reduced_extent(self, number: int) -> int:
        """How many positions a named sum is over."""
        if number in self._reduced:
            return self._reduced[number]
        reduction = self.nodes.reductions[number]
        node = self.nodes[reduction.node]
        definition = node.definition
        if not isinstance(definition, Einsum | Amax) or _REDUCES[reduction.kind] != definition.kind:
            raise IllFormed(f"a partial {reduction.kind} of a node of kind {node.kind}")
        operands, outputs = definition.reads(), definition.outputs
        if reduction.kind == "via":
            inner = self.nodes.reductions[reduction.inner]
            if reduction.where >= len(operands) or operands[reduction.where].node != inner.node:
                raise IllFormed(f"operand {reduction.where} is not what is partial")
            if inner.kind == "max" or inner.node >= reduction.node:
                raise IllFormed("a product is not linear in a maximum")
            extent = self.reduced_extent(reduction.inner)
        else:
            extent = self._extent(operands, reduction.where)
            if reduction.where in outputs or extent == ABSOLUTE:
                raise IllFormed(f"label {reduction.where} is not reduced")
        self._reduced[number] = extent
        return extent

    @staticmethod
    def _extent(operands: Sequence[Operand], label: int) -> int:
        return max(
            (e for o in operands for _, _, e, x in o.intervals if x == label), default=ABSOLUTE
        )


def check_lineages(side: Side, nodes: NodeTable, problems: Problems) -> None:
    """Every tensor's lineage must be of its shape and well-formed over the coordinates it has.

    Example: a tensor [1, 10, 48] with a lineage of shape [1, 10, 96] is a problem of the kind
    "lineage".
    """
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
