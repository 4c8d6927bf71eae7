"""A small size for every dimension of both sides of a plan, the same for the same axis.

All instances of both sides are read once over a recording reading; what the operators, the
communication and the common parameters and batch relate becomes one class of axes, and each class
is divided by one number.  Extents stay proportional, so that sharding stays exact.  A kept position
of an ordinary axis stands for as many true ones as the class was divided by: the plan is evaluated
at its true size, at a point where those are equal.  An axis that is indexed (masks, classes,
experts) has no such points: there the plan itself is taken at the smaller size.  Constants, and
what a mean divides by, stay those of the true size.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import isqrt, prod
from typing import Final

from shardproof.engine.algebra.affine import Affine
from shardproof.engine.errors import Unsupported
from shardproof.engine.interpreters import Dim
from shardproof.engine.interpreters.dims import Extent, normal
from shardproof.engine.plan.ir import Attr, Plan
from shardproof.engine.schedule.instances import Instance, Unrolled
from shardproof.engine.simulation.axis_classes import AxisClass, Factors, extent
from shardproof.engine.simulation.recording import Recorded
from shardproof.engine.simulation.trace_axes import Recorder, Recording, attribute_dim
from shardproof.engine.specification.demands import Demand

#: Attributes that hold an index of what the operator compares index data with.
INDEX_ATTRIBUTES = ("start", "stop", "local_expert_start", "local_expert_end")
#: A class is kept at two positions per shard unless that leaves more than this many.
MOST_PER_SHARD = 8


@dataclass(frozen=True, eq=False)
class Sizes:
    """The sizes at which a plan is evaluated.  ``expanded``: slice coordinates along which data is
    distinct; along the others one slice stands for all.  ``indexed``: the least that an indexed
    axis keeps per shard, where that is more than ``per_shard``; ``whole``: it keeps its true size;
    ``true``: so does every axis; ``standing``: kept positions of indexed axes, too, stand for as
    many true ones, but experts that are chosen among, which keep their number.

    Example: a layer of [16, 8] of which two ranks have [8, 8] each is evaluated as [4, 2], ranks
    with [2, 2].
    """

    plan: Plan
    recorder: Recorder
    single: Recording
    parallel: Recording
    expanded: frozenset[str]
    per_shard: int
    indexed: int = 0
    whole: bool = False
    true: bool = False
    standing: bool = False
    _divisors: dict[int, int] = field(default_factory=dict)
    _dims: dict[Factors, Dim] = field(default_factory=dict)
    _positions: dict[Factors, int] = field(default_factory=dict)

    def divisor(self, axis: int) -> int:
        """By what a class of axes is divided."""
        axis = self.recorder.axes.find(axis)
        if axis not in self._divisors:
            self._divisors[axis] = self._choose(self.recorder.axes[axis])
        return self._divisors[axis]

    def _choose(self, axis_class: AxisClass) -> int:
        if (
            self.true
            or self.recorder.axes.exact
            or axis_class.frozen
            or axis_class.parts is not None
            or (axis_class.ordered and axis_class.filled)
            or (self.whole and axis_class.positional)
            or (self.standing and axis_class.chosen)
        ):
            return 1
        if axis_class.slices:
            return 1 if axis_class.slices in self.expanded else axis_class.common
        wanted = max(self.per_shard, self.indexed if axis_class.positional else 0)
        return largest_divisor(axis_class, wanted)

    def dim(self, dim: Factors) -> Dim:
        """How a dimension is represented."""
        known = self._dims.get(dim)
        if known is None:
            known = self._dims[dim] = self._represented(dim)
        return known

    def _represented(self, dim: Factors) -> Dim:
        result = []
        for axis, size in self.recorder.axes.resolve(dim):
            divisor = self.divisor(axis)
            result.append(self._block(axis, divisor) * (size // divisor))
        return normal(tuple(result))

    def _block(self, axis: int, divisor: int) -> tuple[int, ...]:
        """How many positions each of those stands for that so many positions of an axis become:
        among classes that stand for others, ids have the first, and no other, so it is kept by
        itself."""
        axis_class = self.recorder.axes[axis]
        if not axis_class.positional or divisor == 1:
            return (divisor,)
        if not self.standing:
            return (1,)
        return (divisor,) if axis_class.ordered else (1, divisor - 1)

    def positions(self, dim: Factors) -> int:
        """How many positions represent a dimension, told without writing them out."""
        known = self._positions.get(dim)
        if known is None:
            parts = self.recorder.axes.resolve(dim)
            known = self._positions[dim] = prod(
                n // self.divisor(axis) * len(self._block(axis, self.divisor(axis)))
                for axis, n in parts
            )
        return known

    def dims(self, x: tuple[Factors, ...]) -> tuple[Dim, ...]:
        """The small dimensions of a tensor that was recorded."""
        return tuple(self.dim(dim) for dim in x)

    def small(self, dim: Factors) -> int:
        """The size at which the plan is evaluated (true, unless an axis of it is indexed)."""
        return prod(sum(factor) for factor in self.dim(dim))

    @property
    def fewer(self) -> tuple[int, ...]:
        """Indexed axes of which the plan that is evaluated has fewer positions: for each a number
        that divides all its true extents."""
        axes = self.recorder.axes
        axis_classes = [
            axes[a]
            for a in axes.unsplit()
            if axes[a].positional and self.divisor(a) > 1 and not self.standing
        ]
        return tuple(sorted({a.common for a in axis_classes}))

    def classes(self, axis: int) -> int:
        """The number of positions that index data of this domain may have."""
        return self.recorder.axes[axis].most // self.divisor(axis)

    def step(self, axis: int) -> int:
        """How far apart kept positions of an axis are, as index data tells them."""
        return self.divisor(axis) if self.standing else 1

    def scaled(self, value: int | Affine, dim: Factors) -> Affine:
        """A position of a dimension, at its small size."""
        position = (value if isinstance(value, Affine) else Affine(value)) * self.small(dim)
        if not position.divisible(extent(dim)):
            raise Unsupported(
                f"position {value} of {extent(dim)} has no place among {self.small(dim)}"
            )
        return position // extent(dim)

    def attrs(self, side: Recording, number: int, instance: Instance) -> Mapping[str, Attr]:
        """The attributes of an instance at the small sizes; constants stay as they are."""
        inputs = [side.tensors[v] for v in instance.inputs if v >= 0]
        changed: dict[str, Attr] = {}
        if instance.name in ("view", "expand", "full"):
            # The result, or where the derivative is taken the gradient that has its shape.
            target = inputs[-1] if instance.backward else side.tensors[instance.outputs[0]]
            assert target is not None
            changed["size"] = tuple(Extent(self.dim(dim)) for dim in target.dims)
        elif instance.name == "slice" and inputs[0] is not None:
            dim = inputs[0].dims[attribute_dim(instance, "dim", len(inputs[0].dims))]
            kept = instance.attrs.get("size")
            changed["start"] = self._index(instance, "start", dim)
            if isinstance(kept, int):
                first = kept == 1 and instance.attrs.get("start") == 0
                changed["size"] = 1 if first else self.scaled(kept, dim).const
        elif instance.name == "mean" and "count" not in instance.attrs and inputs[0] is not None:
            changed["count"] = self._count(instance, inputs[0])
        elif number in side.indexed:
            dim = side.indexed[number]
            changed = {
                key: self._index(instance, key, dim)
                for key in INDEX_ATTRIBUTES
                if instance.attrs.get(key) is not None
            }
            if instance.name == "onehot":
                changed["size"] = Extent(self.dim(dim))
        return {**instance.attrs, **changed}

    def _index(self, instance: Instance, key: str, dim: Factors) -> Attr:
        value = instance.attrs.get(key)
        if isinstance(value, bool) or not isinstance(value, (int, Affine)):
            return value
        scaled = self.scaled(value, dim)
        return scaled if isinstance(value, Affine) else scaled.const

    @staticmethod
    def _count(instance: Instance, x: Recorded) -> int:
        """What a mean divides by: the true number of positions, as constants of a plan do that
        were computed from it."""
        dims = instance.attrs.get("dim")
        if dims is None:
            return prod(x.shape)
        chosen = dims if isinstance(dims, tuple) else (dims,)
        return prod(x.shape[i] for i in chosen if isinstance(i, int))

    @property
    def entries(self) -> int:
        """How many numbers all tensors of one replica and microbatch hold."""
        return sum(self.numbers(self.single)) + sum(self.numbers(self.parallel))

    def numbers(self, side: Recording) -> list[int]:
        """How many numbers each tensor of a side holds, of one replica and microbatch."""
        return [
            0 if x is None else prod(self.positions(dim) for dim in x.dims) for x in side.tensors
        ]

    def again(self, per_shard: int) -> Sizes:
        """The same axes at other sizes."""
        return Sizes(
            self.plan,
            self.recorder,
            self.single,
            self.parallel,
            self.expanded,
            per_shard,
            self.indexed,
            self.whole,
        )


def largest_divisor(axis_class: AxisClass, per_shard: int) -> int:
    """The largest divisor of all extents and offsets that leaves ``per_shard`` positions in the
    smallest, or one position where that leaves too many.

    Example: of a parameter's 16 rows and shards of 8, which keep 2, it is 4.
    """
    low = [d for d in range(1, isqrt(axis_class.common) + 1) if axis_class.common % d == 0]
    divisors = {*low, *(axis_class.common // d for d in low)}
    allowed = [d for d in divisors if all(rule(d) for rule in axis_class.rules)]
    allowed = [d for d in allowed if axis_class.most // d > 1] or [1]
    chosen = max((d for d in allowed if axis_class.least // d >= per_shard), default=1)
    return max(allowed) if axis_class.least // chosen > MOST_PER_SHARD else chosen


#: Numbers of a plan that has a meaning at its true sizes only, above which it is not run.
MOST_EXACT: Final = 1 << 22


def small_shapes(
    plan: Plan,
    single: Unrolled,
    parallel: Unrolled,
    expanded: frozenset[str] = frozenset(),
    per_shard: int = 2,
    indexed: int = 0,
    demands: Sequence[Demand] = (),
    *,
    whole: bool = False,
    standing: bool = False,
) -> Sizes:
    """A small size for every dimension of both sides of a plan.

    Example: a network of w1 [16, 8] and w2 [8, 16] on two ranks, with a batch of [12, 8], has 238
    numbers (`Sizes.entries`) in place of thousands.

    ``expanded``: coordinates of the batch's slices along which data is to be distinct.
    ``per_shard``: positions that the smallest part of each axis keeps, if possible; ``indexed``:
    that of an indexed axis, where it is more (few classes make few distinct slices); ``whole``:
    indexed axes keep their true sizes, so that this very plan is evaluated; ``standing``: see
    `Sizes`.  ``demands``: the
    plan's demands, which relate values of one side to those of the other.  Raises `Unsupported`,
    `ShapeMismatch` or `InvalidInput` where operators do not fit their tensors.
    """
    recorder = Recorder(plan, single, parallel)
    first = recorder.run([plan.single], single)
    second = recorder.run(plan.programs, parallel)
    for demand in demands:
        recorder.expect(demand, first, second)
    sizes = Sizes(
        plan, recorder, first, second, expanded, per_shard, indexed, whole, standing=standing
    )
    if recorder.axes.exact and sizes.entries > MOST_EXACT:
        raise Unsupported("index data that is computed, in a plan too large for its true sizes")
    return sizes
