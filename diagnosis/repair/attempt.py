"""A plan that differs from a partitioned one by an edit of its parallel side: does it hold?

The single-device side is read once; only the parallel side is unrolled and traced again.  No claim
is stated: what is answered is whether the conclusions follow, not yet a proof.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import copy
from typing import Final

from shardproof.diagnosis.locate.culprits import Culprit, culprits
from shardproof.engine.errors import InvalidInput
from shardproof.engine.findings import UNSUPPORTED
from shardproof.engine.lineage.lineage import Lineage, Term
from shardproof.engine.lineage.nodes import NodeTable
from shardproof.engine.plan.ir import Plan
from shardproof.engine.plan_files import wellformed
from shardproof.engine.schedule.instances import Row, Unrolled
from shardproof.engine.schedule.unroll import unroll
from shardproof.engine.specification.conclusions import conclude
from shardproof.partition.evidence.alignment import counterparts
from shardproof.partition.inference.trace import Tracer, reference
from shardproof.partition.stages.partition import Partition, Side

#: What a tensor is called: its program, its name, how many of that name there are before it.  An
#: edit elsewhere does not change it.
Called = tuple[int, str, int]
#: What is assumed of tensors.
Assumed = Mapping[Called, Lineage]
NOTHING: Final[Assumed] = {}


class _Assuming(Tracer):
    """Reads rows as they are, but takes the outputs of some for what they should be."""

    given: Mapping[tuple[int, ...], tuple[Lineage, ...]] = {}

    def outputs(
        self, number: int, row: Row, inputs: Sequence[Lineage | None], unrolled: Unrolled
    ) -> list[Lineage]:
        known = self.given.get(row.outputs)
        if known is not None:
            return list(known)
        return super().outputs(number, row, inputs, unrolled)


def attempt(result: Partition, plan: Plan, assumed: Assumed = NOTHING) -> Partition | None:
    """The lineages and conclusions of ``plan``, whose single-device side is that of ``result``; no
    stages.  ``assumed``: of all outputs of an operator, or of none.  None if it is not well formed.
    """
    try:
        wellformed.check(plan)
        parallel = unroll(plan.programs, plan.microbatches)
        nodes = _copied(result.nodes)
        tracer = _Assuming(
            plan,
            plan.programs,
            nodes,
            reference(plan.single, result.single.unrolled),
            result.reference_size,
        )
        tracer.given = _given(parallel, assumed)
        trace = tracer.run(parallel)
    except InvalidInput:
        return None
    found = Partition(
        plan,
        nodes,
        result.single,
        result.derived,
        Side(plan.programs, parallel, trace.lineages, plan.microbatches),
        result.reference_size,
        faults=[*parallel.faults, *(f for f in trace.findings if f.kind != UNSUPPORTED)],
        findings=list(parallel.findings),
        unsupported=[
            *parallel.unsupported,
            *(f for f in trace.findings if f.kind == UNSUPPORTED),
        ],
        guessed=trace.guessed,
    )
    if not parallel.faults and not parallel.unsupported:
        found.conclusions = conclude(
            plan, nodes, result.derived, result.single.lineages, parallel, trace.lineages
        )
    return found


def called(unrolled: Unrolled) -> list[Called]:
    """What each tensor is called."""
    counts: dict[tuple[int, str], int] = {}
    found = []
    for tensor in unrolled.tensors:
        name = (tensor.program, tensor.name)
        found.append((*name, counts.get(name, 0)))
        counts[name] = counts.get(name, 0) + 1
    return found


def _given(unrolled: Unrolled, assumed: Assumed) -> dict[tuple[int, ...], tuple[Lineage, ...]]:
    """By the outputs of a row what is assumed of them."""
    if not assumed:
        return {}
    names = called(unrolled)
    return {
        row.outputs: tuple(assumed[names[v]] for v in row.outputs)
        for row in unrolled.rows
        if row.outputs and all(names[v] in assumed for v in row.outputs)
    }


def _copied(nodes: NodeTable) -> NodeTable:
    """A table to which nodes can be added, and the other one stays as it is."""
    table = copy(nodes)
    for name, held in vars(nodes).items():
        setattr(table, name, copy(held))
    return table


def holds(result: Partition) -> bool:
    """Whether all conclusions follow and nothing contradicts itself."""
    return (
        not result.faults
        and not result.unsupported
        and bool(result.conclusions)
        and all(c.holds for c in result.conclusions)
    )


def failing(result: Partition) -> frozenset[tuple[str, str, tuple[int, ...]]]:
    """The conclusions that do not hold."""
    return frozenset((c.kind, c.name, c.ranks) for c in result.conclusions if not c.holds)


def failed_rows(result: Partition) -> list[Culprit]:
    """Rows that have no result though they have all inputs: their operands do not fit; the same
    operator on several ranks is one."""
    side = result.parallel
    aligned = counterparts(result, loosely=True)
    found: dict[object, list[int]] = {}
    for number, row in enumerate(side.unrolled.rows):
        whole = all(v < 0 or side.lineages[v] is not None for v in row.inputs)
        if whole and any(side.lineages[v] is None for v in row.outputs):
            place = (aligned[number], row.name, row.source.location or row.source.cell)
            found.setdefault(place, []).append(number)
    return [Culprit(tuple(rows), aligned[rows[0]], "") for rows in found.values()]


def ought(result: Partition, culprit: Culprit) -> dict[Called, Lineage] | None:
    """What the rows of a culprit should give: the counterpart's nodes, seen as the wrong result (or
    an input of the same shape) sees its own.  None where that does not say which part of them."""
    if culprit.counterpart < 0:
        return None
    theirs = result.single.unrolled.rows[culprit.counterpart]
    names = called(result.parallel.unrolled)
    found: dict[Called, Lineage] = {}
    for number in culprit.rows:
        row = result.parallel.unrolled.rows[number]
        if len(row.outputs) != len(theirs.outputs):
            return None
        for mine, other in zip(row.outputs, theirs.outputs, strict=True):
            like = [result.parallel.lineages[v] for v in (mine, *row.inputs) if v >= 0]
            wanted = _seen(result, result.single.lineages[other], like)
            if wanted is None:
                return None
            found[names[mine]] = wanted
    return found


def _seen(
    result: Partition, whole: Lineage | None, like: Sequence[Lineage | None]
) -> Lineage | None:
    """The part of a single-device value that is to it what one of ``like`` is to its node."""
    if whole is None or len(whole.terms) != 1 or not like or like[0] is None:
        return None
    shape = like[0].shape
    term = whole.terms[0]
    if whole.shape == shape:
        return whole
    for other in like:
        if other is None or other.shape != shape or len(other.terms) != 1:
            continue
        if result.nodes[other.terms[0].node].extents == result.nodes[term.node].extents:
            return Lineage(shape, (Term(term.factor, term.node, other.terms[0].layout),))
    return None


class Resolved:
    """When a cause counts as put right: it is gone, no conclusion fails that held, and no operator
    before it does anything else than before."""

    def __init__(self, before: Partition, culprit: Culprit | None) -> None:
        self.before = before
        self.culprit = culprit
        self.keys = {key(c, before) for c in culprits(before)}
        self.failed = failing(before)

    def by(self, after: Partition) -> bool:
        old = {f.message for f in self.before.faults}
        if after.parallel.unrolled.faults:
            # What is found only once others are gone (messages are matched before anything is
            # read) may be there.
            left = {f.message for f in after.faults}
            known = bool(self.before.parallel.unrolled.faults)
            return known and (left < old or not left & old)
        if any(f.message not in old for f in after.faults):
            return False
        if len(after.unsupported) > len(self.before.unsupported):
            return False
        if self.before.parallel.unrolled.faults:
            return True
        now = failing(after)
        if not now <= self.failed:
            return False
        if self.culprit is None or self.before.faults:
            return now < self.failed or len(after.faults) < len(self.before.faults)
        wrong = {key(c, after): c for c in culprits(after)}
        if key(self.culprit, self.before)[0] in {key[0] for key in wrong}:
            return False
        new = [c.counterpart for key, c in wrong.items() if key not in self.keys]
        return not any(0 <= n < self.culprit.counterpart for n in new)


def key(culprit: Culprit, result: Partition) -> tuple[object, str]:
    row = result.parallel.unrolled.rows[culprit.rows[0]]
    place: object = culprit.counterpart
    if culprit.counterpart < 0:
        place = (row.kind, row.source)
    return place, culprit.cause


def reached(result: Partition, rows: Sequence[int]) -> set[int]:
    """The tensors that depend on what rows give, those themselves included."""
    found: set[int] = set()
    chosen = set(rows)
    for number, row in enumerate(result.parallel.unrolled.rows):
        if number in chosen or any(v in found for v in row.inputs):
            found.update(row.outputs)
    return found
