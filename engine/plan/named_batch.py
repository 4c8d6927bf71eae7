"""A plan whose slices of the batch are named inputs, and whose rows say how replicas combine.

Which slice a rank loads follows from its replica and its microbatch, so both are axes that nothing
else may write out.  Here every load becomes inputs that are boxes of the full batch, a body that
loads becomes one body for each microbatch, and what the losses add up to becomes rows of the table.
Replicas then lie along an axis like any other, and microbatches are calls of bodies of their own.
For example, a body that replica r of two calls for microbatch m of two, and that loads 2 of 8
samples, becomes two bodies that hold the boxes [4 r, +2) and [4 r + 2, +2).

It is the same plan: at each coordinate the same operators, on the same positions, in one order.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from math import prod
from typing import Final

from shardproof.engine.algebra.affine import ZERO, Affine, affine
from shardproof.engine.plan.assumptions import BATCH, LOSSES, statements
from shardproof.engine.plan.expectations import table
from shardproof.engine.plan.ir import (
    ACCUMULATED,
    MICROBATCH,
    Addend,
    Body,
    Call,
    Expectation,
    Op,
    Plan,
    Program,
    Shard,
    Value,
)

_LOAD: Final = "load_batch"
#: A body, and the microbatch that calls of it are for (None: any).
Variant = tuple[int, int | None]
Shape = tuple[int, ...]


def named_batch(plan: Plan, *, chosen: bool = False) -> Plan | None:
    """The plan with named inputs for its batch; None where it divides no batch, or says of it what
    is no slice.  What is assumed of the batch and of how losses combine is assumed of it as well
    (``chosen``: as in `engine.plan.assumptions.statements`).

    Example: 12 samples for two replicas with two microbatches each are a ``batch "batch tensor 0"``
    of [12, 8], of which one body of a rank holds [3, 8] at ``6*dp``, another one at ``6*dp + 3``;
    the loss is ``0.0%8 sum(dp), 0.2%8 sum(dp)``.
    """
    full = _loaded(plan.single)
    divided = plan.microbatches > 1 or any(
        program.extents.get(axis, 1) > 1 for program in plan.programs for axis in plan.replica_axes
    )
    names = [f"batch tensor {number}" for number in range(len(full))]
    known = {shard.name for shard in plan.single.shards}
    if not divided or not full or not known.isdisjoint(names):
        return None
    try:
        single = _Written(plan, plan.single, names, full, whole=True)
        parallel = [_Written(plan, program, names, full) for program in plan.programs]
        rows = [own for row in table(plan) for own in _rows(plan.microbatches, row, parallel)]
        rows = [replace(row, single=tuple(single.addends(row.single))) for row in rows]
    except _NoSlice:
        return None
    return replace(
        plan,
        single=single.program(),
        programs=tuple(written.program() for written in parallel),
        microbatches=1,
        replica_axes=(),
        loss="sum",
        expectations=tuple(rows),
        assumed=(
            *plan.assumed,
            *(a for a in statements(plan, chosen=chosen) if a.about in (BATCH, LOSSES)),
        ),
    )


class _NoSlice(Exception):
    """What is loaded, or how rows combine it, is told of no single microbatch."""


def _loaded(program: Program) -> list[Value]:
    """The tensors of the batch, as the single-device program loads them."""
    for call in program.calls:
        body = program.bodies[call.body]
        for op in body.ops:
            if op.name == _LOAD:
                return [body.values[v] for v in op.outputs]
    return []


def _loads(body: Body) -> list[Op]:
    """The loads of a body; raises `_NoSlice` for one that says more than that a slice is loaded."""
    loads = [op for op in body.ops if op.name == _LOAD]
    if any(op.attrs or op.inputs or op.backward for op in loads):
        raise _NoSlice
    return loads


@dataclass
class _Written:
    """One program, written with named inputs.  ``variants``: the bodies of the new program, in
    order, by the old body and the microbatch; ``of``: by old body, those that it becomes."""

    plan: Plan
    old: Program
    names: Sequence[str]
    full: Sequence[Value]
    whole: bool = False
    variants: list[Variant] = field(default_factory=list)
    of: dict[int, list[int]] = field(default_factory=dict)
    calls: list[Call] = field(default_factory=list)
    shards: list[Shard] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.shards = list(self.old.shards)
        issued: dict[int, list[int | None]] = {}
        for call in self.old.calls:
            microbatch = self._microbatch(call, issued)
            issued.setdefault(call.body, []).append(microbatch)
            variant = (call.body, microbatch)
            if variant not in self.variants:
                self.of.setdefault(call.body, []).append(len(self.variants))
                self.variants.append(variant)
            self.calls.append(replace(call, body=self.variants.index(variant), microbatch=-1))

    def _microbatch(self, call: Call, issued: Mapping[int, Sequence[int | None]]) -> int | None:
        """The microbatch that a call is for, where its body, or the forward body that it is paired
        with, loads one."""
        body = self.old.bodies[call.body]
        paired = None
        if body.forward_body >= 0:
            k = len(issued.get(call.body, ()))
            before = issued.get(body.forward_body, ())
            if k >= len(before):
                raise _NoSlice
            paired = before[k]
        if not _loads(body):
            return paired
        microbatch = call.microbatch
        if self.whole or (microbatch < 0 and self.plan.microbatches == 1):
            microbatch = 0
        if not 0 <= microbatch < self.plan.microbatches or paired not in (None, microbatch):
            raise _NoSlice
        return microbatch

    def program(self) -> Program:
        """The program; to be asked once."""
        bodies = [self._body(*variant) for variant in self.variants]
        seeds = self.old.seeds
        share = 1 if self.whole or self.plan.loss != "mean" else self._count()
        if share > 1 and seeds:
            seeds = tuple(self._shared(bodies, share))
        return replace(
            self.old,
            bodies=tuple(bodies),
            calls=tuple(self.calls),
            shards=tuple(self.shards),
            seeds=seeds,
        )

    def _count(self) -> int:
        """Into how many slices the batch is divided."""
        if self.whole:
            return 1
        replicas = prod(self.old.extents.get(axis, 1) for axis in self.plan.replica_axes)
        return replicas * self.plan.microbatches

    def _body(self, number: int, microbatch: int | None) -> Body:
        body = self.old.bodies[number]
        read = [
            (value, self._box(position, body.values[value], microbatch or 0))
            for op in _loads(body)
            for position, value in enumerate(op.outputs)
        ]
        forward = body.forward_body
        if forward >= 0:
            both = ((forward, microbatch), (forward, None))
            forward = next(self.variants.index(v) for v in both if v in self.variants)
        return replace(
            body,
            shards=(*body.shards, *read),
            ops=tuple(op for op in body.ops if op.name != _LOAD),
            forward_body=forward,
        )

    def _box(self, position: int, value: Value, microbatch: int) -> int:
        """The number of the input that is a slice of a batch tensor."""
        full = self.full[position].shape if position < len(self.full) else ()
        if len(full) != len(value.shape):
            raise _NoSlice
        replica: Affine = ZERO
        for axis in self.plan.replica_axes if not self.whole else ():
            if axis in self.old.extents:
                replica = replica * self.old.extents[axis] + affine(0, {axis: 1})
        which = replica * self.plan.microbatches + affine(microbatch)
        offset = []
        for n, local in zip(full, value.shape, strict=True):
            if n != local and n != local * self._count():
                raise _NoSlice
            offset.append(ZERO if n == local else (which * local).settled(self.old.extents))
        shard = Shard(
            self.names[position],
            full,
            value.shape,
            tuple(offset),
            self.full[position].dtype,
            trainable=False,
            kind="batch",
        )
        if shard not in self.shards:
            self.shards.append(shard)
        return self.shards.index(shard)

    def _shared(self, bodies: list[Body], share: int) -> Iterator[tuple[int, int]]:
        """The seeds, where the loss is the mean over ``share`` slices: what enters backward is the
        loss's gradient divided by them, once the loss is there."""
        slots = [slot for call in self.calls for slot in (*call.inputs, *call.outputs)]
        free = max((*slots, *(slot for pair in self.old.seeds for slot in pair))) + 1
        for number, (slot, loss) in enumerate(self.old.seeds):
            read = next((c for c in self.calls if slot in c.inputs), None)
            first = next((n for n, c in enumerate(self.calls) if loss in c.outputs), None)
            if read is not None and first is not None:
                body = bodies[read.body]
                value = body.values[body.inputs[read.inputs.index(slot)]]
                bodies.append(
                    Body(
                        "share of the loss's gradient",
                        (value, value),
                        (Op("mul", (0,), (1,), {"other": Fraction(1, share)}),),
                        inputs=(0,),
                        outputs=(1,),
                    )
                )
                self.calls.insert(first + 1, Call(len(bodies) - 1, (free + number,), (slot,)))
            yield free + number, loss

    def addends(self, old: Sequence[Addend], microbatch: int | None = None) -> Iterator[Addend]:
        """What addends of this program become (``microbatch``: of that one alone)."""
        for addend in old:
            if addend.body == ACCUMULATED:
                yield addend
                continue
            for number in self.of.get(addend.body, ()):
                if microbatch is None or self.variants[number][1] in (None, microbatch):
                    yield replace(addend, body=number)


def _rows(
    microbatches: int, row: Expectation, programs: Sequence[_Written]
) -> Iterator[Expectation]:
    """What a row becomes: one that moves with the microbatch is a row for each."""
    apart = any(MICROBATCH in start.axes for start in row.offset)
    together = {a.body == ACCUMULATED or MICROBATCH in dict(a.over) for a in row.parallel}
    if microbatches == 1 and not apart:
        together = {True}
    if len(together) > 1 or (apart and together != {False}):
        raise _NoSlice
    for microbatch in [None] if together != {False} else range(microbatches):
        addends: list[Addend] = []
        for addend in row.parallel:
            own = programs[addend.program]
            how = dict(addend.over).get(MICROBATCH)
            unknown = any(own.variants[n][1] is None for n in own.of.get(addend.body, ()))
            if how == "partial" or (microbatch is not None and unknown):
                raise _NoSlice
            over = tuple(pair for pair in addend.over if pair[0] != MICROBATCH)
            if how is not None and unknown:
                over = ((MICROBATCH, "sum"), *over)
            weight = addend.weight / (microbatches if how == "mean" else 1)
            addends += own.addends([replace(addend, weight=weight, over=over)], microbatch)
        offset = row.offset
        if microbatch is not None:
            offset = tuple(start.fix(MICROBATCH, microbatch) for start in offset)
        yield replace(row, parallel=tuple(addends), offset=offset)
