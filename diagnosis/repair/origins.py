"""Where a fault is, with what its candidate repairs are made of: instances, their operators,
values."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from shardproof.diagnosis.locate.divergences import Divergence
from shardproof.diagnosis.repair.edits import Edit, Site, applied, op_at, peer, sites
from shardproof.engine.lineage.lineage import Lineage
from shardproof.engine.lineage.nodes import Reduction
from shardproof.engine.plan.collectives import COLLECTIVES, COPIES
from shardproof.engine.plan.ir import Op, Plan
from shardproof.engine.schedule.dataflow import flow, label
from shardproof.engine.schedule.instances import Instance
from shardproof.engine.schedule.messages import match
from shardproof.partition.evidence.alignment import counterparts
from shardproof.partition.stages.partition import Partition

#: Rows that no operator of a program makes.
_MADE_UP: Final = frozenset({"shard", "seed", "accumulate"})
#: What moves a value without changing it.
MOVES: Final = frozenset({"identity", "multiref", "slice", *COPIES, *COLLECTIVES})
#: How far back from a fault the operators before it are looked at.
_STEPS: Final = 6


class Candidate(NamedTuple):
    """A plan with an edit that may put a cause right. ``cause``: what was wrong if it helps, in a
    few words; ``sentence``: what it does, after "with"; ``edits``: what was done, if that can be
    done elsewhere too.

    Example: ``Candidate("missing reduction", "an all-reduce over ranks [0, 1] ...", plan,
    (edit,))``.
    """

    cause: str
    sentence: str
    plan: Plan
    edits: tuple[Edit, ...] = ()


def edited(cause: str, sentence: str, plan: Plan, edits: Sequence[Edit]) -> Candidate:
    """The candidate that edits of single operators make.

    Example: ``edited("wrong scale", "the result of mul in `loss` times 2 on ranks [0]", plan,
    [edit])``.
    """
    return Candidate(cause, sentence, applied(plan, edits), tuple(edits))


class FaultContext:
    """A fault with what candidates are made of: its instances, their operators, what they read.

    Example: of an ``add`` that reads a partial sum, ``sites`` is ``[Site(0, 0, 65)]`` and
    ``before`` of that input the ``linear`` that made it.
    """

    def __init__(
        self, result: Partition, divergence: Divergence, origins: Sequence[tuple[Site, ...]]
    ):
        self.result = result
        self.plan = result.plan
        self.divergence = divergence
        self.origins = origins
        self.instances = [result.parallel.unrolled.instances[n] for n in divergence.instances]
        self.sites = list(dict.fromkeys(s for n in divergence.instances for s in origins[n]))
        self.maker = {
            v: n for n, r in enumerate(result.parallel.unrolled.instances) for v in r.outputs
        }

    @property
    def programs(self) -> list[int]:
        """The programs that have the fault."""
        return sorted({site.program for site in self.sites})

    def lineage(self, value: int) -> Lineage | None:
        """What a tensor of the parallel side is made of, if that is known."""
        return self.result.parallel.lineages[value] if value >= 0 else None

    def instance(self, number: int) -> Instance:
        """An instance of the parallel side by its number."""
        return self.result.parallel.unrolled.instances[number]

    def before(self, value: int, follows: Callable[[Instance], bool]) -> list[int]:
        """The instances that made a value, nearest first, as long as they follow from one
        another."""
        makers: list[int] = []
        while len(makers) < _STEPS and value in self.maker:
            number = self.maker[value]
            instance = self.instance(number)
            if instance.kind in _MADE_UP:
                break
            makers.append(number)
            if not instance.inputs or not follows(instance):
                break
            # The member of a collective that is on the same rank.
            place = (
                instance.outputs.index(value)
                if len(instance.inputs) == len(instance.outputs)
                else 0
            )
            value = instance.inputs[place]
        return makers

    def alike(self, site: Site) -> list[Site]:
        """The operator that this one is, on every program that has the fault."""
        peers = [peer(self.plan, site, program) for program in self.programs]
        return [here for here in peers if here is not None] or [site]

    def tensor(self, site: Site, value: int) -> int:
        """The tensor that an operator reads as ``value`` of its body (-1: not known)."""
        op = op_at(self.plan, site)
        for number, places in enumerate(self.origins):
            if site in places and value in op.inputs:
                instance, count = self.instance(number), len(op.inputs)
                at = places.index(site) * count + op.inputs.index(value)
                return instance.inputs[at] if at < len(instance.inputs) else -1
        return -1

    def backward_of(self, site: Site) -> list[Site]:
        """The backward operators of a forward one: of its name and module, from the same line."""
        op = op_at(self.plan, site)
        return [
            there
            for there, back in sites(self.plan.programs[site.program], site.program)
            if back.backward and back.name == op.name and back.source == op.source
        ]

    def reductions(self, value: int) -> list[Reduction]:
        """The sums and maxima that a value is a part of."""
        lineage, nodes = self.lineage(value), self.result.nodes
        return (
            [nodes.reductions[p.reduction] for t in lineage.addends for p in t.partials]
            if lineage
            else []
        )

    def is_partial(self, value: int) -> bool:
        """Whether a tensor is a sum or maximum that is not complete."""
        lineage = self.lineage(value)
        return lineage is not None and any(t.partials for t in lineage.addends)


def origins(result: Partition) -> list[tuple[Site, ...]]:
    """For each instance of the parallel side the operators that it was made of, one per program
    (none: no operator made it).  Rows of a program come in the order of its operators.

    Example: ``(Site(0, 0, 2),)`` for the all-reduce after an embedding, none for the row of a
    parameter.
    """
    unrolled, programs = result.parallel.unrolled, result.plan.programs
    if not unrolled.instances:
        return []
    labels = None
    if unrolled.symbolic:
        labels = label(programs, [flow(p) for p in programs], match(programs))
    queues = [
        iter(
            [
                Site(p, call.body, o)
                for c, call in enumerate(program.calls)
                if labels is None or labels[p][c] < 1
                for o, op in enumerate(program.bodies[call.body].ops)
                if op.name != "send"
            ]
        )
        for p, program in enumerate(programs)
    ]
    sites_of: list[tuple[Site, ...]] = []
    for instance in unrolled.instances:
        if instance.kind in _MADE_UP:
            sites_of.append(())
            continue
        who = instance.programs[1:] if instance.kind == "recv" else instance.programs
        sites_of.append(tuple(next(queues[p]) for p in who))
    return sites_of


def divergence_at(result: Partition, site: Site, cause: str) -> Divergence:
    """The instances that an operator makes, as where a fault begins.

    Example: the ``linear`` whose result a repair adds up, where the gradient of a norm was found to
    be partial.
    """
    rows = tuple(n for n, places in enumerate(origins(result)) if site in places)
    return Divergence(rows[:1], counterparts(result, loosely=True)[rows[0]], cause)


def loss_maker(result: Partition, otherwise: Divergence) -> Divergence:
    """The operator that makes a loss which is not the single device's, if there is one.

    Example: where all gradients are short of a factor 2, the ``mul`` that gives the loss.
    """
    for number, instance in enumerate(result.parallel.unrolled.instances):
        for conclusion in result.conclusions:
            if (
                conclusion.kind == "loss"
                and not conclusion.holds
                and conclusion.value in instance.outputs
            ):
                return Divergence(
                    (number,), counterparts(result, loosely=True)[number], conclusion.message
                )
    return otherwise


def named(plan: Plan, site: Site) -> str:
    """An operator by where it is in the model; a move of data by what was computed before it.

    Example: "linear in `h.1.mlp`", also for the all-reduce after it; "the backward of mul in
    `loss`".
    """
    op = _computed(plan, site)
    name = f"the backward of {op.name}" if op.backward else op.name
    return f"{name} in `{op.source.module}`" if op.source.module else f"{name} ({op.source.cell})"


def module_of(plan: Plan, site: Site) -> str:
    """The module of an operator, or of what was computed before it ("": none is known).

    Example: ``h.1.mlp`` for an all-reduce after its ``linear``.
    """
    return _computed(plan, site).source.module


def _computed(plan: Plan, site: Site) -> Op:
    """The operator itself, or the nearest one before it that is of a module and moves nothing."""
    body = plan.programs[site.program].bodies[site.body]
    op = op_at(plan, site)
    seen = site.op
    while (op.name in MOVES or not op.source.module) and op.inputs:
        back = [n for n in range(seen) if op.inputs[0] in body.ops[n].outputs]
        if not back:
            break
        seen, op = back[-1], body.ops[back[-1]]
    return op
