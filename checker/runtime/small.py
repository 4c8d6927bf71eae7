"""The sizes at which the reference runtime runs a plan whose own are too large.

The plan is run once over dimensions alone, by the same runtime; what operators, communication and
the common inputs relate becomes one class of axes, and each class is divided by one number.  A kept
position of an ordinary axis stands for as many true ones, so that constants stay what they are; an
axis that is indexed, and the slices of the batch that were left out, are smaller themselves.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from math import prod
from operator import itemgetter
from typing import Final

import numpy as np

from shardproof.engine.algebra.affine import Affine
from shardproof.engine.errors import ShapeMismatch, Unsupported
from shardproof.engine.interpreters import Dim
from shardproof.engine.interpreters.dims import count, normal
from shardproof.engine.ops.declare import dimension
from shardproof.engine.ops.primitives import Interpreter
from shardproof.engine.plan.ir import MICROBATCH, Attr, Op, Plan, Shard
from shardproof.engine.reference_runtime.exchange import Stuck
from shardproof.engine.reference_runtime.lots import Lot, LotInterpreter, require_held, together
from shardproof.engine.reference_runtime.runtime import (
    Where,
    applied,
    crews,
    execute,
    single_crew,
)
from shardproof.engine.reference_runtime.values import Values, loaded
from shardproof.engine.simulation.axis_classes import Axes, Factors, extent
from shardproof.engine.simulation.recording import Recorded, RecordingInterpreter, step_of
from shardproof.engine.simulation.small_shapes import INDEX_ATTRIBUTES, largest_divisor

#: Positions that the smallest part of an axis keeps; of one that is indexed.
PER_SHARD, INDEXED = 2, 4
#: Attributes that no forward declaration reads.
UNREAD: Final = frozenset({"claimed", "wrt", "arity"})

_first = itemgetter(0)


@dataclass(frozen=True, slots=True)
class _Evaluated:
    """The dimensions of an operator's tensors, and what it compared indices with."""

    inputs: tuple[Recorded | None, ...]
    outputs: list[Recorded]
    indexed: list[Factors]


@dataclass(frozen=True, slots=True)
class _Batch:
    """A batch tensor: all of it, one slice, and what its entries are positions of."""

    full: tuple[Factors, ...]
    local: tuple[Factors, ...]
    domain: int


@dataclass(slots=True)
class Shapes:
    """The inputs and operators of a plan over dimensions alone; ``seen``: what every operator did
    to them.

    Example: hidden 4096 and the 4096 inputs of ``wq`` are one class of axes, since a ``linear``
    contracts them.
    """

    plan: Plan
    declared: bool = True
    axes: Axes = field(default_factory=Axes)
    recording: RecordingInterpreter = field(init=False)
    slices: dict[str, Factors] = field(default_factory=dict)
    parameters: dict[str, tuple[Factors, ...]] = field(default_factory=dict)
    boxes: dict[Shard, Recorded] = field(default_factory=dict)
    batches: dict[int, _Batch] = field(default_factory=dict)
    seen: dict[Where, _Evaluated] = field(default_factory=dict)
    known: dict[Hashable, _Evaluated] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.recording = RecordingInterpreter(self.axes)
        for axis, n in divided(self.plan):
            self.slices[axis] = self.axes.factor(self.axes.new(slices=axis), n)

    def interpreter(self, places: Sequence[Mapping[str, int]]) -> Interpreter[Recorded]:
        """What records the dimensions of all ranks' tensors at once."""
        return self.recording

    def of(self, x: Recorded, position: int) -> Recorded:
        """The tensor of one rank: all have the same dimensions."""
        return x

    def together(self, xs: Sequence[Recorded]) -> Recorded:
        """The tensor of ranks that must have the same dimensions."""
        for x in xs[1:]:
            if x is not xs[0]:
                self.recording.unify(xs[0], x)
        return xs[0]

    def box(self, shard: Shard, places: Sequence[Mapping[str, int]]) -> Recorded:
        """The dimensions of a rank's part of a named input."""
        if shard not in self.boxes:
            full = self.full(shard)
            self.boxes[shard] = Recorded(
                tuple(
                    dim if n == extent(dim) else self.recording.interval(dim, n, step_of(offset))
                    for dim, n, offset in zip(full, shard.shape, shard.offset, strict=True)
                )
            )
        return self.boxes[shard]

    def full(self, shard: Shard) -> tuple[Factors, ...]:
        """The dimensions of the whole of a parameter."""
        if shard.name not in self.parameters:
            self.parameters[shard.name] = tuple(self.axes.fresh(n) for n in shard.full_shape)
        dims = self.parameters[shard.name]
        if tuple(map(extent, dims)) != shard.full_shape:
            raise Stuck(f"parameter {shard.name} has two full shapes")
        return dims

    def batch(
        self, number: int, shape: Sequence[int], dtype: str, slices: Sequence[int] | None
    ) -> Recorded:
        """The dimensions of a batch tensor, whole or of one slice."""
        dims = self.tensor(number)
        return Recorded(dims.full if slices is None else dims.local, dims.domain)

    def tensor(self, number: int) -> _Batch:
        """A batch tensor: all of it is its slices, one after the other."""
        if number not in self.batches:
            full, _ = loaded(self.plan.single, number)
            local = next(
                (loaded(p, number)[0] for p in self.plan.programs if _loads(p, number)), full
            )
            dims = tuple(self.axes.fresh(n) for n in local)
            outer = tuple(factor for dim in self.slices.values() for factor in dim)
            if len(full) != len(local) or any(
                n not in (m, m * extent(outer)) for n, m in zip(full, local, strict=True)
            ):
                raise ShapeMismatch(f"a batch tensor of shape {list(local)}, all of {list(full)}")
            whole = tuple(
                dim if n == m else (*outer, *dim)
                for n, m, dim in zip(full, local, dims, strict=True)
            )
            self.batches[number] = _Batch(whole, dims, self.axes.new())
        return self.batches[number]

    def seed(self, shape: Sequence[int], share: Fraction) -> Recorded:
        """The incoming gradient of a loss, which has one element."""
        if prod(shape) != 1:
            raise ShapeMismatch(f"the loss has shape {list(shape)}, expected one element")
        return Recorded(tuple(() for _ in shape))

    def evaluate(
        self,
        where: Where,
        interpreter: Interpreter[Recorded],
        op: Op,
        inputs: Sequence[Recorded | None],
    ) -> list[Recorded]:
        """The dimensions that an operator gives, and what it relates."""
        evaluated = (
            self.gradients(op, inputs) if op.backward else self.forward(op, op.attrs, inputs)
        )
        self.seen.setdefault(where, evaluated)
        return evaluated.outputs

    def forward(
        self, op: Op, attrs: Mapping[str, Attr], inputs: Sequence[Recorded | None]
    ) -> _Evaluated:
        """What the declaration relates; once for what is on the same dimensions."""
        attributes = tuple(
            sorted(((k, v) for k, v in attrs.items() if k not in UNREAD), key=_first)
        )
        key = (op.name, attributes, tuple(inputs))
        if key not in self.known:
            self.recording.indexed.clear()
            outputs = applied(self.recording, replace(op, backward=False), dict(attributes), inputs)
            self.known[key] = _Evaluated(tuple(inputs), outputs, self.recording.indexed[-1:])
        return self.known[key]

    def gradients(self, op: Op, inputs: Sequence[Recorded | None]) -> _Evaluated:
        """Gradients have the dimensions of what they are gradients of."""
        wrt, arity = op.attrs.get("wrt"), op.attrs.get("arity")
        if not isinstance(wrt, tuple) or not isinstance(arity, int):
            raise Unsupported("a backward operator without wrt and arity")
        forward = self.forward(op, op.attrs, inputs[:arity])
        if len(forward.outputs) != len(inputs) - arity:
            raise ShapeMismatch(
                f"{op.name} has {len(forward.outputs)} outputs, not {len(inputs) - arity}"
            )
        for output, gradient in zip(forward.outputs, inputs[arity:], strict=True):
            if gradient is not None:
                self.recording.unify(output, gradient)
        operands = [inputs[w] for w in wrt if isinstance(w, int) and 0 <= w < arity]
        given = [x for x in operands if x is not None]
        if len(given) < len(wrt):
            raise Stuck(f"the backward of {op.name} without an operand")
        return _Evaluated(tuple(inputs), given, forward.indexed)


def divided(plan: Plan) -> Iterator[tuple[str, int]]:
    """The coordinates that divide the batch, outermost first, with their extents.

    Example: of dp 2 and two microbatches, ("dp", 2) and ("mb", 2).
    """
    for axis in plan.replica_axes:
        extents = {p.extents[axis] for p in plan.programs if axis in p.extents}
        if len(extents) > 1:
            raise Unsupported(f"axis {axis} has several extents")
        if extents:
            yield axis, extents.pop()
    yield MICROBATCH, plan.microbatches


def _loads(program: object, number: int) -> bool:
    try:
        loaded(program, number)  # type: ignore[arg-type]  # a program
    except Stuck:
        return False
    return True


@dataclass(slots=True)
class Sized(Values):
    """The inputs and operators of a plan on numbers, at small sizes; ``kept``: how many positions
    are left along a coordinate that divides the batch, where it has fewer.

    Example: a hidden axis of 4096 of which each position stands for 512 has 8 here, and the
    ``mean`` over it still divides by 4096.
    """

    shapes: Shapes = field(kw_only=True)
    kept: Mapping[str, int] = field(kw_only=True)
    divisors: dict[int, int] = field(default_factory=dict)
    dims: dict[Factors, Dim] = field(default_factory=dict)

    def divisor(self, axis: int) -> int:
        """By what a class of axes is divided."""
        root = self.shapes.axes.find(axis)
        if root not in self.divisors:
            axis_class = self.shapes.axes[root]
            if axis_class.slices and axis_class.slices in self.kept:
                if axis_class.frozen or axis_class.parts is not None:
                    raise Unsupported(f"positions along {axis_class.slices} meet another axis")
                self.divisors[root] = axis_class.most // self.kept[axis_class.slices]
            elif axis_class.frozen or axis_class.parts is not None or axis_class.slices:
                self.divisors[root] = 1
            else:
                self.divisors[root] = largest_divisor(
                    axis_class, INDEXED if axis_class.positional else PER_SHARD
                )
        return self.divisors[root]

    def dim(self, dim: Factors) -> Dim:
        """How a dimension is represented."""
        if dim not in self.dims:
            result = []
            for axis, size in self.shapes.axes.resolve(dim):
                divisor, axis_class = self.divisor(axis), self.shapes.axes[axis]
                weight = 1 if axis_class.positional or axis_class.slices else divisor
                result.append((weight,) * (size // divisor))
            self.dims[dim] = normal(tuple(result))
        return self.dims[dim]

    def small(self, dim: Factors) -> int:
        """The size of a dimension here: the true one, unless an axis of it is indexed."""
        return prod(sum(factor) for factor in self.dim(dim))

    def scaled(self, value: int | Affine, dim: Factors) -> Affine:
        """A position of a dimension, at its size here."""
        affine = value if isinstance(value, Affine) else Affine(value)
        position = affine * self.small(dim)
        if not position.divisible(extent(dim)):
            raise Unsupported(f"position {value} of {extent(dim)} has no place here")
        return position // extent(dim)

    # -- inputs -------------------------------------------------------------------------------

    def full(self, shard: Shard) -> Lot:
        """The numbers of a whole named input, drawn once."""
        if shard.name not in self.lots:
            dims = tuple(self.dim(dim) for dim in self.shapes.full(shard))
            shape = [count(dim) for dim in dims]
            require_held(shape)
            drawn = self.random.standard_normal(shape)
            scale = 0.5 / np.sqrt(prod(shape[-1:]) * _weight(dims[-1]) ** 2) if dims else 1.0
            data = drawn * 0.2 + 1 if len(shape) < 2 else drawn * scale
            self.lots[shard.name] = Lot(data[None], dims)
        return self.lots[shard.name]

    def cut(self, full: Lot, shard: Shard, places: Sequence[Mapping[str, int]]) -> Lot:
        """The parts of a named input that ranks hold."""
        interpreter = LotInterpreter(places)
        parts = self.shapes.box(shard, places).dims
        for i, (whole, part) in enumerate(zip(self.shapes.full(shard), parts, strict=True)):
            if whole != part:
                start = self.scaled(shard.offset[i], whole)
                full = interpreter.slice(full, i, start, self.small(part))
        return full

    def batch(
        self, number: int, shape: Sequence[int], dtype: str, slices: Sequence[int] | None
    ) -> Lot:
        """The numbers of a batch tensor, or of one slice of it for each rank."""
        tensor = self.shapes.tensor(number)
        whole = [self.dim(dim) for dim in tensor.full]
        local = [self.dim(dim) for dim in tensor.local]
        name = f"batch {number}"
        if name not in self.batches:
            drawn = [count(dim) for dim in whole]
            domain = self.shapes.axes[tensor.domain]
            most = domain.most // self.divisor(tensor.domain) if domain.most else 0
            self.batches[name] = (
                self.random.integers(0, most, drawn).astype(float)
                if most
                else self.random.standard_normal(drawn)
            )
        data = self.batches[name]
        if slices is None:
            return Lot(data[None], tuple(whole))
        tensors = []
        for place in slices:
            cuts = tuple(
                slice(None) if w == n else slice(place * count(n), (place + 1) * count(n))
                for w, n in zip(whole, local, strict=True)
            )
            tensors.append(Lot(data[cuts][None], tuple(local)))
        return together(tensors)

    # -- operators ----------------------------------------------------------------------------

    def evaluate(
        self, where: Where, interpreter: Interpreter[Lot], op: Op, inputs: Sequence[Lot | None]
    ) -> list[Lot]:
        """An operator on numbers, its attributes at the small sizes."""
        seen = self.shapes.seen[where]
        ranks = max((len(x.data) for x in inputs if x is not None), default=1)
        for output in seen.outputs:
            require_held([ranks, *(count(self.dim(dim)) for dim in output.dims)])
        return applied(interpreter, op, self.attrs(op, seen), inputs)

    def attrs(self, op: Op, seen: _Evaluated) -> Mapping[str, Attr]:
        """The attributes of an operator at these sizes; constants stay as they are."""
        given = [x for x in seen.inputs if x is not None]
        first = given[0] if given else None
        changed: dict[str, Attr] = {}
        if op.name == "view":
            target = given[-1] if op.backward else seen.outputs[0]
            changed["size"] = tuple(self.small(dim) for dim in target.dims)
        elif op.name == "slice" and first is not None:
            changed = self.interval(op, first)
        elif op.name == "mean" and "count" not in op.attrs and first is not None:
            changed["count"] = _averaged(op, first)
        elif seen.indexed:
            for key in INDEX_ATTRIBUTES:
                value = op.attrs.get(key)
                if isinstance(value, (int, Affine)) and not isinstance(value, bool):
                    changed[key] = self.index(value, seen.indexed[0])
        return {**op.attrs, **changed} if changed else op.attrs

    def interval(self, op: Op, x: Recorded) -> dict[str, Attr]:
        """Where a slice begins, and how long it is."""
        dim = op.attrs.get("dim")
        if isinstance(dim, bool) or not isinstance(dim, int):
            return {}
        whole = x.dims[dimension(dim, len(x.dims))]
        changed: dict[str, Attr] = {}
        for key in ("start", "size"):
            value = op.attrs.get(key)
            if isinstance(value, (int, Affine)) and not isinstance(value, bool):
                changed[key] = self.index(value, whole)
        return changed

    def index(self, value: int | Affine, dim: Factors) -> Attr:
        """A position along a dimension, at its small size."""
        scaled = self.scaled(value, dim)
        return scaled if isinstance(value, Affine) else scaled.const


def _weight(dim: Dim) -> int:
    """How many positions a representative stands for, about."""
    return max(1, prod(sum(factor) for factor in dim) // max(1, count(dim)))


def _averaged(op: Op, x: Recorded) -> int:
    """What a mean divides by: the true number of positions, as constants of a plan do that were
    computed from it."""
    dims = op.attrs.get("dim")
    if dims is None:
        return prod(x.shape)
    chosen = dims if isinstance(dims, tuple) else (dims,)
    return prod(x.shape[i] for i in chosen if isinstance(i, int))


def shapes_of(plan: Plan, smaller: Plan) -> Shapes:
    """The dimensions of both sides of a plan, of which ``smaller`` is run.

    Example: of Llama-3 8B with dp 16, of which dp 2 is run, all of its dimensions with what relates
    them.
    """
    shapes = Shapes(plan)
    single = single_crew(plan, shapes)
    execute([single])
    many = crews(smaller, shapes, together=True, original=plan)
    execute(many)
    for crew in (single, *many):
        for number, gradient in crew.gradients.items():
            shapes.recording.unify(crew.shard(number), gradient)
    return shapes
