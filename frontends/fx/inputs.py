"""Which part of the single side's inputs every rank's inputs are.

A fused tensor (q, k, v; gate, up) of which a rank has its share of each piece is several named
inputs of both sides, one for each piece, which lie side by side: a piece is then a tensor like any
other.  For example, pieces of 2048, 512 and 512 columns of ``w`` over two ranks are the inputs
``w[:, 0:2048]``, ``w[:, 2048:2560]`` and ``w[:, 2560:3072]``, of which a rank has 1024, 256, 256.

Where nothing is stated, and both a contiguous shard and pieces fit, the input is ``open``: the
caller says which one to take (`frontends.fx.choose`).
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from shardproof.engine.errors import InvalidInput
from shardproof.engine.plan.assumption import Assumption
from shardproof.frontends.fx import place
from shardproof.frontends.fx.cuts import interleaved
from shardproof.frontends.fx.place import Part, Piece, Shape
from shardproof.frontends.fx.records import Graph, Node
from shardproof.frontends.graphs.relations import InputRelation, Relations


class Open(NamedTuple):
    """An input or output (``what``) of which two placements fit: its ``kind`` of pieces, and pieces
    and contiguous shard in words, as a relations file says them.

    Example: three pieces from 0, 16 and 32, "dim = 0, pieces = [[0, 16], ...]" and "shard = 0".
    """

    what: str
    name: str
    kind: tuple[object, ...]
    words: str
    shard: str


class Cut(NamedTuple):
    """Pieces along a dimension of which ranks have shares.

    Example: q, k and v of a fused weight: dimension 0, pieces from 0, 16 and 32.
    """

    dim: int
    pieces: tuple[Piece, ...]

    @property
    def words(self) -> str:
        """As a relations file says it: "dim = 0, pieces = [[0, 16], [16, 16], [32, 16]]"."""
        listed = [list(p if p.copies > 1 else p[:2]) for p in self.pieces]
        return f"dim = {self.dim}, pieces = {listed}"


#: No pieces: all of it, or a contiguous shard.
NO_CUT = Cut(0, ())


@dataclass(frozen=True, slots=True)
class Inputs:
    """Where the inputs of both sides lie. ``ranks``: the parts that lie side by side in each of the
    parallel side's inputs; ``single``: those of the single side's, where there are several;
    ``open``: inputs of which two placements fit; ``cut_of``: pieces of inputs, by their shapes on
    the single side and on the ranks.

    Example: a weight ``up`` [12, 4] over two ranks: ``ranks["up"]`` is one `Part` [6, 4] of ``up``,
    which begins at (0, 0) and at (6, 0).
    """

    ranks: dict[str, list[Part]] = field(default_factory=dict)
    single: dict[str, list[Part]] = field(default_factory=dict)
    open: dict[str, Open] = field(default_factory=dict)
    cut_of: dict[tuple[Shape, Shape], Cut] = field(default_factory=dict)


def shape_of(node: Node) -> Shape:
    """The shape of a node's tensor; of what is no tensor, ().

    Example: a placeholder with ``"shape": [2, 4]`` has (2, 4), a ``native_dropout`` with two
    results has ().
    """
    return tuple(node.shape or ())


def placed(
    single: Graph,
    ranks: Sequence[Graph],
    relations: Relations,
    assumed: list[Assumption],
    plain: Collection[tuple[object, ...]] = (),
) -> Inputs:
    """Where the ranks' parts of every input lie, with what is assumed of it; ``plain``: pieces of
    inputs that are taken as contiguous shards where both fit.

    Example: ranks with ``table`` [4, 4], where the single side has [8, 4]: rows 0 to 3 and 4 to 7,
    with the assumption "input table is divided along dimension 0 in the order of ranks (inferred by
    shape)".
    """
    nodes = {node.name: node for node in single.inputs}
    pairs, more = place.paired(single.inputs, ranks[0].inputs, relations.inputs)
    assumed += more
    inputs = Inputs()
    pieces: dict[str, Cut] = {}
    for node in ranks[0].inputs:
        own = nodes[pairs[node.name]]
        if place.kind_of(own.dtype) != place.kind_of(node.dtype):
            raise InvalidInput(
                f"{node.dtype} on the parallel side, {own.dtype} on the single", own.name
            )
        relation = relations.inputs.get(node.name)
        cut = _cut_by_relation(node, relation, assumed)
        if cut is None:
            cut = _cut_by_graphs(single, ranks, own, node, inputs, assumed, plain)
        if pieces.setdefault(own.name, cut) != cut:
            raise InvalidInput(
                f"{own.name} is in pieces, and otherwise in another input", node.name
            )
        dim, shares = cut
        if shares:
            inputs.cut_of.setdefault((shape_of(own), shape_of(node)), cut)
            inputs.ranks[node.name] = place.pieces(
                shares, dim, own.name, shape_of(own), shape_of(node), len(ranks)
            )
            inputs.single[own.name] = place.whole(shares, dim, own.name, shape_of(own))
        else:
            box = _box(own, node, relation, len(ranks), assumed)
            inputs.ranks[node.name] = [Part(box, shape_of(node))]
    return inputs


def _box(
    own: Node, node: Node, relation: InputRelation | None, ranks: int, assumed: list[Assumption]
) -> place.Box:
    full, part = shape_of(own), shape_of(node)
    if relation is None or not relation.count_ways():
        box, inferred = place.inferred("input", own.name, full, part, ranks)
        assumed += inferred
        return box
    box = place.stated_box(relation, own.name, full, part, ranks)
    text = f"input {node.name} {place.words(box, part)}"
    assumed.append(Assumption("stated", node.name, "--relations", text))
    return box


def _cut_by_relation(
    node: Node, relation: InputRelation | None, assumed: list[Assumption]
) -> Cut | None:
    """The pieces that the relations say (none: another placement); None: they say nothing."""
    if relation is None or not relation.count_ways():
        return None
    if relation.pieces is None:
        return NO_CUT
    pieces = tuple(Piece(*piece) for piece in relation.pieces)
    text = (
        f"input {node.name} has shares of {len(pieces)} pieces of dimension {relation.dim}, each "
        "divided in the order of ranks"
    )
    assumed.append(Assumption("stated", node.name, "--relations", text))
    return Cut(relation.dim, pieces)


def _cut_by_graphs(
    single: Graph,
    ranks: Sequence[Graph],
    own: Node,
    node: Node,
    inputs: Inputs,
    assumed: list[Assumption],
    plain: Collection[tuple[object, ...]],
) -> Cut:
    """The pieces that both sides' cuts tell (none: there are no such cuts)."""
    full, part = shape_of(own), shape_of(node)
    moved = [d for d in range(len(full)) if len(part) == len(full) and full[d] != part[d]]
    if len(moved) != 1:
        return NO_CUT
    (dim,) = moved
    cut = Cut(dim, tuple(interleaved(single, ranks[0], full[dim], part[dim], len(ranks))))
    if not cut.pieces:
        return NO_CUT
    inputs.cut_of[full, part] = cut
    if part[dim] * len(ranks) == full[dim]:
        inputs.open[node.name] = Open("input", node.name, cut.pieces, cut.words, f"shard = {dim}")
        if cut.pieces in plain:
            return NO_CUT
    else:
        text = f"input {node.name} is {cut.words}: where both sides cut it (inferred)"
        assumed.append(Assumption("inferred", node.name, "", text))
    return cut
