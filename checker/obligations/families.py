"""Members of a family of claims.

A claim stands for a family of ranks and microbatches: positions in it are affine in coordinates,
and its obligation is stated at one of them.  Where the members are one claim, moved, that is
enough; otherwise every member is looked at.  Where an operator joins a family, what each member
gets is looked at in the same way; what is scattered over a small family is written out, member by
member.

On purpose a second text of `engine.obligations.obligation.points`: the two are never merged.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from copy import copy
from dataclasses import replace
from itertools import product
from math import prod

from shardproof.checker.obligations.translations import attribute_axes, is_even
from shardproof.engine.algebra.affine import Affine
from shardproof.engine.claims.cone import Cut, cone
from shardproof.engine.errors import Unsupported
from shardproof.engine.lineage.expressions import (
    Amax,
    Combine,
    Einsum,
    Expression,
    Most,
    Operand,
    Select,
)
from shardproof.engine.lineage.lineage import Lineage
from shardproof.engine.lineage.members import concrete
from shardproof.engine.lineage.nodes import NodeTable
from shardproof.engine.obligations.obligation import Claim, every
from shardproof.engine.plan.ir import Attr

#: Members of a scattered family up to which all are written out as ranks of their own.  Beyond,
#: what the obligation itself states decides (`engine.obligations.obligation.points`).
MOST_WRITTEN_OUT = 4

Point = dict[str, int]


def lineage_axes(lineage: Lineage) -> set[str]:
    """The coordinates that positions of a lineage depend on: a deliberate twin of the prover's
    `engine.lineage.members.axes_of`.

    Example: ``n23[a1[<2*dp + mb> +1 of 4], a2[10], a0[96]]`` depends on ``dp`` and ``mb``.
    """
    axes: set[str] = set()
    for addend in lineage.addends:
        for interval in (*(a for dim in addend.view.dims for a in dim), *addend.view.fixed):
            axes.update(interval.start.axes)
        for partial in addend.partials:
            axes.update(partial.start.axes)
    return axes


def _at(value: Attr, here: Point) -> Attr:
    if isinstance(value, Affine):
        for axis, position in here.items():
            value = value.fix(axis, position)
        return value
    if isinstance(value, tuple):
        return tuple(_at(part, here) for part in value)
    return value


def _read_at(definition: Expression, here: Point) -> Expression:
    """A definition that reads fixed positions where these are at the given coordinates."""

    def at(operands: Sequence[Operand]) -> tuple[Operand, ...]:
        return tuple(_operand_at(operand, here) for operand in operands)

    match definition:
        case Einsum() | Combine() | Most():
            return replace(definition, operands=at(definition.operands))
        case Amax() | Select():
            return replace(definition, operand=_operand_at(definition.operand, here))
        case _:
            return definition


def _operand_at(operand: Operand, here: Point) -> Operand:
    def place(start: Affine) -> Affine:
        for axis, position in here.items():
            start = start.fix(axis, position)
        return start

    fixed = tuple((axis, step, n, place(start)) for axis, step, n, start in operand.fixed)
    return operand._replace(fixed=fixed)


def nodes_at(nodes: NodeTable, claim: Claim, here: Point, widened: Cut = 0) -> NodeTable:
    """The nodes with the definitions that a claim reads as they are at one member of its family.

    Example: of ``n7 = einsum(n5[a0=<tp> of 2, a1=a:8])``, at ``{"tp": 1}``: ``n5[a0=1 of 2,
    a1=a:8]``; a table of which the claim reads no such definition is itself the answer.
    """
    inputs = [x for x in claim.inputs if x is not None]
    defined = cone(nodes, inputs, claim.outputs, adds=claim.adds, widened=widened).defined
    moving = [n for n in defined if not nodes[n].coordinates.isdisjoint(here)]
    if not moving:
        return nodes
    there = copy(nodes)
    there.nodes = list(nodes.nodes)
    for number in moving:
        node = nodes[number]
        there.nodes[number] = node._replace(definition=_read_at(node.definition, here))
    return there


def members(nodes: NodeTable, claim: Claim, widened: Cut = 0) -> Iterator[tuple[Point, Claim]]:
    """The claims at all members of a family, and where these are (empty: all at once); none where
    the claim at any one of them is the claim at all.

    Example: none of a ``linear`` whose weight is cut along ``tp``, since its members are one claim,
    moved; of an ``embedding`` whose table begins at ``112*tp``, those at ``tp`` 0 and 1.  What the
    definitions are at a member, `nodes_at` says.

    Raises `engine.errors.Unsupported` for families that are too large to write out.
    """
    joined = [axis for axis, _ in claim.over]
    lineages = [x for x in (*claim.inputs, *claim.outputs) if x is not None]
    used = {a for x in lineages for a in lineage_axes(x)}
    used |= {a for value in claim.attrs.values() for a in attribute_axes(value)}
    # A definition that reads other positions at every coordinate makes a value of coordinates.
    used |= {a for x in lineages for addend in x.addends for a in nodes[addend.node].coordinates}
    free = sorted(a for a in used if a not in joined and claim.extents.get(a, 1) > 1)
    if free:
        here = cone(
            nodes,
            [x for x in claim.inputs if x is not None],
            claim.outputs,
            adds=claim.adds,
            widened=widened,
        )
        free = [axis for axis in free if not is_even(nodes, here, claim, axis)]
    if free:
        for point in every(free, claim.extents):
            yield (
                point,
                claim._replace(
                    inputs=tuple(None if x is None else concrete(x, point) for x in claim.inputs),
                    outputs=tuple(concrete(x, point) for x in claim.outputs),
                    attrs={name: _at(value, point) for name, value in claim.attrs.items()},
                ),
            )
    if not joined:
        return
    if claim.kind in ("reduce_scatter", "all_to_all"):
        if claim.members > 1:
            raise Unsupported(f"{claim.kind} over explicit ranks and mesh axes together")
        if prod(extent for _, extent in claim.over) <= MOST_WRITTEN_OUT:
            yield {}, _written_out(claim)
    elif any(lineage_axes(x).intersection(joined) for x in claim.outputs):
        for point in every(joined, claim.extents):
            yield point, claim._replace(outputs=tuple(concrete(x, point) for x in claim.outputs))


def _written_out(claim: Claim) -> Claim:
    """A claim over one family as a claim over as many explicit members, in their order."""
    places = [
        dict(zip((axis for axis, _ in claim.over), chosen, strict=True))
        for chosen in product(*(range(extent) for _, extent in claim.over))
    ]
    given = [x for x in claim.inputs if x is not None]
    return claim._replace(
        inputs=tuple(concrete(x, here) for here in places for x in given),
        outputs=tuple(concrete(x, here) for here in places for x in claim.outputs),
        over=(),
        members=len(places),
    )
