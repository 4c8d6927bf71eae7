"""Run both programs of a plan from random inputs, with the true functions, and compare.

This confirms or denies a refutation independently of lineages and of every prover: it knows
operators only by their declarations, evaluated in float64, and communication by what it does.  It
is run at small sizes (`engine.shrink`).  First with all slices of the batch alike, so that one
replica and one microbatch stand for all; if that shows no difference and the plan is small, again
with distinct slices, of more classes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from math import prod

import numpy as np
from numpy.typing import NDArray

from engine.arrays import Weighted
from engine.errors import InvalidInput, ShapeMismatch, Unsupported
from engine.inputs import Inputs, read_by
from engine.ir import MICROBATCH, Plan, Program
from engine.recorder import slice_axes
from engine.replay import Coordinates, Replay, instances, needed_axes
from engine.rows import Unrolled
from engine.shrink import Sizes, shrink

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
#: Operator instances up to which a second run takes distinct slices of the batch.
BUDGET = 6_000
#: Rows beyond which the losses are looked at first; gradients only where those do not differ.
LARGE = 30_000
#: Numbers in all tensors together, above which a plan cannot be simulated.
MOST_ENTRIES = 200_000_000
#: The same for a plan that is run at the true size of its indexed axes, to confirm a difference.
MOST_CONFIRMED = 20_000_000


@dataclass(frozen=True, slots=True)
class Worst:
    """The element that is furthest off; its index is that of a representative position."""

    index: tuple[int, ...]
    expected: float
    actual: float


@dataclass(frozen=True, eq=False)
class Comparison:
    """What a rank ends up with, and what the single device says it should be.

    ``shard``: number of the program's shard whose gradient this is, -1 for the loss.  ``at``: the
    rank's position along the axes that were expanded.  ``error``: relative to the scale of the
    whole tensor.
    """

    program: int
    shard: int
    name: str
    at: Coordinates
    expected: Floats
    actual: Floats
    error: float
    worst: Worst

    @property
    def differs(self) -> bool:
        return not self.error <= TOLERANCE


@dataclass(frozen=True, eq=False)
class Simulation:
    """``failure``: why it could not be run, or empty; ``impossible``: because the plan itself
    cannot run, not because something is not supported.  ``expanded``: the coordinates along which
    members were evaluated one by one; ``seed``: of the inputs; ``indexed``: see `shrink`;
    ``of_losses``: only what the losses depend on was evaluated.  ``another``: what was run is a
    plan with fewer positions of an indexed axis (classes, experts, positions under a mask)."""

    losses: tuple[Comparison, ...] = ()
    gradients: tuple[Comparison, ...] = ()
    expanded: frozenset[str] = frozenset()
    failure: str = ""
    impossible: bool = False
    seed: int = 0
    indexed: int = 0
    of_losses: bool = False
    another: bool = False
    sides: dict[str, Replay] = field(default_factory=dict)

    @property
    def comparisons(self) -> tuple[Comparison, ...]:
        return (*self.losses, *self.gradients)

    @property
    def differs(self) -> bool:
        return any(found.differs for found in self.comparisons)

    @property
    def worst(self) -> Comparison | None:
        """The comparison that is furthest off."""
        return max(
            self.comparisons,
            default=None,
            key=lambda found: np.inf if np.isnan(found.error) else found.error,
        )

    def value(self, side: str, tensor: int) -> dict[Coordinates, Floats]:
        """The members of a tensor of the "single" or the "parallel" side, by coordinates."""
        return {at: held.data for at, held in self.sides[side].values[tensor].items()}


def simulate(
    plan: Plan,
    single: Unrolled,
    parallel: Unrolled,
    seed: int = 0,
    budget: int = BUDGET,
    more: int = 0,
) -> Simulation:
    """Whether the programs of a plan compute the same losses and gradients, by running them.

    ``more``: positions of the smallest part of each axis beyond the usual two.
    What is wrong with the plan never raises: a simulation that cannot be run says so in
    ``failure``.
    """
    faults = [*single.faults, *parallel.faults]
    if faults:
        return Simulation(failure=faults[0].message, impossible=True)
    if single.unsupported or parallel.unsupported:
        return Simulation(failure=(*single.unsupported, *parallel.unsupported)[0].message)
    needed = needed_axes(plan.programs, parallel)
    if len(single.rows) + len(parallel.rows) > LARGE:
        result = simulate_along(plan, _of_losses(single), _of_losses(parallel), needed, seed, more)
        if result.differs:
            return replace(result, of_losses=True)
    result = simulate_along(plan, single, parallel, needed, seed, more)
    if result.failure or result.differs:
        return result
    batched = needed.union([MICROBATCH])
    for expanded in dict.fromkeys((batched.union(plan.replica_axes), batched)):
        if instances(plan.programs, parallel, plan.microbatches, expanded) <= budget:
            distinct = simulate_along(plan, single, parallel, expanded, seed, more, INDEXED)
            return result if distinct.failure else distinct
    return result


def simulate_again(
    known: Simulation, plan: Plan, single: Unrolled, parallel: Unrolled, more: int
) -> Simulation:
    """Another parallel side on the inputs of a simulation, evaluated as far as it was."""
    if known.of_losses:
        single, parallel = _of_losses(single), _of_losses(parallel)
    return simulate_along(plan, single, parallel, known.expanded, known.seed, more, known.indexed)


def confirmed(known: Simulation, plan: Plan, single: Unrolled, parallel: Unrolled) -> Simulation:
    """A difference of another plan, sought in the plan itself: all indexed axes at their true
    sizes.  It says so in ``failure`` if that is too large."""
    if known.of_losses:
        single, parallel = _of_losses(single), _of_losses(parallel)
    try:
        sizes = shrink(plan, single, parallel, known.expanded, whole=True)
        if sizes.entries > MOST_CONFIRMED:
            sizes = shrink(plan, single, parallel, known.expanded, 1, whole=True)
        if sizes.entries > MOST_CONFIRMED:
            raise Unsupported(
                "a difference was seen at fewer classes, experts or positions only, and the plan "
                "counts these; at their true number it is too large to be run"
            )
        return _run(plan, single, parallel, sizes, known.seed)
    except (Unsupported, ShapeMismatch, InvalidInput) as error:
        return Simulation(expanded=known.expanded, failure=str(error), seed=known.seed)


def _of_losses(unrolled: Unrolled) -> Unrolled:
    """What the losses of a side depend on, without its gradients."""
    needed = {value for _, _, value in unrolled.losses}
    rows = []
    for row in reversed(unrolled.rows):
        if not needed.isdisjoint(row.outputs):
            needed.update(row.inputs)
            rows.append(row)
    return replace(unrolled, rows=rows[::-1], gradients=[])


def simulate_along(
    plan: Plan,
    single: Unrolled,
    parallel: Unrolled,
    expanded: frozenset[str],
    seed: int,
    more: int,
    indexed: int = 0,
) -> Simulation:
    """See `simulate`; members along ``expanded`` are evaluated one by one, and no others."""
    try:
        sizes = shrink(plan, single, parallel, expanded, 2 + more, indexed)
        if sizes.entries > MOST_ENTRIES:
            sizes = shrink(plan, single, parallel, expanded, 1)
        if sizes.entries > MOST_ENTRIES:
            raise Unsupported(f"{sizes.entries} numbers after shrinking")
        return replace(_run(plan, single, parallel, sizes, seed), indexed=indexed)
    except ShapeMismatch as error:
        return Simulation(expanded=expanded, failure=str(error), impossible=True)
    except (Unsupported, InvalidInput) as error:
        return Simulation(expanded=expanded, failure=str(error))


def _run(plan: Plan, single: Unrolled, parallel: Unrolled, sizes: Sizes, seed: int) -> Simulation:
    inputs = Inputs(
        sizes,
        rotary=read_by("apply_rotary_emb", -1, single),
        tables=read_by("embedding", 1, single),
        random=np.random.default_rng(seed),
        scale=SMALL if seed % 2 else 1.0,
    )
    one = Replay([plan.single], single, sizes, sizes.single, inputs)
    many = Replay(plan.programs, parallel, sizes, sizes.parallel, inputs)
    one.run()
    many.run()
    return Simulation(
        tuple(_losses(plan, one, many)),
        tuple(_gradients(plan.programs, one, many)),
        sizes.expanded,
        seed=seed,
        another=sizes.another,
        sides={"single": one, "parallel": many},
    )


def compare(
    program: int,
    shard: int,
    name: str,
    at: Coordinates,
    expected: Floats,
    actual: Floats,
    scale: float,
) -> Comparison:
    """One comparison; NaN and infinity count as infinitely wrong unless both sides have them."""
    off = np.abs(actual - expected)
    off = np.where((actual == expected) | (np.isnan(actual) & np.isnan(expected)), 0.0, off)
    off = np.where(np.isnan(off), np.inf, off)
    index = tuple(int(i) for i in np.unravel_index(int(np.argmax(off)), off.shape))
    return Comparison(
        program,
        shard,
        name,
        at,
        expected,
        actual,
        float(off[index]) / (scale if scale and np.isfinite(scale) else 1.0),
        Worst(index, float(expected[index]), float(actual[index])),
    )


def _losses(plan: Plan, one: Replay, many: Replay) -> list[Comparison]:
    """Every loss of every program, over microbatches and replicas."""
    expected = sum(_total(one, value, {}, ()) for _, _, value in final_losses(one.unrolled))
    batch = slice_axes(plan)
    groups: dict[tuple[int, str], list[int]] = {}
    for program, which, value in final_losses(many.unrolled):
        groups.setdefault((program, which), []).append(value)
    if not groups:
        return [_loss(-1, "no rank computes a loss", (), expected, np.nan)]
    result = []
    for (program, which), values in groups.items():
        others = [a for a in many.family(program, False) if a[0] not in dict(batch)]
        for at in many.members(others):
            actual = sum(_total(many, value, at, batch) for value in values)
            if plan.loss == "mean":
                actual /= prod(extent for _, extent in batch)
            result.append(_loss(program, which, tuple(at.items()), expected, actual))
    return result


def _loss(program: int, which: str, at: Coordinates, expected: float, actual: float) -> Comparison:
    return compare(program, -1, which, at, np.array([expected]), np.array([actual]), abs(expected))


def final_losses(unrolled: Unrolled) -> list[tuple[int, str, int]]:
    """Losses, without those that communication on the same rank turns into another loss: what
    was sent on, or an addend before its all-reduce."""
    found = {value: program for program, _, value in unrolled.losses}
    before: set[int] = set()
    for row in unrolled.rows:
        if row.kind != "op" or row.name == "identity":
            held = {found[v] for v in row.outputs if v in found}
            before.update(v for v in row.inputs if v in found and found[v] in held)
    return [loss for loss in unrolled.losses if loss[2] not in before]


def _total(side: Replay, value: int, at: dict[str, int], batch: Sequence[tuple[str, int]]) -> float:
    """The sum of a loss over the slices of the batch that its members are of."""
    held = side.unrolled.tensors[value]
    own = side.family(held.program, held.batched)
    axes = {axis for axis, _, _ in side.programs[held.program].axes}
    total = 0.0
    for place in side.members([a for a in own if a[0] in dict(batch)]):
        data = side.get(value, {**at, **place}).data
        if data.size != 1:
            raise ShapeMismatch(f"the loss has {data.size} elements, expected one")
        total += float(data.sum())
    for axis, extent in batch:
        varies = held.batched and side.unrolled.symbolic if axis == MICROBATCH else axis in axes
        if varies and axis not in dict(own):
            total *= extent
    return total


def _gradients(programs: Sequence[Program], one: Replay, many: Replay) -> list[Comparison]:
    """For every rank and shard, its gradient after everything ran; none at all is zero."""
    expected = _full_gradients(one)
    scales = {name: float(np.abs(full.data).max(initial=0.0)) for name, full in expected.items()}
    loss = sum(_total(one, value, {}, ()) for _, _, value in final_losses(one.unrolled))
    least = SMALLEST_SCALE * max(scales.values(), default=0.0)
    if least and np.isfinite(loss):
        least = max(least, SMALLEST_OF_LOSS * abs(loss))
    found = {(program, shard): value for program, shard, value in many.unrolled.gradients}
    result = []
    for number, program in enumerate(programs):
        for position, shard in enumerate(program.shards):
            if shard.updated_as >= 0:
                continue
            value = found.get((number, position))
            full = expected.get(shard.name)
            if value is None and full is None:
                continue
            for at in many.members(many.family(number, False)):
                actual = None if value is None else many.get(value, at)
                wanted = None if full is None else many.cut(full, shard, at)
                zero = np.zeros(next(held.data.shape for held in (wanted, actual) if held))
                result.append(
                    compare(
                        number,
                        position,
                        shard.name,
                        tuple(at.items()),
                        wanted.data if wanted else zero,
                        actual.data if actual else zero,
                        max(scales.get(shard.name, 0.0), least),
                    )
                )
    return result


def _full_gradients(one: Replay) -> dict[str, Weighted]:
    result = {}
    for _, position, value in one.unrolled.gradients:
        shard = one.programs[0].shards[position]
        if shard.shape != shard.full_shape:
            raise Unsupported(f"the single-device program holds a part of {shard.name}")
        result[shard.name] = one.get(value, {})
    return result
