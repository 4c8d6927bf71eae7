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
from shardproof.engine.plan.assumption import has_rows, hides_scores
from shardproof.engine.plan.expectations import GRADIENT, LOSS
from shardproof.engine.plan.ir import MICROBATCH, Plan
from shardproof.engine.schedule.instances import Unrolled
from shardproof.engine.simulation.comparisons import (
    Comparison,
    compare,
    divides_by_zero,
    is_infinite,
    is_no_number,
    unrounded,
)
from shardproof.engine.simulation.hiding import hiding
from shardproof.engine.simulation.inputs import FAINT_SCALE, Inputs, read_by
from shardproof.engine.simulation.outcomes import outcomes
from shardproof.engine.simulation.replay import (
    Coordinates,
    Replay,
    count_instances,
    needed_axes,
)
from shardproof.engine.simulation.roots import roots
from shardproof.engine.simulation.rounding import Sides, without_rounding
from shardproof.engine.simulation.small_shapes import Sizes, small_shapes
from shardproof.engine.specification.demands import Demand, demands
from shardproof.engine.specification.gradients import Derived

Floats = NDArray[np.float64]

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
#: From this seed on inputs are slight ones, from the second on steep ones, from the third on of
#: various sizes.
SLIGHT, STEEP, VARIOUS = 20_000, 30_000, 40_000
SHARP_SCALE = 3.0
#: From which magnitude on a negative number is what minus infinity is read as (-1e30).
HIDES = -1e29
#: Operator instances up to which a second run takes distinct slices of the batch.
BUDGET = 6_000
#: Rows beyond which the losses are looked at first; gradients only where those do not differ.
LARGE = 30_000
#: Numbers in all tensors together, above which a plan cannot be simulated.
MOST_ENTRIES = 200_000_000
#: Numbers in all tensors together, above which they are not run with more digits, and above which
#: they are not either where that one run would take the place of eight.
MOST_LONG, MOST_LONG_ONCE = 1 << 20, 1 << 21


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
    that divides all its true extents.  ``smaller``: what differs with fewer of them, where the plan
    itself is too large to be run, and counts them.
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
    smaller: Simulation | None = None
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
    def agreeing(self) -> frozenset[tuple[str, str, int]]:
        """What agrees where something else differs, by the kind, name and program of its demand;
        for example ``{("gradient", "w1", 0)}`` of a program whose loss alone is wrong."""
        if not self.differs:
            return frozenset()
        rows = [((c.demand.kind, c.demand.name, c.demand.program), c) for c in self.comparisons]
        return frozenset(row for row, _ in rows) - {row for row, c in rows if c.differs}

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
    simulation: Simulation,
    plan: Plan,
    single: Derived,
    parallel: Unrolled,
    *,
    long: bool = False,
    plain: bool = False,
    standing: bool = False,
) -> Simulation:
    """Another parallel side on the inputs of a simulation, evaluated as far as it was; ``long``: of
    numbers with more digits; ``plain``: for values alone, differences that are rounding are left;
    ``standing``: positions of indexed axes stand for as many true ones (`.standing`).

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
        long=long,
        plain=plain,
        standing=standing,
    )


def with_longer_numbers(
    simulation: Simulation, plan: Plan, single: Derived, parallel: Unrolled
) -> Simulation:
    """A simulation, without differences that are rounding: both sides run again on the same inputs
    with more digits, if they are not too large.

    Example: of ``sqrt(x * x + 1e16) - 1e8`` beside another form of it, nothing differs.
    """
    if not simulation.differs or entries(*simulation.sides.values()) > MOST_LONG:
        return simulation
    longer = simulate_again(simulation, plan, single, parallel, long=True)
    if len(longer.comparisons) != len(simulation.comparisons):
        return simulation
    return replace(simulation, comparisons=unrounded(simulation.comparisons, longer.comparisons))


def entries(*sides: Replay) -> int:
    """How many numbers are kept of all tensors.

    Example: 12 of one tensor [2, 3] with two members.
    """
    return sum(m.data.size for side in sides for values in side.values for m in values.values())


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
    long: bool = False,
    plain: bool = False,
    standing: bool = False,
) -> Simulation:
    """See `simulate`; members along ``expanded`` are evaluated one by one, and no others.
    ``of_losses``: only what the losses depend on; ``long``, ``plain``: see `run_both`;
    ``standing``: see `simulate_again`.

    Example: along ``{"dp", "mb"}`` each replica and microbatch has its own slice, else all one.
    """
    required, one, many = _required(plan, single, parallel, of_losses=of_losses)
    try:
        sizes = small_shapes(
            plan, one, many, expanded, 2 + more, indexed, required, standing=standing
        )
        if sizes.entries > MOST_ENTRIES:
            sizes = small_shapes(plan, one, many, expanded, 1, demands=required, standing=standing)
        if sizes.entries > MOST_ENTRIES:
            raise Unsupported(f"{sizes.entries} numbers after shrinking")
        result = run_both(plan, one, many, sizes, seed, required, long=long, plain=plain)
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
    long: bool = False,
    plain: bool = False,
) -> Simulation:
    """Both sides on one random input, compared; ``forgetful``: no values are kept but those that
    demands are about; ``long``: of numbers with more digits, of which none is rounding; ``plain``:
    it is not looked at whether differences are rounding, which takes further runs.

    Example: with ``forgetful`` and the demands of losses, ``sides`` of the result have the losses
    alone."""

    def evaluated(
        way: int = 0,
        nudge: float = 0.0,
        sides: Sides = (single, parallel),
        long: bool = long,
    ) -> tuple[Replay, Replay, dict[int, Floats]]:
        first, second = sides
        return _evaluated(
            plan, first, second, sizes, seed, demands, way, nudge, forgetful=forgetful, long=long
        )

    def again(
        way: int = 0,
        nudge: float = 0.0,
        sides: Sides = (single, parallel),
        long: bool = False,
    ) -> tuple[Comparison, ...]:
        near = evaluated(way, nudge, sides, long)
        return tuple(_comparisons(demands, near[2], near[0], near[1]))

    one, many, wanted = evaluated()
    comparisons = tuple(_comparisons(demands, wanted, one, many))
    if not long and not plain:
        longer = not forgetful and entries(one, many) <= MOST_LONG_ONCE
        comparisons = without_rounding(
            comparisons, again, (single, parallel), small=forgetful, longer=longer
        )
    undefined = any(bool(np.isnan(data).any()) for data in wanted.values())
    undefined |= any(map(divides_by_zero, comparisons))
    undefined |= has_rows(plan.assumed) and any(map(is_no_number, comparisons))
    if hides_scores(plan.assumed):
        undefined |= any(map(is_infinite, comparisons)) or _hides_a_row(one, single)
    if seed % WIDE >= SHARP or seed >= STEEP:
        # Exponentials of large numbers that are no numbers tell nothing, nor do zeros by them.
        ends = [x for c in comparisons for x in (c.expected, c.actual)]
        undefined |= not all(np.isfinite(x).all() for x in ends)
        undefined |= one.overflows or many.overflows
    return Simulation(
        comparisons,
        sizes.expanded,
        seed=seed,
        undefined=undefined,
        fewer=sizes.fewer,
        sides={"single": one, "parallel": many},
    )


def _hides_a_row(one: Replay, single: Unrolled) -> bool:
    """Whether a largest score of the single device is minus infinity, as which it is read: that of
    a row which a mask hides altogether."""
    rows = (i for i in single.instances if i.name == "amax" and not i.backward)
    largest = (x.data for row in rows for v in row.outputs for x in one.values[v].values())
    return any(bool((data <= HIDES).any()) for data in largest)


def _evaluated(
    plan: Plan,
    single: Unrolled,
    parallel: Unrolled,
    sizes: Sizes,
    seed: int,
    demands: Sequence[Demand],
    way: int,
    nudge: float,
    *,
    forgetful: bool,
    long: bool,
) -> tuple[Replay, Replay, dict[int, Floats]]:
    """Both sides on random inputs (``nudge``: on inputs so far from these, on way number ``way``),
    and what is expected."""
    kind, faint = seed % WIDE, FAINT <= seed < SLIGHT
    scale = SHARP_SCALE if kind >= SHARP else SMALL if kind % 2 else 1.0
    inputs = Inputs(
        sizes,
        rotary=read_by("apply_rotary_emb", -1, single),
        tables=read_by("embedding", 1, single),
        random=np.random.default_rng(seed),
        roots=roots(single),
        hiding=hiding(plan.single),
        wide=WIDE <= seed < FAINT,
        scale=FAINT_SCALE if faint else scale,
        positive=kind % 4 >= 2,
        repeated=kind % 4 == 3,
        signed=kind % 4 == 1,
        faint=faint,
        slight=SLIGHT <= seed < STEEP,
        steep=STEEP <= seed < VARIOUS,
        various=seed >= VARIOUS,
        nudges=np.random.default_rng(seed + way) if nudge else None,
        nudge=nudge,
        long=long,
    )
    one = Replay([plan.single], single, sizes, sizes.single, inputs)
    many = Replay(plan.programs, parallel, sizes, sizes.parallel, inputs)
    expected, combined = values_of(demands)
    one.run(expected if forgetful else None)
    many.run(combined if forgetful else None)
    return one, many, {d.expected: one.get(d.expected, {}).data for d in demands if d.expected >= 0}


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
