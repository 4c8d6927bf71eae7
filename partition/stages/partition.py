"""The partition of a plan: stages, claims, templates and what they have to conclude.

A *stage* is one operator instance (a family over coordinates) between the lineages of its inputs
and outputs.  Its claim is an *obligation*; obligations that are the same up to names and places
share a *template*.  Messages, loads and parameters have nothing to solve: their lineage is their
source's, or an assumption.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from itertools import chain
from typing import Final, NamedTuple

from shardproof.engine.claims.cone import Cut, recomputed
from shardproof.engine.claims.scattered import of_the_sum
from shardproof.engine.claims.symmetry import is_translated
from shardproof.engine.errors import InvalidInput, ShapeMismatch, Unsupported
from shardproof.engine.findings import UNSUPPORTED, Finding
from shardproof.engine.lineage.lineage import BROADCAST, Addend, Lineage
from shardproof.engine.lineage.nodes import NodeTable
from shardproof.engine.obligations.obligation import Claim, Obligation, build
from shardproof.engine.obligations.spot_check import holds
from shardproof.engine.plan.collectives import COPIES
from shardproof.engine.plan.ir import MICROBATCH, Plan, Program
from shardproof.engine.records.run import PARALLEL, SINGLE, StageRecord
from shardproof.engine.schedule.instances import Instance, Unrolled
from shardproof.engine.schedule.unroll import unroll
from shardproof.engine.specification.boxes import box_of
from shardproof.engine.specification.conclusions import Conclusion, conclude
from shardproof.engine.specification.definedness import Domain, Signs, domain
from shardproof.engine.specification.demands import compared_alone, roots
from shardproof.engine.specification.gradients import Derived, derive
from shardproof.partition.inference.forms import Forms
from shardproof.partition.inference.interpreter import LineageInterpreter
from shardproof.partition.inference.memoise import Repeat
from shardproof.partition.inference.trace import ROWS_TOLD, Trace, Tracer
from shardproof.partition.inference.views import lies_in
from shardproof.partition.stages.factors import factors
from shardproof.partition.stages.single import SingleSide, is_alike, read_rows
from shardproof.partition.templates.keys import key
from shardproof.partition.templates.memo import Memo, built
from shardproof.partition.templates.signatures import Signatures

#: Rows that claim nothing beyond their source or an assumption.
UNCLAIMED = COPIES | {"shard", "load", "seed"}


class Template(NamedTuple):
    """Claims that are one claim: one of them, and its obligation if values were guessed, since it
    had to be looked at (else `partition.stages.lowering` makes it).

    Example: ``Template(claim)`` of ``gelu`` in layer 0, which those of all layers share.
    """

    claim: Claim
    obligation: Obligation | None = None


@dataclass(slots=True)
class Side:
    """One side of a plan, unrolled, with a lineage per tensor; ``repeats``: instances that are
    another instance over other nodes; ``opened``: definitions that show what was inferred of an
    instance.

    Example: the ranks of the GPT of examples/gpt.py: one program, 265 instances, 310 tensors.
    """

    programs: Sequence[Program]
    unrolled: Unrolled
    lineages: list[Lineage | None]
    microbatches: int
    repeats: Mapping[int, Repeat] = field(default_factory=dict)
    opened: Mapping[int, frozenset[int]] = field(default_factory=dict)

    def claim(self, instance: Instance) -> Claim | None:
        """The claim of an instance; None if a lineage is missing."""
        inputs = tuple(self.lineages[v] if v >= 0 else None for v in instance.inputs)
        outputs = [self.lineages[v] for v in instance.outputs]
        present = tuple(x for x in outputs if x is not None)
        missing = any(x is None and v >= 0 for x, v in zip(inputs, instance.inputs, strict=True))
        if missing or len(present) < len(outputs):
            return None
        extents = {**self.programs[instance.programs[0]].extents, MICROBATCH: self.microbatches}
        batched = tuple(self.unrolled.tensors[v].batched for v in instance.inputs if v >= 0)
        return Claim(
            instance.kind,
            instance.name,
            instance.attrs,
            instance.backward,
            instance.over,
            len(instance.programs),
            inputs,
            present,
            extents,
            batched,
        )


@dataclass(slots=True, eq=False, weakref_slot=True)
class Partition:
    """Everything that is claimed about a plan.

    ``templates``: one per distinct claim; ``examples``: for each template the (side, instance)
    whose claim it is; ``reference_size``: nodes below are the single-device program's.
    ``more``: representatives of every piece of an axis beyond the fewest that are enough.
    ``faults``: the plan contradicts itself; ``unsupported``: operators without a meaning here.
    ``counted``: a side sums what does not vary over this many positions (0: some number): its value
    tells how many there are.  ``guessed``: some values were matched by what they multiply out to
    (`partition.inference.match`);
    ``wider``: templates whose cut was moved back, and how; ``memo``: what is
    known from other plans, if anybody asks of several; ``unread``: what is made of strays
    (`partition.inference.collectives.is_stray`) was not read.
    """

    plan: Plan
    nodes: NodeTable
    single: Side
    derived: Derived
    parallel: Side
    reference_size: int
    stages: list[StageRecord] = field(default_factory=list)
    templates: list[Template] = field(default_factory=list)
    examples: list[tuple[str, int]] = field(default_factory=list)
    conclusions: list[Conclusion] = field(default_factory=list)
    faults: list[Finding] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)
    unsupported: list[Finding] = field(default_factory=list)
    more: int = 0
    unread: bool = False
    guessed: bool = False
    counted: frozenset[int] = frozenset()
    wider: dict[int, Cut] = field(default_factory=dict)
    memo: Memo | None = None

    def side(self, name: str) -> Side:
        """A side by its name."""
        return self.single if name == SINGLE else self.parallel


def partition(
    plan: Plan,
    more: int = 0,
    memo: Memo | None = None,
    tell: Callable[[int, int], None] = lambda done, total: None,
    begun: Callable[[Derived, Unrolled], bool] = lambda single, parallel: False,
    ahead: SingleSide | None = None,
    reading: type[LineageInterpreter] = LineageInterpreter,
) -> Partition:
    """Partition a plan; raises `engine.errors.InvalidInput` if its sides are not of one model or
    if the single-device side contradicts itself, and `Unsupported` if that has no loss to hold
    anything against.

    Example: the GPT of examples/gpt.py has 539 stages, of which 77 claim nothing, and 204
    templates.

    ``memo``: obligations that are known from other plans.  ``tell``: how many instances are done,
    of how many; each is read, and then its claim is compared with others.  ``begun``: given both
    sides unrolled, before they are read, it says whether the plan is likely to be wrong: then what
    is made of strays is not read.  ``ahead``: what `read_single` gave for the single-device side,
    which is used up; of another one it is left aside.  ``reading``: how operators are read.
    """
    if ahead is not None and (ahead.program is not plan.single or ahead.loss != plan.loss):
        ahead = None
    single = unroll([plan.single], 1) if ahead is None else ahead.given
    parallel = unroll(plan.programs, plan.microbatches)
    if plan.otherwise is None:
        # Only where the plan may be another one its order is asked for again.
        parallel.order = None
    if single.unsupported:
        raise Unsupported(single.unsupported[0].message)
    _whole(single.faults)
    derived = derive(plan, single)
    likely_wrong = begun(derived, parallel)
    own, others = len(derived.unrolled.instances), len(parallel.instances)
    total = 2 * (own + others)
    sound = not parallel.faults and not parallel.unsupported
    with_table = sound and bool(plan.expectations)
    once, many = compared_alone(plan, derived, parallel) if with_table else (set[int](), set[int]())
    if ahead is None or once or not is_alike(ahead.rows, derived.unrolled):
        ahead = read_rows(plan, single, derived, lambda done: tell(done, total), once, reading)
    nodes, forms, known, first = ahead.nodes, ahead.forms, ahead.known, ahead.trace
    derived = derived._replace(unrolled=ahead.rows)
    _whole([f for f in first.findings if f.kind != UNSUPPORTED])
    size = len(nodes)
    tracer = Tracer(plan, plan.programs, nodes, known, size, forms, reading)
    second = tracer.run(parallel, lambda done: tell(own + done, total), not likely_wrong, many)
    result = Partition(
        plan,
        nodes,
        Side((plan.single,), derived.unrolled, first.lineages, 1, first.repeats, first.opened),
        derived,
        Side(
            plan.programs,
            parallel,
            second.lineages,
            plan.microbatches,
            second.repeats,
            second.opened,
        ),
        size,
        faults=list(parallel.faults),
        findings=list(parallel.findings),
        unsupported=list(parallel.unsupported),
        more=more,
        unread=bool(second.strayed),
        guessed=first.guessed or second.guessed,
        counted=first.counted | second.counted,
        memo=memo,
    )
    if memo is not None:
        memo.begin(nodes, size)
    for finding in (*first.findings, *second.findings):
        kind = result.unsupported if finding.kind == UNSUPPORTED else result.faults
        kind.append(finding)
    partial = second.partial
    if sound:
        result.conclusions = conclude(
            plan, nodes, derived, first.lineages, parallel, second.lineages
        )
        _stage(result, forms, lambda done: tell(own + others + done, total))
        live = {s.row for s in result.stages if s.side == PARALLEL and s.live}
        partial = {number: of for number, of in partial.items() if number in live}
    result.findings += _less_defined(nodes, first, partial, tracer.mesh)
    tell(total, total)
    return result


def _whole(faults: Sequence[Finding]) -> None:
    """Raise `InvalidInput` for a single-device side that contradicts itself: it computes nothing
    that a plan could be held against."""
    if faults:
        raise InvalidInput(f"the single-device plan contradicts itself: {faults[0].message}")


class LoweredClaim(NamedTuple):
    """What became of a claim: its template, or `NONE` and why there is none; ``alone``: it has to
    be stated by itself, with its cut moved back, since it may not hold as it is; ``opened``: behind
    which nodes it lies then.

    Example: ``LoweredClaim(84)``; ``LoweredClaim(-1, "a tensor without a lineage")``.
    """

    template: int
    problem: str = ""
    alone: bool = False
    opened: tuple[int, ...] = ()


#: In place of a template: there is nothing to solve.
NONE: Final = -1

#: What has to be stated alone has no template that others could share.
ALONE: Final = LoweredClaim(NONE, alone=True)

#: By how many definitions the cut of a claim is moved back, at most; the checker allows no less
#: (`checker.obligations.restate.MOST_WIDENED`).
WIDEST: Final = 5

#: Why the claims of a plan are not stated one by one.
POINTLESS: Final = "not stated, since a conclusion does not hold"


@dataclass(slots=True)
class Known:
    """Templates so far: what became of claims by signature, of repeated instances by side and
    number, and of examples by form."""

    signatures: Signatures
    equal: dict[tuple[object, ...], LoweredClaim] = field(default_factory=dict)
    repeats: dict[tuple[str, int], LoweredClaim] = field(default_factory=dict)
    forms: dict[tuple[object, ...], list[tuple[Claim, LoweredClaim]]] = field(default_factory=dict)


def _stage(result: Partition, forms: Forms, tell: Callable[[int], None]) -> None:
    """Give every instance its template; claims of one key share it."""
    known = Known(Signatures(forms))
    pointless = any(not c.holds for c in result.conclusions)
    concluded = roots(result.plan, result.derived, result.parallel.unrolled)
    for name, about in zip((SINGLE, PARALLEL), concluded, strict=True):
        side = result.side(name)
        live = _live(side, about)
        for number, instance in enumerate(side.unrolled.instances):
            if len(result.stages) % ROWS_TOLD == 0:
                tell(len(result.stages))
            used = not live.isdisjoint(instance.outputs)
            if instance.kind in UNCLAIMED:
                result.stages.append(StageRecord(name, number, NONE, used))
                continue
            lowered = LoweredClaim(NONE, POINTLESS)
            if not pointless:
                lowered = _template(result, name, number, known)
            stage = StageRecord(
                name, number, lowered.template, used, lowered.problem, lowered.opened
            )
            result.stages.append(stage)


def _template(result: Partition, name: str, number: int, known: Known) -> LoweredClaim:
    side = result.side(name)
    repeat = side.repeats.get(number)
    lowered = None if repeat is None else known.repeats.get((name, repeat.number))
    if lowered is not None:
        return lowered
    claim = side.claim(side.unrolled.instances[number])
    if claim is None:
        return LoweredClaim(NONE, "a tensor without a lineage")
    claim = of_the_sum(result.nodes, claim)
    try:
        signature = known.signatures(claim)
    except Unsupported as error:
        # What is too large down to the inputs may be small behind them.
        signature = None
        behind = result.guessed or number in side.opened
        lowered = ALONE if behind else LoweredClaim(NONE, str(error))
    if signature is not None:
        lowered = known.equal.get(signature.content)
        if lowered is None:
            lowered = _alike(result, claim, known) or _lowered(result, claim, known)
            known.equal[signature.content] = lowered
    assert lowered is not None
    if lowered.alone:
        lowered = _unfolded(result, claim, side.opened.get(number, frozenset()))
    elif (
        signature is not None
        and repeat is not None
        and repeat.row == number
        and signature.nodes <= repeat.nodes
    ):
        # A claim that speaks of no other nodes is the same claim wherever the instance is repeated.
        known.repeats[name, repeat.number] = lowered
    if lowered.template == len(result.examples):
        result.examples.append((name, number))
    return lowered


def _alike(result: Partition, claim: Claim, known: Known) -> LoweredClaim | None:
    """What became of a claim that is this one, moved."""
    for example, lowered in known.forms.get(key(result.nodes, claim), ()):
        if is_same(result.nodes, claim, example):
            return lowered
    return None


def _lowered(result: Partition, claim: Claim, known: Known) -> LoweredClaim:
    """A new template for a claim; where values were guessed, one that is read is also made of
    others, or laws may join its factors, `ALONE` if it does not hold, or why it cannot be stated.
    """
    lowered = LoweredClaim(len(result.templates))
    obligation = None
    if result.guessed or _makes_what_it_reads(claim) or factors(result.nodes, claim):
        try:
            obligation = built(result.nodes, claim, result.more, result.memo)
        except Unsupported:
            # What is too large to state down to the inputs may be small behind them.
            lowered = ALONE
        except ShapeMismatch as error:
            lowered = LoweredClaim(NONE, str(error))
        else:
            lowered = lowered if holds(obligation) else ALONE
    if lowered.template != NONE:
        result.templates.append(Template(claim, obligation))
    known.forms.setdefault(key(result.nodes, claim), []).append((claim, lowered))
    return lowered


def _makes_what_it_reads(claim: Claim) -> bool:
    """Whether a claim reads several values in one tensor and gives one of them: of ``h h`` and
    ``h`` side by side, squared, the second is ``h h``, which the claim takes as a symbol."""
    read = [x.addends for x in claim.inputs if x is not None]
    made = {addend.node for x in claim.outputs for addend in x.addends}
    several = any(len(addends) > 1 for addends in read)
    return several and any(addend.node in made for addends in read for addend in addends)


def _unfolded(result: Partition, claim: Claim, opened: frozenset[int]) -> LoweredClaim:
    """A template for this claim alone, with its cut moved back until it may hold: what lies behind
    the cut is not part of what claims are compared by.  ``opened``: definitions that show it."""
    inputs = [x for x in claim.inputs if x is not None]
    named = [opened, opened | recomputed(result.nodes, inputs), factors(result.nodes, claim)]
    cuts: list[Cut] = [cut for cut in dict.fromkeys(named) if cut]
    for cut in [*cuts, *range(1, WIDEST + 1)]:
        try:
            obligation = build(result.nodes, claim, widened=cut, more=result.more)
        except (Unsupported, ShapeMismatch):
            if isinstance(cut, frozenset):
                continue
            break
        if holds(obligation):
            result.wider[len(result.templates)] = cut
            result.templates.append(Template(claim, obligation))
            behind = tuple(sorted(cut)) if isinstance(cut, frozenset) else ()
            return LoweredClaim(len(result.templates) - 1, opened=behind)
    try:
        result.templates.append(Template(claim, build(result.nodes, claim, more=result.more)))
    except Unsupported as error:
        return LoweredClaim(NONE, str(error))
    return LoweredClaim(len(result.templates) - 1)


def is_same(nodes: NodeTable, claim: Claim, example: Claim) -> bool:
    """Whether two claims of one form are one claim, moved.

    Example: the claims of ``linear`` at rows [0, 32) and at rows [32, 64) of its weight are.
    """

    def sides(x: Claim) -> tuple[list[Lineage], list[Lineage]]:
        return [i for i in x.inputs if i is not None], list(x.outputs)

    return is_translated(nodes, sides(claim), sides(example), adds=claim.adds)


def _live(side: Side, about: set[int]) -> set[int]:
    """Values that some conclusion depends on; ``about``: those that conclusions are about."""
    live = set(about)
    for instance in reversed(side.unrolled.instances):
        if not live.isdisjoint(instance.outputs):
            live.update([v for v in instance.inputs if v >= 0])
    return live


def _less_defined(
    nodes: NodeTable,
    single: Trace,
    parallel: Mapping[int, Sequence[tuple[str, Addend]]],
    mesh: Mapping[str, int],
) -> list[Finding]:
    """Functions that are undefined somewhere, of entries that the single-device program takes none
    of that domain of, and which are not in it by their definition: the parallel program might be
    undefined where the other one is not.  ``parallel``: what instances that a conclusion depends on
    take them of; what nothing reads may be undefined."""
    defined: dict[tuple[int, int], list[tuple[Domain, Addend]]] = {}
    for f, t in chain.from_iterable(single.partial.values()):
        defined.setdefault((t.node, _sign(t.factor)), []).append((domain(f), t))
    signs = Signs(nodes)
    findings = {}
    for function, addend in chain.from_iterable(parallel.values()):
        where = domain(function)
        known = defined.get((addend.node, _sign(addend.factor)), [])
        part = addend.partials or addend.places
        box = None if part else box_of(nodes, addend)
        if signs.within(addend.factor, addend.node, where, box) or any(
            signs.follows(own, addend.factor, addend.node, where)
            and (_is_whole(box) or lies_in(addend, box, mesh))
            for own, box in known
        ):
            continue
        findings[function, addend.node] = Finding(
            "definedness",
            f"the parallel program takes {function} of values that the single-device program does "
            "not take it of",
            operator=function,
            actual=str(addend),
        )
    return list(findings.values())


def _sign(factor: Fraction) -> int:
    return (factor > 0) - (factor < 0)


def _is_whole(addend: Addend) -> bool:
    """Whether a view is of all entries of its node."""
    return not addend.view.fixed and all(
        a.full for dim in addend.view.dims for a in dim if a.axis != BROADCAST
    )


def rows(result: Partition) -> Iterator[tuple[StageRecord, Instance, Mapping[str, int]]]:
    """All stages with their instances and the extents of their coordinates.

    Example: ``(StageRecord("parallel", 38, 84, True), the all-reduce, {"dp": 2, "tp": 2})``.
    """
    for stage in result.stages:
        side = result.side(stage.side)
        instance = side.unrolled.instances[stage.row]
        yield stage, instance, side.programs[instance.programs[0]].extents
