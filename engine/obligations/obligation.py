"""What a claim says at small size: an obligation, as equalities between terms.

A claim is one operator instance with the lineages of its inputs and outputs.  Its obligation:
apply the operator, by its declared semantics, to input tensors whose entries are what their
lineages say, and compare with what the lineages of the outputs say.  Entries of reference nodes
are free symbols; nodes that the operator makes are expanded by their definitions.

Restriction: only positions inside the boxes that the claim mentions occur.  Reduction: each of the
claim's axes is represented by few positions (`Representatives`): all interval boundaries that the
claim mentions cut it, and each piece keeps a few representatives, the last of which stands for the
rest of the piece (its multiplicity counts in every sum).  Coefficients come from true sizes.
Coordinates along which the claim is one of a family take one value; those that the operator sums
or gathers over are represented like an axis.  `docs/soundness.md` says why this is enough.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from fractions import Fraction
from itertools import product
from math import prod
from typing import NamedTuple

import numpy as np

from shardproof.engine.algebra.terms import Term, TermTable
from shardproof.engine.claims.claim import Claim
from shardproof.engine.claims.cone import Cone, Cut, compares, cone, exponentials, lawful
from shardproof.engine.claims.symmetry import attribute_axes, is_even, is_uniform
from shardproof.engine.errors import ShapeMismatch, Unsupported
from shardproof.engine.interpreters import MASKED, Weighted
from shardproof.engine.interpreters.dims import narrow, unit
from shardproof.engine.lineage.lineage import Lineage
from shardproof.engine.lineage.members import axes_of, concrete
from shardproof.engine.lineage.nodes import NodeTable
from shardproof.engine.lineage.sums import Over
from shardproof.engine.obligations.classes import OneHot, counted, one_hots
from shardproof.engine.obligations.denominators import Cleared, cleared
from shardproof.engine.obligations.entries import Meaning
from shardproof.engine.obligations.logistic import logistic
from shardproof.engine.obligations.positions import (
    Positions,
    boundaries,
    in_windows,
    kept,
    with_intervals,
)
from shardproof.engine.obligations.small_terms import SmallInterpreter
from shardproof.engine.plan.collectives import TABLE, Effect, refused
from shardproof.engine.small_model.bounds import Requirements, enough
from shardproof.engine.small_model.by_size import misleads
from shardproof.engine.small_model.mixed_radix import Relation
from shardproof.engine.small_model.related import applied, related

__all__ = ["Claim", "Obligation", "boundaries", "build", "every", "points"]

#: Products that a claim may be over.  Those of right plans have hundreds (a sum of sums whose axes
#: are all cut in four has hundreds of thousands, which take seconds to state); a claim whose result
#: is defined far behind its inputs opens definition under definition.
MOST_PRODUCTS = 450_000


#: Kinds of rows that give every member a piece of one dimension, by the attribute that names it.
SCATTERS: Mapping[str, str] = {
    name: declared.divides
    for name, declared in TABLE.items()
    if declared.effect in (Effect.SCATTER, Effect.EXCHANGE)
}


class Obligation(NamedTuple):
    """What a claim says at small size: equalities that have to hold for all values of the symbols.
    ``applications``: what the operator takes functions of that are undefined somewhere, as
    applications; laws may leave none of them in the equalities.  ``claimed``: what the definitions
    take functions of, likewise, by which the results that are claimed are expanded.  ``one_hots``:
    those of ids that are known to name one of their classes.

    Example: of a linear layer, ``v0 * v4 + v1 * v5 == v4 * v0 + v5 * v1`` and so on, an equality
    for each represented entry, where ``symbols`` says that v0 is n3[0, 0].
    """

    goals: tuple[tuple[Term, Term], ...]
    symbols: dict[str, tuple[object, ...]]
    applications: tuple[Term, ...] = ()
    claimed: tuple[Term, ...] = ()
    one_hots: tuple[OneHot, ...] = ()


#: Members that are not one claim, moved, up to which all are stated.
MOST_MEMBERS = 1024


def build(nodes: NodeTable, claim: Claim, widened: Cut = 0, more: int = 0) -> Obligation:
    """The obligation of a claim; raises `Unsupported` where it cannot be stated at small size,
    `ShapeMismatch` if the operator does not take the inputs.

    Example: of the linear layer of rank ``tp``, with the columns ``<8*tp> +8 of 16`` of ``x`` and
    ``w``, four equalities: two rows of ``x`` by two of ``w``, at rank 1.

    ``widened``: see `engine.claims.cone.cone`; ``more``: representatives of each piece of an axis
    beyond the fewest that are enough.
    """
    inputs = [x for x in claim.inputs if x is not None]
    here = cone(nodes, inputs, claim.outputs, adds=claim.adds, widened=widened)
    try:
        return _reduced(nodes, claim, here, more)
    except (Unsupported, ShapeMismatch) as error:
        try:
            whole = _build(nodes, claim, here, kept(nodes, claim, here, 0, None, None))
        except Unsupported:
            with suppress(Unsupported, ShapeMismatch):
                return _in_windows(nodes, claim, here, more)
            raise error from None
        worded = _worded(_counted(whole)[0])
        divided = _cleared(worded)
        return worded if divided is None else worded._replace(goals=divided.goals)


def _in_windows(nodes: NodeTable, claim: Claim, here: Cone, more: int) -> Obligation:
    """The obligation of any tensors in place of the windows of axes that it reads: of such windows,
    too."""
    if claim.over or compares(nodes, here):
        raise Unsupported("windows along which ranks are joined, or positions compared")
    claim = with_intervals(claim)
    required = enough(nodes, claim, here, related(claim))
    return _build(nodes, claim, here, in_windows(nodes, claim, here, more, required))


def _worded(obligation: Obligation) -> Obligation:
    """An obligation in logistic functions of one sign, where it needs that."""
    goals = obligation.goals
    worded = logistic(goals[0][0].table, goals) if goals else None
    return obligation if worded is None else obligation._replace(goals=worded)


def _counted(obligation: Obligation) -> tuple[Obligation, int]:
    """An obligation in which one-hots add up to 1, where it needs that; and how many entries of
    these are multiplied with one another (0: it does not need it)."""
    made = counted(obligation.goals, obligation.one_hots)
    return (obligation, 0) if made is None else (obligation._replace(goals=made.goals), made.degree)


def _cleared(obligation: Obligation) -> Cleared | None:
    goals = obligation.goals
    return cleared(goals[0][0].table, goals) if goals else None


def _reduced(nodes: NodeTable, claim: Claim, here: Cone, more: int) -> Obligation:
    relations = related(claim)
    required = enough(nodes, claim, here, relations)
    obligation, degree = _counted(_represented(nodes, claim, here, more, relations, required))
    if degree:
        # Each entry of a one-hot is written as a sum over classes.
        more += degree
        obligation, least = _counted(_represented(nodes, claim, here, more, relations, required))
        if least > degree:
            raise Unsupported("more entries of one-hots are multiplied where more are represented")
    obligation = _worded(obligation)
    divided = _cleared(obligation)
    if divided is None:
        return obligation
    required_more = required.times_divisors(divided.factors, divided.different)
    if required_more is None:
        return obligation
    # What sides are multiplied by is a sum as well: it takes more positions to tell them apart.
    more += degree * divided.factors
    wider, least = _counted(_represented(nodes, claim, here, more, relations, required_more))
    again = _worded(wider)
    divided_again = _cleared(again)
    if divided_again is None or any(
        n > m for n, m in zip((least, *divided_again[1:]), (degree, *divided[1:]), strict=True)
    ):
        return obligation
    return again._replace(goals=divided_again.goals)


def _represented(
    nodes: NodeTable,
    claim: Claim,
    here: Cone,
    more: int,
    relations: Sequence[Relation],
    required: Requirements,
) -> Obligation:
    # Of dimensions that are cut unlike, the represented positions may be too few on one side.
    # Splitting dimensions as others are split costs positions; it is done where it is needed.
    ways = (relations, None) if misleads(claim, relations) else (None, relations)
    try:
        return _build(nodes, claim, here, kept(nodes, claim, here, more, ways[0], required))
    except (Unsupported, ShapeMismatch):
        return _build(nodes, claim, here, kept(nodes, claim, here, more, ways[1], required))


def _build(nodes: NodeTable, claim: Claim, here: Cone, positions: Positions) -> Obligation:
    """``positions``: those that represent the others, at a member of the family."""
    joined = {axis for axis, _ in claim.over}
    for number in (*here.opaque, *here.defined):
        if joined & nodes[number].coordinates:
            raise Unsupported("a value that differs along the axis that the operator joins")
    terms = TermTable()
    goals: list[tuple[Term, Term]] = []
    symbols: dict[str, tuple[object, ...]] = {}
    given: set[Term] = set()
    claimed: set[Term] = set()
    known: list[OneHot] = []
    for point in points(nodes, claim, here):
        representatives = positions(point)
        masks = not representatives.exact and compares(nodes, here)
        meaning = Meaning(
            nodes,
            representatives,
            here.opaque,
            terms,
            len(symbols),
            MOST_PRODUCTS,
            masks=masks,
            laws=lawful(nodes, here, claim.name),
            apart=exponentials(nodes, here, claim.name),
        )
        there = _goals(meaning, claim, given, claimed)
        goals += there
        known += one_hots(meaning, here.defined, there)
        symbols |= {str(term.name): key for key, term in meaning.symbols.items()}
    return Obligation(tuple(goals), symbols, _in_order(given), _in_order(claimed), tuple(known))


def _in_order(terms: Iterable[Term]) -> tuple[Term, ...]:
    return tuple(sorted(terms, key=lambda term: term.uid))


def _goals(
    meaning: Meaning, claim: Claim, applications: set[Term], claimed: set[Term]
) -> list[tuple[Term, Term]]:
    """What the operator gives, entry by entry, against what the outputs' lineages say;
    ``applications``, ``claimed``: see `Obligation`."""
    terms = meaning.terms
    semantics = _Semantics(meaning, claim)
    actual = semantics.outputs()
    applications |= semantics.interpreter.applications
    of_inputs = set(meaning.interpreter.applications)
    if len(actual) != len(claim.outputs):
        raise ShapeMismatch(f"{len(actual)} outputs, claimed {len(claim.outputs)}")
    goals: list[tuple[Term, Term]] = []
    hidden: list[tuple[Term, Term]] = []
    compared: set[tuple[int, Lineage]] = set()
    for left, lineage in zip(actual, claim.outputs, strict=True):
        if (id(left), lineage) in compared:
            # What members of a collective have alike is one equality, said once.
            continue
        compared.add((id(left), lineage))
        right = meaning.tensor(lineage, left.dims)
        if left.dims != right.dims:
            raise Unsupported(
                f"a result of shape {list(left.shape)} represented as {left.dims}, "
                f"claimed as {right.dims}"
            )
        for a, b in zip(left.data.flat, right.data.flat, strict=True):
            if a is MASKED or b is MASKED:
                hidden.append((terms.zero, terms.zero if a is b else terms.one))
            else:
                goals.append((a, b))
    goals += [(a, b) for a, b in hidden if a is not b]
    # What is hidden on both sides is equal. That is said where there is nothing else to say: of no
    # entries at all nothing is said.
    goals = goals or hidden[:1]
    claimed |= meaning.interpreter.applications - of_inputs
    return goals


def points(nodes: NodeTable, claim: Claim, here: Cone) -> list[dict[str, int]]:
    """The members of a family at which its claim is stated.

    Example: of a linear layer whose columns all begin at ``8*tp``, ``[{}]``: the usual member.
    Where those of ``w`` begin at 0 on every rank, ``[{"tp": 0}, {"tp": 1}]``.

    One is enough along a coordinate on which the members are one claim, moved; of what is
    scattered, the second, the first and the last are stated even then. Otherwise all are stated.
    Raises `Unsupported` for more than `MOST_MEMBERS` of them.
    """
    lineages = [x for x in (*claim.inputs, *claim.outputs) if x is not None]
    joined = {axis for axis, _ in claim.over}
    varied = set().union(*(attribute_axes(v) for v in claim.attrs.values()))
    varied |= {
        axis
        for axis in claim.extents
        if axis not in joined and not is_even(nodes, here, lineages, axis)
    }
    scattered = claim.kind in SCATTERS
    if scattered and not _scatters_evenly(nodes, claim, here):
        varied |= joined
    elif not scattered:
        varied |= joined & {axis for x in claim.outputs for axis in axes_of(x)}
    members = every(sorted(a for a in varied if claim.extents.get(a, 1) > 1), claim.extents)
    kept = sorted(a for a in joined - varied if scattered and claim.extents[a] > 1)
    shown = [dict.fromkeys(kept, 1), dict.fromkeys(kept, 0)]
    shown.append({axis: claim.extents[axis] - 1 for axis in kept})
    distinct = [point for i, point in enumerate(shown) if point not in shown[:i]]
    return [{**one, **other} for one in members for other in distinct]


def _scatters_evenly(nodes: NodeTable, claim: Claim, here: Cone) -> bool:
    """Whether what members get of a scattered dimension is one claim, moved, along every joined
    coordinate."""
    given = [x for x in claim.inputs if x is not None]
    dim = claim.attrs.get(SCATTERS[claim.kind])
    sizes = {x.shape[dim] for x in given} if isinstance(dim, int) else set()
    members = claim.members * prod(extent for _, extent in claim.over)
    if len(sizes) != 1 or (size := sizes.pop()) % members:
        return False
    assert isinstance(dim, int)
    step = size // members
    for axis, extent in reversed(claim.over):
        lineages = (given, claim.outputs)
        if not is_uniform(nodes, here, lineages, dim % len(given[0].shape), axis, step):
            return False
        step *= extent
    return True


def every(axes: Sequence[str], extents: Mapping[str, int]) -> list[dict[str, int]]:
    """All members along some coordinates; raises `Unsupported` for too many.

    Example: along dp and tp of 2 each four members, ``{"dp": 0, "tp": 0}`` first.
    """
    if prod(extents[axis] for axis in axes) > MOST_MEMBERS:
        raise Unsupported(f"a family of more than {MOST_MEMBERS} members that differ")
    places = product(*(range(extents[axis]) for axis in axes))
    return [dict(zip(axes, chosen, strict=True)) for chosen in places]


class _Semantics:
    """The operator applied to tensors with the meaning of its inputs."""

    def __init__(self, meaning: Meaning, claim: Claim) -> None:
        self.meaning = meaning
        self.claim = claim
        self.representatives = meaning.representatives
        self.interpreter = SmallInterpreter(
            meaning.terms,
            self.representatives,
            meaning.interpreter.masks,
            meaning.interpreter.laws,
            meaning.interpreter.apart,
            meaning.interpreter.over_positions,
            coordinates=self.representatives.coordinates,
        )

    def outputs(self) -> list[Weighted]:
        claim = self.claim
        if claim.kind in ("op", "slice"):
            inputs = [None if x is None else self.meaning.tensor(x) for x in claim.inputs]
            return applied(self.interpreter, claim, inputs)
        if claim.kind == "accumulate":
            return [self.accumulate()]
        declared = TABLE.get(claim.kind)
        rule = None if declared is None else RULES.get(declared.effect)
        if rule is None:
            raise Unsupported(f"the meaning of {claim.kind} is not declared")
        reason = refused(claim.kind, claim.attrs, claim.over, claim.members)
        if reason:
            raise Unsupported(reason)
        return rule(self, [x for x in claim.inputs if x is not None])

    def totals(self, given: Sequence[Lineage]) -> list[Weighted]:
        total = self.total(given, self.claim.over, str(self.claim.attrs.get("op", "sum")))
        return [total] * len(self.claim.outputs)

    def gathers(self, given: Sequence[Lineage]) -> list[Weighted]:
        return [self.gather(given, self.dim("dim", given[0]))] * len(self.claim.outputs)

    def scatters(self, given: Sequence[Lineage]) -> list[Weighted]:
        total = self.total(given, self.claim.over, str(self.claim.attrs.get("op", "sum")))
        dim = self.dim("dim", given[0])
        return [self.kept(total, dim, i) for i in range(self.claim.members)]

    def dim(self, key: str, x: Lineage) -> int:
        value = self.claim.attrs.get(key)
        if not isinstance(value, int) or not -len(x.shape) <= value < len(x.shape):
            raise ShapeMismatch(f"{key} {value} of a tensor of shape {list(x.shape)}")
        return value % len(x.shape)

    def family(self, x: Lineage, over: Over) -> list[tuple[Weighted, tuple[int, ...], int]]:
        """The members of a family along ``over``: (tensor, coordinates, multiplicity)."""
        members = []
        choices = [self.representatives.coordinate(axis, extent) for axis, extent in over]
        for chosen in product(*choices):
            point = {axis: c for (axis, _), (c, _) in zip(over, chosen, strict=True)}
            self.representatives.coordinates.update(point)
            tensor = self.meaning.tensor(concrete(x, point))
            members.append((tensor, tuple(point.values()), prod(w for _, w in chosen)))
        self.representatives.reset()
        return members

    def total(self, inputs: Sequence[Lineage], over: Over, kind: str) -> Weighted:
        if kind not in ("sum", "max"):
            raise Unsupported(f"a reduction by {kind}")
        members = [m for x in inputs for m in self.family(x, over)]
        if kind == "max":
            stacked = np.stack([m[0].data for m in members], axis=-1)
            together = Weighted(stacked, (*members[0][0].dims, unit(len(members))))
            return self.interpreter.amax(together, stacked.ndim - 1)
        return self.interpreter.combine(
            [m[0] for m in members], [Fraction(m[2]) for m in members], Fraction(0)
        )

    def accumulate(self) -> Weighted:
        claim = self.claim
        if not claim.inputs:
            return self.meaning.tensor(Lineage(claim.outputs[0].shape, ()))
        addends = []
        for lineage, batched in zip(claim.inputs, claim.batched, strict=True):
            assert lineage is not None
            addends.append(self.total([lineage], claim.over if batched else (), "sum"))
        return self.interpreter.combine(addends, [Fraction(1)] * len(addends), Fraction(0))

    def gather(self, inputs: Sequence[Lineage], dim: int) -> Weighted:
        if not self.claim.over:
            return self.interpreter.concat([self.meaning.tensor(x) for x in inputs], dim)
        if len(inputs) != 1:
            raise Unsupported("a gather over explicit ranks and mesh axes together")
        members = self.family(inputs[0], self.claim.over)
        factors = tuple(
            tuple(w for _, w in self.representatives.coordinate(axis, extent))
            for axis, extent in self.claim.over
        )
        data = np.concatenate([m[0].data for m in members], axis=dim)
        dims = members[0][0].dims
        grown = (*dims[:dim], (*factors, *dims[dim]), *dims[dim + 1 :])
        return Weighted(data, grown)

    def kept(self, x: Weighted, dim: int, position: int) -> Weighted:
        """The part of ``x`` that a member keeps when it is scattered."""
        members = self.claim.members
        for axis, extent in self.claim.over:
            position = position * extent + self.representatives.coordinates[axis]
            members *= extent
        size = int(x.shape[dim])
        step = -(-size // members)
        return _narrow(x, dim, position * step, min(step, size - position * step))

    def exchange(self, inputs: Sequence[Lineage]) -> list[Weighted]:
        split, joined = self.dim("split_dim", inputs[0]), self.dim("concat_dim", inputs[0])
        if split == joined:
            raise Unsupported("an all-to-all that splits and joins the same dimension")
        whole = self.gather(inputs, joined)
        return [self.kept(whole, split, i) for i in range(self.claim.members)]


#: What the members of a collective have, by its effect.
RULES: Mapping[Effect, Callable[[_Semantics, Sequence[Lineage]], list[Weighted]]] = {
    Effect.TOTAL: _Semantics.totals,
    Effect.GATHER: _Semantics.gathers,
    Effect.SCATTER: _Semantics.scatters,
    Effect.EXCHANGE: _Semantics.exchange,
}


def _narrow(x: Weighted, dim: int, start: int, size: int) -> Weighted:
    cut, kept = narrow(x.dims[dim], start, size)
    return Weighted(
        x.data[(slice(None),) * dim + (kept,)], (*x.dims[:dim], cut, *x.dims[dim + 1 :])
    )
