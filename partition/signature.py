"""Claims that are equal but for the numbers of their nodes.

Layers of a model, and microbatches and stages that are unrolled, repeat claims word by word; only
the nodes that they speak of differ.  A signature is a claim in which nodes are numbered by first
use, with the definitions that the claim reads.  Equal signatures are one claim: nothing else has to
be compared, moved or stated again.  What is costly to compare (a view, a definition, attributes) is
looked at once and stands in signatures as a number.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import NamedTuple

from engine.cone import cone, operand_nodes
from engine.ir import Attr, Group
from engine.lineage import Lineage, NodeTable
from engine.obligation import Claim

#: Attributes that say nothing about what an operator means.
UNREAD = ("claimed", "position", "shard", "dtype")


class _View(NamedTuple):
    """A lineage without its nodes: the number of its form, and the nodes in order."""

    form: int
    nodes: tuple[int, ...]


class Signatures:
    """Makes signatures of claims over one table of nodes.

    Lineages and attributes are remembered by identity: they must live as long as this object.
    """

    def __init__(self, nodes: NodeTable) -> None:
        self.nodes = nodes
        self._numbers: dict[Hashable, int] = {}
        self._views: dict[int, _View] = {}
        self._definitions: dict[int, tuple[int, tuple[int, ...]]] = {}
        self._attributes: dict[int, int] = {}

    def __call__(self, claim: Claim) -> tuple[object, ...]:
        """The signature; raises `engine.errors.Unsupported` as `engine.cone.cone` does."""
        inputs = [x for x in claim.inputs if x is not None]
        here = cone(self.nodes, inputs, claim.outputs, adds=claim.adds)
        forms: list[int] = []
        order: dict[int, int] = {}
        used: list[int] = []
        for lineage in (*claim.inputs, *claim.outputs):
            if lineage is None:
                forms.append(-1)
                continue
            view = self._view(lineage)
            forms.append(view.form)
            used += [order.setdefault(n, len(order)) for n in view.nodes]
        read: list[int] = []
        todo = list(order)
        position = 0
        while position < len(todo):
            number = todo[position]
            position += 1
            if number not in here.defined:
                read.append(self._number(("symbol", self.nodes[number].extents)))
                continue
            definition, below = self._definition(number)
            read.append(definition)
            for node in below:
                if node not in order:
                    order[node] = len(order)
                    todo.append(node)
                read.append(order[node])
        return (
            claim.kind,
            claim.name if claim.kind == "op" else "",
            claim.backward,
            claim.over,
            claim.members,
            claim.batched if claim.kind == "accumulate" else (),
            self._attrs(claim.attrs),
            self._number(tuple(claim.extents.items())),
            len(claim.inputs),
            tuple(forms),
            tuple(used),
            tuple(read),
        )

    def _number(self, what: Hashable) -> int:
        return self._numbers.setdefault(what, len(self._numbers))

    def _view(self, lineage: Lineage) -> _View:
        known = self._views.get(id(lineage))
        if known is not None:
            return known
        nodes: list[int] = []
        terms = []
        for term in lineage.terms:
            nodes.append(term.node)
            parts = []
            for part in term.parts:
                token = self.nodes.tokens[part.token]
                chain = [(token.kind, token.where)]
                nodes.append(token.node)
                while token.kind == "via":
                    token = self.nodes.tokens[token.inner]
                    chain.append((token.kind, token.where))
                    nodes.append(token.node)
                parts.append((tuple(chain), part.start, part.size, part.extent))
            terms.append((term.factor, term.layout, tuple(parts)))
        view = _View(self._number((lineage.shape, tuple(terms))), tuple(nodes))
        self._views[id(lineage)] = view
        return view

    def _definition(self, number: int) -> tuple[int, tuple[int, ...]]:
        """What a node is, without the nodes that it reads; and those."""
        known = self._definitions.get(number)
        if known is not None:
            return known
        node = self.nodes[number]
        below = tuple(operand_nodes(self.nodes, number))
        payload: tuple[object, ...] = node.payload
        if below:
            payload = tuple(_without_nodes(kind, item) for kind, item in node.payload_items())
        outline = (
            node.kind,
            payload,
            node.extents,
            node.coordinates,
            number == self.nodes.one,
            self.nodes.is_masked(number),
        )
        found = (self._number(outline), below)
        self._definitions[number] = found
        return found

    def _attrs(self, attrs: Mapping[str, Attr]) -> int:
        known = self._attributes.get(id(attrs))
        if known is None:
            known = self._number(attributes(attrs))
            self._attributes[id(attrs)] = known
        return known


def attributes(attrs: Mapping[str, Attr]) -> tuple[tuple[str, Attr], ...]:
    """Attributes that matter to what an operator means (a group's ranks are names)."""
    return tuple(
        (k, v)
        for k, v in sorted(attrs.items(), key=lambda i: i[0])
        if not isinstance(v, Group) and k not in UNREAD
    )


def _without_nodes(kind: str, item: object) -> object:
    if kind == "node":
        return None
    if kind == "operand":
        return item[1:]  # type: ignore[index]
    if kind == "operands":
        return tuple(o[1:] for o in item)  # type: ignore[attr-defined]
    return item
