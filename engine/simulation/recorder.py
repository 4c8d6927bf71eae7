"""Both sides of a plan, read over recording tensors: which dimensions are the same axis.

Operators relate the dimensions of their inputs and outputs by their declarations, communication by
what it joins and divides, and the two sides meet in the parameters and the batch.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from math import prod
from operator import itemgetter

from shardproof.engine.errors import InvalidInput, ShapeMismatch, Unsupported
from shardproof.engine.ops import apply_backward, apply_forward
from shardproof.engine.plan.collectives import TABLE, Effect, group_size
from shardproof.engine.plan.ir import MICROBATCH, Plan, Program, Shard
from shardproof.engine.schedule.instances import Row, Unrolled
from shardproof.engine.simulation.factors import Axes, Factors, extent
from shardproof.engine.simulation.recording import Recorded, RecordingReading, step_of
from shardproof.engine.specification.demands import Demand


@dataclass(frozen=True, slots=True)
class BatchTensor:
    """A batch tensor: its full dimensions and those of one slice; ``domain``: what it indexes."""

    full: tuple[Factors, ...]
    local: tuple[Factors, ...]
    domain: int


@dataclass(slots=True)
class Recording:
    """The dimensions of one side's tensors, and what scales the indices of each row."""

    tensors: list[Recorded | None]
    indexed: dict[int, Factors] = field(default_factory=dict)


def slice_axes(plan: Plan) -> list[tuple[str, int]]:
    """The coordinates that divide the batch, outermost first, with their extents; raises
    `InvalidInput` where programs disagree."""
    extents: dict[str, int] = {}
    for program in plan.programs:
        for axis, extent_here, _ in program.axes:
            if extents.setdefault(axis, extent_here) != extent_here:
                raise InvalidInput(
                    f"axis {axis} has {extents[axis]} and {extent_here} positions", program.name
                )
    axes = [(axis, extents[axis]) for axis in plan.replica_axes if axis in extents]
    return [*axes, (MICROBATCH, plan.microbatches)]


def attribute_dim(row: Row, key: str, rank: int) -> int:
    """The dimension that an attribute names."""
    value = row.attrs.get(key)
    if isinstance(value, bool) or not isinstance(value, int) or not -rank <= value < rank:
        raise ShapeMismatch(f"{key} {value} of a tensor of {rank} dimensions")
    return value % rank


class Recorder:
    """Reads the rows of both sides; see `engine.simulation.shrink`.  ``integers``: named inputs
    that hold integers, each with what it indexes; ``others``: those that are no parameters or
    buffers; ``constants``: those of these that are constants."""

    def __init__(self, plan: Plan, single: Unrolled, parallel: Unrolled) -> None:
        self.plan = plan
        self.axes = Axes()
        self.reading = RecordingReading(self.axes)
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

    def shard(self, held: Shard) -> Recorded:
        """A shard as a box of its parameter, which both sides share by name."""
        if held in self.boxes:
            return self.boxes[held]
        if held.name not in self.parameters:
            self.parameters[held.name] = tuple(self.axes.fresh(n) for n in held.full_shape)
            if held.kind:
                self.others.add(held.name)
            if held.kind == "constant":
                self.constants.add(held.name)
            if held.integer:
                self.integers[held.name] = held, self.axes.new()
        full = self.parameters[held.name]
        shape = tuple(map(extent, full))
        if shape != held.full_shape:
            raise InvalidInput(
                f"parameter {held.name} has full shape {list(held.full_shape)} on one side, "
                f"{list(shape)} on the other"
            )
        for n, size, offset in zip(shape, held.shape, held.offset, strict=True):
            fits = offset.const == 0 if size == n else offset.const <= n - size
            if offset.const < 0 or not (fits or offset.terms):
                raise ShapeMismatch(
                    f"positions {offset} to {offset + size} of the {n} of parameter {held.name}"
                )
        self.boxes[held] = Recorded(
            tuple(
                dim if n == extent(dim) else self.reading.interval(dim, n, step_of(offset))
                for dim, n, offset in zip(full, held.shape, held.offset, strict=True)
            ),
            self.integers[held.name][1] if held.name in self.integers else None,
        )
        return self.boxes[held]

    def run(self, programs: Sequence[Program], unrolled: Unrolled) -> Recording:
        """Read every row of one side; an operator on the dimensions that it was on before has the
        outputs that it had."""
        whole = programs[0] is self.plan.single
        side = Recording([None] * len(unrolled.tensors))
        known: dict[Hashable, tuple[list[Recorded], list[Factors]]] = {}
        for number, row in enumerate(unrolled.rows):
            inputs = [side.tensors[v] if v >= 0 else None for v in row.inputs]
            self.reading.indexed.clear()
            if row.kind == "seed":
                side.tensors[row.outputs[0]] = scalar(unrolled.tensors[row.outputs[0]].shape)
                continue
            key = same(row, tuple(inputs))
            if key in known:
                outputs, indexed = known[key]
            else:
                with located(row, programs):
                    outputs = self.read(row, inputs, programs, whole)
                    if len(outputs) != len(row.outputs):
                        raise ShapeMismatch(f"{len(row.outputs)} outputs, expected {len(outputs)}")
                indexed = self.reading.indexed[-1:]
                if key is not None:
                    known[key] = outputs, indexed
            if indexed:
                side.indexed[number] = indexed[0]
            for value, output in zip(row.outputs, outputs, strict=True):
                side.tensors[value] = output
        for program, shard, value in unrolled.gradients:
            gradient = side.tensors[value]
            assert gradient is not None
            self.reading.unify(self.shard(programs[program].shards[shard]), gradient)
        return side

    def expect(self, demand: Demand, single: Recording, parallel: Recording) -> None:
        """What a demand is about is a box of the single-device value; raises `ShapeMismatch`."""
        held = [parallel.tensors[v] for part in demand.held for v in part.tensors]
        if demand.problem or demand.expected < 0:
            return
        if demand.shard >= 0 and not held:
            held = [self.shard(self.plan.programs[demand.program].shards[demand.shard])]
        want = single.tensors[demand.expected]
        for have in held:
            if want is None or have is None or not (want.dims and have.dims):
                continue
            if prod(want.shape) == prod(have.shape) == 1:
                continue
            if not demand.offset:
                self.reading.unify(want, have)
                continue
            for i, (dim, part) in enumerate(zip(want.dims, have.dims, strict=True)):
                self.axes.relate(dim, part, step_of(demand.relative[i]))

    def read(
        self,
        row: Row,
        inputs: Sequence[Recorded | None],
        programs: Sequence[Program],
        whole: bool,
    ) -> list[Recorded]:
        """The outputs of a row."""
        if row.kind in ("op", "slice"):
            if not row.backward:
                if None in inputs:
                    raise Unsupported("an operand without a value")
                self.reading.stretches = row.name == "expand"
                try:
                    return apply_forward(self.reading, row.name, inputs, row.attrs)
                finally:
                    self.reading.stretches = False
            return self.backward(row, inputs)
        if row.kind == "shard" or (row.kind == "accumulate" and not inputs):
            number = row.attrs["shard"]
            assert isinstance(number, int)
            return [self.shard(programs[row.programs[0]].shards[number])]
        if row.kind == "load":
            return [Recorded(x.full if whole else x.local, x.domain) for x in self.batch]
        return self.communicate(row, [x for x in inputs if x is not None])

    def backward(self, row: Row, inputs: Sequence[Recorded | None]) -> list[Recorded]:
        """The gradients, which have the dimensions of what they are gradients of, also where the
        derivative does not read that (a cast's)."""
        arity, wrt = backward_attrs(row)
        found: list[Recorded] = apply_backward(
            self.reading, row.name, inputs[:arity], inputs[arity:], row.attrs, wrt
        )
        for position, gradient in zip(wrt, found, strict=True):
            operand = inputs[position]
            assert operand is not None
            self.reading.unify(operand, gradient)
        return found

    def communicate(self, row: Row, inputs: Sequence[Recorded]) -> list[Recorded]:
        """Accumulation and communication: what ranks share, join and keep parts of."""
        declared = TABLE.get(row.kind)
        effect = Effect.TOTAL if declared is None else declared.effect
        return [RULES[effect](self, row, inputs)] * len(row.outputs)

    def shared(self, row: Row, inputs: Sequence[Recorded]) -> Recorded:
        """One of several tensors that are alike."""
        for x in inputs[1:]:
            self.reading.unify(inputs[0], x)
        return inputs[0]

    def gathers(self, row: Row, inputs: Sequence[Recorded]) -> Recorded:
        """The classes of what an all-gather joins."""
        dim = attribute_dim(row, "dim", len(inputs[0].dims))
        return self.gathered(inputs, dim, prod(n for _, n in row.over))

    def scatters(self, row: Row, inputs: Sequence[Recorded]) -> Recorded:
        """The classes of what a reduce-scatter leaves."""
        first = self.shared(row, inputs)
        dim = attribute_dim(row, "dim", len(first.dims))
        return self.kept(first, dim, group_size(row.over, len(inputs)))

    def exchanges(self, row: Row, inputs: Sequence[Recorded]) -> Recorded:
        """The classes of what an all-to-all leaves."""
        first = self.shared(row, inputs)
        split = attribute_dim(row, "split_dim", len(first.dims))
        joined = attribute_dim(row, "concat_dim", len(first.dims))
        ranks = group_size(row.over, len(inputs))
        return self.gathered([self.kept(first, split, ranks)], joined, ranks)

    def gathered(self, inputs: Sequence[Recorded], dim: int, ranks: int) -> Recorded:
        """The concatenation of tensors, each from so many ranks."""
        return self.reading.concat([x for x in inputs for _ in range(ranks)], dim)

    def kept(self, x: Recorded, dim: int, ranks: int) -> Recorded:
        """The part of a dimension that one of so many ranks keeps."""
        size = extent(x.dims[dim])
        if size % ranks:
            raise ShapeMismatch(f"{size} positions divided among {ranks} ranks")
        if ranks == 1:
            return x
        part = self.reading.interval(x.dims[dim], size // ranks, size // ranks)
        return self.reading.resized(x, dim, part)


#: The dimensions of what communication gives, by its effect.
RULES: Mapping[Effect, Callable[[Recorder, Row, Sequence[Recorded]], Recorded]] = {
    Effect.TOTAL: Recorder.shared,
    Effect.COPY: Recorder.shared,
    Effect.GATHER: Recorder.gathers,
    Effect.SCATTER: Recorder.scatters,
    Effect.EXCHANGE: Recorder.exchanges,
}


def same(row: Row, told: Hashable) -> Hashable:
    """Equal for rows of one operator with one set of attributes that are ``told`` the same; None
    for a row that is more than its operator."""
    if row.kind not in ("op", "slice"):
        return None
    attrs = tuple(
        sorted(((k, v) for k, v in row.attrs.items() if k != "claimed"), key=itemgetter(0))
    )
    return row.name, row.backward, attrs, told


@contextmanager
def located(row: Row, programs: Sequence[Program]) -> Iterator[None]:
    """Errors inside name the operator, its layer and its rank."""
    name = f"backward of {row.name}" if row.backward else row.name
    where = f"rank {programs[row.programs[0]].base}: {name}"
    if row.source.module:
        where += f" in {row.source.module}"
    try:
        yield
    except (Unsupported, ShapeMismatch) as error:
        raise type(error)(f"{where}: {error}") from None
    except (ArithmeticError, LookupError, TypeError, ValueError) as error:
        error.add_note(f"{where}: while this row was read")
        raise


def scalar(shape: tuple[int, ...]) -> Recorded:
    """The loss, or its gradient; raises `ShapeMismatch` for more than one element."""
    if prod(shape) != 1:
        raise ShapeMismatch(f"the loss has shape {list(shape)}, expected one element")
    return Recorded(tuple(() for _ in shape))


def backward_attrs(row: Row) -> tuple[int, list[int]]:
    """How many forward inputs a backward row has, and which of their gradients it gives."""
    wrt, arity = row.attrs.get("wrt"), row.attrs.get("arity")
    if not isinstance(wrt, tuple) or not isinstance(arity, int) or arity < 0:
        raise Unsupported("a backward operator without wrt and arity")
    return arity, [w for w in wrt if isinstance(w, int)]


def _loaded(unrolled: Unrolled, who: str) -> list[tuple[int, ...]]:
    """The shapes of what the side's loads give, which must agree."""
    found = {
        tuple(unrolled.tensors[v].shape for v in row.outputs)
        for row in unrolled.rows
        if row.kind == "load"
    }
    if not found:
        return []
    if len(found) > 1:
        raise InvalidInput(f"the {who} load batches of {len(found)} different shapes")
    return list(found.pop())
