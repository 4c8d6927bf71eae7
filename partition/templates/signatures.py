"""Claims that are equal but for the numbers of their nodes.

Layers of a model, and microbatches and stages that are unrolled, repeat claims word by word; only
the nodes that they speak of differ.  A signature is a claim in which nodes are numbered by first
use, with the definitions that the claim reads.  Equal signatures are one claim: nothing else has to
be compared, moved or stated again.  What is costly to compare (a view, a definition, attributes) is
looked at once and stands in signatures as a number.
"""

from __future__ import annotations

from typing import NamedTuple

from shardproof.engine.claims.cone import cone, operand_nodes
from shardproof.engine.obligations.obligation import Claim
from shardproof.partition.inference.forms import Forms


class Signature(NamedTuple):
    """Equal ``content``: one claim.  ``nodes``: which it speaks of.

    Example: of the ``add`` after the embeddings, ``nodes`` is ``{2, 40, 41}``: position table,
    embeddings and their sum.
    """

    content: tuple[object, ...]
    nodes: frozenset[int]


class Signatures:
    """Makes signatures of claims over the table of nodes of ``forms``.

    Example: the ``gelu`` of layer 0 and that of layer 1 have equal content, over other nodes.
    """

    def __init__(self, forms: Forms) -> None:
        self.nodes = forms.nodes
        self._forms = forms
        self._definitions: dict[int, tuple[int, tuple[int, ...]]] = {}

    def __call__(self, claim: Claim) -> Signature:
        """The signature; raises `engine.errors.Unsupported` as `engine.claims.cone.cone` does."""
        inputs = [x for x in claim.inputs if x is not None]
        here = cone(self.nodes, inputs, claim.outputs, adds=claim.adds)
        forms: list[int] = []
        order: dict[int, int] = {}
        used: list[int] = []
        for lineage in (*claim.inputs, *claim.outputs):
            if lineage is None:
                forms.append(-1)
                continue
            view = self._forms.view(lineage)
            forms.append(view.form)
            used += [order.setdefault(n, len(order)) for n in view.nodes]
        read: list[int] = []
        todo = list(order)
        position = 0
        while position < len(todo):
            number = todo[position]
            position += 1
            if number not in here.defined:
                is_one, among = number == self.nodes.one, self.nodes.domain(number)
                form = ("symbol", self.nodes[number].extents, is_one, among)
                read.append(self._forms.number(form))
                continue
            definition, below = self._definition(number)
            read.append(definition)
            for node in below:
                if node not in order:
                    order[node] = len(order)
                    todo.append(node)
                read.append(order[node])
        content = (
            claim.kind,
            claim.name if claim.kind == "op" else "",
            claim.backward,
            claim.over,
            claim.members,
            claim.batched if claim.kind == "accumulate" else (),
            self._forms.attributes(claim.attrs)[0],
            self._forms.number(tuple(claim.extents.items())),
            len(claim.inputs),
            tuple(forms),
            tuple(used),
            tuple(read),
        )
        return Signature(content, frozenset(order))

    def _definition(self, number: int) -> tuple[int, tuple[int, ...]]:
        """What a node is, without the nodes that it reads; and those."""
        known = self._definitions.get(number)
        if known is not None:
            return known
        node = self.nodes[number]
        below = operand_nodes(self.nodes, number)
        outline = (
            node.definition.rename(lambda _: 0),
            node.extents,
            node.coordinates,
            number == self.nodes.one,
            self.nodes.is_masked(number),
        )
        form = (self._forms.number(outline), below)
        self._definitions[number] = form
        return form
