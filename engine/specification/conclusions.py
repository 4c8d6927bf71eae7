"""What a proof has to conclude, and whether lineages say so.

Conclusions are the demands of the plan's expectations (`engine.specification.demands`): without a
table of its own, the loss, and for every parameter and every rank that holds a shard of it, the
gradient with coefficient 1 after the last reduction.  What is expected comes from the single-device
program alone.  Whether a lineage is the expected one is exact comparison at true size.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from fractions import Fraction
from itertools import islice, permutations
from typing import NamedTuple

from shardproof.engine.algebra.affine import ZERO, Affine
from shardproof.engine.lineage.containing import containing
from shardproof.engine.lineage.joining import joined
from shardproof.engine.lineage.lineage import Lineage
from shardproof.engine.lineage.members import axes_of, concrete, every
from shardproof.engine.lineage.nodes import NodeTable
from shardproof.engine.lineage.places import collapsed
from shardproof.engine.lineage.reductions import part_of
from shardproof.engine.lineage.sums import collect, family_sum, merge_partials
from shardproof.engine.lineage.views import Misaligned
from shardproof.engine.plan.expectations import COVERAGE, GRADIENT, LOSS
from shardproof.engine.plan.ir import MICROBATCH, Plan, Program
from shardproof.engine.plan.mesh import ranks_at
from shardproof.engine.schedule.instances import Unrolled
from shardproof.engine.specification.alike import placed_alike, same_addends, same_number, sums_in
from shardproof.engine.specification.box import box_of
from shardproof.engine.specification.demands import Demand, Sum, demands
from shardproof.engine.specification.gradients import Derived, first_of_box
from shardproof.engine.specification.tiling import TooMany, boxes, covers

Lineages = Sequence[Lineage | None]
#: Members of a family that are compared one by one.
MOST_MEMBERS = 256
#: Ranks that a conclusion lists.
MOST_RANKS = 256


class Conclusion(NamedTuple):
    """One thing that must hold in the end, and whether it does.

    Example: ``Conclusion("gradient", "w1", (1,), True, "", program=1, value=34)``; of one that
    fails the message is "rank 0: the gradient of w is never computed".

    ``kind``: that of a row of the table, "coverage" (of gradients; of others it is "output
    coverage" and so on) or "single-device gradient"; ``ranks``: where it holds, the first of those
    that it is about, else those on which it does not (at most `MOST_RANKS`); ``value``: the tensor
    of the side that it is about, the first one of several (-1: none).
    """

    kind: str
    name: str
    ranks: tuple[int, ...]
    holds: bool
    message: str
    program: int = -1
    value: int = -1


def scaled(lineage: Lineage, factor: Fraction) -> Lineage:
    """``factor`` times a lineage, for example ``[4] = 1/2*n11[a0[4]]`` of ``[4] = n11[a0[4]]``."""
    return Lineage(
        lineage.shape, tuple(t._replace(factor=t.factor * factor) for t in lineage.addends)
    )


def slices(plan: Plan, program: Program) -> int:
    """Into how many slices replicas and microbatches divide the batch: for example 4 by two
    replicas with two microbatches each."""
    count = plan.microbatches
    for axis in plan.replica_axes:
        count *= program.extents.get(axis, 1)
    return count


def conclude(
    plan: Plan,
    nodes: NodeTable,
    derived: Derived,
    single: Lineages,
    parallel: Unrolled,
    lineages: Lineages,
    *,
    all_ranks: bool = True,
) -> list[Conclusion]:
    """All required conclusions, in a fixed order, each with whether it holds.

    Example: a network with parameters w1 and w2 on two tensor-parallel ranks has 10: two gradients
    of its own, two losses, four gradients on ranks, and the coverage of two.

    ``all_ranks``: whether what fails names every rank on which it does, or the first only, which
    is found at once.
    """
    required = [demand for demand in demands(plan, derived, parallel) if demand.required]
    wants = Wants(plan, nodes, single, parallel, lineages, all_ranks=all_ranks)
    result = _single_gradients(plan, derived, single)
    result += [wants.conclusion(demand) for demand in required]
    return result + _coverages(plan, derived, required)


def beside(
    plan: Plan,
    nodes: NodeTable,
    derived: Derived,
    single: Lineages,
    parallel: Unrolled,
    lineages: Lineages,
) -> list[tuple[Demand, Conclusion]]:
    """What no proof needs: whether the rows hold that are not required, for example
    ``expect "state" "m" optional: ...``."""
    wants = Wants(plan, nodes, single, parallel, lineages)
    return [
        (demand, wants.conclusion(demand))
        for demand in demands(plan, derived, parallel)
        if not demand.required
    ]


def _single_gradients(plan: Plan, single: Derived, lineages: Lineages) -> list[Conclusion]:
    """The single-device plan's own backward must be the derivative of its forward, where that is
    what it is held against."""
    if single.seed < 0:
        return []
    shards = plan.single.shards
    first = first_of_box(plan.single)
    result = []
    for program, number, value in single.unrolled.gradients:
        name = shards[number].name
        derived = single.gradients.get(first[number])
        want = None if derived is None else lineages[derived]
        have = lineages[value]
        holds = want is not None and have is not None and placed_alike(have, want)
        message = (
            ""
            if holds
            else (
                f"the single-device plan's gradient of {name} is not the derivative of its forward"
            )
        )
        result.append(
            Conclusion("single-device gradient", name, (0,), holds, message, program, value)
        )
    computed = {c.name for c in result}
    missing = {shards[n].name for n in single.gradients} - computed if computed else set()
    for name in sorted(missing):
        message = f"the single-device plan computes no gradient of {name}"
        result.append(Conclusion("single-device gradient", name, (0,), False, message))
    return result


class Wants:
    """Holds demands against the lineages of both sides: ``wants.fault(demand)``, for example, is
    "the gradient of w is never computed", and "" of what holds."""

    def __init__(
        self,
        plan: Plan,
        nodes: NodeTable,
        single: Lineages,
        parallel: Unrolled,
        lineages: Lineages,
        *,
        all_ranks: bool = True,
    ) -> None:
        self.plan = plan
        self.all_ranks = all_ranks
        self.nodes = nodes
        self.single = single
        self.parallel = parallel
        self.lineages = lineages

    def conclusion(self, demand: Demand) -> Conclusion:
        """Whether what is demanded follows from the lineages, and why not."""
        if demand.program < 0:
            return Conclusion(demand.kind, demand.name, (), not demand.problem, demand.problem)
        message = self.fault(demand)
        ranks: tuple[int, ...] = (self.plan.programs[demand.program].base,)
        if message:
            ranks = self.failing(demand) if self.all_ranks else ranks
            message = f"rank {ranks[0]}: {message}"
        return Conclusion(
            demand.kind,
            demand.name,
            ranks,
            not message,
            message,
            demand.program,
            demand.value,
        )

    def fault(self, demand: Demand) -> str:
        """Why what a demand says of a program does not hold ("" if it does)."""
        article = "the " if demand.kind == GRADIENT else ""
        what = f"{article}{row_name(demand.kind, demand.name)}"
        if demand.problem:
            return f"{what} {demand.problem}"
        if not demand.sums and demand.expected >= 0:
            return f"{what} is never computed"
        have = self.total(demand) if demand.sums else Lineage(demand.shape, ())
        if demand.expected < 0:
            if have is not None and not have.addends:
                return ""
            return (
                f"{demand.name} gets a gradient, though the single-device loss does not depend on "
                "it"
            )
        want = self.single[demand.expected]
        parts = [] if want is None else list(sums_in(self.nodes, want.addends))
        if demand.kind == LOSS:
            alike = same_number(self.nodes, have, want) or (
                same_number(self.nodes, self.total(demand, parts), want)
            )
            return "" if alike else self.loss(demand)
        if have is None:
            # One row of each rank is no sum of views, but part of the sum over rows.
            have = self.total(demand, parts)
        if have is None or want is None:
            return f"{what} {self.unknown(demand)}"
        if same_number(self.nodes, have, want):
            return ""
        message = _difference(self.nodes, demand, what, have, want, self.extents(demand))
        return message and message + self.partial(demand, have, want)

    def failing(self, demand: Demand) -> tuple[int, ...]:
        """The ranks on which a demand that does not hold fails: of a family of which each member
        can be compared by itself, those that differ, else all that run the program."""
        program = self.plan.programs[demand.program]
        have = self.total(demand) if demand.sums and not demand.problem else None
        want = self.single[demand.expected] if demand.expected >= 0 else None
        wrong: list[dict[str, int]] = []
        if demand.kind != LOSS and have is not None and want is not None:
            extents = self.extents(demand)
            wrong = [
                here
                for here in _members(have, demand, extents)
                if _member_differs(self.nodes, demand, "", have, want, extents, here)
            ]
        ranks = {
            rank for here in wrong or [{}] for rank in islice(ranks_at(program, here), MOST_RANKS)
        }
        return tuple(sorted(ranks)[:MOST_RANKS])

    def partial(self, demand: Demand, have: Lineage, want: Lineage) -> str:
        """Along which axis of the ranks a value would have to be added up, if that is all that is
        missing: in a table, somebody may have meant it."""
        if not self.plan.expectations or not any(addend.partials for addend in have.addends):
            return ""
        extents = self.extents(demand)
        for axis, extent in self.plan.programs[demand.program].extents.items():
            try:
                total = family_sum(self.nodes, have, ((axis, extent),), extents)
            except Misaligned:
                continue
            if not _difference(self.nodes, demand, "", total, want, extents):
                return f"; summed along {axis} it is the single-device {demand.kind}"
        return ""

    def extents(self, demand: Demand) -> dict[str, int]:
        """The coordinates of the program that a demand is about, with their extents."""
        extents = self.plan.programs[demand.program].extents
        return {**extents, MICROBATCH: self.plan.microbatches}

    def loss(self, demand: Demand) -> str:
        """In words, what is wrong if losses do not combine to the single-device loss."""
        program = self.plan.programs[demand.program]
        if self.plan.expectations:
            return f"the terms of {demand.name} do not add up to the single-device loss"
        return (
            f"the {self.plan.loss} of the losses over {slices(self.plan, program)} slices "
            "of the batch is not the single-device loss"
        )

    def unknown(self, demand: Demand) -> str:
        """Why there is no lineage to compare."""
        values = [v for term in demand.sums for v in term.tensors]
        if self.single[demand.expected] is None or any(self.lineages[v] is None for v in values):
            return "depends on an operator that is not supported, or was not read"
        return f"does not add up to the single-device {demand.kind}"

    def total(self, demand: Demand, parts: Sequence[int] = ()) -> Lineage | None:
        """What the addends of a demand add up to (None: no sum of views); one position of many is
        part of those sums that are in ``parts``."""
        if len(demand.sums) == 1:
            return self.sum(demand.sums[0], parts)
        mesh = {MICROBATCH: self.plan.microbatches}
        for term in demand.sums:
            mesh.update(self.plan.programs[term.program].extents)
        return _total([self.sum(term, parts) for term in demand.sums], self.nodes, (), mesh)

    def sum(self, addend: Sum, parts: Sequence[int] = ()) -> Lineage | None:
        """What tensors of several members add up to, as one lineage; None where one of them has
        none."""
        tensors = self.parallel.tensors
        own_lineages = {v: self.as_parts(self.lineages[v], parts) for v in addend.tensors}
        if len(addend.tensors) == 1 and not addend.over and not addend.batched:
            one = own_lineages[addend.tensors[0]]
            return one if one is None or addend.weight == 1 else scaled(one, addend.weight)
        program = self.plan.programs[addend.program]
        mesh = {**program.extents, MICROBATCH: self.plan.microbatches}
        # Innermost first: microbatches divide what a replica reads.
        own = [own_lineages[v] for v in addend.tensors if not tensors[v].batched]
        each = [own_lineages[v] for v in addend.tensors if tensors[v].batched]
        inner = ((MICROBATCH, self.plan.microbatches),) if addend.batched else ()
        if each:
            own.append(_total(each, self.nodes, inner, mesh))
        for over in permutations(addend.over):
            total = _total(own, self.nodes, over, mesh)
            if total is not None:
                return scaled(total, addend.weight)
        return None

    def as_parts(self, x: Lineage | None, numbers: Sequence[int]) -> Lineage | None:
        """A value whose positions of many are parts of some sums of the single-device program.

        Example: the loss of the one row that a rank has, of the sum over all rows.
        """
        if x is None or not numbers:
            return x
        whole = (
            next((p for n in numbers if (p := part_of(self.nodes, a, n)) is not None), a)
            for a in x.addends
        )
        return Lineage(x.shape, tuple(whole))


def row_name(kind: str, name: str) -> str:
    """A row of the table in words.

    Example: ``gradient of w``, ``output y``.
    """
    return f"{kind} of {name}" if kind == GRADIENT else f"{kind} {name}"


def _total(
    members: Sequence[Lineage | None],
    nodes: NodeTable,
    over: tuple[tuple[str, int], ...],
    mesh: Mapping[str, int],
) -> Lineage | None:
    present = [m for m in members if m is not None]
    if len(present) < len(members) or not present:
        return None
    together = merge_partials(nodes, [t for m in present for t in m.addends], mesh)
    try:
        return family_sum(nodes, Lineage(present[0].shape, tuple(collect(together))), over, mesh)
    except Misaligned:
        return None


def _difference(
    nodes: NodeTable,
    demand: Demand,
    where: str,
    have: Lineage,
    want: Lineage,
    extents: Mapping[str, int],
) -> str:
    """Why a value is not the expected box ("" if it is).  Where the members of a family are no one
    view, as where some hold one value and some another, each is compared by itself."""
    message = _differs(nodes, demand, where, have, want, extents)
    members = _members(have, demand, extents) if message else []
    if not members:
        return message
    wrong = (_member_differs(nodes, demand, where, have, want, extents, here) for here in members)
    return message if any(wrong) else ""


def _members(have: Lineage, demand: Demand, extents: Mapping[str, int]) -> list[dict[str, int]]:
    """The members of a family that may differ from each other; none where there are too many."""
    axes = axes_of(have).union(*(start.axes for start in demand.relative))
    return list(every(axes, extents, MOST_MEMBERS)) if axes and axes <= extents.keys() else []


def _member_differs(
    nodes: NodeTable,
    demand: Demand,
    where: str,
    have: Lineage,
    want: Lineage,
    extents: Mapping[str, int],
    here: Mapping[str, int],
) -> str:
    """`_differs`, of one member."""
    offset = tuple(_fixed(start, here) for start in demand.offset)
    return _differs(
        nodes, replace(demand, offset=offset), where, concrete(have, here), want, extents
    )


def _fixed(start: Affine, here: Mapping[str, int]) -> Affine:
    for axis, position in here.items():
        start = start.fix(axis, position)
    return start


def _differs(
    nodes: NodeTable,
    demand: Demand,
    where: str,
    have: Lineage,
    want: Lineage,
    extents: Mapping[str, int],
) -> str:
    """`_difference`, of a family as one; a box of a local tensor is the expected one if all of that
    tensor is."""
    message = _box_differs(nodes, demand, where, have, want, extents)
    larger = containing(nodes, have) if message and demand.offset else None
    if larger is None:
        return message
    whole, starts = larger
    place = tuple(at - start for at, start in zip(demand.offset, starts, strict=True))
    around = replace(demand, shape=whole.shape, offset=place)
    return message if _differs(nodes, around, where, whole, want, extents) else ""


def _box_differs(
    nodes: NodeTable,
    demand: Demand,
    where: str,
    have: Lineage,
    want: Lineage,
    extents: Mapping[str, int],
) -> str:
    if not demand.offset and have.shape != want.shape:
        return f"{where} has shape {list(have.shape)}, the single-device one {list(want.shape)}"
    try:
        expected = box_of(want, demand.relative, demand.shape, extents)
    except Misaligned:
        return f"{where} is held as a box that is no view of it"
    if have == expected or same_addends(nodes, have, expected) or _side_by_side(have, expected):
        return ""
    if len(have.addends) == 1 and len(expected.addends) == 1:
        a, b = have.addends[0], expected.addends[0]
        if a.node == b.node and a.partials:
            intervals = ", ".join(f"[{p.start}, +{p.size}) of {p.extent}" for p in a.partials)
            return f"{where} is a partial sum (over {intervals}): a reduction is missing"
        if a.node == b.node and a.view == b.view:
            return f"{where} is {a.factor / b.factor} times the single-device {demand.kind}"
        if a.node == b.node:
            what = "the shard" if demand.shard >= 0 else "is expected"
            return f"{where} is another part of it than {what}"
    return f"{where} is not the single-device {demand.kind}"


def _side_by_side(have: Lineage, want: Lineage) -> bool:
    """Whether two tensors, of several values each, have the same values at the same intervals."""
    one, other = (
        Lineage(x.shape, tuple(joined([collapsed(t) for t in x.addends]))) for x in (have, want)
    )
    return any(t.places for t in have.addends) and placed_alike(one, other)


def _coverages(plan: Plan, derived: Derived, required: Sequence[Demand]) -> list[Conclusion]:
    """The boxes of what ranks hold of a single-device value, over all ranks, must cover it: of
    every parameter that the loss depends on, and of everything else that is expected."""
    shards = plan.single.shards
    gradients = {shards[n].name for n in derived.gradients}
    gradients |= {d.name for d in required if d.kind == GRADIENT and d.expected >= 0}
    boxes_of: dict[tuple[str, str], list[Demand]] = {}
    for demand in required:
        if demand.program >= 0:
            boxes_of.setdefault((demand.kind, demand.name), []).append(demand)
    others = sorted(key for key in boxes_of if key[0] not in (LOSS, GRADIENT))
    keys = [*((GRADIENT, name) for name in sorted(gradients)), *others]
    return [_coverage(plan, *key, boxes_of.get(key, [])) for key in keys]


def _coverage(plan: Plan, kind: str, name: str, demands: Sequence[Demand]) -> Conclusion:
    full = list(demands[0].full) if demands else []
    families = []
    for demand in demands:
        extents = {**plan.programs[demand.program].extents, MICROBATCH: plan.microbatches}
        offset = demand.offset or (ZERO,) * len(full)
        families.append(boxes(offset, demand.shape if demand.offset else full, extents))
    what = f"the shards of {name}" if kind == GRADIENT else f"what ranks hold of {kind} {name}"
    try:
        holds = covers(families, full)
        message = "" if holds else f"{what} do not cover its {full} elements"
    except TooMany as error:
        holds, message = False, f"whether {what} cover it is not decided: {error}"
    label = COVERAGE if kind == GRADIENT else f"{kind} {COVERAGE}"
    return Conclusion(label, name, (), holds, message)
