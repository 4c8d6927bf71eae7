"""Which part of the single side's inputs every rank's inputs are.

A fused tensor (q, k, v; gate, up) of which a rank has its share of each piece is several named
inputs of both sides, one for each piece, which lie side by side: a piece is then a tensor like any
other.  For example, pieces of 2048, 512 and 512 columns of ``w`` over two ranks are the inputs
``w[:, 0:2048]``, ``w[:, 2048:2560]`` and ``w[:, 2560:3072]``, of which a rank has 1024, 256, 256.

Where nothing is stated, and both a contiguous shard and pieces fit, the input is ``open``: the
caller says which one to take (`frontends.fx.choose`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import NamedTuple

from shardproof.engine.errors import InvalidInput
from shardproof.engine.plan.assumption import Assumption
from shardproof.frontends.fx import complexes, layouts, lists, place
from shardproof.frontends.fx.cuts import in_blocks, interleaved, stands_for_blocks
from shardproof.frontends.fx.groups import groups
from shardproof.frontends.fx.layouts import Choice, Kind, Layout, Role
from shardproof.frontends.fx.place import Box, Part, Piece, Shape
from shardproof.frontends.fx.records import Archived, Graph, Node
from shardproof.frontends.graphs.relations import InputRelation, Relations


class Open(NamedTuple):
    """An input or output (``what``) of which several placements fit, in words, the first one unless
    the choice of this ``kind`` says otherwise.

    Example: three pieces from 0, 16 and 32, "dim = 0, pieces = [[0, 16], ...]" and "shard = 0".
    """

    what: str
    name: str
    kind: Kind
    options: tuple[str, ...]


class Cut(NamedTuple):
    """Pieces along a dimension of which ranks have shares; ``places``: which ones every rank has.

    Example: q, k and v of a fused weight: dimension 0, pieces from 0, 16 and 32, and of two ranks
    the shares (0, 1).
    """

    dim: int
    pieces: tuple[Piece, ...]
    places: Layout

    @property
    def words(self) -> str:
        """As a relations file says it: "dim = 0, pieces = [[0, 16], [16, 16], [32, 16]]"."""
        listed = [list(p if p.copies > 1 else p[:2]) for p in self.pieces]
        return f"dim = {self.dim}, pieces = {listed}"


#: No pieces: all of it, or a contiguous shard.
NO_CUT = Cut(0, (), ())


@dataclass(frozen=True, slots=True)
class Inputs:
    """Where the inputs of both sides lie. ``ranks``: the parts that lie side by side in each of the
    parallel side's inputs; ``single``: those of the single side's, where there are several;
    ``open``: inputs of which several placements fit; ``cut_of``: pieces of inputs, by their shapes
    on the single side and on the ranks; ``exported``: whether graphs are those of `torch.export`;
    ``layouts``: how ranks may share parts; ``choice``: what is taken of what fits; ``roles``: what
    inputs are along dimensions, by their size and that of a part.

    Example: a weight ``up`` [12, 4] over two ranks: ``ranks["up"]`` is one `Part` [6, 4] of ``up``,
    which begins at (0, 0) and at (6, 0).
    """

    ranks: dict[str, list[Part]] = field(default_factory=dict)
    single: dict[str, list[Part]] = field(default_factory=dict)
    open: list[Open] = field(default_factory=list)
    cut_of: dict[tuple[Shape, Shape], Cut] = field(default_factory=dict)
    exported: bool = False
    layouts: Sequence[Layout] = ()
    choice: Choice = field(default_factory=dict)
    roles: dict[tuple[int, int], set[Role]] = field(default_factory=dict)

    def role(self, own: Node, node: Node) -> Role:
        """What an input of the ranks, which is ``own`` of the single side, looks like: a part of
        the batch (integers that may choose rows, or what the user of a program of `torch.export`
        gives, by its name), or a parameter.

        Example: ``ids`` of int64, and ``x`` beside ``p_up_weight``, but not that, are of the batch.
        """
        given = self.exported and not node.name.startswith(("p_", "b_", "c_"))
        role: Role = "parameter"
        if given or place.may_choose(node.dtype):
            role = "batch"
        for sizes in zip(shape_of(own), shape_of(node), strict=False):
            self.roles.setdefault(sizes, set()).add(role)
        return role

    def output_role(self, full: int, part: int) -> Role:
        """What an output is along a dimension: that of the inputs of its size, if they are of one
        role.

        Example: of 4 rows, two on a rank, of a batch of as many it is the batch's.
        """
        roles = self.roles.get((full, part), set())
        return next(iter(roles)) if len(roles) == 1 else "output"


def shape_of(node: Node) -> Shape:
    """The shape of a node's tensor as it is lowered; of what is no tensor, ().

    Example: a placeholder with ``"shape": [2, 4]`` has (2, 4), of complex numbers (2, 4, 2); a
    ``native_dropout`` with two results has ().
    """
    return complexes.shape_of(node.shape, node.dtype)


def placed(
    single: Graph,
    ranks: Sequence[Graph],
    relations: Relations,
    assumed: list[Assumption],
    choice: Choice | None = None,
) -> Inputs:
    """Where the ranks' parts of every input lie, with what is assumed of it; ``choice``: what is
    taken where several placements fit (without it the first ones).

    Example: ranks with ``table`` [4, 4], where the single side has [8, 4]: rows 0 to 3 and 4 to 7,
    with the assumption "input table is divided along dimension 0 in the order of ranks (inferred by
    shape)".
    """
    nodes = {node.name: node for node in single.inputs}
    pairs, more = place.paired(single.inputs, ranks[0].inputs, relations.inputs)
    assumed += more
    every = [g for n in range(len(ranks)) for g in groups(ranks, relations.groups, n).values()]
    inputs = Inputs(
        exported=isinstance(single, Archived),
        layouts=layouts.layouts(every, len(ranks)),
        choice=choice or {},
    )
    pieces: dict[str, Cut] = {}
    owners = _owners(single, ranks, relations, inputs, assumed)
    for node in ranks[0].inputs:
        if node.name in owners:
            _own(nodes, ranks, node, owners[node.name], inputs)
            continue
        own = nodes[pairs[node.name]]
        if place.kind_of(own.dtype) != place.kind_of(node.dtype):
            why = ": paired by position" if place.NUMBERED.match(node.name) else ""
            raise InvalidInput(
                f"{node.dtype} on the parallel side, {own.dtype} on the single{why}", own.name
            )
        relation = relations.inputs.get(node.name)
        cut = _cut_by_relation(node, relation, inputs.layouts[0], assumed)
        if cut is None:
            cut = _cut_by_graphs(single, ranks, own, node, inputs, assumed)
        if pieces.setdefault(own.name, cut) != cut:
            raise InvalidInput(
                f"{own.name} is in pieces, and otherwise in another input", node.name
            )
        dim, shares, places = cut
        if shares:
            inputs.cut_of.setdefault((shape_of(own), shape_of(node)), cut)
            inputs.ranks[node.name] = place.pieces(
                shares, dim, own.name, shape_of(own), shape_of(node), places
            )
            inputs.single[own.name] = place.whole(shares, dim, own.name, shape_of(own))
        else:
            box = _box(own, node, relation, inputs, assumed)
            inputs.ranks[node.name] = [Part(box, shape_of(node))]
    return inputs


def _owners(
    single: Graph,
    ranks: Sequence[Graph],
    relations: Relations,
    inputs: Inputs,
    assumed: list[Assumption],
) -> dict[str, tuple[str, ...]]:
    """The single side's name of an input on every rank, where ranks have different ones: by their
    own names of it, or by its number in a list of which each rank has a part."""
    columns = zip(*([node.name for node in graph.inputs] for graph in ranks), strict=True)
    owners = {names[0]: names for names in columns if len(set(names)) > 1}
    for name, names in owners.items():
        text = (
            f"input {name} is {names[-1]} on rank {len(ranks) - 1}: each rank's is that of its name"
        )
        assumed.append(Assumption("inferred", name, "", text))
    for one in lists.divided(single, ranks):
        extent = layouts.over(
            one.name, one.full, one.part, one.full // one.part, inputs.layouts, "parameter"
        )
        if not extent.fit or any(one.named(n) in relations.inputs for n in range(one.part)):
            continue
        layout = extent.layout(inputs.choice)
        owners |= one.owners(layout)
        text = (
            f"inputs {one.name} are {one.full} of which every rank has {one.part}, numbered from "
            f"0: {layouts.words(layout)} (inferred by names)"
        )
        assumed.append(Assumption("inferred", one.name, "", text))
        inputs.open.extend(Open("input", one.name, extent.kind, o) for o in extent.options())
    return owners


def _own(
    nodes: Mapping[str, Node],
    ranks: Sequence[Graph],
    node: Node,
    owners: tuple[str, ...],
    inputs: Inputs,
) -> None:
    """Where an input lies that is another one of the single side's on each rank: all of it; raises
    `InvalidInput` where the single side has no such input, or one that is another tensor."""
    place_of = [n.name for n in ranks[0].inputs].index(node.name)
    for owner in owners:
        own = nodes.get(owner)
        if own is None:
            raise InvalidInput(
                "the single side has no such input: say which one it is ([inputs] of = ...)", owner
            )
        if (own.shape, own.dtype) != (node.shape, node.dtype):
            raise InvalidInput(
                f"{own.dtype} {own.shape} on the single side, {node.dtype} {node.shape} on ranks "
                "that name their inputs otherwise",
                owner,
            )
    full = shape_of(node)
    box = place.everywhere(owners[0], full, len(ranks))._replace(names=owners)
    for graph in ranks:
        inputs.ranks[graph.inputs[place_of].name] = [Part(box, full)]


def _box(
    own: Node,
    node: Node,
    relation: InputRelation | None,
    inputs: Inputs,
    assumed: list[Assumption],
) -> Box:
    full, part = shape_of(own), shape_of(node)
    if relation is None or not relation.count_ways():
        role = inputs.role(own, node)
        return inferred("input", own.name, (full, part), inputs, lambda *_: role, assumed)
    box = place.stated_box(relation, own.name, full, part, len(inputs.layouts[0]))
    text = f"input {node.name} {place.words(box, part)}"
    assumed.append(Assumption("stated", node.name, "--relations", text))
    return box


def inferred(
    what: str,
    name: str,
    shapes: tuple[Shape, Shape],
    inputs: Inputs,
    role: Callable[[int, int], Role],
    assumed: list[Assumption],
) -> Box:
    """Where the parts of an input or output lie by its shapes, on the single side and on the ranks;
    raises `InvalidInput` if nothing says so.

    Example: of [4, 8], [4, 4] on each of two ranks are divided along dimension 1 in the order of
    ranks, which ``assumed`` gets.
    """
    full, part = shapes
    ranks = len(inputs.layouts[0])
    in_order = sum(n != own for n, own in zip(full, part, strict=False)) == 1
    over = None
    if not in_order or prod(full) != prod(part) * ranks:
        over = layouts.divided(name, full, part, inputs.layouts, role, inputs.choice)
    if over is None:
        box, inference = place.inferred(what, name, full, part, ranks)
        assumed += inference
        return box
    text = f"{what} {name} {over.words} (inferred by shape and groups)"
    assumed.append(Assumption("inferred", name, "", text))
    for extent in over.over:
        inputs.open.extend(Open(what, name, extent.kind, options) for options in extent.options())
    return over.box


def _cut_by_relation(
    node: Node, relation: InputRelation | None, places: Layout, assumed: list[Assumption]
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
    return Cut(relation.dim, pieces, places)


def _cut_by_graphs(
    single: Graph,
    ranks: Sequence[Graph],
    own: Node,
    node: Node,
    inputs: Inputs,
    assumed: list[Assumption],
) -> Cut:
    """The pieces that both sides' cuts tell (none: there are no such cuts); ids have none, since a
    cut is known by its size alone, and what is fused is no ids."""
    full, part = shape_of(own), shape_of(node)
    moved = [d for d in range(len(full)) if len(part) == len(full) and full[d] != part[d]]
    if len(moved) != 1 or place.may_choose(node.dtype):
        return NO_CUT
    (dim,) = moved
    sizes = sorted({max(layout) + 1 for layout in inputs.layouts})
    known = ((n, interleaved(single, ranks[0], full[dim], part[dim], n)) for n in sizes)
    size, pieces = next(((n, pieces) for n, pieces in known if pieces), (0, []))
    if not pieces and stands_for_blocks(single, full):
        known = ((n, in_blocks(single, ranks[0], full[dim], part[dim], n)) for n in sizes)
        size, pieces = next(((n, pieces) for n, pieces in known if pieces), (0, []))
    if not pieces:
        return NO_CUT
    role = inputs.role(own, node)
    over = layouts.over(node.name, full[dim], part[dim], size, inputs.layouts, role)
    cut = Cut(dim, tuple(pieces), over.layout(inputs.choice))
    inputs.open.extend(Open("input", node.name, over.kind, options) for options in over.options())
    inputs.cut_of[full, part] = cut
    if part[dim] * size == full[dim]:
        options = cut.words, f"shard = {dim}"
        inputs.open.append(Open("input", node.name, cut.pieces, options))
        if layouts.picked(inputs.choice, cut.pieces, node.name):
            return NO_CUT
    else:
        text = f"input {node.name} is {cut.words}: where both sides cut it (inferred)"
        assumed.append(Assumption("inferred", node.name, "", text))
    return cut
