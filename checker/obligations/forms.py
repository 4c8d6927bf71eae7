"""When two claims are the same claim: equal up to the names of nodes.

Rebuilding an obligation takes milliseconds, and plans repeat their operators by the thousand.  Two
claims whose forms are equal are rebuilt once.  The form holds everything that
`engine.obligations.obligation` reads of a claim, as it is, except that nodes are numbered in the
order in which the claim mentions them: no interval is moved, no attribute dropped but the ranks of
a group and the number of a shard, which is a name.

On purpose a second text of what `partition.templates.keys` does: the two are never merged.
"""

from __future__ import annotations

from collections.abc import Mapping

from shardproof.engine.claims.cone import Cone, cone
from shardproof.engine.lineage.lineage import Lineage, View
from shardproof.engine.lineage.nodes import NodeTable
from shardproof.engine.obligations.obligation import Claim
from shardproof.engine.plan.ir import Attr, Group

#: That a claim takes a node as it is, and neither opens nor reads its definition.
_OPAQUE = (True, False, False)


class _Names:
    """Numbers of nodes by first mention."""

    def __init__(self, nodes: NodeTable, placed: bool) -> None:
        self.nodes = nodes
        self.placed = placed
        self.numbers: dict[int, int] = {}
        self.order: list[int] = []

    def __call__(self, node: int) -> int:
        number = self.numbers.get(node)
        if number is None:
            number = self.numbers[node] = len(self.order)
            self.order.append(node)
        return number

    def reduction(self, number: int) -> tuple[object, ...]:
        reduction = self.nodes.reductions[number]
        inner = self.reduction(reduction.inner) if reduction.kind == "via" else ()
        return (reduction.kind, self(reduction.node), reduction.where, inner)

    def lineage(self, lineage: Lineage | None) -> object:
        if lineage is None:
            return None
        return (
            lineage.shape,
            tuple(
                (
                    t.factor,
                    self(t.node),
                    t.view if self.placed else self.unplaced(t.view),
                    tuple(
                        (self.reduction(p.reduction), self.placed and p.start, p.size, p.extent)
                        for p in t.partials
                    ),
                    t.places,
                )
                for t in lineage.addends
            ),
        )

    def unplaced(self, view: View) -> object:
        dims = (*view.dims, view.fixed)
        return tuple(tuple((a.axis, a.stride, a.extent, a.size) for a in dim) for dim in dims)

    def definition(self, number: int, here: Cone) -> tuple[object, ...]:
        """What the claim reads of a node: how large it is, and its definition if it is opened."""
        node = self.nodes[number]
        how = (number in here.opaque, number in here.opened, number in here.defined)
        if not self.placed and how == _OPAQUE:
            # A symbol, whatever it is made of: an obligation says no more of it.
            one, among = number == self.nodes.one, self.nodes.domain(number)
            return (how, node.extents, node.coordinates, one, among)
        seen = (how, node.kind, node.extents, node.coordinates, self.nodes.domain(number))
        if number not in here.defined:
            return seen
        return (*seen, node.definition.rename(self))


def _attributes(attrs: Mapping[str, Attr]) -> tuple[object, ...]:
    """Attributes as they are written (1 is not True); a group's ranks are names, and so is the
    number of the shard whose gradient is accumulated."""
    return tuple(
        (name, repr(value))
        for name, value in sorted(attrs.items(), key=lambda item: item[0])
        if name != "shard" and not isinstance(value, Group)
    )


def form(nodes: NodeTable, claim: Claim, *, placed: bool = True) -> tuple[object, ...]:
    """The form of a claim, or (not ``placed``) of all that are this one, moved: without where its
    intervals begin; raises `engine.errors.Unsupported` as `engine.obligations.obligation.build`
    does.

    Example: the linear layers of two equal layers, whose weights are the nodes 4 and 40, have one
    form: both are number 1 in it, after their inputs.
    """
    inputs = [x for x in claim.inputs if x is not None]
    here = cone(nodes, inputs, claim.outputs, adds=claim.adds)
    names = _Names(nodes, placed)
    lineages = tuple(names.lineage(x) for x in (*claim.inputs, *claim.outputs))
    read: list[tuple[object, ...]] = []
    while len(read) < len(names.order):
        read.append(names.definition(names.order[len(read)], here))
    # The name of a parameter is no operator's, unless it is spelled like one that is looked for.
    named = claim.kind in ("op", "slice") or claim.name in ("slice", "concat")
    return (
        claim.kind,
        claim.name if named else "",
        claim.backward,
        claim.over,
        claim.members,
        claim.batched,
        _attributes(claim.attrs),
        lineages,
        len(claim.outputs),
        tuple(read),
        tuple(sorted(claim.extents.items())),
    )
