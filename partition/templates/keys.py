"""Claims that are the same up to names and places: one template, solved once.

`key` is a claim in operator-level form with nodes renumbered by first use and intervals moved to
the origin.  It is an index only: claims of one key share a template if they are one claim, moved
(`engine.claims.symmetry`), and what is solved, cached and checked is the text of the obligation.
"""

from __future__ import annotations

from collections.abc import Iterable

from shardproof.engine.algebra.affine import ZERO, Affine
from shardproof.engine.claims.cone import Cone, cone
from shardproof.engine.lineage.lineage import (
    ABSOLUTE,
    BROADCAST,
    Lineage,
    PartialRange,
    StridedInterval,
)
from shardproof.engine.lineage.nodes import NodeTable
from shardproof.engine.obligations.obligation import Claim
from shardproof.partition.inference.forms import attributes


class _Numbering:
    """Nodes and reductions by first use."""

    def __init__(self, nodes: NodeTable, here: Cone) -> None:
        self.nodes = nodes
        self.here = here
        self.numbers: dict[int, int] = {}
        self.order: list[int] = []

    def __call__(self, node: int) -> int:
        number = self.numbers.get(node)
        if number is None:
            number = len(self.order)
            self.numbers[node] = number
            self.order.append(node)
        return number

    def reduction(self, number: int) -> tuple[object, ...]:
        reduction = self.nodes.reductions[number]
        inner = self.reduction(reduction.inner) if reduction.kind == "via" else ()
        return (reduction.kind, self(reduction.node), reduction.where, inner)

    def definition(self, node: int) -> tuple[object, ...]:
        """What the claim reads of a node: its definition, or only how large it is and whether it is
        the number 1."""
        read = self.nodes[node]
        if node not in self.here.defined:
            return ("symbol", read.extents, node == self.nodes.one, self.nodes.domain(node))
        return (read.definition.rename(self), read.extents)


def _origins(lineages: Iterable[Lineage], axes: frozenset[str]) -> dict[int, Affine]:
    """By extent: where its intervals begin, if they may all be moved to the origin together."""
    first: dict[int, Affine] = {}
    largest: dict[int, int] = {}
    fixed: set[int] = set()
    for lineage in lineages:
        for addend in lineage.addends:
            places: list[StridedInterval | PartialRange] = [a for d in addend.view.dims for a in d]
            places += [*addend.view.fixed, *addend.partials]
            for place in places:
                if isinstance(place, StridedInterval) and place.axis == BROADCAST:
                    continue
                extent = place.extent
                if extent == ABSOLUTE or (axes and axes.intersection(place.start.axes)):
                    fixed.add(extent)
                first.setdefault(extent, place.start)
                largest[extent] = max(largest.get(extent, 0), place.size)
    return {
        extent: start
        for extent, start in first.items()
        if extent not in fixed and start != ZERO and start.divisible(largest[extent])
    }


def key(nodes: NodeTable, claim: Claim) -> tuple[object, ...]:
    """The operator-level form of a claim; raises `engine.errors.Unsupported` as `build` does.

    Example: ``linear`` in layer 0 and in layer 1 have one key: both read nodes 0, 1 and 2 and give
    node 3.
    """
    inputs = [x for x in claim.inputs if x is not None]
    here = cone(nodes, inputs, claim.outputs, adds=claim.adds)
    number = _Numbering(nodes, here)
    summed = frozenset(axis for axis, _ in claim.over)
    origins = _origins((*inputs, *claim.outputs), summed)
    axes: set[str] = set(summed)

    def from_origin(start: Affine, extent: int) -> Affine:
        start = start - origins[extent] if extent in origins else start
        axes.update(start.axes)
        return start

    def atoms(items: Iterable[StridedInterval]) -> tuple[object, ...]:
        return tuple(
            (a.axis, a.stride, a.extent, from_origin(a.start, a.extent), a.size) for a in items
        )

    def form(lineage: Lineage | None) -> object:
        if lineage is None:
            return None
        return (
            lineage.shape,
            tuple(
                (
                    t.factor,
                    number(t.node),
                    tuple(atoms(d) for d in t.view.dims),
                    atoms(t.view.fixed),
                    tuple(
                        (
                            number.reduction(p.reduction),
                            from_origin(p.start, p.extent),
                            p.size,
                            p.extent,
                        )
                        for p in t.partials
                    ),
                    t.places,
                )
                for t in lineage.addends
            ),
        )

    shapes = (tuple(form(x) for x in claim.inputs), tuple(form(x) for x in claim.outputs))
    read = []
    position = 0
    while position < len(number.order):
        read.append(number.definition(number.order[position]))
        position += 1
    attrs = attributes(claim.attrs)
    for value in claim.attrs.values():
        if isinstance(value, Affine):
            axes.update(value.axes)
    for node in number.order:  # what a definition reads at fixed positions may move as well
        axes.update(nodes[node].coordinates & claim.extents.keys())
    extents = tuple(sorted((a, claim.extents[a]) for a in axes))
    return (
        claim.kind,
        claim.name if claim.kind == "op" else "",
        claim.backward,
        claim.over,
        claim.members,
        claim.batched if claim.kind == "accumulate" else (),
        attrs,
        shapes,
        tuple(read),
        extents,
    )
