"""Where a parallel program first does something else than the single-device program.

Operators of the two sides are aligned by what they are and where they come from in the model's
source, never by their numbers in the plan.  An aligned operator whose result is no view of its
counterpart's result, although nothing that it reads is already wrong, is where a fault begins.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from fractions import Fraction
from functools import reduce
from math import prod
from operator import or_
from typing import Final, Literal, NamedTuple, TypeAlias
from weakref import WeakKeyDictionary

from shardproof.engine.claims.claim import SUMS
from shardproof.engine.lineage.lineage import Addend, Lineage
from shardproof.engine.plan.collectives import ADDS
from shardproof.engine.plan.ir import Source
from shardproof.engine.schedule.instances import Instance
from shardproof.engine.specification.demands import roots
from shardproof.partition.evidence.alignment import counterparts
from shardproof.partition.inference.collectives import JOINS
from shardproof.partition.stages.partition import Partition

#: What an operator's result is a view of: (factor, node) of each addend.
Essence = frozenset[tuple[Fraction, int]]


#: What is wrong with a sum over positions that are not next to one another.
GAPS: Final = "what it adds up has gaps that nothing fills"

#: What is wrong with a mean over a part of the positions.
AVERAGED: Final = (
    "its result is the mean over a part of what the single-device operator takes it over"
)

#: What is likely where a sum over ranks is too large.
OWN_MEANS: Final = "it adds up gradients of each rank's own mean"

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
    what is wrong, in words; ``kind``: what that makes likely; ``factor``: how many times what it
    should be each is, where it has no counterpart to see that from.

    Example: ``Divergence((101,), 93, "its input h.1.mlp.linear is still a partial sum: ...",
    "missing reduction")``.
    """

    instances: tuple[int, ...]
    counterpart: int
    cause: str
    kind: Kind = ""
    factor: Fraction | None = None


class Begun(NamedTuple):
    """Where values begin to diverge. ``faults``: what failing conclusions come from; ``harmless``:
    what the values that they come from have no longer; ``lone``: values of failing conclusions
    that come from none of ``faults``.

    Example: a gradient that is scaled and scaled back is harmless.
    """

    faults: tuple[Divergence, ...]
    harmless: tuple[Divergence, ...]
    lone: frozenset[int]


def essence(lineage: Lineage | None) -> Essence | None:
    """What a value is, wherever it lies: the nodes of its addends with their factors.

    Example: of ``1/2*n40[a1[<8*dp + 4*mb> +4 of 16], a2[32], a0[64]]``, ``{(Fraction(1, 2), 40)}``.
    """
    if lineage is None:
        return None
    return frozenset((t.factor, t.node) for t in lineage.addends)


#: A partition is asked about again and again, and is not changed once it is made; what is known of
#: it is forgotten with it.
_KNOWN: WeakKeyDictionary[Partition, Begun] = WeakKeyDictionary()


def divergences(result: Partition) -> tuple[Divergence, ...]:
    """Where faults begin, in the order of the program; the same operator on several ranks is one
    divergence.

    Example: a loss that is divided by the number of tensor-parallel ranks has two, the ``mul`` and
    its backward.
    """
    return begun(result).faults


def begun(result: Partition) -> Begun:
    """Where values begin to diverge, with and without harm.

    Example: of a right plan whose loss is scaled and whose gradients are scaled back, one that is
    harmless.
    """
    known = _KNOWN.get(result)
    if known is None:
        known = _KNOWN[result] = _divergences(result)
    return known


def remember(result: Partition, where: Begun) -> None:
    """Know what `begun` gives of a partition, as another process found it.

    Example: a fork looks where values begin to diverge, while repairs are tried here.
    """
    _KNOWN[result] = where


def _divergences(result: Partition) -> Begun:
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
    first = _begin(result, aligned, faults, means)
    return _begin(result, aligned, faults, set()) if means and not first.faults else first


def _begin(
    result: Partition,
    aligned: Sequence[int],
    faults: Sequence[Fault | None],
    means: Collection[Fraction | None],
) -> Begun:
    """Where faults begin that a failing conclusion comes from, but for the factors ``means`` of
    values that no failing conclusion is about, in the order of the program.  Of each value that is
    wrong it is kept which faults made it so, as bits."""
    wrong: dict[int, int] = {}
    ends = _ends(result, aligned, frozenset(ADDS) if means else frozenset())
    usual = {essence(lineage) for lineage in result.single.lineages}
    alike: dict[tuple[object, ...], list[int]] = {}
    sources: dict[int, Source] = {}
    about: dict[tuple[object, ...], tuple[int, str, Kind, Fraction | None]] = {}
    gaps = _ranges(result, [c.value for c in result.conclusions if c.kind != OWN and not c.holds])
    for number, instance in enumerate(result.parallel.unrolled.instances):
        # What a repair puts in has the source of what it reduces, and is no line of the program.
        own = not any(sources.get(v) == instance.source for v in instance.inputs)
        sources.update(dict.fromkeys(instance.outputs, instance.source))
        counterpart = aligned[number]
        taint = reduce(or_, (wrong.get(v, 0) for v in instance.inputs), 0)
        fault = None if taint else faults[number] or _gap(result, instance, gaps)
        if fault and fault.factor in means and ends.isdisjoint(instance.outputs):
            continue
        if means and own and not taint and not fault and counterpart < 0:
            fault = _summed(result, instance, means, usual)
        if fault:
            key = (
                counterpart if counterpart >= 0 else (instance.kind, instance.source),
                fault.words,
            )
            alike.setdefault(key, []).append(number)
            factor = fault.factor if counterpart < 0 else None
            about.setdefault(key, (counterpart, fault.words, fault.kind, factor))
            taint = 1 << list(about).index(key)
        wanted = not ends.isdisjoint(instance.outputs)  # a conclusion says that it is wrong
        if taint and (fault or wanted or not _recovered(result, instance, counterpart, usual)):
            wrong.update((v, wrong.get(v, 0) | taint) for v in instance.outputs)
    failing = {c.value for c in result.conclusions if c.kind != OWN and not c.holds} - {-1}
    blamed = reduce(or_, (wrong.get(v, 0) for v in failing), 0) if failing else -1
    every = [Divergence(tuple(rows), *about[key]) for key, rows in alike.items()]
    return Begun(
        tuple(d for bit, d in enumerate(every) if blamed >> bit & 1),
        tuple(d for bit, d in enumerate(every) if not blamed >> bit & 1),
        frozenset(v for v in failing if not wrong.get(v, 0)),
    )


def _summed(
    result: Partition,
    instance: Instance,
    means: Collection[Fraction | None],
    usual: Collection[Essence | None],
) -> Fault | None:
    """What is wrong with a reduction of gradients of local means: the sum where it ought to be the
    mean, unless that is made up for later (`_recovered`)."""
    if instance.kind not in SUMS:
        return None
    for value in instance.outputs:
        mine = essence(result.parallel.lineages[value]) or frozenset()
        if len(mine) == 1 and not any(t.partials for t in _addends(result, value)):
            ((factor, node),) = mine
            known = {f for e in usual if e and len(e) == 1 for f, n in e if n == node and f}
            off = next((factor / f for f in sorted(known) if factor / f in means), None)
            if off is not None and factor not in known:
                words = f"its result is {times(off)} times the single-device value: {OWN_MEANS}"
                return Fault(words, "wrong scale", off)
    return None


def _recovered(
    result: Partition, instance: Instance, counterpart: int, usual: Collection[Essence | None]
) -> bool:
    """Whether an instance that reads what diverges gives what the single device has there all the
    same: what went before it did no harm (a loss that is scaled, and its gradients scaled back).
    ``usual``: what the single device's values are, for an instance that it has not."""
    outputs = [result.parallel.lineages[v] for v in instance.outputs]
    for lineage in outputs:
        if lineage is None or len(essence(lineage) or ()) < len(lineage.addends):
            return False
        if any(t.partials or t.places for t in lineage.addends):
            return False
    if counterpart < 0:
        return all(essence(lineage) in usual for lineage in outputs)
    expected = result.single.unrolled.instances[counterpart].outputs
    theirs = [essence(result.single.lineages[v]) for v in expected]
    return len(theirs) == len(outputs) and [essence(x) for x in outputs] == theirs


def _compared(result: Partition) -> set[int]:
    """Values that something compared depends on: what another operator does (a backward pass whose
    gradients are not compared) is no fault of the plan."""
    instances = result.parallel.unrolled.instances
    _, live = roots(result.plan, result.derived, result.parallel.unrolled)
    for instance in reversed(instances):
        if not live.isdisjoint(instance.outputs):
            live.update(instance.inputs)
    return live


def _ends(result: Partition, aligned: Sequence[int], without: Collection[str]) -> set[int]:
    """Values that failing conclusions are about, and those that become them through instances that
    the single device does not have and that hand them on (a copy, an accumulation), of kinds other
    than ``without``."""
    ends = {c.value for c in result.conclusions if not c.holds}
    for number, instance in reversed(list(enumerate(result.parallel.unrolled.instances))):
        own = aligned[number] < 0 and instance.kind not in without
        if own and not ends.isdisjoint(instance.outputs) and _hands_on(result, instance):
            ends.update(instance.inputs)
    return ends


def _hands_on(result: Partition, instance: Instance) -> bool:
    """Whether all that an instance gives is made of the values that it reads, moved, scaled or
    added up: a function of them is another value."""
    read = {t.node for v in instance.inputs if v >= 0 for t in _addends(result, v)}
    return all(t.node in read for v in instance.outputs for t in _addends(result, v))


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
    no part of it in this order.  The program's own ``concat`` may be meant so, where the single
    device joins parts of that value, too."""
    joins = instance.kind in JOINS or instance.name == "concat"
    if not joins or any(t.places for v in instance.inputs for t in _addends(result, v)):
        return None
    again = {n for v in instance.outputs for n in _repeated(result.parallel.lineages[v])}
    if again and instance.kind not in JOINS:
        again -= {n for lineage in result.single.lineages for n in _repeated(lineage)}
    if again:
        return Fault("it joins parts of one value in another order than the single device has them")
    return None


def _repeated(lineage: Lineage | None) -> set[int]:
    """The values of which several parts, alike in their factors, are joined in another one."""
    if lineage is None:
        return set()
    placed = Counter((t.factor, t.node) for t in lineage.addends if t.places)
    return {node for (_, node), count in placed.items() if count > 1}


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
