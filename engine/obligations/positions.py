"""Which positions represent a claim, at each member of its family."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import accumulate
from typing import TypeAlias

from shardproof.engine.claims.claim import Claim
from shardproof.engine.claims.cone import Cone
from shardproof.engine.lineage.floating import sunk
from shardproof.engine.lineage.lineage import Lineage
from shardproof.engine.lineage.nodes import NodeTable
from shardproof.engine.plan.collectives import cuts
from shardproof.engine.small_model.bounds import Requirements
from shardproof.engine.small_model.mixed_radix import Relation
from shardproof.engine.small_model.representatives import Representatives
from shardproof.engine.small_model.windowed import Windowed

#: The represented positions of a claim, at a member of its family: coordinates by axis.
Positions: TypeAlias = Callable[[Mapping[str, int]], Representatives]


def boundaries(claim: Claim) -> list[tuple[int, int]]:
    """Where the operator of a claim cuts or joins local dimensions: (size, place).  Slices of one
    size are cut alike, wherever they are, so that they share a template.

    Example: of a reduce-scatter of 8 rows to 4 ranks (8, 2), (8, 4) and (8, 6).
    """
    given = [x for x in claim.inputs if x is not None]
    if claim.kind == "slice" or claim.name in ("slice", "concat"):
        kind = "slice" if claim.name == "slice" else "concat"
    else:
        kind = claim.kind
    keys = ("dim",) if kind in ("slice", "concat") else cuts(kind)
    result = []
    dims = [claim.attrs.get(key) for key in keys]
    for dim in (d for d in dims if isinstance(d, int)):
        for whole in (*given, *claim.outputs):
            for part in (*given, *claim.outputs):
                large, small = whole.shape[dim], part.shape[dim]
                if small and large > small:
                    result += [(large, place) for place in range(small, large, small)][:64]
    start, cut = claim.attrs.get("start"), claim.attrs.get("dim")
    if kind == "slice" and isinstance(start, int) and isinstance(cut, int) and given:
        size, kept = given[0].shape[cut], claim.attrs.get("size")
        kept = kept if isinstance(kept, int) else claim.outputs[0].shape[cut]
        result += [(size, place) for place in (start, start + kept) if place <= size]
    return result


def _places(claim: Claim) -> list[tuple[int, int]]:
    """Only the `boundaries` that a slice or a concatenation has: its operand and its result are
    then cut alike also where nothing but the operator cuts them, as they do not vary."""
    given = [x for x in claim.inputs if x is not None]
    dim, start = claim.attrs.get("dim"), claim.attrs.get("start")
    if claim.kind == "op" and not claim.backward and isinstance(dim, int):
        size = claim.outputs[0].shape[dim] if claim.name in ("slice", "concat") else 0
        if claim.name == "concat":
            return [(size, end) for end in accumulate(x.shape[dim] for x in given)]
        if claim.name == "slice" and isinstance(start, int):
            return [(given[0].shape[dim], place) for place in (start, start + size)]
    return boundaries(claim)


def kept(
    nodes: NodeTable,
    claim: Claim,
    here: Cone,
    more: int,
    relations: Sequence[Relation] | None,
    required: Requirements | None,
) -> Positions:
    """The positions that are kept; ``required``: how many are enough (None: all are stated, where
    they are few); ``more``: how many beyond; ``relations``: local dimensions that the operator
    takes for one another (None: they are not split as others are).

    Example: of the rows of a linear layer two, which stand for all.
    """
    lineages = _lineages(claim)
    return lambda point: Representatives(
        nodes,
        lineages,
        sorted(here.defined),
        claim.extents,
        claim.over,
        more,
        boundaries(claim) if relations is None else _places(claim),
        related=relations,
        point=point,
        needs=None if required is None else required.of,
        exact=required is None,
    )


def in_windows(
    nodes: NodeTable, claim: Claim, here: Cone, more: int, required: Requirements
) -> Positions:
    """As `kept`, where windows of axes are tensors of their own (`Windowed`).

    Example: of what three taps read, two positions of each of three windows.
    """
    lineages, numbers, cut = _lineages(claim), sorted(here.defined), boundaries(claim)
    return lambda point: Windowed(
        nodes, lineages, numbers, claim.extents, more, cut, point=point, needs=required.of
    )


def with_intervals(claim: Claim) -> Claim:
    """A claim with every block of an axis as an interval of it.

    Example: ``n5[a0[8]] at a0/8[1 +1 of 2]`` is ``n5[a0[8 +8 of 16]]``.
    """
    inputs = tuple(None if x is None else _sunk(x) for x in claim.inputs)
    return claim._replace(inputs=inputs, outputs=tuple(map(_sunk, claim.outputs)))


def _sunk(x: Lineage) -> Lineage:
    return x._replace(addends=tuple(t._replace(view=sunk(t.view)) for t in x.addends))


def _lineages(claim: Claim) -> list[Lineage]:
    return [*(x for x in claim.inputs if x is not None), *claim.outputs]
