"""Which outputs of two sides are compared, and where the ranks' parts of them lie.

What the relations file names, or all of them by position.  Smaller than the single side's means a
contiguous part; or, of an output that has the shape of an input in pieces (the gradient of a fused
weight), a share of each piece: it is compared piece by piece.  Where both fit, numbers decide
(`frontends.fx.choose`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from msgspec.structs import replace

from shardproof.engine.errors import InvalidInput
from shardproof.engine.plan.assumption import Assumption
from shardproof.frontends.fx import place
from shardproof.frontends.fx.inputs import Cut, Inputs, Open, inferred, shape_of
from shardproof.frontends.fx.layouts import picked
from shardproof.frontends.fx.place import Box, Shape, Slice
from shardproof.frontends.fx.records import Graph, named, operand
from shardproof.frontends.graphs.relations import OutputRelation, Relations

#: Outputs that are not compared, up to which all are named.
MOST_TOLD: Final = 8


class Output(NamedTuple):
    """An output that is compared, and how; ``piece``: what of it, on the single side and on the
    ranks, and where it lies.

    Example: ``add_1`` of the single side and ``add_3`` of the ranks; of a fused weight's gradient
    three outputs, for queries, keys and values.
    """

    name: str
    single: str
    parallel: str
    relation: OutputRelation | None
    piece: tuple[Slice, Slice, Box] | None = None

    def box(self, full: Shape, part: Shape, inputs: Inputs, assumed: list[Assumption]) -> Box:
        """Where the parts of ranks lie, of these shapes; raises `InvalidInput` if nothing says so.

        Example: parts [4, 4] of [8, 4] on two ranks are rows 0 to 3 and 4 to 7, which ``assumed``
        gets.
        """
        if self.piece is not None:
            return self.piece[2]
        relation = self.relation
        if relation is not None and (relation.count_ways() or relation.sum):
            return place.stated_box(relation, self.name, full, part, len(inputs.layouts[0]))
        return inferred("output", self.name, (full, part), inputs, inputs.output_role, assumed)


def with_states(single: Graph, ranks: Sequence[Graph]) -> tuple[Graph, list[Graph]]:
    """The graphs with what each leaves in the inputs that any of them writes, and that all have, as
    their first outputs: who does not write one leaves what it was.

    Example: a cache that the single side adds to, and ranks do not, is the first output of both.
    """
    every = [single, *ranks]
    writing = {name for graph in every for name in graph.written}
    common = set.intersection(*({node.name for node in graph.inputs} for graph in every))
    names = [node.name for node in single.inputs if node.name in writing & common]
    alone, *others = (_leaving(graph, names) for graph in every)
    return alone, others


def _leaving(graph: Graph, names: Sequence[str]) -> Graph:
    """A graph whose first outputs are what it leaves in these inputs, then in others."""
    if list(graph.written) == names:
        return graph
    *before, end = graph.nodes
    count = len(graph.written)
    left = dict(zip(graph.written, graph.outputs, strict=False))
    own = [left.pop(name, named(name)) for name in names]
    outputs = [*own, *left.values(), *graph.outputs[count:]]
    return replace(graph, nodes=[*before, replace(end, args=[outputs])])


def compared(
    single: Graph, ranks: Graph, relations: Relations, assumed: list[Assumption]
) -> list[Output]:
    """The outputs that are compared: those that the relations name, or all, by position.

    Example: the second output ``add_1`` of the single side beside the second, ``add_3``, of ranks.
    """
    if relations.outputs:
        if relations.partial:
            raise InvalidInput(
                "is said in [[outputs]] (sum = true) where these are named", "partial"
            )
        for relation in relations.outputs:
            for graph, name in ((single, relation.single), (ranks, relation.parallel)):
                if name not in {node.name for node in graph.nodes}:
                    raise InvalidInput("no node has this name", f"outputs, {name}")
        return [Output(o.single, o.single, o.parallel, o) for o in relations.outputs]
    own, others = single.outputs, ranks.outputs
    if len(own) == len(others):
        names = [(operand(a), operand(b)) for a, b in zip(own, others, strict=True)]
        assumed += _unlike(own, others)
    else:
        names = _leading(single, ranks)
        assumed.append(_not_compared(own[len(names) :], others[len(names) :], len(names)))
    pairs = dict.fromkeys((a, b) for a, b in names if a is not None and b is not None)
    if not pairs:
        raise InvalidInput("no outputs to compare: name them in a relations file ([[outputs]])")
    if all(a == b for a, b in pairs) is False:
        assumed.append(
            Assumption("inferred", "outputs", "", "outputs are paired by position (inferred)")
        )
    unknown = sorted(set(relations.partial) - {b for _, b in pairs})
    if unknown:
        raise InvalidInput("the parallel side has no such output", f"partial, {unknown[0]}")
    summed = {b: OutputRelation(single=a, parallel=b, sum=True) for a, b in pairs}
    return [Output(a, a, b, summed[b] if b in relations.partial else None) for a, b in pairs]


def _unlike(own: Sequence[object], others: Sequence[object]) -> list[Assumption]:
    """That outputs are left out of which one side has no tensor at their place, and the other side
    has one, or another number: nothing says that this is meant.

    Example: a gradient of the single side that ranks do not return (None).
    """
    unlike = [
        f"output {place}: {operand(a) or a} and {operand(b) or b}"
        for place, (a, b) in enumerate(zip(own, others, strict=True))
        if (operand(a) is None or operand(b) is None) and a != b
    ]
    if not unlike:
        return []
    more = f" and {len(unlike) - MOST_TOLD} more" if len(unlike) > MOST_TOLD else ""
    text = (
        f"{len(unlike)} outputs are not compared, which are not both tensors (on the single side "
        f"and on the ranks, {'; '.join(unlike[:MOST_TOLD])}{more}): name those that count in a "
        "relations file ([[outputs]])"
    )
    return [Assumption("not compared", "outputs", "", text)]


def _not_compared(own: Sequence[object], others: Sequence[object], count: int) -> Assumption:
    """That the outputs beyond the first ``count`` of each side, ``own`` and ``others``, are left
    out: nothing says which one belongs to which."""

    def listing(outputs: Sequence[object]) -> str:
        names = [operand(x) or "None" for x in outputs]
        more = f" and {len(names) - MOST_TOLD} more" if len(names) > MOST_TOLD else ""
        return (", ".join(names[:MOST_TOLD]) or "none") + more

    return Assumption(
        "not compared",
        "outputs",
        "",
        f"{len(own)} outputs of the single side and {len(others)} of the parallel one are not "
        f"compared, since nothing says which belong together (single: {listing(own)}; parallel: "
        f"{listing(others)}); the first {count} are: name those that count in a relations file "
        "([[outputs]])",
    )


def _leading(single: Graph, ranks: Graph) -> list[tuple[str | None, str | None]]:
    """Outputs before the first one whose name is another, or that only hands an input on: what
    follows is what an exporter keeps for the derivative."""
    inputs = {node.name for node in (*single.inputs, *ranks.inputs)}
    pairs: list[tuple[str | None, str | None]] = []
    for x, y in zip(single.outputs, ranks.outputs, strict=False):
        a, b = operand(x), operand(y)
        if a != b or a is None or a in inputs:
            break
        pairs.append((a, b))
    return pairs


def in_pieces(
    outputs: Sequence[Output],
    single: Graph,
    ranks: Sequence[Graph],
    inputs: Inputs,
    assumed: list[Assumption],
) -> list[Output]:
    """The outputs, those of the shape of an input in pieces piece by piece.

    Example: of the gradient [48, 16] of a fused weight, [24, 16] on each of two ranks, the first,
    second and third 16 rows, of which a rank has eight each.
    """
    own = {node.name: shape_of(node) for node in single.nodes}
    others = {node.name: shape_of(node) for node in ranks[0].nodes}
    made: list[Output] = []
    for output in outputs:
        full, part = own.get(output.single, ()), others.get(output.parallel, ())
        cut = None if output.relation is not None else inputs.cut_of.get((full, part))
        if cut is None:
            made.append(output)
            continue
        kind = ("output", *cut.pieces)
        if part[cut.dim] * (max(cut.places) + 1) == full[cut.dim]:
            options = cut.words, f"shard = {cut.dim}"
            inputs.open.append(Open("output", output.name, kind, options))
            if picked(inputs.choice, kind, output.name):
                made.append(output)
                continue
        else:
            text = f"output {output.name} is {cut.words}, as an input of its shape (inferred)"
            assumed.append(Assumption("inferred", output.name, "", text))
        made += _piece_by_piece(output, cut, full, part)
    return made


def _piece_by_piece(output: Output, cut: Cut, full: Shape, part: Shape) -> list[Output]:
    """An output as one for each of its pieces."""
    made, at = [], 0
    parts = place.pieces(cut.pieces, cut.dim, output.name, full, part, cut.places)
    for piece, (box, shape) in zip(cut.pieces, parts, strict=True):
        size = shape[cut.dim]
        slices = Slice(cut.dim, piece.start, piece.size), Slice(cut.dim, at, size)
        made.append(output._replace(name=box.name, piece=(*slices, box)))
        at += size
    return made
