"""Where inputs and outputs of HLO text lie, as a relations file states it beside the text.

HLO pairs inputs and outputs of both sides by their numbers, so a name only says which one is meant.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from shardproof.engine.errors import InvalidInput
from shardproof.frontends.graphs import relations
from shardproof.frontends.graphs.graph import Graph, Input, Output, Placement
from shardproof.frontends.graphs.recorder import everywhere
from shardproof.frontends.graphs.relations import Place, Relations
from shardproof.frontends.hlo.state import integral

#: What a relations file may say that has no meaning for HLO text: its groups are lists of ranks,
#: its constants have their numbers.
OTHER = ("groups", "constants", "zeros", "accepted", "partial")


def with_relations(single: Graph, parallel: Graph, file: str) -> tuple[Graph, Graph]:
    """Both graphs with what a relations file states; as they are without one (``file`` is empty).
    With outputs in the file exactly these are compared.  Raises `InvalidInput` for a name that
    neither graph has, and for what says nothing of HLO text.

    Example: ``inputs.x = {shard = 0}`` places the parallel side's parameter ``x``, a quarter of the
    single side's rows on each of four ranks.
    """
    if not file:
        return single, parallel
    user_relations = relations.read(Path(file))
    try:
        parallel = _inputs(single, parallel, user_relations)
        single = _domains(single, parallel, user_relations)
        return _outputs(single, parallel, user_relations)
    except InvalidInput as error:
        raise error.within(file) from None


def _inputs(single: Graph, parallel: Graph, user_relations: Relations) -> Graph:
    for key in OTHER:
        if getattr(user_relations, key):
            raise InvalidInput("says nothing of HLO text", key)
    left = dict(user_relations.inputs)
    made: list[Input] = []
    for own, other in zip(parallel.inputs, single.inputs, strict=False):
        place = left.pop(own.name, None)
        if place is None:
            made.append(own)
            continue
        where = f"inputs.{own.name}"
        if place.of not in (None, other.name, own.name):
            raise InvalidInput(
                f"expected {other.name}, which has its number, found {place.of}", where
            )
        if place.pieces is not None:
            raise InvalidInput("pieces say nothing of HLO text", where)
        shapes = (single.values[other.value].shape, parallel.values[own.value].shape)
        made.append(replace(own, placement=_placed(place, *shapes, parallel.ranks, where)))
    if left:
        names = ", ".join(own.name for own in parallel.inputs[:16])
        raise InvalidInput(f"expected an input ({names})", f"inputs.{next(iter(left))}")
    return replace(parallel, inputs=(*made, *parallel.inputs[len(made) :]))


def _domains(single: Graph, parallel: Graph, user_relations: Relations) -> Graph:
    """The single side with the domains of its integers, by their names on either side."""
    inputs = list(single.inputs)
    for name, domain in user_relations.domains.items():
        where = f"domains.{name}"
        pairs = enumerate(zip(single.inputs, parallel.inputs, strict=False))
        numbers = [n for n, (own, other) in pairs if name in (own.name, other.name)]
        if not numbers:
            names = ", ".join(own.name for own in single.inputs[:16])
            raise InvalidInput(f"expected an input ({names})", where)
        for n in numbers:
            dtype = single.values[inputs[n].value].dtype
            if not integral(dtype):
                raise InvalidInput(f"expected integers, found {dtype}", where)
            inputs[n] = replace(inputs[n], domain=domain)
    return replace(single, inputs=tuple(inputs))


def _outputs(single: Graph, parallel: Graph, user_relations: Relations) -> tuple[Graph, Graph]:
    if not user_relations.outputs:
        return single, parallel
    kept: list[int] = []
    made: list[Output] = []
    for number, output in enumerate(user_relations.outputs):
        where = f"outputs {number}"
        at = [
            _numbered(g, n, where)
            for g, n in ((single, output.single), (parallel, output.parallel))
        ]
        if at[0] != at[1]:
            raise InvalidInput("expected outputs of one number on both sides", where)
        if output.sum:
            raise InvalidInput("sum says nothing of HLO text", where)
        own, other = parallel.outputs[at[1]], single.outputs[at[0]]
        if output.count_ways():
            shapes = (single.values[other.value].shape, parallel.values[own.value].shape)
            own = replace(own, placement=_placed(output, *shapes, parallel.ranks, where))
        kept.append(at[0])
        made.append(own)
    chosen = tuple(single.outputs[n] for n in kept)
    return replace(single, outputs=chosen), replace(parallel, outputs=tuple(made))


def _numbered(graph: Graph, name: str, where: str) -> int:
    for number, output in enumerate(graph.outputs):
        if output.name == name:
            return number
    names = ", ".join(output.name for output in graph.outputs[:16])
    raise InvalidInput(f"expected an output ({names}), found {name}", where)


def _placed(
    place: Place, full: Sequence[int], part: Sequence[int], ranks: int, where: str
) -> Placement:
    """The boxes of a tensor, of this shape on every rank, in the full one."""
    whole, own = tuple(full), tuple(part)
    if len(whole) != len(own):
        raise InvalidInput(f"{list(own)} is no part of {list(whole)}", where)
    if place.replicated and whole != own:
        raise InvalidInput(f"{list(own)} is not all of {list(whole)}", where)
    if place.replicated:
        made = everywhere(whole, ranks)
    elif place.shard is not None:
        if place.shard >= len(whole):
            raise InvalidInput(f"{list(whole)} has no dimension {place.shard}", where)
        made = Placement(
            whole,
            tuple(
                tuple(rank * n if d == place.shard else 0 for d, n in enumerate(own))
                for rank in range(ranks)
            ),
        )
    else:
        starts = place.starts or []
        if len(starts) != ranks or any(len(start) != len(whole) for start in starts):
            raise InvalidInput(
                f"expected {ranks} starts of {len(whole)} numbers each, one for a rank", where
            )
        made = Placement(whole, tuple(tuple(start) for start in starts))
    for start in made.starts:
        if any(s + n > size for s, n, size in zip(start, own, whole, strict=True)):
            raise InvalidInput(
                f"{list(own)} from {list(start)} on is no part of {list(whole)}", where
            )
    return made
