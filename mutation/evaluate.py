"""Both programs of a plan, run on the same random inputs: in float64, and in a finite field.

This knows operators by their declarations and communication by what it does, and nothing of
lineages, canonical forms or provers.  A small plan is run as it is, every rank and microbatch by
itself; a large one at small sizes (`engine.simulation.small_shapes`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import product
from math import prod
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from shardproof.engine.errors import ShapeMismatch, Unsupported
from shardproof.engine.interpreters import FieldInterpreter, Weighted
from shardproof.engine.interpreters.field import PRIME
from shardproof.engine.plan.expectations import GRADIENT, LOSS
from shardproof.engine.plan.ir import MICROBATCH, Plan, Program, Shard
from shardproof.engine.schedule.instances import Instance, Unrolled
from shardproof.engine.simulation.axis_classes import AxisClass
from shardproof.engine.simulation.inputs import Inputs, read_by
from shardproof.engine.simulation.outcomes import outcomes
from shardproof.engine.simulation.replay import Replay, count_instances, needed_axes
from shardproof.engine.simulation.simulate import INDEXED
from shardproof.engine.simulation.small_shapes import Sizes, small_shapes
from shardproof.engine.simulation.trace_axes import Recorder, slice_axes
from shardproof.engine.specification.demands import Demand, demands
from shardproof.engine.specification.gradients import recorded

#: Numbers over all tensors, ranks and microbatches up to which a plan is run as it is.
MOST_NUMBERS: Final = 6_000_000
#: Operators over all distinct ranks and microbatches that one run evaluates.
MOST_ROWS: Final = 12_000
#: Scale of the smallest gradient, relative to the largest: below it are those that are zero over
#: the reals (the bias of a key), and their rounding.
SMALLEST_SCALE: Final = 1e-4
Array = NDArray[Any]


class TrueSizes(Sizes):
    """The true sizes of a plan: nothing is made smaller, every position is there.

    Example: a hidden dimension of 96 has 96 positions, and all of them are computed.
    """

    def _choose(self, axis_class: AxisClass) -> int:
        return 1


class FieldInputs(Inputs):
    """Inputs of a plan as random residues of a finite field; index data stays what it is.

    Example: a parameter has random residues from 1 on, ids of tokens the numbers that they are.
    """

    def loss_gradient(self, shape: tuple[int, ...], *, whole: bool) -> Weighted:
        """As in float64, with a residue for a number."""
        if not self._gradient:
            self._gradient = int(self.random.integers(1, PRIME))
        mean = self.sizes.plan.loss == "mean" and not whole
        share = prod(n for _, n in slice_axes(self.sizes.plan)) if mean else 1
        value = int(self._gradient) * pow(share, -1, PRIME) % PRIME
        return Weighted(np.full(shape, value, dtype=np.int64), tuple(() for _ in shape))

    def _values(self, name: str, dims: Any) -> Array:
        return self.random.integers(1, PRIME, [len(_positions(dim)) for dim in dims])

    def _integers(self, shard: Shard, axis: int, dims: Any) -> Array:
        return super()._integers(shard, axis, dims).astype(np.int64)

    def _drawn(self, number: int) -> Array:
        if number not in self._batch:
            drawn: Array = super()._drawn(number)
            if not self.sizes.classes(self.sizes.recorder.batch[number].domain):
                # Equal numbers become equal residues: slices that are alike stay alike.
                _, which = np.unique(drawn, return_inverse=True)
                residues = self.random.integers(1, PRIME, int(which.max(initial=0)) + 1)
                drawn = residues[which].reshape(drawn.shape)
            self._batch[number] = drawn.astype(np.int64)
        return self._batch[number]


def _positions(dim: Sequence[Sequence[int]]) -> range:
    return range(prod(len(factor) for factor in dim))


class FieldReplay(Replay):
    """Evaluates instances of a plan over the finite field.

    Example: a ``mul`` by 1/3 multiplies by the inverse of 3 modulo the prime, so that nothing is
    rounded, and an exponential is a random function.
    """

    def interpreter(self, at: Mapping[str, int]) -> Any:
        """The interpreter of residues, at coordinates."""
        return FieldInterpreter(coordinates=dict(at))

    @staticmethod
    def reduced(
        reading: Any, instance: Instance, inputs: Sequence[Weighted], alike: int
    ) -> Weighted:
        """An all-reduce; a maximum is that over a new dimension along which operands lie."""
        if instance.attrs.get("op", "sum") != "max":
            return Replay.reduced(reading, instance, inputs, alike)
        reading.combine(inputs, [Fraction(1)] * len(inputs), Fraction(0))
        shape = (1, *inputs[0].shape)
        stacked = [reading.reshape(x, shape) for x in inputs]
        top: Weighted = reading.amax(reading.concat(stacked, 0), 0)
        return Weighted(top.data, inputs[0].dims)


@dataclass(frozen=True, slots=True)
class Difference:
    """What is furthest off in a comparison: ``error`` relative to the scale of its tensor (1 or 0
    in the field); ``where`` in words.

    Example: ``Difference(19.0, "gradient wte.weight on stage 0 {'tp': 1}")``.
    """

    error: float
    where: str = ""


def run(plan: Plan, single: Unrolled, parallel: Unrolled, seed: int, *, field: bool) -> Difference:
    """The largest difference of a loss or gradient between the programs.

    Example: of a correct plan 1.4e-13 in float64 and 0 in the field; of one whose
    attention lacks its all-reduce, 0.92.

    Raises `Unsupported`, `ShapeMismatch` or `InvalidInput` for what cannot be run.
    """
    reference = recorded(plan, single)
    single, every = reference.unrolled, demands(plan, reference, parallel)
    sizes = choose_sizes(plan, single, parallel, every)
    inputs = (FieldInputs if field else Inputs)(
        sizes,
        rotary=read_by("apply_rotary_emb", -1, single),
        tables=read_by("embedding", 1, single),
        random=np.random.default_rng(seed),
    )
    made = FieldReplay if field else Replay
    one = made([plan.single], single, sizes, sizes.single, inputs)
    many = made(plan.programs, parallel, sizes, sizes.parallel, inputs)
    try:
        one.run()
        many.run()
    except ShapeMismatch as error:
        if isinstance(sizes, TrueSizes):
            raise
        # At true sizes everything fits: sizes that coincide there were made small apart.
        raise Unsupported(f"at small sizes: {error}") from None
    names = {d.name for d in every if d.kind == GRADIENT and d.expected >= 0}
    differences = [
        *_differences(plan, every, one, many, field),
        *(Difference(np.inf, what) for what in uncovered(plan, names)),
    ]
    return max(differences, key=lambda d: d.error, default=Difference(np.inf, "nothing to compare"))


def choose_sizes(
    plan: Plan, single: Unrolled, parallel: Unrolled, demands: Sequence[Demand] = ()
) -> Sizes:
    """True sizes with every rank and microbatch by itself if that is not too much; else small
    sizes, with as many members distinct as can be.

    Example: a GPT with one layer of 96 is run at its true sizes, Llama-3 8B at small ones.
    """
    axes = [axis for program in plan.programs for axis, _, _ in program.axes]
    needed = needed_axes(plan.programs, parallel)
    every = frozenset([*axes, *plan.replica_axes, MICROBATCH]) | needed
    recorder = Recorder(plan, single, parallel)
    first = recorder.run([plan.single], single)
    second = recorder.run(plan.programs, parallel)
    for demand in demands:
        recorder.expect(demand, first, second)
    true = TrueSizes(plan, recorder, first, second, every, 0)
    if _fits(true, parallel):
        return true
    for expanded in dict.fromkeys((every, needed | {MICROBATCH}, needed)):
        for per_shard in (2, 1):
            sizes = small_shapes(plan, single, parallel, expanded, per_shard, INDEXED, demands)
            if _fits(sizes, parallel):
                return sizes
    raise Unsupported(f"{sizes.entries} numbers for each of its members after shrinking")


def _fits(sizes: Sizes, parallel: Unrolled) -> bool:
    """Whether a run at these sizes is short."""
    plan = sizes.plan
    rows = count_instances(plan.programs, parallel, plan.microbatches, sizes.expanded)
    if rows > MOST_ROWS:
        return False
    return sizes.entries * rows <= MOST_NUMBERS * len(parallel.instances)


# -- comparison ----------------------------------------------------------------------------------


def _difference(
    expected: Array, actual: Array, scale: float, where: str, field: bool
) -> Difference:
    if field:
        return Difference(float(np.any((expected - actual) % PRIME)), where)
    with np.errstate(all="ignore"):
        off = np.abs(actual - expected)
    same = (actual == expected) | (np.isnan(actual) & np.isnan(expected))
    off = np.where(same, 0.0, np.where(np.isnan(off), np.inf, off))
    return Difference(float(off.max(initial=0.0)) / (scale if 0 < scale < np.inf else 1.0), where)


def _differences(
    plan: Plan, demands: Sequence[Demand], one: Replay, many: Replay, field: bool
) -> Iterator[Difference]:
    """Everything that is expected, on every rank; what nothing computes is zero, a loss that no
    rank computes is none."""
    wanted = {d.expected: one.get(d.expected, {}).data for d in demands if d.expected >= 0}
    scales = {v: float(np.abs(x).max(initial=0.0)) for v, x in wanted.items()}
    gradients = [scales.get(d.expected, 0.0) for d in demands if d.kind != LOSS]
    least = SMALLEST_SCALE * max(gradients, default=0.0)
    if any(d.kind == LOSS and d.program < 0 for d in demands):
        yield Difference(np.inf, "no rank computes a loss")
    for demand, at, expected, addends in outcomes(demands, one, many):
        zero = np.zeros_like(addends[0][1] if expected is None else expected)
        left, right = (zero if expected is None else expected), zero
        # In the field fractions are compared by what they are fractions of.
        share = prod(weight.denominator for weight, _ in addends) if field else 1
        for weight, data in addends:
            factor = weight * share
            right = right + data % PRIME * int(factor) if field else right + data * float(factor)
        scale = scales.get(demand.expected, 0.0)
        yield _difference(
            left % PRIME * share if field else left,
            right,
            scale if demand.kind == LOSS else max(scale, least),
            f"{demand.kind} {demand.name} on {plan.programs[demand.program].name} "
            f"{dict(at) or ''}".rstrip(),
            field,
        )


def uncovered(plan: Plan, names: Iterable[str]) -> list[str]:
    """Parameters of which a part is on no rank, in words.

    Example: "gradient of wte.weight: a part of it is on no rank", where both ranks hold the first
    half.
    """
    boxes: dict[str, set[tuple[tuple[int, int], ...]]] = {name: set() for name in names}
    for program in plan.programs:
        for shard in program.shards:
            if shard.name in boxes and shard.updated_as < 0:
                boxes[shard.name].update(_boxes(shard, program))
    sizes = {shard.name: shard.full_shape for shard in plan.single.shards}
    return [
        f"gradient of {name}: a part of it is on no rank"
        for name, own in boxes.items()
        if not _covers(sizes[name], own)
    ]


def _boxes(shard: Shard, program: Program) -> Iterator[tuple[tuple[int, int], ...]]:
    """What the ranks of a program hold of a parameter: (start, end) for each dimension."""
    used = {axis for offset in shard.offset for axis in offset.axes}
    varied = [(name, extent) for name, extent, _ in program.axes if name in used]
    for place in product(*(range(extent) for _, extent in varied)):
        at = {name: p for (name, _), p in zip(varied, place, strict=True)}
        starts = [offset.at(at) for offset in shard.offset]
        yield tuple((s, s + n) for s, n in zip(starts, shard.shape, strict=True))


def _covers(shape: tuple[int, ...], boxes: Iterable[tuple[tuple[int, int], ...]]) -> bool:
    """Whether boxes cover a tensor: on the grid of all their boundaries."""
    listed = list(boxes)
    cuts = [
        sorted({0, size, *(edge for box in listed for edge in box[i])})
        for i, size in enumerate(shape)
    ]
    grid = np.zeros([len(edges) - 1 for edges in cuts], dtype=bool)
    for box in listed:
        grid[
            tuple(
                slice(edges.index(start), edges.index(end))
                for edges, (start, end) in zip(cuts, box, strict=True)
            )
        ] = True
    return bool(grid.all())
