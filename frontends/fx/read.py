"""From two graphs, a file for each rank, to a plan: what the bounded child does."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from shardproof.engine.algebra.affine import affine
from shardproof.engine.errors import InvalidInput
from shardproof.engine.plan.assumption import Assumption
from shardproof.engine.plan.expectations import PARTIAL
from shardproof.engine.plan.ir import Addend, Expectation, Plan, Program, Shard
from shardproof.engine.plan_files import store
from shardproof.frontends.aten.opaque import NUMBERS
from shardproof.frontends.aten.positive import OF_NUMBERS, assumed_of
from shardproof.frontends.aten.readings import Reading
from shardproof.frontends.fx import (
    agreed_types,
    align,
    archived,
    complexes,
    files,
    groups,
    place,
    stated,
    written,
)
from shardproof.frontends.fx.choose import Made, chosen
from shardproof.frontends.fx.domains import Domains
from shardproof.frontends.fx.endless import endless
from shardproof.frontends.fx.inputs import Inputs, shape_of
from shardproof.frontends.fx.inputs import placed as placed_inputs
from shardproof.frontends.fx.layouts import Choice
from shardproof.frontends.fx.lower import MEMORY, RankBody, Setting, Wide, lower
from shardproof.frontends.fx.masks import Masks, mask
from shardproof.frontends.fx.messages import as_messages
from shardproof.frontends.fx.outputs import Output, compared, in_pieces, with_states
from shardproof.frontends.fx.place import Box, Part, Shape
from shardproof.frontends.fx.programs import bases, mesh_of, programs
from shardproof.frontends.fx.programs import place as placed
from shardproof.frontends.fx.records import Graph, Node, operand
from shardproof.frontends.graphs.mesh import Mesh
from shardproof.frontends.graphs.relations import Relations
from shardproof.frontends.graphs.replayed import NOT_REPLAYED
from shardproof.frontends.untrusted.inert import printable


def pair(single: str, parallel: str, relations_file: str) -> bytes:
    """The plan of two sides, such as ``single.pt2`` and a folder ``ranks``, as bytes;
    ``relations_file``: a relations file (empty: none). Made to be called in a bounded child."""
    both = files.sides(single, parallel, relations_file)
    try:
        return store.to_bytes(joined(*both))
    except InvalidInput as error:
        raise error.within(printable(parallel, 400)) from None


# -- the plan ----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Pairing:
    """Both sides, such as one graph and two ranks' with ``up`` in halves, and what is known of how
    they belong together; ``modules``: see `frontends.fx.align` (that of rank 0 is everybody's);
    ``values``: those of the outputs, of the single side (-1) and of every rank; ``masks``: where
    the ranks' parts of the masks of random operators lie; ``domains``: which integers inputs
    have; ``tables``: constants of the single side, by name."""

    single: Graph
    ranks: Sequence[Graph]
    relations: Relations
    inputs: Inputs
    outputs: Sequence[Output]
    modules: dict[str, str] = field(default_factory=dict)
    values: dict[int, tuple[int, ...]] = field(default_factory=dict)
    masks: dict[int, Part] = field(default_factory=dict)
    domains: Domains = field(default_factory=Domains)
    tables: dict[str, Any] = field(default_factory=dict)
    reading: Reading = Reading.SHIFTED

    @property
    def count(self) -> int:
        """How many ranks there are."""
        return len(self.ranks)


def joined(single: Graph, ranks: Sequence[Graph], relations: Relations) -> Plan:
    """The plan of a single-device graph and, for example, those of two ranks."""
    return paired(single, ranks, relations)[1]


def paired(single: Graph, ranks: Sequence[Graph], relations: Relations) -> tuple[Pairing, Plan]:
    """The plan, and how both sides belong together, for example that ``kept`` [6, 6] of two ranks
    are columns of ``kept`` [6, 12]."""
    made: list[tuple[Pairing, Plan]] = []

    def make(choice: Choice) -> Made:
        made.append(_joined(single, ranks, relations, choice))
        both, plan = made[-1]
        return plan, both.inputs, both.tables

    plan = chosen(make, sum(len(graph.nodes) for graph in (single, *ranks)))
    return next(both for both, pairing in made if pairing.programs is plan.programs), plan


def _joined(
    single: Graph, ranks: Sequence[Graph], relations: Relations, choice: Choice
) -> tuple[Pairing, Plan]:
    """``choice``: what is taken where several placements of inputs or outputs fit.  Numbers that
    hide scores are minus infinity where that is understood (`endless`)."""
    single, ranks = with_states(*archived.alike(single, ranks))
    _same_interface(ranks)
    stated.check(single, ranks, relations)
    read = endless(single, ranks)
    if read is not None:
        sides = read.single, read.ranks
        both, plan, understood = _written(*sides, relations, choice, [read.assumed])
        if understood:
            return both, plan
    return _written(single, ranks, relations, choice, [])[:2]


def _written(
    single: Graph,
    ranks: Sequence[Graph],
    relations: Relations,
    choice: Choice,
    assumed: list[Assumption],
) -> tuple[Pairing, Plan, bool]:
    """As `_joined`, and whether every operator has a rule; ``assumed``: what is so already."""
    inputs = placed_inputs(single, ranks, relations, assumed, choice)
    outputs = in_pieces(
        compared(single, ranks[0], relations, assumed), single, ranks, inputs, assumed
    )
    domains = Domains(relations.domains)
    agreed_types.check(ranks, relations.groups)
    exchanged = as_messages(ranks, relations.groups)
    both = Pairing(single, exchanged, relations, inputs, outputs, domains=domains)
    known = {name for name, one in relations.inputs.items() if one.count_ways()}
    assumed += archived.unlike(single, ranks, inputs, known)
    assumed += groups.assumed(ranks, relations.groups)
    assumed += _values(single, ranks[0], relations)
    alone, masks, bodies = _lowered(both, assumed)
    reading = max(body.picks for body in (alone, *bodies))
    if reading is not Reading.SHIFTED:  # A side picks scores itself: losses of both are read so.
        both = replace(both, reading=reading)
        alone, masks, bodies = _lowered(both, assumed)
    for body in bodies:
        both.tables.update(body.tables)
    alone = replace(alone, shards=(*alone.shards, *_inputs_of_ranks(alone, bodies)))
    masks.check([len(body.masks) for body in bodies])
    assumed += masks.assumed() + written.assumed([single, *ranks])
    assumed += _constants([alone, *bodies], relations.accepted)
    assumed += assumed_of(note for body in (alone, *bodies) for note in body.notes)
    boxes = _results(both, alone, bodies[0], assumed)
    mesh = mesh_of(bodies, [box for box in boxes if box is not None])
    plan = Plan(
        "plan",
        programs([alone], Mesh((), ()), "single")[0],
        programs(bodies, mesh, "ranks"),
        microbatches=1,
        notes=(NOT_REPLAYED, *_notes([alone, *bodies])),
        assumed=tuple(dict.fromkeys(assumed)),
        expectations=tuple(_rows(both, alone, bodies, boxes, mesh)),
    )
    for rank, body in enumerate((alone, *bodies), -1):
        both.values[rank] = body.outputs
    return both, plan, not any(body.gaps for body in (alone, *bodies))


def _lowered(both: Pairing, assumed: list[Assumption]) -> tuple[RankBody, Masks, list[RankBody]]:
    """The single side, the masks of random operators, and the ranks."""
    alone = _single(both, assumed)
    both.tables.update(alone.tables)
    (alone,) = groups.needed([alone])
    masks = Masks(alone.masks, both.count)
    bodies = [_rank(both, n, masks) for n in range(both.count)]
    if not groups.agree(bodies):
        bodies = [_rank(both, n, masks, folds=False) for n in range(both.count)]
    return alone, masks, groups.needed(bodies)


def _same_interface(ranks: Sequence[Graph]) -> None:
    first = [(n.shape, n.dtype) for n in ranks[0].inputs]
    ends = [operand(x) is None for x in ranks[0].outputs]
    for number, graph in enumerate(ranks):
        if [(n.shape, n.dtype) for n in graph.inputs] != first:
            raise InvalidInput("its inputs are others than those of rank 0", f"rank {number}")
        if [operand(x) is None for x in graph.outputs] != ends:
            raise InvalidInput("its outputs are others than those of rank 0", f"rank {number}")


# -- sides -------------------------------------------------------------------------------------


def _shard(node: Node, shape: Shape, box: Box, rank: int, domain: tuple[int, int] | None) -> Shard:
    return Shard(
        box.of(rank),
        box.full,
        shape,
        tuple(affine(n) for n in box.starts[rank]),
        complexes.real_type(node.dtype) or "float32",
        trainable=False,
        kind="batch",
        domain=domain,
    )


def _single(both: Pairing, assumed: list[Assumption]) -> RankBody:
    """The single side as a body, with domains of ids as its lookups and losses need them."""
    domains = both.domains
    own = groups.groups([both.single], {})

    def input_shards(node: Node) -> list[Shard]:
        alone = Part(place.everywhere(node.name, shape_of(node), 1), shape_of(node))
        return [
            _shard(node, part.shape, part.box, 0, _domain(node, domains.get(node.name)))
            for part in both.inputs.single.get(node.name, [alone])
        ]

    for _ in range(3 * len(both.single.inputs) + 1):
        try:
            body = lower(
                both.single,
                Setting(
                    input_shards,
                    lambda number, shape: mask(number, place.everywhere("", shape, 1), shape, 0),
                    own,
                    both.relations.constants,
                    frozenset(both.relations.zeros),
                    inferred=domains.inferred(),
                    narrows=True,
                    marks=domains.marks,
                    unmarked=frozenset(domains.unmarked),
                    reading=both.reading,
                ),
                [{"n": output.single} for output in both.outputs],
                [None if o.piece is None else o.piece[0] for o in both.outputs],
            )
        except Wide as error:
            domains.learn(error.name, error.rows, error.mark)
        else:
            assumed[:0] = domains.assumed()
            return body
    raise InvalidInput("domains of ids that do not settle")


def _domain(node: Node, known: tuple[int, int] | None) -> tuple[int, int] | None:
    return (0, 2) if node.dtype == "bool" else known


def _rank(
    both: Pairing,
    rank: int,
    masks: Masks,
    folds: bool = True,
) -> RankBody:
    graph, domains = both.ranks[rank], both.domains

    def input_shards(node: Node) -> list[Shard]:
        return [
            _shard(node, part.shape, part.box, rank, _domain(node, domains.get(part.box.of(rank))))
            for part in both.inputs.ranks[node.name]
        ]

    def drawn(number: int, shape: Shape) -> Shard:
        box = masks.box(number, shape)
        both.masks[number] = Part(box, shape)
        return mask(number, box, shape, rank)

    own = groups.groups(both.ranks, both.relations.groups, rank)
    zeros = frozenset(both.relations.zeros)
    names = both.modules if rank else align.modules(both.single, graph)
    both.modules.update(names)
    setting = Setting(input_shards, drawn, own, both.relations.constants, zeros, rank, names)
    setting.marks, setting.folds = domains.marks, folds
    setting.shared, setting.reading = both.tables, both.reading
    slices = [None if o.piece is None else o.piece[1] for o in both.outputs]
    return lower(graph, setting, compared_outputs(both, rank), slices)


def compared_outputs(both: Pairing, rank: int) -> list[object]:
    """The outputs of a rank that are compared: of the same name as rank 0's, or at its place; for
    example ``{"n": "loss"}``."""
    first = [operand(x) for x in both.ranks[0].outputs]
    own = both.ranks[rank].outputs
    names = {node.name for node in both.ranks[rank].nodes}
    outputs: list[object] = []
    for output in both.outputs:
        if output.parallel in first:
            outputs.append(own[first.index(output.parallel)])
        elif output.parallel in names:
            outputs.append({"n": output.parallel})
        else:
            raise InvalidInput(f"has no node {output.parallel}", f"rank {rank}")
    return outputs


def _constants(bodies: Sequence[RankBody], accepted: Sequence[str]) -> list[Assumption]:
    """What the graphs do not say, or the reader takes for something else; ``accepted``: what the
    user says may be taken so."""
    names = dict.fromkeys(name for body in bodies for name in body.constants)
    others = {what: how for body in bodies for what, how in body.standins.items()}
    memory = {what: node for body in bodies for what, node in body.unwritten.items()}
    read = [
        Assumption("unwritten", what, "", f"{node} reads memory that nothing has written ({what})")
        for what, node in memory.items()
    ]
    unknown = sorted(what for what in accepted if what.startswith(NUMBERS) or what not in others)
    if unknown:
        raise InvalidInput("nothing of this name is taken for something else", unknown[0])
    assumed = [
        Assumption("stated", what, "--relations", f"{what} {how}")
        if what in accepted
        else Assumption("stand-in", what, "", f"{what} {how}")
        for what, how in others.items()
    ]
    return [*read, *assumed] + [
        Assumption(
            "not captured", name, "", f"constant {name}, whose value the file does not have, is 0"
        )
        for name in names
    ]


def _notes(bodies: Sequence[RankBody]) -> list[str]:
    gaps = [
        f"{name} is not understood ({why})" for body in bodies for name, why in body.gaps.items()
    ]
    own = (note for body in bodies for note in body.notes if note not in OF_NUMBERS)
    return list(dict.fromkeys([*gaps, *own]))


def _values(single: Graph, ranks: Graph, relations: Relations) -> list[Assumption]:
    """What the relations say of values; raises `InvalidInput` for what is no input of both."""
    for name in relations.zeros:
        if any(name not in {node.name for node in side.inputs} for side in (single, ranks)):
            raise InvalidInput("is no input of both sides", f"zeros, {name}")
    names = ", ".join(relations.zeros)
    text = f"inputs {names} are zero"
    assumptions = [Assumption("stated", "zeros", "--relations", text)] if relations.zeros else []
    shared = ", ".join(name for name, value in relations.constants.items() if value == "any")
    text = f"constants {shared} are any numbers, the same on both sides"
    return (
        [*assumptions, Assumption("stated", "constants", "--relations", text)]
        if shared
        else assumptions
    )


# -- expectations ------------------------------------------------------------------------------


def _results(
    both: Pairing, alone: RankBody, first: RankBody, assumed: list[Assumption]
) -> list[Box | None]:
    """Where the ranks' parts of every compared output lie; None: it is no tensor."""
    boxes: list[Box | None] = []
    for number, output in enumerate(both.outputs):
        own, other = alone.outputs[number], first.outputs[number]
        if own < 0 or other < 0:
            boxes.append(None)
            continue
        full, part = alone.values[own].shape, first.values[other].shape
        boxes.append(output.box(full, part, both.inputs, assumed))
    return boxes


def _rows(
    both: Pairing,
    alone: RankBody,
    bodies: Sequence[RankBody],
    boxes: Sequence[Box | None],
    mesh: Mesh,
) -> list[Expectation]:
    """One row for every output and program; beside it, where every rank is to have all of it and
    the file does not say so, one that is not required: that it is the sum over the ranks."""
    rows = []
    for number, (output, box) in enumerate(zip(both.outputs, boxes, strict=True)):
        if box is None:
            continue
        single = (Addend(0, 0, alone.outputs[number]),)
        name = (
            output.name if output.parallel == output.name else f"{output.name} = {output.parallel}"
        )
        total = _total(bodies, number, mesh)
        summed = output.relation is not None and output.relation.sum
        for index, base in enumerate(bases(mesh)):
            addends = total if summed else (Addend(index, 0, bodies[base].outputs[number]),)
            offset = tuple(
                placed(tuple(start[d] for start in box.starts), mesh, base)
                for d in range(len(box.full))
            )
            rows.append(Expectation("output", name, single, addends, offset))
        everywhere = len(box.starts) > 1 and not any(any(start) for start in box.starts)
        if everywhere and not summed:
            rows.append(Expectation(PARTIAL, name, single, total, required=False))
    if not rows:
        raise InvalidInput("no output is a tensor")
    return rows


def _total(bodies: Sequence[RankBody], number: int, mesh: Mesh) -> tuple[Addend, ...]:
    """The sum of an output over all ranks."""
    axes = mesh.axes() if mesh.extents else ()
    over = tuple((name, "partial") for name, extent, _ in axes if extent > 1)
    return tuple(
        Addend(index, 0, bodies[base].outputs[number], over=over)
        for index, base in enumerate(bases(mesh))
    )


def alone(path: str) -> bytes:
    """One side as the parallel side of a plan without a single one, as bytes; for example a folder
    of two ranks as the program "ranks"."""
    ranks = files.side(Path(path))
    _same_interface(ranks)
    outputs = [Output(n, n, n, None) for n in map(operand, ranks[0].outputs) if n is not None]
    boxes = {
        node.name: [Part(place.everywhere(node.name, shape_of(node), len(ranks)), shape_of(node))]
        for graph in ranks
        for node in graph.inputs
    }
    both = Pairing(ranks[0], ranks, Relations(), Inputs(boxes), outputs)
    masks = Masks((), len(ranks))
    bodies = groups.needed([_rank(both, n, masks, folds=False) for n in range(len(ranks))])
    made = programs([replace(b, outputs=()) for b in bodies], mesh_of(bodies, []), "ranks")
    return store.to_bytes(Plan("plan", Program("none", (), ()), made, microbatches=1))


def _inputs_of_ranks(single: RankBody, bodies: Sequence[RankBody]) -> list[Shard]:
    """Inputs of ranks of which the single side reads none: memory that they read before it is
    written, tables of constants, and numbers of functions that it does not call.

    Example: of ranks that add `empty` to a value, ``unwritten memory 0 of rank 0`` and so on.
    """
    there = {shard.name for shard in single.shards} | single.tables.keys()
    own = {
        shard.name: shard
        for body in bodies
        for shard in body.shards
        if shard.name.startswith((MEMORY, NUMBERS)) or shard.name in body.tables
        if shard.name not in there
    }
    return list(own.values())
