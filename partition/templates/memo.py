"""Obligations of earlier partitions, for plans that have their single-device side in common.

A claim over reference nodes alone says the same in every plan in which these nodes are the same:
equal claims over equal definitions are one obligation.  Changed copies of one plan share most of
theirs.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field

from shardproof.engine.claims.cone import cone
from shardproof.engine.lineage.nodes import Node, NodeTable
from shardproof.engine.obligations.obligation import Claim, Obligation, build


@dataclass(slots=True)
class Memo:
    """Obligations by claim. ``nodes``: the reference nodes that ``obligations`` is over.

    Example: 40 mutants of one plan: the claim of an operator that none of them changes is stated
    once.
    """

    nodes: list[Node] = field(default_factory=list)
    obligations: dict[Hashable, Obligation] = field(default_factory=dict)

    def begin(self, nodes: NodeTable, reference_size: int) -> None:
        """Forget everything if the reference nodes are others than before."""
        now = nodes.nodes[:reference_size]
        if now != self.nodes:
            self.nodes, self.obligations = now, {}

    def build(self, nodes: NodeTable, claim: Claim, more: int) -> Obligation:
        """As `engine.obligations.obligation.build`, which it raises the errors of."""
        if not self._shared(nodes, claim):
            return build(nodes, claim, more=more)
        key = (more, _hashable(claim))
        if key not in self.obligations:
            self.obligations[key] = build(nodes, claim, more=more)
        return self.obligations[key]

    def _shared(self, nodes: NodeTable, claim: Claim) -> bool:
        """Whether a claim reads reference nodes alone (tokens of parts are numbered by plan)."""
        inputs = [x for x in claim.inputs if x is not None]
        if any(addend.partials for x in (*inputs, *claim.outputs) for addend in x.addends):
            return False
        here = cone(nodes, inputs, claim.outputs, adds=claim.adds)
        size = len(self.nodes)
        viewed = {addend.node for x in (*inputs, *claim.outputs) for addend in x.addends}
        return all(n < size for n in (*here.opaque, *here.opened, *here.defined, *viewed))


def _hashable(claim: Claim) -> Hashable:
    attrs = tuple(sorted((key, repr(value)) for key, value in claim.attrs.items()))
    extents = tuple(sorted(claim.extents.items()))
    return claim._replace(attrs=attrs, extents=extents)  # type: ignore[arg-type]


def built(nodes: NodeTable, claim: Claim, more: int, memo: Memo | None) -> Obligation:
    """The obligation of a claim, from the memo if there is one: where one plan alone is looked at,
    no claim is stated twice, and obligations are not kept.

    Example: with a memo, the ``add`` after the embedding is stated for the first plan and looked up
    for the others.
    """
    return build(nodes, claim, more=more) if memo is None else memo.build(nodes, claim, more)
