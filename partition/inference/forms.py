"""Lineages and attributes without names: what repeats from layer to layer and from rank to rank."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import NamedTuple

from shardproof.engine.lineage.lineage import Lineage
from shardproof.engine.lineage.nodes import NodeTable
from shardproof.engine.plan.ir import Attr, Group

#: Attributes that say nothing about what an operator means.
UNREAD = frozenset({"claimed", "position", "shard", "dtype"})


class View(NamedTuple):
    """A lineage without its nodes: the number of its form; the nodes and the reductions that it
    names, in order.

    Example: ``View(0, (4, 4), (1,))`` of ``n4[a0[4], a1[6]] part #1[<4*tp> +4 of 8]``, which names
    ``n4`` for itself and as what is summed.
    """

    form: int
    nodes: tuple[int, ...]
    tokens: tuple[int, ...]


class Forms:
    """Numbers what is costly to compare, once.  Lineages and attributes are looked up by identity
    first, and are kept for that.

    Example: the queries of layer 0 and of layer 1 have one form and other nodes.
    """

    def __init__(self, nodes: NodeTable) -> None:
        self.nodes = nodes
        self._numbers: dict[Hashable, int] = {}
        self._views: dict[int, tuple[Lineage, View]] = {}
        self._attributes: dict[int, tuple[Mapping[str, Attr], int, int]] = {}

    def number(self, what: Hashable) -> int:
        """One number for all that is equal."""
        return self._numbers.setdefault(what, len(self._numbers))

    def view(self, lineage: Lineage) -> View:
        """A lineage without its nodes, made once for each."""
        known = self._views.get(id(lineage))
        if known is None:
            known = self._views[id(lineage)] = lineage, self._seen(lineage)
        return known[1]

    def keep(self, lineage: Lineage, view: View) -> None:
        """The view of a lineage that was made from a form."""
        self._views[id(lineage)] = lineage, view

    def _seen(self, lineage: Lineage) -> View:
        nodes: list[int] = []
        tokens: list[int] = []
        terms = []
        for addend in lineage.addends:
            nodes.append(addend.node)
            parts = []
            for partial in addend.partials:
                tokens.append(partial.reduction)
                reduction = self.nodes.reductions[partial.reduction]
                chain = [(reduction.kind, reduction.where)]
                nodes.append(reduction.node)
                while reduction.kind == "via":
                    reduction = self.nodes.reductions[reduction.inner]
                    chain.append((reduction.kind, reduction.where))
                    nodes.append(reduction.node)
                parts.append((tuple(chain), partial.start, partial.size, partial.extent))
            terms.append((addend.factor, addend.view, tuple(parts), addend.places))
        return View(self.number((lineage.shape, tuple(terms))), tuple(nodes), tuple(tokens))

    def attributes(self, attrs: Mapping[str, Attr]) -> tuple[int, int]:
        """The numbers of what an operator means by them, and of all that it may look at."""
        known = self._attributes.get(id(attrs))
        if known is None:
            meant = self.number(attributes(attrs))
            read = self.number(attributes(attrs, frozenset({"claimed"})))
            known = self._attributes[id(attrs)] = attrs, meant, read
        return known[1:]


def attributes(
    attrs: Mapping[str, Attr], unread: frozenset[str] = UNREAD
) -> tuple[tuple[str, Attr], ...]:
    """Attributes that matter (a group's ranks are names).

    Example: of ``{"dim": 1, "dtype": "bfloat16", "group": Group(...)}``, ``(("dim", 1),)``.
    """
    return tuple(
        (k, v)
        for k, v in sorted(attrs.items(), key=lambda i: i[0])
        if not isinstance(v, Group) and k not in unread
    )
