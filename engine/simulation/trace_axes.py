"""Both sides of a plan, read over recording tensors: which dimensions are the same axis.

Operators relate the dimensions of their inputs and outputs by their declarations, communication by
what it joins and divides, and the two sides meet in the parameters and the batch.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from math import prod
from operator import itemgetter
from typing import Final

from shardproof.engine.errors import InvalidInput, ShapeMismatch, Unsupported
from shardproof.engine.ops import apply_backward, apply_forward
from shardproof.engine.plan.collectives import TABLE, Effect, group_size
from shardproof.engine.plan.ir import MICROBATCH, Plan, Program, Shard
from shardproof.engine.schedule.instances import Instance, Unrolled
from shardproof.engine.simulation.axis_classes import Axes, Factors, extent
from shardproof.engine.simulation.recording import Recorded, RecordingInterpreter, step_of
from shardproof.engine.specification.demands import Demand


@dataclass(frozen=True, slots=True)
class BatchTensor:
    """A batch tensor: its full dimensions and those of one slice; ``domain``: what it indexes.

    Example: ids of [16, 128], of which each of 4 microbatches has [4, 128], are ``full`` 4 x 4 by
    128 and ``local`` 4 by 128; they index the classes of an embedding.
    """

    full: tuple[Factors, ...]
    local: tuple[Factors, ...]
    domain: int


@dataclass(slots=True)
class Recording:
    """The dimensions of one side's tensors, and what scales the indices of each instance.

    Example: ``tensors[3].shape`` is (12, 16), of a linear layer with a batch of 12.
    """

    tensors: list[Recorded | None]
    indexed: dict[int, Factors] = field(default_factory=dict)


def slice_axes(plan: Plan) -> list[tuple[str, int]]:
    """The coordinates that divide the batch, outermost first, with their extents; raises
    `InvalidInput` where programs disagree.

    Example: of two replicas with two microbatches ``[("dp", 2), ("mb", 2)]``.
    """
    extents: dict[str, int] = {}
    for program in plan.programs:
        for axis, extent_here, _ in program.axes:
            if extents.setdefault(axis, extent_here) != extent_here:
                raise InvalidInput(
                    f"axis {axis} has {extents[axis]} and {extent_here} positions", program.name
                )
    axes = [(axis, extents[axis]) for axis in plan.replica_axes if axis in extents]
    return [*axes, (MICROBATCH, plan.microbatches)]


#: Operators whose attributes give sizes of dimensions of their results.
STRETCHED: Final = frozenset({"expand", "full", "onehot"})
#: The first of the dimensions that they fill with one number, or with one-hots.
FILLED: Final[Mapping[str, int]] = {"full": 0, "onehot": -1}


def attribute_dim(instance: Instance, key: str, rank: int) -> int:
    """The dimension that an attribute names.

    Example: ``dim=-1`` of a tensor of 3 dimensions is 2.
    """
    value = instance.attrs.get(key)
    if isinstance(value, bool) or not isinstance(value, int) or not -rank <= value < rank:
        raise ShapeMismatch(f"{key} {value} of a tensor of {rank} dimensions")
    return value % rank


class Recorder:
    """Reads the instances of both sides; see `engine.simulation.small_shapes`.  ``integers``: named
    inputs that hold integers, each with what it indexes; ``others``: those that are no parameters
    or buffers; ``constants``: those of these that are constants.

    Example: ``Recorder(plan, single, parallel).run([plan.single], single)`` relates the axes of the
    single-device side.
    """

    def __init__(self, plan: Plan, single: Unrolled, parallel: Unrolled) -> None:
        self.plan = plan
        self.axes = Axes()
        self.interpreter = RecordingInterpreter(self.axes)
        self.parameters: dict[str, tuple[Factors, ...]] = {}
        self.integers: dict[str, tuple[Shard, int]] = {}
        self.others: set[str] = set()
        self.constants: set[str] = set()
        self.boxes: dict[Shard, Recorded] = {}
        self.slices = {
            axis: self.axes.factor(self.axes.new(slices=axis), n) for axis, n in slice_axes(plan)
        }
        self.batch = self.batch_tensors(single, parallel)

    def batch_tensors(self, single: Unrolled, parallel: Unrolled) -> list[BatchTensor]:
        """Full batch tensors as slices times what a rank loads."""
        full = _loaded(single, "single-device program")
        local = _loaded(parallel, "parallel programs")
        if len(full) != len(local):
            raise InvalidInput(f"{len(local)} batch tensors, the single device has {len(full)}")
        slices = prod(n for _, n in slice_axes(self.plan))
        divided = tuple(factor for dim in self.slices.values() for factor in dim)
        result = []
        for whole, part in zip(full, local, strict=True):
            dims = tuple(self.axes.fresh(n) for n in part)
            if len(whole) != len(part) or any(
                n not in (m, m * slices) for n, m in zip(whole, part, strict=True)
            ):
                raise InvalidInput(
                    f"a batch tensor of shape {list(part)}, expected {list(whole)} or one of its "
                    f"{slices} slices (replicas x microbatches)"
                )
            result.append(
                BatchTensor(
                    tuple(
                        dim if n == m else (*divided, *dim)
                        for n, m, dim in zip(whole, part, dims, strict=True)
                    ),
                    dims,
                    self.axes.new(),
                )
            )
        return result

    def shard(self, shard: Shard) -> Recorded:
        """A shard as a box of its parameter, which both sides share by name."""
        if shard in self.boxes:
            return self.boxes[shard]
        if shard.name not in self.parameters:
            self.parameters[shard.name] = tuple(self.axes.fresh(n) for n in shard.full_shape)
            if shard.kind:
                self.others.add(shard.name)
            if shard.kind == "constant":
                self.constants.add(shard.name)
            if shard.integer:
                axis = self.axes.new()
                self.integers[shard.name] = shard, axis
                if shard.domain is not None:
                    self.axes[axis].rules.append(partial(self._has_values, axis, *shard.domain))
        full = self.parameters[shard.name]
        shape = tuple(map(extent, full))
        if shape != shard.full_shape:
            raise InvalidInput(
                f"parameter {shard.name} has full shape {list(shard.full_shape)} on one side, "
                f"{list(shape)} on the other"
            )
        for n, size, offset in zip(shape, shard.shape, shard.offset, strict=True):
            fits = offset.const == 0 if size == n else offset.const <= n - size
            if offset.const < 0 or not (fits or offset.terms):
                raise ShapeMismatch(
                    f"positions {offset} to {offset + size} of the {n} of parameter {shard.name}"
                )
        self.boxes[shard] = Recorded(
            tuple(
                dim if n == extent(dim) else self.interpreter.interval(dim, n, step_of(offset))
                for dim, n, offset in zip(full, shard.shape, shard.offset, strict=True)
            ),
            self.integers[shard.name][1] if shard.name in self.integers else None,
        )
        return self.boxes[shard]

    def _has_values(self, axis: int, low: int, high: int, divisor: int) -> bool:
        """Whether some index data of [low, high) is left when the axis is divided: of ids 10 and 11
        of 12 classes none is left of 2."""
        classes = self.axes[axis].most // divisor
        return not classes or max(0, -(-low // divisor)) < min(classes, -(-high // divisor))

    def run(self, programs: Sequence[Program], unrolled: Unrolled) -> Recording:
        """Read every instance of one side; an operator on the dimensions that it was on before has
        the outputs that it had."""
        whole = programs[0] is self.plan.single
        side = Recording([None] * len(unrolled.tensors))
        known: dict[Hashable, tuple[list[Recorded], list[Factors]]] = {}
        for number, instance in enumerate(unrolled.instances):
            inputs = [side.tensors[v] if v >= 0 else None for v in instance.inputs]
            self.interpreter.indexed.clear()
            if instance.kind == "seed":
                side.tensors[instance.outputs[0]] = scalar(
                    unrolled.tensors[instance.outputs[0]].shape
                )
                continue
            key = same(instance, tuple(inputs))
            if key in known:
                outputs, indexed = known[key]
            else:
                with located(instance, programs):
                    outputs = self.read(instance, inputs, programs, whole)
                    if len(outputs) != len(instance.outputs):
                        raise ShapeMismatch(
                            f"{len(instance.outputs)} outputs, expected {len(outputs)}"
                        )
                indexed = self.interpreter.indexed[-1:]
                if key is not None:
                    known[key] = outputs, indexed
            if indexed:
                side.indexed[number] = indexed[0]
            for value, output in zip(instance.outputs, outputs, strict=True):
                side.tensors[value] = output
        for program, shard, value in unrolled.gradients:
            gradient = side.tensors[value]
            assert gradient is not None
            self.interpreter.unify(self.shard(programs[program].shards[shard]), gradient)
        return side

    def expect(self, demand: Demand, single: Recording, parallel: Recording) -> None:
        """What a demand is about is a box of the single-device value; raises `ShapeMismatch`."""
        recordeds = [parallel.tensors[v] for part in demand.sums for v in part.tensors]
        if demand.problem or demand.expected < 0:
            return
        if demand.shard >= 0 and not recordeds:
            recordeds = [self.shard(self.plan.programs[demand.program].shards[demand.shard])]
        want = single.tensors[demand.expected]
        for have in recordeds:
            if want is None or have is None or not (want.dims and have.dims):
                continue
            if prod(want.shape) == prod(have.shape) == 1:
                continue
            if not demand.offset:
                self.interpreter.unify(want, have)
                continue
            for i, (dim, part) in enumerate(zip(want.dims, have.dims, strict=True)):
                self.axes.relate(dim, part, step_of(demand.relative[i]))

    def read(
        self,
        instance: Instance,
        inputs: Sequence[Recorded | None],
        programs: Sequence[Program],
        whole: bool,
    ) -> list[Recorded]:
        """The outputs of an instance."""
        if instance.kind in ("op", "slice"):
            if not instance.backward:
                if None in inputs:
                    raise Unsupported("an operand without a value")
                self.interpreter.stretches = instance.name in STRETCHED
                try:
                    outputs: list[Recorded] = apply_forward(
                        self.interpreter, instance.name, inputs, instance.attrs
                    )
                finally:
                    self.interpreter.stretches = False
                if instance.name in FILLED:
                    self.axes.fill(*outputs[0].dims[FILLED[instance.name] :])
                return outputs
            return self.backward(instance, inputs)
        if instance.kind == "shard" or (instance.kind == "accumulate" and not inputs):
            number = instance.attrs["shard"]
            assert isinstance(number, int)
            return [self.shard(programs[instance.programs[0]].shards[number])]
        if instance.kind == "load":
            return [Recorded(x.full if whole else x.local, x.domain) for x in self.batch]
        return self.communicate(instance, [x for x in inputs if x is not None])

    def backward(self, instance: Instance, inputs: Sequence[Recorded | None]) -> list[Recorded]:
        """The gradients, which have the dimensions of what they are gradients of, also where the
        derivative does not read that (a cast's)."""
        arity, wrt = backward_attrs(instance)
        gradients: list[Recorded] = apply_backward(
            self.interpreter, instance.name, inputs[:arity], inputs[arity:], instance.attrs, wrt
        )
        for position, gradient in zip(wrt, gradients, strict=True):
            operand = inputs[position]
            assert operand is not None
            self.interpreter.unify(operand, gradient)
        return gradients

    def communicate(self, instance: Instance, inputs: Sequence[Recorded]) -> list[Recorded]:
        """Accumulation and communication: what ranks share, join and keep parts of."""
        declared = TABLE.get(instance.kind)
        effect = Effect.TOTAL if declared is None else declared.effect
        return [RULES[effect](self, instance, inputs)] * len(instance.outputs)

    def shared(self, instance: Instance, inputs: Sequence[Recorded]) -> Recorded:
        """One of several tensors that are alike."""
        for x in inputs[1:]:
            self.interpreter.unify(inputs[0], x)
        return inputs[0]

    def gathers(self, instance: Instance, inputs: Sequence[Recorded]) -> Recorded:
        """The classes of what an all-gather joins."""
        dim = attribute_dim(instance, "dim", len(inputs[0].dims))
        return self.gathered(inputs, dim, prod(n for _, n in instance.over))

    def scatters(self, instance: Instance, inputs: Sequence[Recorded]) -> Recorded:
        """The classes of what a reduce-scatter leaves."""
        first = self.shared(instance, inputs)
        dim = attribute_dim(instance, "dim", len(first.dims))
        return self.kept(first, dim, group_size(instance.over, len(inputs)))

    def exchanges(self, instance: Instance, inputs: Sequence[Recorded]) -> Recorded:
        """The classes of what an all-to-all leaves."""
        first = self.shared(instance, inputs)
        split = attribute_dim(instance, "split_dim", len(first.dims))
        joined = attribute_dim(instance, "concat_dim", len(first.dims))
        ranks = group_size(instance.over, len(inputs))
        return self.gathered([self.kept(first, split, ranks)], joined, ranks)

    def gathered(self, inputs: Sequence[Recorded], dim: int, ranks: int) -> Recorded:
        """The concatenation of tensors, each from so many ranks."""
        return self.interpreter.concat([x for x in inputs for _ in range(ranks)], dim)

    def kept(self, x: Recorded, dim: int, ranks: int) -> Recorded:
        """The part of a dimension that one of so many ranks keeps."""
        size = extent(x.dims[dim])
        if size % ranks:
            raise ShapeMismatch(f"{size} positions divided among {ranks} ranks")
        if ranks == 1:
            return x
        part = self.interpreter.interval(x.dims[dim], size // ranks, size // ranks)
        return self.interpreter.resized(x, dim, part)


#: The dimensions of what communication gives, by its effect.
RULES: Mapping[Effect, Callable[[Recorder, Instance, Sequence[Recorded]], Recorded]] = {
    Effect.TOTAL: Recorder.shared,
    Effect.COPY: Recorder.shared,
    Effect.GATHER: Recorder.gathers,
    Effect.SCATTER: Recorder.scatters,
    Effect.EXCHANGE: Recorder.exchanges,
}


def same(instance: Instance, operands: Hashable) -> Hashable:
    """A key that is equal for instances of one operator with one set of attributes that are
    ``operands`` the same; None for an instance that is more than its operator.

    Example: two ``concat`` along dimension -1 of tensors of the same dimensions are; an all-reduce
    gives None.
    """
    if instance.kind not in ("op", "slice"):
        return None
    attrs = tuple(
        sorted(((k, v) for k, v in instance.attrs.items() if k != "claimed"), key=itemgetter(0))
    )
    return instance.name, instance.backward, attrs, operands


class located:
    """A context in which errors name the operator, its layer and its rank.

    Example: "rank 0: concat in h.1: no rule".
    """

    __slots__ = ("instance", "programs")

    def __init__(self, instance: Instance, programs: Sequence[Program]) -> None:
        self.instance = instance
        self.programs = programs

    def __enter__(self) -> None:
        """Nothing is done until there is an error."""

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        """Name the place of an error."""
        if isinstance(error, Unsupported | ShapeMismatch):
            raise type(error)(f"{_place(self.instance, self.programs)}: {error}") from None
        if isinstance(error, ArithmeticError | LookupError | TypeError | ValueError):
            error.add_note(f"{_place(self.instance, self.programs)}: while this row was read")


def scalar(shape: tuple[int, ...]) -> Recorded:
    """The loss, or its gradient, as a recorded tensor; raises `ShapeMismatch` for more than one
    element.

    Example: of shape (1, 1) a tensor of two dimensions of 1; of (2,) "the loss has shape [2],
    expected one element".
    """
    if prod(shape) != 1:
        raise ShapeMismatch(f"the loss has shape {list(shape)}, expected one element")
    return Recorded(tuple(() for _ in shape))


def backward_attrs(instance: Instance) -> tuple[int, list[int]]:
    """How many forward inputs a backward instance has, and which of their gradients it gives.

    Example: of ``{arity=2, wrt=(1)}`` (2, [1]).
    """
    wrt, arity = instance.attrs.get("wrt"), instance.attrs.get("arity")
    if not isinstance(wrt, tuple) or not isinstance(arity, int) or arity < 0:
        raise Unsupported("a backward operator without wrt and arity")
    return arity, [w for w in wrt if isinstance(w, int)]


def _loaded(unrolled: Unrolled, who: str) -> list[tuple[int, ...]]:
    """The shapes of what the side's loads give, which must agree."""
    shapes = {
        tuple(unrolled.tensors[v].shape for v in instance.outputs)
        for instance in unrolled.instances
        if instance.kind == "load"
    }
    if not shapes:
        return []
    if len(shapes) > 1:
        raise InvalidInput(f"the {who} load batches of {len(shapes)} different shapes")
    return list(shapes.pop())


def _place(instance: Instance, programs: Sequence[Program]) -> str:
    name = f"backward of {instance.name}" if instance.backward else instance.name
    where = f" in {instance.source.module}" if instance.source.module else ""
    return f"rank {programs[instance.programs[0]].base}: {name}{where}"
