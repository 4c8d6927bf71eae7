"""A plan that differs from a partitioned one by an edit of its parallel side: does it hold?

The single-device side is read once; only the parallel side is unrolled and traced again.  No claim
is stated: what is answered is whether the conclusions follow, not yet a proof.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import copy
from typing import Final

from shardproof.diagnosis.locate.divergences import Divergence, divergences
from shardproof.diagnosis.repair.alike import meet_alike
from shardproof.engine.errors import InvalidInput
from shardproof.engine.findings import UNSUPPORTED
from shardproof.engine.lineage.expressions import Expression
from shardproof.engine.lineage.lineage import Addend, Lineage
from shardproof.engine.lineage.nodes import NodeTable
from shardproof.engine.plan.ir import Plan
from shardproof.engine.plan_files import wellformed
from shardproof.engine.schedule.instances import Instance, Unrolled
from shardproof.engine.schedule.order import Order
from shardproof.engine.schedule.unroll import unroll
from shardproof.engine.specification.conclusions import conclude
from shardproof.partition.evidence.alignment import counterparts
from shardproof.partition.inference.references import reference
from shardproof.partition.inference.trace import Trace, Tracer
from shardproof.partition.stages.partition import Partition, Side

#: What a tensor is called: its program, its name, how many of that name there are before it.  An
#: edit elsewhere does not change it.
Called = tuple[int, str, int]
#: What is assumed of tensors.
Assumed = Mapping[Called, Lineage]
NOTHING: Final[Assumed] = {}

#: Nodes that one trial may make, and all trials of a plan together, or so many times as many as
#: the plan has itself.  A repaired plan makes next to none; past what an edit did not put right
#: each value may be a sum of hundreds of products, which are none of the single device's.
MOST_NODES: Final = 1_500
MOST_NODES_IN_ALL: Final = 24_000
#: Readings of products that all trials of a plan together may take, or `TIMES_IN_ALL` times as many
#: as the plan has nodes: repairs take some hundreds, seldom thousands.
MOST_PRODUCTS_IN_ALL: Final = 40_000
TIMES: Final = 1
TIMES_IN_ALL: Final = 12


class OutOfWork(Exception):
    """A trial was ended because it made more nodes than it may: what the edit does is not known.

    Example: where rows are joined that are none of the single device's, attention over them.
    """


class _Bounded(NodeTable):
    """A table with room for ``most`` nodes; without a bound while nothing is tried."""

    most: int | None = None

    def define(
        self,
        definition: Expression,
        extents: tuple[int, ...] = (),
        coordinates: frozenset[str] = frozenset(),
    ) -> int:
        """As `NodeTable.define`; raises `OutOfWork` if there is no room."""
        number = super().define(definition, extents, coordinates)
        if self.most is not None and len(self.nodes) > self.most:
            raise OutOfWork
        return number


class _Assuming(Tracer):
    """Reads instances as they are, but takes the outputs of some for what they should be."""

    given: Mapping[tuple[int, ...], tuple[Lineage, ...]] = {}

    def outputs(
        self, number: int, instance: Instance, inputs: Sequence[Lineage | None], unrolled: Unrolled
    ) -> list[Lineage]:
        lineages = self.given.get(instance.outputs)
        if lineages is not None:
            return list(lineages)
        return super().outputs(number, instance, inputs, unrolled)


class Trials:
    """The edits of one plan that are tried.  They have one table of nodes, to which each adds its
    own, and what one of them has read is not read again for the next: most of a plan is the same
    in all of them.

    Example: of twelve candidates for a Llama plan without its reducers, the first reads 644 rows
    and the others only those that an edit changes.
    """

    def __init__(self, result: Partition) -> None:
        """``result``: the plan as it is, whose single-device side is that of all."""
        self.result = result
        self._nodes = _copied(result.nodes)
        self._reference = reference(result.plan.single, result.single.unrolled)
        self._tracers: dict[tuple[tuple[str, int], ...], _Assuming] = {}
        self._made = self._products = 0

    @property
    def spent(self) -> bool:
        """Whether all trials together have made as many nodes, or read as many products, as they
        may."""
        own = TIMES_IN_ALL * len(self.result.nodes)
        nodes, products = max(MOST_NODES_IN_ALL, own), max(MOST_PRODUCTS_IN_ALL, own)
        return self._made >= nodes or self._products >= products

    def trial(self, plan: Plan, assumed: Assumed = NOTHING) -> Partition | None:
        """The lineages and conclusions of ``plan``; no stages.  ``assumed``: of all outputs of an
        operator, or of none.  None if it is not well formed; raises `OutOfWork`.

        Example: with an all-reduce inserted after ``linear`` in ``h.1.mlp``, a partition in which
        every conclusion holds.
        """
        before = len(self._nodes)
        self._nodes.most = before + max(MOST_NODES, TIMES * len(self.result.nodes))
        try:
            return self._trial(plan, assumed)
        except OutOfWork:
            # What they know of rows that were not read to their end is left behind.
            self._tracers.clear()
            raise
        finally:
            self._nodes.most = None
            self._made += len(self._nodes) - before

    def _trial(self, plan: Plan, assumed: Assumed) -> Partition | None:
        result = self.result
        try:
            wellformed.check(plan)
            parallel = unroll(plan.programs, plan.microbatches, self._order(plan))
            tracer = self._tracer(plan)
            tracer.given = _given(parallel, assumed)
            trace = self._traced(tracer, parallel)
        except InvalidInput:
            return None
        outcome = Partition(
            plan,
            self._nodes,
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
            outcome.conclusions = conclude(
                plan,
                self._nodes,
                result.derived,
                result.single.lineages,
                parallel,
                trace.lineages,
                all_ranks=False,
            )
        return outcome

    def _traced(self, tracer: Tracer, parallel: Unrolled) -> Trace:
        """What a tracer reads, counted."""
        already = tracer.interpreter.products
        try:
            return tracer.run(parallel)
        finally:
            self._products += tracer.interpreter.products - already

    def _order(self, plan: Plan) -> Order | None:
        """The order of the plan as it is, if it is that of ``plan``, too, and was kept."""
        known = self.result.parallel.unrolled.order
        same = known is not None and meet_alike(self.result.plan.programs, plan.programs)
        return known if same and plan.microbatches == self.result.plan.microbatches else None

    def _tracer(self, plan: Plan) -> _Assuming:
        """A tracer of the plan, which knows what those of the same mesh have read."""
        tracer = _Assuming(
            plan, plan.programs, self._nodes, self._reference, self.result.reference_size
        )
        earlier = self._tracers.setdefault(tuple(sorted(tracer.mesh.items())), tracer)
        tracer.go_on_from(earlier)
        return tracer


def called(unrolled: Unrolled) -> list[Called]:
    """What each tensor is called.

    Example: ``(0, "wte.embedding", 0)``; of two tensors called "add" on rank 0 the second is
    ``(0, "add", 1)``.
    """
    counts: dict[tuple[int, str], int] = {}
    names = []
    for tensor in unrolled.tensors:
        name = (tensor.program, tensor.name)
        names.append((*name, counts.get(name, 0)))
        counts[name] = counts.get(name, 0) + 1
    return names


def _given(unrolled: Unrolled, assumed: Assumed) -> dict[tuple[int, ...], tuple[Lineage, ...]]:
    """By the outputs of an instance what is assumed of them."""
    if not assumed:
        return {}
    names = called(unrolled)
    return {
        instance.outputs: tuple(assumed[names[v]] for v in instance.outputs)
        for instance in unrolled.instances
        if instance.outputs and all(names[v] in assumed for v in instance.outputs)
    }


def _copied(nodes: NodeTable) -> _Bounded:
    """A table to which nodes can be added, and the other one stays as it is."""
    table = _Bounded()
    for name, content in vars(nodes).items():
        setattr(table, name, copy(content))
    return table


def holds(result: Partition) -> bool:
    """Whether all conclusions follow and nothing contradicts itself.

    Example: a plan with a ``shape`` fault does not, whatever its conclusions are.
    """
    return (
        not result.faults
        and not result.unsupported
        and bool(result.conclusions)
        and all(c.holds for c in result.conclusions)
    )


def failing(result: Partition) -> frozenset[tuple[str, str, int]]:
    """The conclusions that do not hold, by kind, name and program.

    Example: ``{("gradient", "h.0.ln_2.bias", 0), ("loss", "forward: loss.mul", 0), ...}``.
    """
    return frozenset((c.kind, c.name, c.program) for c in result.conclusions if not c.holds)


def failed_instances(result: Partition) -> list[Divergence]:
    """Rows that have no result though they have all inputs: their operands do not fit; the same
    operator on several ranks is one.

    Example: an ``add`` of [4, 32] and [4, 64] on two ranks is one `Divergence` of two instances.
    """
    side = result.parallel
    aligned = counterparts(result, loosely=True)
    alike: dict[object, list[int]] = {}
    for number, instance in enumerate(side.unrolled.instances):
        whole = all(v < 0 or side.lineages[v] is not None for v in instance.inputs)
        if whole and any(side.lineages[v] is None for v in instance.outputs):
            place = (
                aligned[number],
                instance.name,
                instance.source.location or instance.source.cell,
            )
            alike.setdefault(place, []).append(number)
    return [Divergence(tuple(rows), aligned[rows[0]], "") for rows in alike.values()]


def ought(result: Partition, divergence: Divergence) -> dict[Called, Lineage] | None:
    """What the instances of a divergence should give: the counterpart's nodes, seen as the wrong
    result (or an input of the same shape) sees its own.  None where that does not say which part of
    them.

    Example: of an ``add`` that was given a partial sum, ``{(0, "h.1.mlp.add", 0): n127[a2[<8*dp +
    4*mb> +4 of 16], a1[32], a0[64]]}``.
    """
    if divergence.counterpart < 0:
        return None
    theirs = result.single.unrolled.instances[divergence.counterpart]
    names = called(result.parallel.unrolled)
    expected: dict[Called, Lineage] = {}
    for number in divergence.instances:
        instance = result.parallel.unrolled.instances[number]
        if len(instance.outputs) != len(theirs.outputs):
            return None
        for mine, other in zip(instance.outputs, theirs.outputs, strict=True):
            like = [result.parallel.lineages[v] for v in (mine, *instance.inputs) if v >= 0]
            wanted = _seen(result, result.single.lineages[other], like)
            if wanted is None:
                return None
            expected[names[mine]] = wanted
    return expected


def _seen(
    result: Partition, whole: Lineage | None, like: Sequence[Lineage | None]
) -> Lineage | None:
    """The part of a single-device value that is to it what one of ``like`` is to its node."""
    if whole is None or len(whole.addends) != 1 or not like or like[0] is None:
        return None
    shape = like[0].shape
    addend = whole.addends[0]
    if whole.shape == shape:
        return whole
    for other in like:
        if other is None or other.shape != shape or len(other.addends) != 1:
            continue
        if result.nodes[other.addends[0].node].extents == result.nodes[addend.node].extents:
            return Lineage(shape, (Addend(addend.factor, addend.node, other.addends[0].view),))
    return None


class Resolved:
    """When a cause counts as put right: it is gone, no conclusion fails that held, and no operator
    before it does anything else than before.

    Example: an all-reduce that makes the loss right, and a gradient wrong that was right, does not
    count.
    """

    def __init__(self, before: Partition, divergence: Divergence | None) -> None:
        self.before = before
        self.divergence = divergence
        self.keys = {key(c, before) for c in divergences(before)}
        self.failed = failing(before)

    def by(self, after: Partition) -> bool:
        """Whether what was wrong is no longer so after an edit."""
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
        if self.divergence is None or self.before.faults:
            return now < self.failed or len(after.faults) < len(self.before.faults)
        wrong = {key(c, after): c for c in divergences(after)}
        if key(self.divergence, self.before)[0] in {key[0] for key in wrong}:
            return False
        new = [c.counterpart for key, c in wrong.items() if key not in self.keys]
        return not any(0 <= n < self.divergence.counterpart for n in new)


def key(divergence: Divergence, result: Partition) -> tuple[object, str]:
    """By what a divergence is recognised in another state of the plan: its counterpart (where it
    has none, its kind and source) and its cause.

    Example: ``(93, "its input h.1.mlp.linear is still a partial sum: a reduction before it is
    missing")``.
    """
    instance = result.parallel.unrolled.instances[divergence.instances[0]]
    place: object = divergence.counterpart
    if divergence.counterpart < 0:
        place = (instance.kind, instance.source)
    return place, divergence.cause


def reached(result: Partition, rows: Sequence[int]) -> set[int]:
    """The tensors that depend on what instances give, those themselves included.

    Example: of 309 tensors of a GPT 206 depend on the last ``add`` of its feed-forward block,
    gradients included.
    """
    tensors: set[int] = set()
    chosen = set(rows)
    for number, instance in enumerate(result.parallel.unrolled.instances):
        if number in chosen or any(v in tensors for v in instance.inputs):
            tensors.update(instance.outputs)
    return tensors
