"""Evaluate the instances of one side over float64, at every coordinate where data differs.

The tensors of a program are families over its axes and the microbatch.  Along an *expanded* axis
every member is evaluated by itself.  Along any other one all members are equal, because nothing
but the batch depends on it and every slice of the batch is the same: one member stands for all, and
a sum along the axis multiplies by its extent.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from functools import partial
from itertools import product
from math import prod
from typing import TypeAlias

import numpy as np

from shardproof.engine.algebra.affine import Affine
from shardproof.engine.errors import ShapeMismatch, Unsupported
from shardproof.engine.interpreters import FloatInterpreter, Weighted
from shardproof.engine.ops import apply_backward, apply_forward
from shardproof.engine.plan.collectives import COPIES, TABLE, Effect, refused
from shardproof.engine.plan.ir import MICROBATCH, Attr, Program, Shard
from shardproof.engine.schedule.instances import Instance, Unrolled
from shardproof.engine.simulation.axis_classes import Factors, extent
from shardproof.engine.simulation.inputs import Inputs
from shardproof.engine.simulation.lifetimes import MOST_SHARED, Evaluated, last_uses
from shardproof.engine.simulation.small_shapes import Sizes
from shardproof.engine.simulation.standing import StandingInterpreter
from shardproof.engine.simulation.trace_axes import (
    Recording,
    attribute_dim,
    backward_attrs,
    located,
    same,
)
from shardproof.engine.specification.demands import Demand

#: Where a member of a family is: (axis, position) along expanded axes.
Coordinates = tuple[tuple[str, int], ...]
#: Kinds under which equal members stay equal, along an axis that is not expanded.
REDUCING = frozenset(
    {"accumulate", *(name for name, c in TABLE.items() if c.effect is Effect.TOTAL)}
)


def needed_axes(programs: Sequence[Program], unrolled: Unrolled) -> frozenset[str]:
    """The axes that have to be expanded: something but the batch differs along them.

    Example: of replicas with an all-reduce of gradients none; of ranks with shards at ``8*tp``
    ``tp``.
    """
    axes: set[str] = set()
    for program in programs:
        for shard in program.shards:
            for offset in shard.offset:
                axes.update(offset.axes)
    for instance in unrolled.instances:
        for value in instance.attrs.values():
            axes |= _axes_in(value)
        if instance.kind not in REDUCING:
            axes.update(axis for axis, _ in instance.over)
    if not unrolled.symbolic:
        axes.add(MICROBATCH)
    return frozenset(axes)


def _axes_in(value: Attr) -> set[str]:
    if isinstance(value, Affine):
        return set(value.axes)
    if isinstance(value, tuple):
        return set().union(*map(_axes_in, value))
    return set()


@dataclass(slots=True)
class Replay:
    """One side, evaluated.  ``values[tensor]``: its member at every coordinate.

    Example: ``values[4][(("tp", 1),)]`` is tensor 4 on the second rank along ``tp``.
    """

    programs: Sequence[Program]
    unrolled: Unrolled
    sizes: Sizes
    recording: Recording
    inputs: Inputs
    values: list[dict[Coordinates, Weighted]] = field(default_factory=list)
    _families: dict[tuple[int, bool], list[tuple[str, int]]] = field(default_factory=dict)
    _interpreters: dict[Coordinates, FloatInterpreter] = field(default_factory=dict)
    _evaluated: Evaluated = field(default_factory=Evaluated)
    _given: dict[Hashable, Weighted] = field(default_factory=dict)

    @property
    def whole(self) -> bool:
        """Whether this is the single-device side, which reads the whole batch."""
        return self.programs[0] is self.sizes.plan.single

    @property
    def overflows(self) -> bool:
        """Whether an exponential is larger than any float."""
        rows = (i for i in self.unrolled.instances if i.name == "exp" and not i.backward)
        powers = (x.data for row in rows for v in row.outputs for x in self.values[v].values())
        return any(bool(np.isinf(data).any()) for data in powers)

    def run(self, kept: Collection[int] | None = None) -> None:
        """Evaluate every instance; raises `Unsupported` or `ShapeMismatch`.  ``kept``: the tensors
        whose values are looked at afterwards (None: all); others are forgotten after their last
        use."""
        self.values = [{} for _ in self.unrolled.tensors]
        instances = self.unrolled.instances
        ends: list[tuple[int, ...]] = [()] * len(instances)
        if kept is not None:
            ends = last_uses(instances, kept)
            self._evaluated.most = MOST_SHARED
        with np.errstate(all="ignore"):
            for number, (instance, ended) in enumerate(zip(instances, ends, strict=True)):
                with located(instance, self.programs):
                    self.instance(number, instance)
                for tensor in ended:
                    self.values[tensor] = {}

    def instance(self, number: int, instance: Instance) -> None:
        """Evaluate one instance at all its coordinates."""
        if instance.kind in ("op", "slice"):
            self.operator(number, instance)
        elif instance.kind in ("shard", "load", "seed"):
            self.given(instance)
        elif instance.kind == "accumulate":
            self.accumulate(instance)
        elif instance.kind in COPIES:
            self.move(instance)
        else:
            self.collective(instance)

    # -- coordinates --------------------------------------------------------------------------

    def family(self, program: int, batched: bool) -> list[tuple[str, int]]:
        """The expanded axes of a program's tensors, and their extents."""
        known = self._families.get((program, batched))
        if known is None:
            axes = [(axis, extent) for axis, extent, _ in self.programs[program].axes]
            if batched and self.unrolled.symbolic and not self.whole:
                axes.append((MICROBATCH, self.sizes.plan.microbatches))
            known = [(axis, extent) for axis, extent in axes if axis in self.sizes.expanded]
            self._families[program, batched] = known
        return known

    def axes_of(self, tensor: int) -> list[tuple[str, int]]:
        """The coordinates along which members of a tensor are evaluated apart, with extents."""
        value = self.unrolled.tensors[tensor]
        return self.family(value.program, value.batched)

    @staticmethod
    def members(axes: Sequence[tuple[str, int]]) -> Iterator[dict[str, int]]:
        """The coordinates of all members along axes, the last axis fastest."""
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
        key = self.key(tensor, at) if at else ()
        value = self.values[tensor].get(key)
        if value is None:
            key = self.key(tensor, at)
            raise Unsupported(f"{self.unrolled.tensors[tensor].name} has no value at {dict(key)}")
        return value

    def put(self, tensor: int, at: Mapping[str, int], value: Weighted) -> None:
        """Keep the value of a tensor at coordinates."""
        self.values[tensor][self.key(tensor, at)] = value

    def interpreter(self, at: Mapping[str, int]) -> FloatInterpreter:
        """The float64 interpreter at coordinates, one for each place."""
        key = tuple(at.items())
        if key not in self._interpreters:
            kind = StandingInterpreter if self.sizes.standing else FloatInterpreter
            self._interpreters[key] = kind(coordinates=dict(at))
        return self._interpreters[key]

    # -- instances ---------------------------------------------------------------------------------

    def operator(self, number: int, instance: Instance) -> None:
        """Evaluate an instance for every member of its family."""
        instance = instance._replace(attrs=self.sizes.attrs(self.recording, number, instance))
        batched = any(self.unrolled.tensors[v].batched for v in instance.outputs)
        for at in self.members(self.family(instance.programs[0], batched)):
            inputs = [self.get(v, at) if v >= 0 else None for v in instance.inputs]
            # Ranks that hold equal values hold one object: nobody looks further than that.
            key = same(instance, (tuple(at.items()), tuple(map(id, inputs))))
            outputs = self._evaluated.get(key)
            if outputs is None:
                outputs = self._evaluated.add(key, inputs, self.evaluate(instance, inputs, at))
            for value, output in zip(instance.outputs, outputs, strict=True):
                self.put(value, at, output)

    def evaluate(
        self,
        instance: Instance,
        inputs: Sequence[Weighted | None],
        at: Mapping[str, int],
    ) -> list[Weighted]:
        """The results of an instance at coordinates, forward or backward, by its declaration."""
        interpreter = self.interpreter(at)
        if not instance.backward:
            return apply_forward(interpreter, instance.name, inputs, instance.attrs)
        arity, wrt = backward_attrs(instance)
        return apply_backward(
            interpreter, instance.name, inputs[:arity], inputs[arity:], instance.attrs, wrt
        )

    def given(self, instance: Instance) -> None:
        """Parameters, the batch and the incoming loss gradient."""
        batched = any(self.unrolled.tensors[v].batched for v in instance.outputs)
        for at in self.members(self.family(instance.programs[0], batched)):
            for value, output in zip(instance.outputs, self.input(instance, at), strict=True):
                self.put(value, at, output)

    def input(self, instance: Instance, at: Mapping[str, int]) -> list[Weighted]:
        """The values of an instance that reads nothing."""
        if instance.kind == "seed":
            shape = self.unrolled.tensors[instance.outputs[0]].shape
            return [
                self.once(
                    ("seed", shape), lambda: self.inputs.loss_gradient(shape, whole=self.whole)
                )
            ]
        if instance.kind == "shard":
            return [self.shard_value(instance, at)]
        known = dict(at) if instance.microbatch < 0 else {**at, MICROBATCH: instance.microbatch}
        here = None if self.whole else known
        return [
            self.once(("load", i, tuple(known.items())), partial(self.inputs.batch, i, here))
            for i in range(len(instance.outputs))
        ]

    def shard_value(self, instance: Instance, at: Mapping[str, int]) -> Weighted:
        """The shard that an instance names."""
        number = instance.attrs["shard"]
        assert isinstance(number, int)
        shard = self.programs[instance.programs[0]].shards[number]
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
        interpreter = self.interpreter(at)
        for i, (dim, part) in enumerate(zip(dims, kept, strict=True)):
            if dim != part and extent(dim) != extent(part):
                start = self.sizes.scaled(offset[i], dim)
                full = interpreter.slice(full, i, start, self.sizes.small(part))
        return full

    def held_dims(self, demand: Demand) -> tuple[Factors, ...]:
        """The dimensions of what a rank has of a demand: of its value, or of its shard."""
        if demand.sums:
            recorded = self.recording.tensors[demand.value]
            assert recorded is not None
            return recorded.dims
        shard = self.programs[demand.program].shards[demand.shard]
        return self.sizes.recorder.shard(shard).dims

    def accumulate(self, instance: Instance) -> None:
        """The sum of all contributions, over all microbatches of those that have one."""
        for at in self.members(self.axes_of(instance.outputs[0])):
            parts: list[Weighted] = []
            factors: list[Fraction] = []
            if not instance.inputs:
                parts, factors = [self.shard_value(instance, at)], [Fraction(0)]
            for value in instance.inputs:
                axes = self.axes_of(value)
                distinct = [a for a in axes if a[0] == MICROBATCH]
                everyone = self.unrolled.tensors[value].batched and self.unrolled.symbolic
                count = (
                    1 if distinct or not everyone or self.whole else (self.sizes.plan.microbatches)
                )
                for moved in self.members(distinct):
                    parts.append(self.get(value, {**at, **moved}))
                    factors.append(Fraction(count))
            self.put(
                instance.outputs[0], at, self.interpreter(at).combine(parts, factors, Fraction(0))
            )

    def move(self, instance: Instance) -> None:
        """A message, or a broadcast to other programs at the same coordinates."""
        reason = refused(instance.kind, instance.attrs, instance.over, len(instance.programs))
        if reason or len(instance.inputs) != 1:
            raise Unsupported(reason or f"{instance.kind} of {len(instance.inputs)} tensors")
        for value in instance.outputs:
            for at in self.members(self.axes_of(value)):
                self.put(value, at, self.get(instance.inputs[0], at))

    def collective(self, instance: Instance) -> None:
        """One collective: members are the programs in group order, at every position along the
        mesh axes that it spans."""
        over = [a for a in instance.over if a[0] in self.sizes.expanded]
        alike = prod(extent for axis, extent in instance.over if axis not in self.sizes.expanded)
        reason = refused(instance.kind, instance.attrs, instance.over, len(instance.programs))
        if reason:
            raise Unsupported(reason)
        taking = 1 if TABLE[instance.kind].root == "takes" else len(instance.programs)
        if len(instance.inputs) != len(instance.programs) or len(instance.outputs) != taking:
            raise ShapeMismatch(
                f"{len(instance.inputs)} inputs over {len(instance.programs)} programs"
            )
        spanned = {axis for axis, _ in over}
        common = [a for a in self.axes_of(instance.outputs[0]) if a[0] not in spanned]
        for at in self.members(common):
            places = [(v, {**at, **p}) for v in instance.inputs for p in self.members(over)]
            inputs = [self.get(v, place) for v, place in places]
            outputs = self.exchange(instance, inputs, alike, at)
            targets = [(v, {**at, **p}) for v in instance.outputs for p in self.members(over)]
            for (value, place), output in zip(targets, outputs, strict=True):
                self.put(value, place, output)

    def exchange(
        self, instance: Instance, inputs: Sequence[Weighted], alike: int, at: Mapping[str, int]
    ) -> list[Weighted]:
        """What each member has after a collective; each input counts ``alike`` times."""
        rule = RULES.get(TABLE[instance.kind].effect)
        if rule is None:
            raise Unsupported(f"communication {instance.kind}")
        return rule(self, self.interpreter(at), instance, inputs, alike)

    def totals(
        self,
        interpreter: FloatInterpreter,
        instance: Instance,
        inputs: Sequence[Weighted],
        alike: int,
    ) -> list[Weighted]:
        """The sum (or maximum), which all members have, or the root alone."""
        taking = 1 if TABLE[instance.kind].root == "takes" else len(inputs)
        return [self.reduced(interpreter, instance, inputs, alike)] * taking

    def gathers(
        self,
        interpreter: FloatInterpreter,
        instance: Instance,
        inputs: Sequence[Weighted],
        alike: int,
    ) -> list[Weighted]:
        """What an all-gather gives to each member."""
        joined = attribute_dim(instance, "dim", len(inputs[0].dims))
        return [interpreter.concat(inputs, joined)] * len(inputs)

    def scatters(
        self,
        interpreter: FloatInterpreter,
        instance: Instance,
        inputs: Sequence[Weighted],
        alike: int,
    ) -> list[Weighted]:
        """What a reduce-scatter gives to each member."""
        total = self.reduced(interpreter, instance, inputs, alike)
        dim = attribute_dim(instance, "dim", len(inputs[0].dims))
        return [self.part(interpreter, total, dim, i, len(inputs)) for i in range(len(inputs))]

    def exchanges(
        self,
        interpreter: FloatInterpreter,
        instance: Instance,
        inputs: Sequence[Weighted],
        alike: int,
    ) -> list[Weighted]:
        """What an all-to-all gives to each member."""
        split = attribute_dim(instance, "split_dim", len(inputs[0].dims))
        joined = attribute_dim(instance, "concat_dim", len(inputs[0].dims))
        return [
            interpreter.concat(
                [self.part(interpreter, x, split, i, len(inputs)) for x in inputs], joined
            )
            for i in range(len(inputs))
        ]

    @staticmethod
    def reduced(
        interpreter: FloatInterpreter, instance: Instance, inputs: Sequence[Weighted], alike: int
    ) -> Weighted:
        """The sum or the maximum of the members."""
        kind = instance.attrs.get("op", "sum")
        if kind == "sum":
            return interpreter.combine(inputs, [Fraction(alike)] * len(inputs), Fraction(0))
        if kind != "max":
            raise Unsupported(f"{instance.kind} with {kind}")
        interpreter.combine(inputs, [Fraction(1)] * len(inputs), Fraction(0))
        data = np.maximum.reduce([x.data for x in inputs])
        return Weighted(data, inputs[0].dims)

    @staticmethod
    def part(
        interpreter: FloatInterpreter, x: Weighted, dim: int, position: int, count: int
    ) -> Weighted:
        """The equal part of a dimension that the member at ``position`` keeps."""
        size, rest = divmod(int(x.shape[dim]), count)
        if rest:
            raise ShapeMismatch(f"{x.shape[dim]} positions divided among {count} ranks")
        return interpreter.slice(x, dim, Affine(position * size), size)


Exchange: TypeAlias = Callable[
    [Replay, FloatInterpreter, Instance, Sequence[Weighted], int], list[Weighted]
]
#: What each member of a collective has, by its effect.
RULES: Mapping[Effect, Exchange] = {
    Effect.TOTAL: Replay.totals,
    Effect.GATHER: Replay.gathers,
    Effect.SCATTER: Replay.scatters,
    Effect.EXCHANGE: Replay.exchanges,
}


def count_instances(
    programs: Sequence[Program], unrolled: Unrolled, microbatches: int, expanded: frozenset[str]
) -> int:
    """How many operators a replay evaluates.

    Example: of two replicas with two microbatches each, 19 instances where one stands for all, 64
    where each is evaluated.
    """
    total = 0
    for instance in unrolled.instances:
        count = prod(n for axis, n, _ in programs[instance.programs[0]].axes if axis in expanded)
        batched = any(unrolled.tensors[v].batched for v in instance.outputs)
        total += count * (
            microbatches if batched and unrolled.symbolic and MICROBATCH in expanded else 1
        )
    return total


def count_members(
    programs: Sequence[Program], unrolled: Unrolled, microbatches: int, expanded: frozenset[str]
) -> list[int]:
    """How many members of each tensor a replay holds.

    Example: along ``dp`` of 2, ``[2, 2, ...]``, a number for each tensor.
    """
    reach = [prod(n for axis, n, _ in program.axes if axis in expanded) for program in programs]
    apart = microbatches if unrolled.symbolic and MICROBATCH in expanded else 1
    return [reach[t.program] * (apart if t.batched else 1) for t in unrolled.tensors]
