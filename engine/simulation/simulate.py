"""Run both programs of a plan from random inputs, with the true functions, and compare.

This confirms or denies a refutation independently of lineages and of every prover: it knows
operators only by their declarations, evaluated in float64, and communication by what it does.  It
is run at small sizes (`engine.simulation.small_shapes`).  First with all slices of the batch alike,
so that one replica and one microbatch stand for all; if that shows no difference and the plan is
small, again with distinct slices, of more classes.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from shardproof.engine.errors import InvalidInput, ShapeMismatch, Unsupported
from shardproof.engine.lineage.sums import SOME
from shardproof.engine.plan.expectations import GRADIENT, LOSS
from shardproof.engine.plan.ir import MICROBATCH, Plan
from shardproof.engine.schedule.instances import Unrolled
from shardproof.engine.simulation.inputs import FAINT_SCALE, Inputs, read_by
from shardproof.engine.simulation.outcomes import outcomes
from shardproof.engine.simulation.replay import (
    Coordinates,
    Replay,
    count_instances,
    needed_axes,
)
from shardproof.engine.simulation.roots import roots
from shardproof.engine.simulation.small_shapes import Sizes, small_shapes
from shardproof.engine.specification.demands import Demand, demands
from shardproof.engine.specification.gradients import Derived

Floats = NDArray[np.float64]

#: Largest error, relative to the scale of the tensor, that is rounding.
TOLERANCE = 1e-6
#: Scale of the smallest tensor, relative to the largest one, that is no rounding error itself (the
#: gradient of a key that attends to one position is zero over the reals).
SMALLEST_SCALE = 1e-7
#: The same, relative to the loss: where all gradients are zero over the reals, none of them says
#: how large a rounding error is.
SMALLEST_OF_LOSS = 1e-7
#: Positions that an indexed axis keeps per shard where slices are distinct: enough classes to tell
#: them apart.
INDEXED = 4
#: Scale of parameters for every other seed.
SMALL = 0.01
#: Seeds from this one on have large parameters, so that what a softmax hides is seen, and one
#: position more of each part than the seed before.
SHARP = 4
#: From this seed on inputs are wide ones (`Inputs`), in the order of the first seeds.
WIDE = 1000
#: From this seed on inputs are faint ones.
FAINT = 10_000
#: From this seed on inputs are slight ones.
SLIGHT = 20_000
SHARP_SCALE = 3.0
#: How many times as far off as a nudge of the inputs moves either side a value has to be.
MOVED = 100.0
#: Operator instances up to which a second run takes distinct slices of the batch.
BUDGET = 6_000
#: Rows beyond which the losses are looked at first; gradients only where those do not differ.
LARGE = 30_000
#: Numbers in all tensors together, above which a plan cannot be simulated.
MOST_ENTRIES = 200_000_000


@dataclass(frozen=True, slots=True)
class Worst:
    """The element that is furthest off; its index is that of a representative position.

    Example: ``Worst((1, 0), -1.648, -0.412)``.
    """

    index: tuple[int, ...]
    expected: float
    actual: float


@dataclass(frozen=True, eq=False)
class Comparison:
    """What a rank ends up with, and what the single device says it should be.

    Example: the gradient of w1, 0.75 off, of replicas that each count a quarter.

    ``demand``: what this is about.  ``at``: the rank's position along the axes that were expanded.
    ``error``: relative to the scale of the whole tensor.
    """

    demand: Demand
    at: Coordinates
    expected: Floats
    actual: Floats
    error: float
    worst: Worst

    @property
    def program(self) -> int:
        """The parallel program that holds the value."""
        return self.demand.program

    @property
    def shard(self) -> int:
        """The shard whose gradient is compared; -1 where no gradient is."""
        return self.demand.shard

    @property
    def name(self) -> str:
        """The name of the single-device value."""
        return self.demand.name

    @property
    def differs(self) -> bool:
        """Whether the relative error is more than rounding explains, or no number."""
        return not self.error <= TOLERANCE


@dataclass(frozen=True, eq=False)
class Simulation:
    """What came of running both sides of a plan on the same inputs.

    Example: of two ranks without their all-reduce ``differs`` is True, and ``worst`` the loss:
    -1.19 is expected, 0.29 is what rank 0 has.

    ``failure``: why it could not be run, or empty; ``impossible``: because the plan itself
    cannot run, not because something is not supported.  ``expanded``: the coordinates along which
    members were evaluated one by one; ``seed``: of the inputs; ``indexed``: see `shrink`;
    ``of_losses``: only what the losses depend on was evaluated; ``undefined``: the single-device
    program is not defined on these inputs, which are none, or numbers are too large for it;
    ``more``: see `simulate`.  ``fewer``: of every indexed axis
    (classes, experts, positions under a mask) of which what was run has fewer positions, a number
    that divides all its true extents.
    """

    comparisons: tuple[Comparison, ...] = ()
    expanded: frozenset[str] = frozenset()
    failure: str = ""
    impossible: bool = False
    seed: int = 0
    indexed: int = 0
    of_losses: bool = False
    undefined: bool = False
    more: int = 0
    fewer: tuple[int, ...] = ()
    sides: dict[str, Replay] = field(default_factory=dict)

    def counts(self, counted: Collection[int]) -> bool:
        """Whether a value may tell how many positions such an axis has, where what does not vary is
        summed over ``counted`` positions."""
        return any(n == SOME or n % common == 0 for n in counted for common in self.fewer)

    @property
    def losses(self) -> tuple[Comparison, ...]:
        """The comparisons of losses."""
        return tuple(c for c in self.comparisons if c.demand.kind == LOSS)

    @property
    def gradients(self) -> tuple[Comparison, ...]:
        """The comparisons of gradients."""
        return tuple(c for c in self.comparisons if c.demand.kind == GRADIENT)

    @property
    def differs(self) -> bool:
        """Whether a value differs, on inputs on which the single-device program is defined."""
        return not self.undefined and any(c.differs for c in self.comparisons)

    @property
    def worst(self) -> Comparison | None:
        """The comparison that is furthest off."""
        return max(
            self.comparisons,
            default=None,
            key=lambda comparison: np.inf if np.isnan(comparison.error) else comparison.error,
        )

    def value(self, side: str, tensor: int) -> dict[Coordinates, Floats]:
        """The members of a tensor of the "single" or the "parallel" side, by coordinates."""
        return {at: weighted.data for at, weighted in self.sides[side].values[tensor].items()}


def simulate(
    plan: Plan,
    single: Derived,
    parallel: Unrolled,
    seed: int = 0,
    budget: int = BUDGET,
    more: int = 0,
) -> Simulation:
    """Whether the programs of a plan compute what is expected, by running them.

    Example: ``simulate(plan, recorded(plan, single), parallel).differs`` is False of two
    tensor-parallel ranks, and True without their all-reduce.

    ``single``: the single-device side, with what is expected of it
    (`engine.specification.gradients`).  ``more``: positions of the smallest part of each axis
    beyond the usual two. What is wrong with the plan never raises: a simulation that cannot be run
    says so in ``failure``.
    """
    faults = [*single.unrolled.faults, *parallel.faults]
    if faults:
        return Simulation(failure=faults[0].message, impossible=True)
    if single.unrolled.unsupported or parallel.unsupported:
        unsupported = (*single.unrolled.unsupported, *parallel.unsupported)
        return Simulation(failure=unsupported[0].message)
    every = demands(plan, single, parallel)
    needed = expanded_axes(plan, parallel, every)
    losses = [demand for demand in every if demand.kind == LOSS]
    if losses and len(single.unrolled.instances) + len(parallel.instances) > LARGE:
        result = simulate_along(plan, single, parallel, needed, seed, more, of_losses=True)
        if result.differs:
            return result
    result = simulate_along(plan, single, parallel, needed, seed, more)
    if result.failure or result.differs or result.undefined:
        return result
    batched = needed.union([MICROBATCH])
    for expanded in dict.fromkeys((batched.union(plan.replica_axes), batched)):
        if count_instances(plan.programs, parallel, plan.microbatches, expanded) <= budget:
            distinct = simulate_along(plan, single, parallel, expanded, seed, more, INDEXED)
            return result if distinct.failure else distinct
    return result


def simulate_again(
    simulation: Simulation, plan: Plan, single: Derived, parallel: Unrolled
) -> Simulation:
    """Another parallel side on the inputs of a simulation, evaluated as far as it was.

    Example: whether a repair of the plan mends what was seen: with the all-reduce, nothing differs
    on the inputs that showed that it is missing.
    """
    return simulate_along(
        plan,
        single,
        parallel,
        simulation.expanded,
        simulation.seed,
        simulation.more,
        simulation.indexed,
        of_losses=simulation.of_losses,
    )


def expanded_axes(plan: Plan, parallel: Unrolled, every: Sequence[Demand]) -> frozenset[str]:
    """The axes along which something but the batch differs; for example ``{"tp"}`` where ranks hold
    their columns of a matrix."""
    offsets = {axis for demand in every for start in demand.offset for axis in start.axes}
    return needed_axes(plan.programs, parallel) | offsets


def _required(
    plan: Plan, single: Derived, parallel: Unrolled, *, of_losses: bool
) -> tuple[list[Demand], Unrolled, Unrolled]:
    """The required demands (``of_losses``: of losses alone), and what of both sides they take."""
    required = [demand for demand in demands(plan, single, parallel) if demand.required]
    if not of_losses:
        return required, single.unrolled, parallel
    required = [demand for demand in required if demand.kind == LOSS]
    return required, *cones(required, single, parallel)


def cones(
    demands: Iterable[Demand], single: Derived, parallel: Unrolled
) -> tuple[Unrolled, Unrolled]:
    """What demands take of both sides; for example the forward passes, of those of losses."""
    expected, combined = values_of(demands)
    return _reaching(single.unrolled, expected), _reaching(parallel, combined)


def values_of(demands: Iterable[Demand]) -> tuple[set[int], set[int]]:
    """The tensors of both sides that demands are about; for example the single device's loss, and
    that of each program."""
    demanded = list(demands)
    combined = {v for demand in demanded for term in demand.sums for v in term.tensors}
    return {demand.expected for demand in demanded} - {-1}, combined


def _reaching(unrolled: Unrolled, values: Iterable[int]) -> Unrolled:
    """What some values of a side depend on."""
    needed = set(values)
    rows = []
    for instance in reversed(unrolled.instances):
        if not needed.isdisjoint(instance.outputs):
            needed.update(instance.inputs)
            rows.append(instance)
    return replace(unrolled, instances=rows[::-1], gradients=[])


def simulate_along(
    plan: Plan,
    single: Derived,
    parallel: Unrolled,
    expanded: frozenset[str],
    seed: int,
    more: int,
    indexed: int = 0,
    *,
    of_losses: bool = False,
) -> Simulation:
    """See `simulate`; members along ``expanded`` are evaluated one by one, and no others.
    ``of_losses``: only what the losses depend on.

    Example: along ``{"dp", "mb"}`` each replica and microbatch has its own slice, else all one.
    """
    required, one, many = _required(plan, single, parallel, of_losses=of_losses)
    try:
        sizes = small_shapes(plan, one, many, expanded, 2 + more, indexed, required)
        if sizes.entries > MOST_ENTRIES:
            sizes = small_shapes(plan, one, many, expanded, 1, demands=required)
        if sizes.entries > MOST_ENTRIES:
            raise Unsupported(f"{sizes.entries} numbers after shrinking")
        result = run_both(plan, one, many, sizes, seed, required)
        return replace(result, indexed=indexed, of_losses=of_losses, more=more)
    except ShapeMismatch as error:
        return Simulation(expanded=expanded, failure=str(error), impossible=True)
    except (Unsupported, InvalidInput) as error:
        return Simulation(expanded=expanded, failure=str(error))


def run_both(
    plan: Plan,
    single: Unrolled,
    parallel: Unrolled,
    sizes: Sizes,
    seed: int,
    demands: Sequence[Demand],
    *,
    forgetful: bool = False,
) -> Simulation:
    """Both sides on one random input, compared; ``forgetful``: no values are kept but those that
    demands are about.

    Example: with ``forgetful`` and the demands of losses, ``sides`` of the result have the losses
    alone."""

    def evaluated(*, nudged: bool) -> tuple[Replay, Replay, dict[int, Floats]]:
        return _evaluated(
            plan, single, parallel, sizes, seed, demands, nudged=nudged, forgetful=forgetful
        )

    one, many, wanted = evaluated(nudged=False)
    comparisons = tuple(_comparisons(demands, wanted, one, many))
    if any(comparison.differs for comparison in comparisons):
        near = evaluated(nudged=True)
        moved = _comparisons(demands, near[2], near[0], near[1])
        comparisons = tuple(map(_settled, comparisons, moved))
    undefined = any(bool(np.isnan(data).any()) for data in wanted.values())
    undefined |= any(map(_divides_by_zero, comparisons))
    if seed % WIDE >= SHARP:
        ends = [x for c in comparisons for x in (c.expected, c.actual)]
        undefined |= not all(np.isfinite(x).all() for x in ends)
    return Simulation(
        comparisons,
        sizes.expanded,
        seed=seed,
        undefined=undefined,
        fewer=sizes.fewer,
        sides={"single": one, "parallel": many},
    )


def _evaluated(
    plan: Plan,
    single: Unrolled,
    parallel: Unrolled,
    sizes: Sizes,
    seed: int,
    demands: Sequence[Demand],
    *,
    nudged: bool,
    forgetful: bool,
) -> tuple[Replay, Replay, dict[int, Floats]]:
    """Both sides on random inputs (``nudged``: on inputs next to these), and what is expected."""
    kind, faint = seed % WIDE, FAINT <= seed < SLIGHT
    scale = SHARP_SCALE if kind >= SHARP else SMALL if kind % 2 else 1.0
    inputs = Inputs(
        sizes,
        rotary=read_by("apply_rotary_emb", -1, single),
        tables=read_by("embedding", 1, single),
        random=np.random.default_rng(seed),
        roots=roots(single),
        wide=WIDE <= seed < FAINT,
        scale=FAINT_SCALE if faint else scale,
        positive=kind % 4 >= 2,
        repeated=kind % 4 == 3,
        signed=kind % 4 == 1,
        faint=faint,
        slight=seed >= SLIGHT,
        nudges=np.random.default_rng(seed + 1) if nudged else None,
    )
    one = Replay([plan.single], single, sizes, sizes.single, inputs)
    many = Replay(plan.programs, parallel, sizes, sizes.parallel, inputs)
    expected, combined = values_of(demands)
    one.run(expected if forgetful else None)
    many.run(combined if forgetful else None)
    return one, many, {d.expected: one.get(d.expected, {}).data for d in demands if d.expected >= 0}


def _settled(comparison: Comparison, near: Comparison) -> Comparison:
    """A comparison, without its difference where inputs next to these move a side about as far: a
    value that is zero over the reals, or a kink that the inputs lie on, tells nothing."""
    moved = 0.0
    for here, there in (
        (comparison.expected, near.expected),
        (comparison.actual, near.actual),
    ):
        if here.shape == there.shape:
            with np.errstate(invalid="ignore"):  # of what is no number on both
                change = np.abs(here - there)
            moved = max(moved, float(change.max(initial=0.0, where=np.isfinite(change))))
    off = abs(comparison.worst.expected - comparison.worst.actual)
    return replace(comparison, error=0.0) if off <= MOVED * moved else comparison


def compare(
    demand: Demand, at: Coordinates, expected: Floats, actual: Floats, scale: float
) -> Comparison:
    """One comparison; NaN and infinity count as infinitely wrong unless both sides have them.

    Example: of expected [1, 2] and actual [1, 2.5] at the scale 2 the error is 0.25, worst at (1,).
    """
    with np.errstate(invalid="ignore"):
        off = np.abs(actual - expected)
    off = np.where((actual == expected) | (np.isnan(actual) & np.isnan(expected)), 0.0, off)
    off = np.where(np.isnan(off), np.inf, off)
    if not off.size:
        return Comparison(demand, at, expected, actual, 0.0, Worst((), 0.0, 0.0))
    index = tuple(int(i) for i in np.unravel_index(int(np.argmax(off)), off.shape))
    return Comparison(
        demand,
        at,
        expected,
        actual,
        float(off[index]) / (scale if scale and np.isfinite(scale) else 1.0),
        Worst(index, float(expected[index]), float(actual[index])),
    )


def _divides_by_zero(comparison: Comparison) -> bool:
    """Whether the single device has an infinite number where a rank has none at all."""
    expected, actual = comparison.expected, comparison.actual
    return expected.shape == actual.shape and bool((np.isinf(expected) & np.isnan(actual)).any())


def _is_count(data: Floats) -> bool:
    """Whether all numbers are whole."""
    return bool(np.all(data == np.rint(data)))


def _comparisons(
    demands: Sequence[Demand], wanted: Mapping[int, Floats], one: Replay, many: Replay
) -> Iterator[Comparison]:
    """Every demand, at every rank; a value that nothing computes is zero, as is a gradient that no
    rank ends with; a loss that no rank computes is none."""
    scales = {
        value: float(np.abs(data).max(initial=0.0, where=np.isfinite(data)))
        for value, data in wanted.items()
    }
    least: dict[str, float] = {}
    for demand in demands:
        if demand.kind != LOSS:
            scale = scales.get(demand.expected, 0.0)
            if demand.expected >= 0 and _is_count(wanted[demand.expected]):
                # However many steps were counted says nothing of how large numbers are.
                scale = min(scale, 1.0)
            scale *= SMALLEST_SCALE
            least[demand.kind] = max(least.get(demand.kind, 0.0), scale)
        elif demand.program < 0:
            number = wanted[demand.expected].reshape(-1)
            yield compare(demand, (), number, np.full_like(number, np.nan), 0.0)
    loss = max((scales.get(d.expected, 0.0) for d in demands if d.kind == LOSS), default=0.0)
    if least.get(GRADIENT):
        least[GRADIENT] = max(least[GRADIENT], SMALLEST_OF_LOSS * loss)
    for demand in demands:
        if demand.kind == GRADIENT and demand.program < 0 <= demand.expected:
            lost = wanted[demand.expected]
            scale = max(scales[demand.expected], least[GRADIENT])
            yield compare(demand, (), lost, np.zeros_like(lost), scale)
    for demand, at, expected, addends in outcomes(demands, one, many):
        zero = np.zeros_like(expected if expected is not None else addends[0][1])
        actual = sum((data * float(weight) for weight, data in addends), zero)
        scale = max(scales.get(demand.expected, 0.0), least.get(demand.kind, 0.0))
        yield compare(demand, at, zero if expected is None else expected, actual, scale)
