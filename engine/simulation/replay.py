"""Evaluate the rows of one side over float64, at every coordinate where data differs.

The tensors of a program are families over its axes and the microbatch.  Along an *expanded* axis
every member is evaluated by itself.  Along any other one all members are equal, because nothing
but the batch depends on it and every slice of the batch is the same: one member stands for all, and
a sum along the axis multiplies by its extent.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from functools import partial
from itertools import product
from math import prod
from typing import TypeAlias

import numpy as np

from shardproof.engine.algebra.affine import Affine
from shardproof.engine.errors import ShapeMismatch, Unsupported
from shardproof.engine.interpreters import FloatReading, Weighted
from shardproof.engine.ops import apply_backward, apply_forward
from shardproof.engine.plan.collectives import COPIES, TABLE, Effect, refused
from shardproof.engine.plan.ir import MICROBATCH, Attr, Program, Shard
from shardproof.engine.schedule.instances import Row, Unrolled
from shardproof.engine.simulation.factors import Factors, extent
from shardproof.engine.simulation.inputs import Inputs
from shardproof.engine.simulation.recorder import (
    Recording,
    attribute_dim,
    backward_attrs,
    located,
    same,
)
from shardproof.engine.simulation.shrink import Sizes
from shardproof.engine.specification.demands import Demand

#: Where a member of a family is: (axis, position) along expanded axes.
Coordinates = tuple[tuple[str, int], ...]
#: Kinds under which equal members stay equal, along an axis that is not expanded.
REDUCING = frozenset(
    {"accumulate", *(name for name, c in TABLE.items() if c.effect is Effect.TOTAL)}
)


def needed_axes(programs: Sequence[Program], unrolled: Unrolled) -> frozenset[str]:
    """The axes that have to be expanded: something but the batch differs along them."""
    found: set[str] = set()
    for program in programs:
        for shard in program.shards:
            for offset in shard.offset:
                found.update(offset.axes)
    for row in unrolled.rows:
        for value in row.attrs.values():
            found |= _axes_in(value)
        if row.kind not in REDUCING:
            found.update(axis for axis, _ in row.over)
    if not unrolled.symbolic:
        found.add(MICROBATCH)
    return frozenset(found)


def _axes_in(value: Attr) -> set[str]:
    if isinstance(value, Affine):
        return set(value.axes)
    if isinstance(value, tuple):
        return set().union(*map(_axes_in, value))
    return set()


@dataclass(slots=True)
class Replay:
    """One side, evaluated.  ``values[tensor]``: its member at every coordinate."""

    programs: Sequence[Program]
    unrolled: Unrolled
    sizes: Sizes
    recording: Recording
    inputs: Inputs
    values: list[dict[Coordinates, Weighted]] = field(default_factory=list)
    _readings: dict[Coordinates, FloatReading] = field(default_factory=dict)
    _known: dict[Hashable, list[Weighted]] = field(default_factory=dict)
    _given: dict[Hashable, Weighted] = field(default_factory=dict)

    @property
    def whole(self) -> bool:
        """Whether this is the single-device side, which reads the whole batch."""
        return self.programs[0] is self.sizes.plan.single

    def run(self) -> None:
        """Evaluate every row; raises `Unsupported` or `ShapeMismatch`."""
        self.values = [{} for _ in self.unrolled.tensors]
        for number, row in enumerate(self.unrolled.rows):
            with located(row, self.programs), np.errstate(all="ignore"):
                self.row(number, row)

    def row(self, number: int, row: Row) -> None:
        """Evaluate one row at all its coordinates."""
        if row.kind in ("op", "slice"):
            self.operator(number, row)
        elif row.kind in ("shard", "load", "seed"):
            self.given(row)
        elif row.kind == "accumulate":
            self.accumulate(row)
        elif row.kind in COPIES:
            self.move(row)
        else:
            self.collective(row)

    # -- coordinates --------------------------------------------------------------------------

    def family(self, program: int, batched: bool) -> list[tuple[str, int]]:
        """The expanded axes of a program's tensors, and their extents."""
        axes = [(axis, extent) for axis, extent, _ in self.programs[program].axes]
        if batched and self.unrolled.symbolic and not self.whole:
            axes.append((MICROBATCH, self.sizes.plan.microbatches))
        return [(axis, extent) for axis, extent in axes if axis in self.sizes.expanded]

    def axes_of(self, tensor: int) -> list[tuple[str, int]]:
        """The coordinates along which members of a tensor are evaluated apart, with extents."""
        held = self.unrolled.tensors[tensor]
        return self.family(held.program, held.batched)

    @staticmethod
    def members(axes: Sequence[tuple[str, int]]) -> Iterator[dict[str, int]]:
        for position in product(*(range(count) for _, count in axes)):
            yield {axis: p for (axis, _), p in zip(axes, position, strict=True)}

    def key(self, tensor: int, at: Mapping[str, int]) -> Coordinates:
        """Which member of a tensor is meant; raises `Unsupported` if ``at`` does not say."""
        try:
            return tuple((axis, at[axis]) for axis, _ in self.axes_of(tensor))
        except KeyError as missing:
            raise Unsupported(
                f"{self.unrolled.tensors[tensor].name} is read without its coordinate {missing}"
            ) from None

    def get(self, tensor: int, at: Mapping[str, int]) -> Weighted:
        """The value of a tensor at coordinates; raises `Unsupported` if it has none."""
        key = self.key(tensor, at)
        found = self.values[tensor].get(key)
        if found is None:
            raise Unsupported(f"{self.unrolled.tensors[tensor].name} has no value at {dict(key)}")
        return found

    def put(self, tensor: int, at: Mapping[str, int], value: Weighted) -> None:
        """Keep the value of a tensor at coordinates."""
        self.values[tensor][self.key(tensor, at)] = value

    def reading(self, at: Mapping[str, int]) -> FloatReading:
        key = tuple(at.items())
        if key not in self._readings:
            self._readings[key] = FloatReading(coordinates=dict(at))
        return self._readings[key]

    # -- rows ---------------------------------------------------------------------------------

    def operator(self, number: int, row: Row) -> None:
        """Evaluate a row for every member of its family."""
        row = row._replace(attrs=self.sizes.attrs(self.recording, number, row))
        batched = any(self.unrolled.tensors[v].batched for v in row.outputs)
        for at in self.members(self.family(row.programs[0], batched)):
            inputs = [self.get(v, at) if v >= 0 else None for v in row.inputs]
            # Ranks that hold equal values hold one object: `_known` looks no further.
            key = same(row, (tuple(at.items()), tuple(map(id, inputs))))
            if key not in self._known:
                self._known[key] = self.evaluate(row, inputs, at)
            for value, output in zip(row.outputs, self._known[key], strict=True):
                self.put(value, at, output)

    def evaluate(
        self,
        row: Row,
        inputs: Sequence[Weighted | None],
        at: Mapping[str, int],
    ) -> list[Weighted]:
        reading = self.reading(at)
        if not row.backward:
            return apply_forward(reading, row.name, inputs, row.attrs)
        arity, wrt = backward_attrs(row)
        return apply_backward(reading, row.name, inputs[:arity], inputs[arity:], row.attrs, wrt)

    def given(self, row: Row) -> None:
        """Parameters, the batch and the incoming loss gradient."""
        batched = any(self.unrolled.tensors[v].batched for v in row.outputs)
        for at in self.members(self.family(row.programs[0], batched)):
            for value, output in zip(row.outputs, self.input(row, at), strict=True):
                self.put(value, at, output)

    def input(self, row: Row, at: Mapping[str, int]) -> list[Weighted]:
        """The values of a row that reads nothing."""
        if row.kind == "seed":
            shape = self.unrolled.tensors[row.outputs[0]].shape
            return [
                self.once(
                    ("seed", shape), lambda: self.inputs.loss_gradient(shape, whole=self.whole)
                )
            ]
        if row.kind == "shard":
            return [self.held(row, at)]
        known = dict(at) if row.microbatch < 0 else {**at, MICROBATCH: row.microbatch}
        here = None if self.whole else known
        return [
            self.once(("load", i, tuple(known.items())), partial(self.inputs.batch, i, here))
            for i in range(len(row.outputs))
        ]

    def held(self, row: Row, at: Mapping[str, int]) -> Weighted:
        """The shard that a row names."""
        number = row.attrs["shard"]
        assert isinstance(number, int)
        shard = self.programs[row.programs[0]].shards[number]
        return self.once(
            (shard, tuple(at.items())),
            lambda: self.cut(self.inputs.parameter(shard.name), shard, at),
        )

    def once(self, what: Hashable, make: Callable[[], Weighted]) -> Weighted:
        """One object for one input, whoever holds it."""
        if what not in self._given:
            self._given[what] = make()
        return self._given[what]

    def cut(self, full: Weighted, shard: Shard, at: Mapping[str, int]) -> Weighted:
        """The box of a parameter (or of its gradient) that a rank holds."""
        dims: tuple[Factors, ...] = self.sizes.recorder.parameters[shard.name]
        kept = self.sizes.recorder.shard(shard).dims
        return self.box(full, dims, kept, shard.offset, at)

    def box(
        self,
        full: Weighted,
        dims: Sequence[Factors],
        kept: Sequence[Factors],
        offset: Sequence[Affine],
        at: Mapping[str, int],
    ) -> Weighted:
        """The box at ``offset`` of a tensor whose dimensions are ``dims``, those of the box
        ``kept``."""
        reading = self.reading(at)
        for i, (dim, part) in enumerate(zip(dims, kept, strict=True)):
            if dim != part and extent(dim) != extent(part):
                start = self.sizes.scaled(offset[i], dim)
                full = reading.slice(full, i, start, self.sizes.small(part))
        return full

    def held_dims(self, demand: Demand) -> tuple[Factors, ...]:
        """The dimensions of what a rank has of a demand: of its value, or of its shard."""
        if demand.held:
            held = self.recording.tensors[demand.value]
            assert held is not None
            return held.dims
        shard = self.programs[demand.program].shards[demand.shard]
        return self.sizes.recorder.shard(shard).dims

    def accumulate(self, row: Row) -> None:
        """The sum of all contributions, over all microbatches of those that have one."""
        for at in self.members(self.axes_of(row.outputs[0])):
            parts: list[Weighted] = []
            factors: list[Fraction] = []
            if not row.inputs:
                parts, factors = [self.held(row, at)], [Fraction(0)]
            for value in row.inputs:
                axes = self.axes_of(value)
                distinct = [a for a in axes if a[0] == MICROBATCH]
                everyone = self.unrolled.tensors[value].batched and self.unrolled.symbolic
                count = (
                    1 if distinct or not everyone or self.whole else (self.sizes.plan.microbatches)
                )
                for moved in self.members(distinct):
                    parts.append(self.get(value, {**at, **moved}))
                    factors.append(Fraction(count))
            self.put(row.outputs[0], at, self.reading(at).combine(parts, factors, Fraction(0)))

    def move(self, row: Row) -> None:
        """A message, or a broadcast to other programs at the same coordinates."""
        reason = refused(row.kind, row.attrs, row.over, len(row.programs))
        if reason or len(row.inputs) != 1:
            raise Unsupported(reason or f"{row.kind} of {len(row.inputs)} tensors")
        for value in row.outputs:
            for at in self.members(self.axes_of(value)):
                self.put(value, at, self.get(row.inputs[0], at))

    def collective(self, row: Row) -> None:
        """One collective: members are the programs in group order, at every position along the
        mesh axes that it spans."""
        over = [a for a in row.over if a[0] in self.sizes.expanded]
        alike = prod(extent for axis, extent in row.over if axis not in self.sizes.expanded)
        reason = refused(row.kind, row.attrs, row.over, len(row.programs))
        if reason:
            raise Unsupported(reason)
        taking = 1 if TABLE[row.kind].root == "takes" else len(row.programs)
        if len(row.inputs) != len(row.programs) or len(row.outputs) != taking:
            raise ShapeMismatch(f"{len(row.inputs)} inputs over {len(row.programs)} programs")
        spanned = {axis for axis, _ in over}
        common = [a for a in self.axes_of(row.outputs[0]) if a[0] not in spanned]
        for at in self.members(common):
            places = [(v, {**at, **p}) for v in row.inputs for p in self.members(over)]
            inputs = [self.get(v, place) for v, place in places]
            outputs = self.exchange(row, inputs, alike, at)
            targets = [(v, {**at, **p}) for v in row.outputs for p in self.members(over)]
            for (value, place), output in zip(targets, outputs, strict=True):
                self.put(value, place, output)

    def exchange(
        self, row: Row, inputs: Sequence[Weighted], alike: int, at: Mapping[str, int]
    ) -> list[Weighted]:
        """What each member has after a collective; each input counts ``alike`` times."""
        rule = RULES.get(TABLE[row.kind].effect)
        if rule is None:
            raise Unsupported(f"communication {row.kind}")
        return rule(self, self.reading(at), row, inputs, alike)

    def totals(
        self, reading: FloatReading, row: Row, inputs: Sequence[Weighted], alike: int
    ) -> list[Weighted]:
        """The sum (or maximum), which all members have, or the root alone."""
        taking = 1 if TABLE[row.kind].root == "takes" else len(inputs)
        return [self.reduced(reading, row, inputs, alike)] * taking

    def gathers(
        self, reading: FloatReading, row: Row, inputs: Sequence[Weighted], alike: int
    ) -> list[Weighted]:
        """What an all-gather gives to each member."""
        joined = attribute_dim(row, "dim", len(inputs[0].dims))
        return [reading.concat(inputs, joined)] * len(inputs)

    def scatters(
        self, reading: FloatReading, row: Row, inputs: Sequence[Weighted], alike: int
    ) -> list[Weighted]:
        """What a reduce-scatter gives to each member."""
        total = self.reduced(reading, row, inputs, alike)
        dim = attribute_dim(row, "dim", len(inputs[0].dims))
        return [self.part(reading, total, dim, i, len(inputs)) for i in range(len(inputs))]

    def exchanges(
        self, reading: FloatReading, row: Row, inputs: Sequence[Weighted], alike: int
    ) -> list[Weighted]:
        """What an all-to-all gives to each member."""
        split = attribute_dim(row, "split_dim", len(inputs[0].dims))
        joined = attribute_dim(row, "concat_dim", len(inputs[0].dims))
        return [
            reading.concat([self.part(reading, x, split, i, len(inputs)) for x in inputs], joined)
            for i in range(len(inputs))
        ]

    @staticmethod
    def reduced(
        reading: FloatReading, row: Row, inputs: Sequence[Weighted], alike: int
    ) -> Weighted:
        """The sum or the maximum of the members."""
        kind = row.attrs.get("op", "sum")
        if kind == "sum":
            return reading.combine(inputs, [Fraction(alike)] * len(inputs), Fraction(0))
        if kind != "max":
            raise Unsupported(f"{row.kind} with {kind}")
        reading.combine(inputs, [Fraction(1)] * len(inputs), Fraction(0))
        data = np.maximum.reduce([x.data for x in inputs])
        return Weighted(data, inputs[0].dims)

    @staticmethod
    def part(reading: FloatReading, x: Weighted, dim: int, position: int, count: int) -> Weighted:
        """The equal part of a dimension that the member at ``position`` keeps."""
        size, rest = divmod(int(x.shape[dim]), count)
        if rest:
            raise ShapeMismatch(f"{x.shape[dim]} positions divided among {count} ranks")
        return reading.slice(x, dim, Affine(position * size), size)


Exchange: TypeAlias = Callable[[Replay, FloatReading, Row, Sequence[Weighted], int], list[Weighted]]
#: What each member of a collective has, by its effect.
RULES: Mapping[Effect, Exchange] = {
    Effect.TOTAL: Replay.totals,
    Effect.GATHER: Replay.gathers,
    Effect.SCATTER: Replay.scatters,
    Effect.EXCHANGE: Replay.exchanges,
}


def instances(
    programs: Sequence[Program], unrolled: Unrolled, microbatches: int, expanded: frozenset[str]
) -> int:
    """How many operators a replay evaluates."""
    total = 0
    for row in unrolled.rows:
        count = prod(n for axis, n, _ in programs[row.programs[0]].axes if axis in expanded)
        batched = any(unrolled.tensors[v].batched for v in row.outputs)
        total += count * (
            microbatches if batched and unrolled.symbolic and MICROBATCH in expanded else 1
        )
    return total
