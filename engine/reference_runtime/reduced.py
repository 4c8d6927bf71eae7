"""A plan with fewer replicas and rounds, for a runtime that runs every rank.

Two replicas and two rounds are kept of every axis of replicas along which gradients and losses are
added up and nothing else depends on the position, and of every body that is called once for each
microbatch.  Every program, body and collective stays, and the first and the last rank of all other
axes.  What is left out is said.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Final

from shardproof.engine.algebra.affine import Affine
from shardproof.engine.plan.ir import MICROBATCH, Attr, Call, Group, Plan, Program

#: What keeps its meaning with fewer members: a sum, a maximum, a copy.
_FEWER: Final = frozenset({"all_reduce", "reduce", "broadcast"})


@dataclass(frozen=True, slots=True)
class Reduced:
    """A smaller plan, and what it lacks.

    Example: ``kept`` is ``{"dp": 2}``, and ``left_out`` ``("2 of 4 positions along dp",)``.

    ``kept``: how many positions are left along each coordinate of the batch that has fewer;
    ``left_out``: the same in words, for people.
    """

    plan: Plan
    kept: dict[str, int]
    left_out: tuple[str, ...]


def reduced(plan: Plan) -> Reduced:
    """The plan with as few replicas and rounds as can be, down to two; itself if none can go.

    Example: four replicas with three microbatches each are two replicas with three: 4 is divided by
    2, and no smaller number divides 3.
    """
    kept: dict[str, int] = {}
    notes = []
    smaller = plan
    for axis in plan.replica_axes:
        extents = {p.extents[axis] for p in plan.programs if axis in p.extents}
        few = _few(extents.pop()) if len(extents) == 1 else None
        if few is not None and not any(_depends(program, axis) for program in plan.programs):
            most, fewer = few
            kept[axis] = fewer
            notes.append(f"{most - fewer} of {most} positions along {axis}")
            smaller = replace(
                smaller, programs=tuple(_cut(p, axis, fewer) for p in smaller.programs)
            )
    few = _few(plan.microbatches)
    if few is not None and all(_rounds(p, plan.microbatches, few[1]) for p in plan.programs):
        most, fewer = few
        kept[MICROBATCH] = fewer
        notes.append(f"{most - fewer} of {most} microbatches")
        programs = tuple(_with_rounds(p, most, fewer) for p in smaller.programs)
        smaller = replace(smaller, programs=programs, microbatches=fewer)
    return Reduced(smaller, kept, tuple(notes))


def _few(extent: int) -> tuple[int, int] | None:
    """(all, how many to keep): the fewest of at least two that divide all; None if none can go."""
    fewer = next((n for n in range(2, extent) if extent % n == 0), extent)
    return (extent, fewer) if fewer < extent else None


def _cut(program: Program, axis: str, extent: int) -> Program:
    axes = tuple((n, extent if n == axis else e, s) for n, e, s in program.axes)
    return replace(program, axes=axes)


def _depends(program: Program, axis: str) -> bool:
    """Whether something else than the batch depends on the position along an axis."""
    if any(axis in offset.axes for shard in program.shards for offset in shard.offset):
        return True
    for body in program.bodies:
        for op in body.ops:
            group = op.attrs.get("group")
            if isinstance(group, Group) and axis in group.axes and op.name not in _FEWER:
                return True
            if any(axis in names for value in op.attrs.values() for names in _axes_in(value)):
                return True
    return False


def _axes_in(value: Attr) -> Iterator[frozenset[str]]:
    if isinstance(value, Affine):
        yield frozenset(value.axes)
    elif isinstance(value, tuple):
        for item in value:
            yield from _axes_in(item)


def _rounds(program: Program, microbatches: int, kept: int) -> bool:
    """Whether every body is called once, or once for each microbatch, which loads in order."""
    counts = Counter(call.body for call in program.calls)
    if any(n not in (1, microbatches) for n in counts.values()):
        return False
    loads: dict[int, list[int]] = {}
    for call in program.calls:
        if call.microbatch >= 0:
            loads.setdefault(call.body, []).append(call.microbatch)
    return all(sorted(numbers[:kept]) == list(range(kept)) for numbers in loads.values())


def _with_rounds(program: Program, microbatches: int, kept: int) -> Program:
    """The first calls of every body that is called for each microbatch."""
    counts = Counter(call.body for call in program.calls)
    seen: Counter[int] = Counter()
    calls: list[Call] = []
    for call in program.calls:
        if counts[call.body] < microbatches or seen[call.body] < kept:
            calls.append(call)
        seen[call.body] += 1
    return replace(program, calls=tuple(calls))
