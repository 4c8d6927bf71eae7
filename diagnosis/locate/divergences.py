"""Where a parallel program first does something else than the single-device program.

Operators of the two sides are aligned by what they are and where they come from in the model's
source, never by their numbers in the plan.  An aligned operator whose result is no view of its
counterpart's result, although nothing that it reads is already wrong, is where a fault begins.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from fractions import Fraction
from math import prod
from typing import Final, Literal, NamedTuple, TypeAlias
from weakref import WeakKeyDictionary

from shardproof.engine.claims.claim import SUMS
from shardproof.engine.findings import Finding
from shardproof.engine.lineage.lineage import Addend, Lineage
from shardproof.engine.schedule.instances import Instance
from shardproof.engine.specification.demands import roots
from shardproof.partition.evidence.alignment import PLACES, counterparts
from shardproof.partition.inference.collectives import JOINS
from shardproof.partition.stages.partition import Partition

#: What an operator's result is a view of: (factor, node) of each addend.
Essence = frozenset[tuple[Fraction, int]]


#: Attributes that differ where a rank has a part only.
_OF_SHARDS: Final = PLACES | {"start", "size"}

#: What is wrong with a sum over positions that are not next to one another.
GAPS: Final = "what it adds up has gaps that nothing fills"

#: What is wrong with a mean over a part of the positions.
AVERAGED: Final = (
    "its result is the mean over a part of what the single-device operator takes it over"
)

#: Ranks that are named one by one.
FEW: Final = 4

#: Conclusions about values of the single-device side.
OWN = "single-device gradient"


#: What a fault is likely to be, as findings name it; empty where that cannot be said.
Kind: TypeAlias = Literal["missing reduction", "wrong scale", ""]


class Fault(NamedTuple):
    """What is wrong with an instance's own doing: in words, and what that makes likely; ``factor``:
    it is what it should be but for that.

    Example: ``Fault("its result is 1/2 times the single-device operator's", "wrong scale",
    Fraction(1, 2))``.
    """

    words: str
    kind: Kind = ""
    factor: Fraction | None = None


class Divergence(NamedTuple):
    """Where a fault begins. ``instances``: of the parallel side, one per program that has the
    fault; ``counterpart``: the aligned instance of the single-device side (-1: none); ``cause``:
    what is wrong, in words; ``kind``: what that makes likely.

    Example: ``Divergence((101,), 93, "its input h.1.mlp.linear is still a partial sum: ...",
    "missing reduction")``.
    """

    instances: tuple[int, ...]
    counterpart: int
    cause: str
    kind: Kind = ""


def essence(lineage: Lineage | None) -> Essence | None:
    """What a value is, wherever it lies: the nodes of its addends with their factors.

    Example: of ``1/2*n40[a1[<8*dp + 4*mb> +4 of 16], a2[32], a0[64]]``, ``{(Fraction(1, 2), 40)}``.
    """
    if lineage is None:
        return None
    return frozenset((t.factor, t.node) for t in lineage.addends)


#: A partition is asked about again and again, and is not changed once it is made; what is known of
#: it is forgotten with it.
_KNOWN: WeakKeyDictionary[Partition, tuple[Divergence, ...]] = WeakKeyDictionary()


def divergences(result: Partition) -> tuple[Divergence, ...]:
    """Where faults begin, in the order of the program; the same operator on several ranks is one
    divergence.

    Example: a loss that is divided by the number of tensor-parallel ranks has two, the ``mul`` and
    its backward.
    """
    divergences = _KNOWN.get(result)
    if divergences is None:
        divergences = _KNOWN[result] = _divergences(result)
    return divergences


def _divergences(result: Partition) -> tuple[Divergence, ...]:
    """Where faults begin.  The factor of a local mean, and of its gradients, is made up for later
    by averaging over replicas, where some conclusion holds: it is then looked at only where there
    is no other divergence."""
    aligned = counterparts(result, loosely=True)
    instances = result.parallel.unrolled.instances
    live = _compared(result)
    faults = [
        None if live.isdisjoint(instance.outputs) else _fault(result, instance, aligned[number])
        for number, instance in enumerate(instances)
    ]
    some = any(c.holds and c.value >= 0 and c.kind != OWN for c in result.conclusions)
    means = {fault.factor for fault in faults if fault and some and fault.words == AVERAGED}
    begun = _begin(result, aligned, faults, means)
    return begun or (_begin(result, aligned, faults, set()) if means else ())


def _begin(
    result: Partition,
    aligned: Sequence[int],
    faults: Sequence[Fault | None],
    means: Collection[Fraction | None],
) -> tuple[Divergence, ...]:
    """Where faults begin, but for the factors ``means`` of values that no failing conclusion is
    about, in the order of the program."""
    wrong: set[int] = set()
    ends = _ends(result, aligned)
    alike: dict[tuple[object, ...], list[int]] = {}
    about: dict[tuple[object, ...], tuple[int, str, Kind]] = {}
    gaps = _ranges(result, [c.value for c in result.conclusions if c.kind != OWN and not c.holds])
    for number, instance in enumerate(result.parallel.unrolled.instances):
        tainted = any(v in wrong for v in instance.inputs)
        fault = None if tainted else faults[number] or _gap(result, instance, gaps)
        if fault and fault.factor in means and ends.isdisjoint(instance.outputs):
            continue
        if fault or tainted:
            wrong.update(instance.outputs)
        if fault:
            counterpart = aligned[number]
            key = (
                counterpart if counterpart >= 0 else (instance.kind, instance.source),
                fault.words,
            )
            alike.setdefault(key, []).append(number)
            about[key] = (counterpart, fault.words, fault.kind)
    return tuple(Divergence(tuple(rows), *about[key]) for key, rows in alike.items())


def _compared(result: Partition) -> set[int]:
    """Values that something compared depends on: what another operator does (a backward pass whose
    gradients are not compared) is no fault of the plan."""
    instances = result.parallel.unrolled.instances
    _, live = roots(result.plan, result.derived, result.parallel.unrolled)
    for instance in reversed(instances):
        if not live.isdisjoint(instance.outputs):
            live.update(instance.inputs)
    return live


def _ends(result: Partition, aligned: Sequence[int]) -> set[int]:
    """Values that failing conclusions are about, and those that become them through instances that
    the single device does not have (a copy, an accumulation)."""
    ends = {c.value for c in result.conclusions if not c.holds}
    for number, instance in reversed(list(enumerate(result.parallel.unrolled.instances))):
        if aligned[number] < 0 and not ends.isdisjoint(instance.outputs):
            ends.update(instance.inputs)
    return ends


def _fault(result: Partition, instance: Instance, counterpart: int) -> Fault | None:
    """What is wrong with an instance's own doing, if anything can be said."""
    outputs = [result.parallel.lineages[v] for v in instance.outputs]
    if any(x is None for x in outputs):
        return None
    if counterpart >= 0:
        expected = result.single.unrolled.instances[counterpart]
        for mine, theirs in zip(instance.outputs, expected.outputs, strict=False):
            a, b = essence(result.parallel.lineages[mine]), essence(result.single.lineages[theirs])
            if a != b:
                return _difference(result, instance, a, b)
        return _diagonal(result, instance)
    new = [
        t.node
        for x in outputs
        if x is not None
        for t in x.addends
        if t.node >= result.reference_size
    ]
    old = [
        t.node
        for v in instance.inputs
        if v >= 0
        for t in _addends(result, v)
        if t.node >= result.reference_size
    ]
    if new and not old:
        strange = Fault("its result is no part of any single-device value")
        return _partial_input(result, instance) or strange
    return _scrambled(result, instance)


def _diagonal(result: Partition, instance: Instance) -> Fault | None:
    """What is wrong with a product of partial sums: over ranks that each have the same part of two
    sums, no reduction makes it the product of the sums."""

    def twice(values: Iterable[int]) -> bool:
        for addend in (t for v in values if v >= 0 for t in _addends(result, v)):
            axes = [
                (axis, partial.reduction)
                for partial in addend.partials
                for axis, _ in partial.start.terms
            ]
            if len({axis for axis, _ in set(axes)}) < len(set(axes)):
                return True
        return False

    return (
        _partial_input(result, instance)
        if twice(instance.outputs) and not twice(instance.inputs)
        else None
    )


def _scrambled(result: Partition, instance: Instance) -> Fault | None:
    """What is wrong with an instance that joins parts: parts of one value that lie side by side are
    no part of it in this order."""
    if instance.kind not in JOINS or any(
        t.places for v in instance.inputs for t in _addends(result, v)
    ):
        return None
    for value in instance.outputs:
        placed = [(t.factor, t.node) for t in _addends(result, value) if t.places]
        if len(set(placed)) < len(placed):
            other = "it joins parts of one value in another order than the single device has them"
            return Fault(other)
    return None


def _ranges(result: Partition, values: Iterable[int]) -> set[tuple[int, int]]:
    """The sums that values are parts of, and how often the parts repeat."""
    return {
        (p.reduction, p.extent)
        for v in values
        if v >= 0
        for t in _addends(result, v)
        for p in t.partials
    }


def _gap(result: Partition, instance: Instance, gaps: set[tuple[int, int]]) -> Fault | None:
    """What is wrong with a sum over positions with gaps that are still there where a conclusion
    fails."""
    if (
        instance.kind in SUMS
        and (_ranges(result, instance.outputs) - _ranges(result, instance.inputs)) & gaps
    ):
        return Fault(GAPS)
    return None


def _addends(result: Partition, value: int) -> tuple[Addend, ...]:
    lineage = result.parallel.lineages[value]
    return lineage.addends if lineage is not None else ()


def times(factor: Fraction) -> str:
    """A factor as a person reads it: exact where it is short.

    Example: "1/2", "about 8.10001e-07" for 1/1234567.
    """
    return str(factor) if factor.denominator < 1000 else f"about {float(factor):.6g}"


def shown(value: object) -> str:
    """A constant as a person reads it.

    Example: "1/2" for a fraction, "sum" for the string.
    """
    return times(value) if isinstance(value, Fraction) else str(value)


def _partial_input(result: Partition, instance: Instance) -> Fault | None:
    """What is wrong with an instance that reads a partial sum."""
    for v in instance.inputs:
        if v >= 0 and any(t.partials for t in _addends(result, v)):
            name = result.parallel.unrolled.tensors[v].name
            words = f"its input {name} is still a partial sum: a reduction before it is missing"
            return Fault(words, "missing reduction")
    return None


def _difference(
    result: Partition, instance: Instance, mine: Essence | None, theirs: Essence | None
) -> Fault:
    """What is wrong with a result that is no view of what the single device has there."""
    if mine is not None and theirs is not None and len(mine) == len(theirs) == 1:
        (a, m), (b, n) = *mine, *theirs
        if m == n and b and any(_averaged(result, v, a / b) for v in instance.outputs):
            return Fault(AVERAGED, "missing reduction", a / b)
        if m == n and b:
            words = f"its result is {times(a / b)} times the single-device operator's"
            return Fault(words, "wrong scale", a / b)
    return _partial_input(result, instance) or Fault(
        "its result is not the single-device operator's"
    )


def _averaged(result: Partition, value: int, factor: Fraction) -> bool:
    """Whether a value is a sum over part of the positions, times ``factor``, which is what makes up
    for the part: the mean over half of them is twice the half of the mean."""
    partials = {p for t in _addends(result, value) for p in t.partials}
    return bool(partials) and factor * prod(Fraction(p.size, p.extent) for p in partials) == 1


def between(result: Partition, instances: Sequence[Instance]) -> str:
    """Where in the model instances are that belong to no layer: what comes before and after
    them.

    Example: "between wte and wpe" for the all-reduce of partial embeddings.
    """
    every = result.parallel.unrolled.instances
    made = {v: instance for instance in every for v in instance.outputs}
    read: dict[int, Instance] = {}
    for instance in every:
        for v in instance.inputs:
            read.setdefault(v, instance)

    def nearest(start: Sequence[Instance], ahead: bool) -> str:
        seen, here = set(), list(start)
        while here:
            instance = here.pop(0)
            values = instance.outputs if ahead else instance.inputs
            for v in values:
                other = (read if ahead else made).get(v)
                if other is None or id(other) in seen:
                    continue
                seen.add(id(other))
                if other.source.module:
                    return other.source.module
                here.append(other)
        return ""

    first, last = nearest(instances[:1], False), nearest(instances[:1], True)
    if first and last and first != last:
        return f"between {first} and {last}"
    return first or last


def explain(result: Partition, divergence: Divergence) -> Finding:
    """A divergence as a finding: operator, layer, source, ranks and microbatches, in words.

    Example: "add in h.1.mlp on ranks [0, 1] of the first replica: its input h.1.mlp.linear is still
    a partial sum: a reduction before it is missing", with the layer, line and ranks in fields of
    their own.
    """
    instances = [result.parallel.unrolled.instances[n] for n in divergence.instances]
    instance = instances[0]
    ranks, microbatches = _who(result, instances)
    name = f"backward of {instance.name}" if instance.backward else instance.name
    layer = instance.source.module or between(result, instances)
    right, right_microbatches = _who(result, alike(result, divergence))
    return Finding(
        "mismatch",
        fault_sentence(result, name, layer, ranks, divergence.cause),
        name,
        layer,
        instance.source.location or instance.source.cell,
        ranks,
        microbatches,
        cause=divergence.kind,
        reference=reference(result, divergence),
        layers=(instance.source.module,) if instance.source.module else (),
        agreeing_ranks=tuple(rank for rank in right if rank not in ranks),
        agreeing_microbatches=tuple(m for m in right_microbatches if m not in microbatches),
    )


def fault_sentence(
    result: Partition, name: str, layer: str, ranks: Sequence[int], cause: str
) -> str:
    """What is wrong with an operator, in a sentence; ``layer``: modules, or as `between` has it.

    Example: "linear in layers.0 on ranks 0 to 7: its result is 1/2 times the single-device
    operator's".
    """
    where = f" {layer}" if layer.startswith("between") else f" in {layer}" if layer else ""
    return f"{name}{where} on ranks {_span(ranks)}{of_replicas(result)}: {cause}"


def _span(ranks: Sequence[int]) -> str:
    """Ranks as a list, or from where to where if they are many in a row."""
    if len(ranks) > FEW and list(ranks) == list(range(ranks[0], ranks[-1] + 1)):
        return f"{ranks[0]} to {ranks[-1]}"
    return str(list(ranks))


def of_replicas(result: Partition) -> str:
    """What to say of ranks where there are several replicas.

    Example: " of the first replica" with dp 2, nothing with tp alone.
    """
    extents = result.plan.programs[0].extents
    replicas = prod(extents.get(axis, 1) for axis in result.plan.replica_axes)
    return " of the first replica" if replicas > 1 else ""


def _who(
    result: Partition, instances: Sequence[Instance]
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The ranks of the first replica, and the microbatches, of instances."""
    ranks = tuple(sorted({x for r in instances for p in r.programs for x in ranks_of(result, p)}))
    return ranks, tuple(sorted({r.microbatch for r in instances if r.microbatch >= 0}))


def ranks_of(result: Partition, program: int) -> list[int]:
    """The ranks of a program in the first replica.

    Example: ``[0, 1]`` of a program on dp 2, tp 2, where ``dp`` divides the batch.
    """
    own = result.parallel.programs[program]
    ranks = [own.base]
    for axis, extent, stride in own.axes:
        if axis not in result.plan.replica_axes:
            ranks = [rank + stride * place for rank in ranks for place in range(extent)]
    return ranks


def alike(result: Partition, divergence: Divergence) -> list[Instance]:
    """The instances that do right what those of a divergence do wrong.

    Example: where a norm has another epsilon on rank 0, the same norm on rank 1, which has the
    right one.
    """
    every = result.parallel.unrolled.instances
    if divergence.counterpart >= 0:
        right = [
            n
            for n, m in enumerate(counterparts(result, loosely=True))
            if m == divergence.counterpart
        ]
    else:
        instance = every[divergence.instances[0]]
        what = (instance.kind, instance.name, instance.source)
        alike = instance.kind == "op" or any((instance.source.cell, instance.source.location))
        right = [n for n, r in enumerate(every) if alike and (r.kind, r.name, r.source) == what]
    return [every[n] for n in right if n not in divergence.instances]


def reference(result: Partition, divergence: Divergence) -> str:
    """The operator of the single-device side that a divergence was held against, and which of its
    constants are other ones; empty if none was.

    Example: "mul (examples/gpt.py:156) with other 1/512 (here about 0.000976562)".
    """
    if divergence.counterpart < 0:
        return ""
    theirs = result.single.unrolled.instances[divergence.counterpart]
    mine = result.parallel.unrolled.instances[divergence.instances[0]]
    name = f"backward of {theirs.name}" if theirs.backward else theirs.name
    place = ", ".join(x for x in (theirs.source.cell, theirs.source.location) if x)
    constants = [
        f"{key} {shown(value)} (here {shown(mine.attrs[key])})"
        for key, value in theirs.attrs.items()
        if key in mine.attrs and key not in _OF_SHARDS and mine.attrs[key] != value
    ]
    with_constants = f" with {', '.join(constants)}" if constants else ""
    return f"{name}{f' ({place})' if place else ''}{with_constants}"
