"""A plan at the true sizes of all indexed axes: classes, experts, positions under a mask.

`engine.simulation.simulate` keeps few positions of these, which is another plan.  Here the plan
itself is run, as far as a few of its values take it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import prod
from typing import Any, Final

import numpy as np

from shardproof.engine.errors import InvalidInput, ShapeMismatch, Unsupported
from shardproof.engine.plan.expectations import LOSS
from shardproof.engine.plan.ir import MICROBATCH, Plan, Program
from shardproof.engine.schedule.instances import Unrolled
from shardproof.engine.simulation.lifetimes import last_uses, most_at_once
from shardproof.engine.simulation.replay import count_members
from shardproof.engine.simulation.simulate import (
    FAINT,
    Simulation,
    cones,
    expanded_axes,
    run_both,
    values_of,
)
from shardproof.engine.simulation.small_shapes import Sizes, small_shapes
from shardproof.engine.specification.demands import Demand, demands
from shardproof.engine.specification.gradients import Derived

#: Inputs whose ids go through all of their domain, one after the other.
TURNS: Final = 4
#: More ids than these are not gone through.
MOST_IDS: Final = 1 << 12
#: Numbers that a plan has at one time that is run at the true size of its indexed axes, above which
#: it is not.
MOST_CONFIRMED = 40_000_000
#: Numbers that such a plan computes in all.
MOST_COMPUTED = 1_000_000_000
#: Further inputs on which it is sought, by how far their seeds are: numbers of the same kind.
LATER = (0, 4, 8)
#: Why a difference of another plan is not sought in the plan itself.
TOO_LARGE = (
    "a difference was seen at fewer classes, experts or positions only, and the plan counts these; "
    "at their true number it is too large to be run"
)


def confirmed(
    simulation: Simulation, plan: Plan, single: Derived, parallel: Unrolled
) -> Simulation:
    """A difference of another plan, sought in the plan itself: all indexed axes at their true
    sizes, the others first at one position of each part, then at two.  Only what differed is
    computed (of losses and others: the losses), and nothing is kept but that, on up to three
    inputs: masks that data decide may hide what they hid not in the other plan.  Where all that
    differed is too large, that of it which takes least (`_nearest`) is, then the losses on faint
    inputs, which may differ there.  It says so in ``failure`` if these are too large as well.  For
    example, a difference that was seen with 2 of 8 classes is sought with all 8."""
    apart = [c.demand for c in simulation.comparisons if c.differs and c.demand.required]
    losses = [demand for demand in apart if demand.kind == LOSS]
    apart = losses or apart
    seeds = [simulation.seed + later for later in LATER]
    first = _at_true_sizes(plan, single, parallel, simulation.expanded, seeds[0], apart)
    if first.failure == TOO_LARGE and not losses:
        apart = _nearest(apart, single.unrolled)
        first = _at_true_sizes(plan, single, parallel, simulation.expanded, seeds[0], apart)
        faint = first if first.differs else outright(plan, single, parallel, FAINT)
        return faint if faint.differs else first
    if first.differs or first.failure:
        return first
    for seed in seeds[1:]:
        itself = _at_true_sizes(plan, single, parallel, simulation.expanded, seed, apart)
        if itself.differs:
            return itself
    return first


def _nearest(apart: Sequence[Demand], single: Unrolled) -> list[Demand]:
    """The demands that are about the value that the single device has first: of gradients those of
    the last layer, which take little more than the losses do."""
    made = {v: n for n, instance in enumerate(single.instances) for v in instance.outputs}
    first = min(made.get(demand.expected, len(made)) for demand in apart)
    return [demand for demand in apart if made.get(demand.expected, len(made)) == first]


def outright(plan: Plan, single: Derived, parallel: Unrolled, seed: int = 0) -> Simulation:
    """The losses of both sides as `confirmed` has them, without a difference of another plan that
    says what to look at; no comparisons where the plan has no losses.

    Example: where a large plan is wrong before its losses, this alone is a refutation.
    """
    every = demands(plan, single, parallel)
    losses = [demand for demand in every if demand.required and demand.kind == LOSS]
    expanded = expanded_axes(plan, parallel, every)
    if not losses:
        return Simulation()
    return _at_true_sizes(plan, single, parallel, expanded, seed, losses)


def with_numbers(plan: Plan, single: Derived, parallel: Unrolled, seed: int) -> Simulation:
    """Both sides with the numbers that the programs' constants have, at true sizes: at others,
    constants are any numbers, with which what is counted and compared may never be equal.

    Example: places of an expert, which are compared with 0, 1, 2.
    """
    required = [demand for demand in demands(plan, single, parallel) if demand.required]
    every = [MICROBATCH, *(axis for program in plan.programs for axis, *_ in program.axes)]
    expanded = frozenset([*every, *plan.replica_axes])
    try:
        sizes = small_shapes(plan, single.unrolled, parallel, expanded, demands=required)
        sizes = replace(sizes, true=True, _divisors={}, _dims={}, _positions={})
        if not _affordable(plan, single.unrolled, parallel, sizes, required):
            return Simulation(expanded=expanded, failure=TOO_LARGE, seed=seed)
        run = run_both(plan, single.unrolled, parallel, sizes, seed, required, forgetful=True)
        return replace(run, sides={})
    except (Unsupported, ShapeMismatch, InvalidInput) as error:
        return Simulation(expanded=expanded, failure=str(error), seed=seed)


def every_id(program: Program, turn: int) -> dict[str, Any]:
    """Integers of inputs with a small domain: all of it, where it was left at the turn before.

    Example: of 6 labels in [0, 24), six different ones at each of four turns.
    """
    made: dict[str, Any] = {}
    for shard in program.shards:
        if not shard.integer or shard.domain is None or shard.kind == "constant":
            continue
        low, high = shard.domain
        count = prod(shard.full_shape)
        if high - low <= MOST_IDS:
            order = np.random.default_rng(0).permutation(high - low)
            places = (np.arange(count) + turn * count) % (high - low)
            made[shard.name] = (low + order[places]).reshape(shard.full_shape)
    return made


def _at_true_sizes(
    plan: Plan,
    single: Derived,
    parallel: Unrolled,
    expanded: frozenset[str],
    seed: int,
    apart: Sequence[Demand],
) -> Simulation:
    """See `confirmed`; ``apart``: the demands that are looked at."""
    one, many = cones(apart, single, parallel)
    result = Simulation(expanded=expanded, failure=TOO_LARGE, seed=seed)
    try:
        sizes = small_shapes(plan, one, many, expanded, 1, demands=apart, whole=True)
        for again in (sizes, sizes.again(per_shard=2)):
            if not result.differs and _affordable(plan, one, many, again, apart):
                result = run_both(plan, one, many, again, seed, apart, forgetful=True)
        return replace(result, sides={})
    except (Unsupported, ShapeMismatch, InvalidInput) as error:
        return Simulation(expanded=expanded, failure=str(error), seed=seed)


def _affordable(
    plan: Plan, single: Unrolled, parallel: Unrolled, sizes: Sizes, demands: Sequence[Demand]
) -> bool:
    """Whether both sides can be run where only what demands are about is kept."""
    expected, combined = values_of(demands)
    one = count_members([plan.single], single, 1, sizes.expanded)
    many = count_members(plan.programs, parallel, plan.microbatches, sizes.expanded)
    computed = at_once = 0
    for side, recording, members, kept in (
        (single, sizes.single, one, expected),
        (parallel, sizes.parallel, many, combined),
    ):
        numbers = [n * m for n, m in zip(sizes.numbers(recording), members, strict=True)]
        computed += sum(numbers)
        ends = last_uses(side.instances, kept)
        at_once = max(at_once, most_at_once(side.instances, ends, numbers))
    return computed <= MOST_COMPUTED and at_once <= MOST_CONFIRMED
