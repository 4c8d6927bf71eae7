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
from shardproof.engine.lineage.lineage import Lineage, Term
from shardproof.engine.schedule.instances import Row
from shardproof.partition.evidence.alignment import PLACES, counterparts
from shardproof.partition.stages.partition import Partition

#: What an operator's result is a view of: (factor, node) of each term.
Essence = frozenset[tuple[Fraction, int]]


#: Attributes that differ where a rank has a part only.
_OF_SHARDS: Final = PLACES | {"start", "size"}

#: What is wrong with a sum over positions that are not next to one another.
GAPS: Final = "what it adds up has gaps that nothing fills"

#: What is wrong with a mean over a part of the positions.
AVERAGED: Final = (
    "its result is the mean over a part of what the single-device operator takes it over"
)

#: Kinds of rows that put parts side by side.
JOINS: Final = frozenset({"all_gather", "all_to_all"})

#: Ranks that are named one by one.
FEW: Final = 4

#: Conclusions about values of the single-device side.
OWN = "single-device gradient"


#: What a fault is likely to be, as findings name it; empty where that cannot be said.
Kind: TypeAlias = Literal["missing reduction", "wrong scale", ""]


class Fault(NamedTuple):
    """What is wrong with a row's own doing: in words, and what that makes likely; ``factor``: it is
    what it should be but for that."""

    words: str
    kind: Kind = ""
    factor: Fraction | None = None


class Culprit(NamedTuple):
    """``rows``: of the parallel side, one per program that has the fault; ``counterpart``: the
    aligned row of the single-device side (-1: none); ``cause``: what is wrong, in words; ``kind``:
    what that makes likely."""

    rows: tuple[int, ...]
    counterpart: int
    cause: str
    kind: Kind = ""


def essence(lineage: Lineage | None) -> Essence | None:
    if lineage is None:
        return None
    return frozenset((t.factor, t.node) for t in lineage.terms)


#: A partition is asked about again and again, and is not changed once it is made; what is known of
#: it is forgotten with it.
_KNOWN: WeakKeyDictionary[Partition, tuple[Culprit, ...]] = WeakKeyDictionary()


def culprits(result: Partition) -> tuple[Culprit, ...]:
    """Where faults begin, in the order of the program; the same operator on several ranks is one
    culprit."""
    known = _KNOWN.get(result)
    if known is None:
        known = _KNOWN[result] = _culprits(result)
    return known


def _culprits(result: Partition) -> tuple[Culprit, ...]:
    """Where faults begin.  The factor of a local mean, and of its gradients, is made up for later
    by averaging over replicas, where some conclusion holds: it is then looked at only where there
    is no other culprit."""
    aligned = counterparts(result, loosely=True)
    rows = result.parallel.unrolled.rows
    faults = [_fault(result, row, aligned[number]) for number, row in enumerate(rows)]
    some = any(c.holds and c.value >= 0 and c.kind != OWN for c in result.conclusions)
    means = {fault.factor for fault in faults if fault and some and fault.words == AVERAGED}
    found = _begin(result, aligned, faults, means)
    return found or (_begin(result, aligned, faults, set()) if means else ())


def _begin(
    result: Partition,
    aligned: Sequence[int],
    faults: Sequence[Fault | None],
    means: Collection[Fraction | None],
) -> tuple[Culprit, ...]:
    """Where faults begin, but for the factors ``means`` of values that no failing conclusion is
    about, in the order of the program."""
    wrong: set[int] = set()
    ends = _ends(result, aligned)
    found: dict[tuple[object, ...], list[int]] = {}
    about: dict[tuple[object, ...], tuple[int, str, Kind]] = {}
    gaps = _ranges(result, [c.value for c in result.conclusions if c.kind != OWN and not c.holds])
    for number, row in enumerate(result.parallel.unrolled.rows):
        tainted = any(v in wrong for v in row.inputs)
        fault = None if tainted else faults[number] or _gap(result, row, gaps)
        if fault and fault.factor in means and ends.isdisjoint(row.outputs):
            continue
        if fault or tainted:
            wrong.update(row.outputs)
        if fault:
            counterpart = aligned[number]
            key = (counterpart if counterpart >= 0 else (row.kind, row.source), fault.words)
            found.setdefault(key, []).append(number)
            about[key] = (counterpart, fault.words, fault.kind)
    return tuple(Culprit(tuple(rows), *about[key]) for key, rows in found.items())


def _ends(result: Partition, aligned: Sequence[int]) -> set[int]:
    """Values that failing conclusions are about, and those that become them through rows that the
    single device does not have (a copy, an accumulation)."""
    ends = {c.value for c in result.conclusions if not c.holds}
    for number, row in reversed(list(enumerate(result.parallel.unrolled.rows))):
        if aligned[number] < 0 and not ends.isdisjoint(row.outputs):
            ends.update(row.inputs)
    return ends


def _fault(result: Partition, row: Row, counterpart: int) -> Fault | None:
    """What is wrong with a row's own doing, if anything can be said."""
    outputs = [result.parallel.lineages[v] for v in row.outputs]
    if any(x is None for x in outputs):
        return None
    if counterpart >= 0:
        expected = result.single.unrolled.rows[counterpart]
        for mine, theirs in zip(row.outputs, expected.outputs, strict=False):
            a, b = essence(result.parallel.lineages[mine]), essence(result.single.lineages[theirs])
            if a != b:
                return _difference(result, row, a, b)
        return _diagonal(result, row)
    new = [
        t.node for x in outputs if x is not None for t in x.terms if t.node >= result.reference_size
    ]
    old = [
        t.node
        for v in row.inputs
        if v >= 0
        for t in _terms(result, v)
        if t.node >= result.reference_size
    ]
    if new and not old:
        strange = Fault("its result is no part of any single-device value")
        return _partial_input(result, row) or strange
    return _scrambled(result, row)


def _diagonal(result: Partition, row: Row) -> Fault | None:
    """What is wrong with a product of partial sums: over ranks that each have the same part of two
    sums, no reduction makes it the product of the sums."""

    def twice(values: Iterable[int]) -> bool:
        for term in (t for v in values if v >= 0 for t in _terms(result, v)):
            axes = [(axis, part.token) for part in term.parts for axis, _ in part.start.terms]
            if len({axis for axis, _ in set(axes)}) < len(set(axes)):
                return True
        return False

    return _partial_input(result, row) if twice(row.outputs) and not twice(row.inputs) else None


def _scrambled(result: Partition, row: Row) -> Fault | None:
    """What is wrong with a row that joins parts: parts of one value that lie side by side are no
    part of it in this order."""
    if row.kind not in JOINS or any(t.places for v in row.inputs for t in _terms(result, v)):
        return None
    for value in row.outputs:
        placed = [(t.factor, t.node) for t in _terms(result, value) if t.places]
        if len(set(placed)) < len(placed):
            other = "it joins parts of one value in another order than the single device has them"
            return Fault(other)
    return None


def _ranges(result: Partition, values: Iterable[int]) -> set[tuple[int, int]]:
    """The sums that values are parts of, and how often the parts repeat."""
    return {
        (p.token, p.extent) for v in values if v >= 0 for t in _terms(result, v) for p in t.parts
    }


def _gap(result: Partition, row: Row, gaps: set[tuple[int, int]]) -> Fault | None:
    """What is wrong with a sum over positions with gaps that are still there where a conclusion
    fails."""
    if row.kind in SUMS and (_ranges(result, row.outputs) - _ranges(result, row.inputs)) & gaps:
        return Fault(GAPS)
    return None


def _terms(result: Partition, value: int) -> tuple[Term, ...]:
    lineage = result.parallel.lineages[value]
    return lineage.terms if lineage is not None else ()


def times(factor: Fraction) -> str:
    """A factor as a person reads it: exact where it is short."""
    return str(factor) if factor.denominator < 1000 else f"about {float(factor):.6g}"


def shown(value: object) -> str:
    """A constant as a person reads it."""
    return times(value) if isinstance(value, Fraction) else str(value)


def _partial_input(result: Partition, row: Row) -> Fault | None:
    """What is wrong with a row that reads a partial sum."""
    for v in row.inputs:
        if v >= 0 and any(t.parts for t in _terms(result, v)):
            name = result.parallel.unrolled.tensors[v].name
            words = f"its input {name} is still a partial sum: a reduction before it is missing"
            return Fault(words, "missing reduction")
    return None


def _difference(result: Partition, row: Row, mine: Essence | None, theirs: Essence | None) -> Fault:
    """What is wrong with a result that is no view of what the single device has there."""
    if mine is not None and theirs is not None and len(mine) == len(theirs) == 1:
        (a, m), (b, n) = *mine, *theirs
        if m == n and b and any(_averaged(result, v, a / b) for v in row.outputs):
            return Fault(AVERAGED, "missing reduction", a / b)
        if m == n and b:
            words = f"its result is {times(a / b)} times the single-device operator's"
            return Fault(words, "wrong scale", a / b)
    return _partial_input(result, row) or Fault("its result is not the single-device operator's")


def _averaged(result: Partition, value: int, factor: Fraction) -> bool:
    """Whether a value is a sum over part of the positions, times ``factor``, which is what makes up
    for the part: the mean over half of them is twice the half of the mean."""
    parts = {p for t in _terms(result, value) for p in t.parts}
    return bool(parts) and factor * prod(Fraction(p.size, p.extent) for p in parts) == 1


def between(result: Partition, rows: Sequence[Row]) -> str:
    """Where in the model rows are that belong to no layer: what comes before and after them."""
    every = result.parallel.unrolled.rows
    made = {v: row for row in every for v in row.outputs}
    read: dict[int, Row] = {}
    for row in every:
        for v in row.inputs:
            read.setdefault(v, row)

    def nearest(start: Sequence[Row], ahead: bool) -> str:
        seen, here = set(), list(start)
        while here:
            row = here.pop(0)
            values = row.outputs if ahead else row.inputs
            for v in values:
                other = (read if ahead else made).get(v)
                if other is None or id(other) in seen:
                    continue
                seen.add(id(other))
                if other.source.module:
                    return other.source.module
                here.append(other)
        return ""

    first, last = nearest(rows[:1], False), nearest(rows[:1], True)
    if first and last and first != last:
        return f"between {first} and {last}"
    return first or last


def explain(result: Partition, culprit: Culprit) -> Finding:
    """A culprit as a finding: operator, layer, source, ranks and microbatches, in words."""
    rows = [result.parallel.unrolled.rows[n] for n in culprit.rows]
    row = rows[0]
    ranks, microbatches = _who(result, rows)
    name = f"backward of {row.name}" if row.backward else row.name
    layer = row.source.module or between(result, rows)
    right, right_microbatches = _who(result, alike(result, culprit))
    return Finding(
        "mismatch",
        said(result, name, layer, ranks, culprit.cause),
        name,
        layer,
        row.source.location or row.source.cell,
        ranks,
        microbatches,
        cause=culprit.kind,
        reference=reference(result, culprit),
        layers=(row.source.module,) if row.source.module else (),
        agreeing_ranks=tuple(rank for rank in right if rank not in ranks),
        agreeing_microbatches=tuple(m for m in right_microbatches if m not in microbatches),
    )


def said(result: Partition, name: str, layer: str, ranks: Sequence[int], cause: str) -> str:
    """What is wrong with an operator, in a sentence; ``layer``: modules, or as `between` has it."""
    where = f" {layer}" if layer.startswith("between") else f" in {layer}" if layer else ""
    return f"{name}{where} on ranks {_span(ranks)}{of_replicas(result)}: {cause}"


def _span(ranks: Sequence[int]) -> str:
    """Ranks as a list, or from where to where if they are many in a row."""
    if len(ranks) > FEW and list(ranks) == list(range(ranks[0], ranks[-1] + 1)):
        return f"{ranks[0]} to {ranks[-1]}"
    return str(list(ranks))


def of_replicas(result: Partition) -> str:
    """What to say of ranks where there are several replicas."""
    extents = result.plan.programs[0].extents
    replicas = prod(extents.get(axis, 1) for axis in result.plan.replica_axes)
    return " of the first replica" if replicas > 1 else ""


def _who(result: Partition, rows: Sequence[Row]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The ranks of the first replica, and the microbatches, of rows."""
    ranks = tuple(sorted({x for r in rows for p in r.programs for x in ranks_of(result, p)}))
    return ranks, tuple(sorted({r.microbatch for r in rows if r.microbatch >= 0}))


def ranks_of(result: Partition, program: int) -> list[int]:
    """The ranks of a program in the first replica."""
    held = result.parallel.programs[program]
    ranks = [held.base]
    for axis, extent, stride in held.axes:
        if axis not in result.plan.replica_axes:
            ranks = [rank + stride * place for rank in ranks for place in range(extent)]
    return ranks


def alike(result: Partition, culprit: Culprit) -> list[Row]:
    """The rows that do right what those of a culprit do wrong."""
    every = result.parallel.unrolled.rows
    if culprit.counterpart >= 0:
        held = [
            n for n, m in enumerate(counterparts(result, loosely=True)) if m == culprit.counterpart
        ]
    else:
        row = every[culprit.rows[0]]
        what = (row.kind, row.name, row.source)
        alike = row.kind == "op" or any((row.source.cell, row.source.location))
        held = [n for n, r in enumerate(every) if alike and (r.kind, r.name, r.source) == what]
    return [every[n] for n in held if n not in culprit.rows]


def reference(result: Partition, culprit: Culprit) -> str:
    """The operator of the single-device side that a culprit was held against, and which of its
    constants are other ones; empty if none was."""
    if culprit.counterpart < 0:
        return ""
    theirs = result.single.unrolled.rows[culprit.counterpart]
    mine = result.parallel.unrolled.rows[culprit.rows[0]]
    name = f"backward of {theirs.name}" if theirs.backward else theirs.name
    place = ", ".join(x for x in (theirs.source.cell, theirs.source.location) if x)
    constants = [
        f"{key} {shown(value)} (here {shown(mine.attrs[key])})"
        for key, value in theirs.attrs.items()
        if key in mine.attrs and key not in _OF_SHARDS and mine.attrs[key] != value
    ]
    with_constants = f" with {', '.join(constants)}" if constants else ""
    return f"{name}{f' ({place})' if place else ''}{with_constants}"
