"""Whether a plan that is called refuted is seen to be wrong, by the checker's own eye.

What a run says of its counterexample is not believed: both sides are run rank by rank
(`engine.reference_runtime`) on inputs of the checker's own, of several sizes, until a result
differs.  Where none does, the refutation is not confirmed.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np

from shardproof.checker.result import Problems
from shardproof.checker.runtime.grounds import grounds
from shardproof.checker.runtime.rank_by_rank import TOLERANCE
from shardproof.engine.errors import InvalidInput, ShapeMismatch, Unsupported
from shardproof.engine.plan.assumption import has_rows, hides_scores
from shardproof.engine.plan.ir import Plan
from shardproof.engine.reference_runtime.compare import Undefined, errors, fits
from shardproof.engine.reference_runtime.exchange import Stuck
from shardproof.engine.reference_runtime.lots import exact
from shardproof.engine.reference_runtime.runtime import execute, single_crew
from shardproof.engine.reference_runtime.values import Values
from shardproof.engine.schedule.instances import Unrolled
from shardproof.engine.schedule.unroll import unroll
from shardproof.engine.simulation.hiding import zeros_and_ones


class _Sizes(NamedTuple):
    """How large drawn numbers are, and about which number those of vectors are."""

    scale: float
    centre: float


#: Usual ones; small ones, beside which an epsilon counts, and a norm that is clipped is not
#: reached; large ones, which a softmax does not hide, and which pass that norm.
SIZES: Final = (
    *(_Sizes(1.0, 1.0), _Sizes(1.0, 0.0), _Sizes(0.01, 1.0), _Sizes(1e-3, 0.0)),
    *(_Sizes(3.0, 1.0), _Sizes(30.0, 1.0), _Sizes(100.0, 0.0), _Sizes(1e3, 0.0)),
)
#: Random inputs of each size.
SEEDS: Final = 3
#: Which of them has marks: of integers that may be negative, as a label that does not count is,
#: about half are the least; what hides scores by a large number is zeros and ones.
MARKED: Final = 1


def confirm(
    plan: Plan, problems: Problems, sides: tuple[Unrolled, Unrolled] | None = None
) -> tuple[str, ...]:
    """Run both sides until a result differs; where all agree, that is a problem, and what could not
    be run is returned in words.  ``sides``: the plan's, where they are unrolled already.

    Example: of a plan that is right, "the certificate says refuted, but run rank by rank both sides
    agree on each of 24 inputs"; of one without its all-reduce nothing.
    """
    sides = sides or (unroll([plan.single], 1), unroll(plan.programs, plan.microbatches))
    problem, excused = grounds(plan, *sides)
    if problem:
        problems.add("verdict", f"the certificate says refuted, but {problem}")
        return ()
    if not fits(plan):
        return ("the refutation is not confirmed rank by rank: the plan is too large for it",)
    agreed = 0
    try:
        for number, sizes in enumerate(SIZES):
            for seed in range(SEEDS):
                off = _off(plan, sizes, number * SEEDS + seed, excused, marked=seed == MARKED)
                if off is not None and not off <= TOLERANCE:
                    return ()
                agreed += off is not None
    except (Stuck, ShapeMismatch, InvalidInput):
        _run_alone(plan, problems)  # It cannot be run as it is.
        return ()
    except Unsupported as error:
        return (f"the refutation is not confirmed rank by rank: {error}",)
    if not agreed:
        return (
            "the refutation is not confirmed rank by rank: the single-device program is undefined "
            "at every input that was tried",
        )
    problems.add(
        "verdict",
        "the certificate says refuted, but run rank by rank both sides agree on each of "
        f"{agreed} inputs{' in all that depends on no stand-in' if excused else ''}",
    )
    return ()


def _run_alone(plan: Plan, problems: Problems) -> None:
    """That the single-device program cannot be run refutes nothing: there is nothing to hold the
    plan against."""
    try:
        execute([single_crew(plan, Values(plan, np.random.default_rng(0)))])
    except (Stuck, ShapeMismatch, InvalidInput) as error:
        problems.add(
            "verdict",
            f"the certificate says refuted, but the single-device program cannot be run: {error}",
        )


def _off(
    plan: Plan, sizes: _Sizes, seed: int, excused: tuple[str, ...], *, marked: bool
) -> float | None:
    """The largest relative difference on an input, of results whose names do not begin so; None: a
    side is undefined there."""
    random = np.random.default_rng(seed)
    values = Values(plan, random, scale=sizes.scale, centre=sizes.centre)
    for shard in plan.single.shards if marked else ():
        least = shard.domain[0] if shard.domain else 0
        if shard.integer and least < 0:
            full = values.full(shard).data[0]
            values.lots[shard.name] = exact(np.where(random.random(full.shape) < 0.5, least, full))
    for name, data in zeros_and_ones(plan.single, seed).items() if marked else ():
        values.lots[name] = exact(data)
    try:
        every = errors(plan, plan, values, together=False)
        off = max((error for error, at in every if not at.startswith(excused)), default=0.0)
    except Undefined:
        return None
    # Where a rank has no such rows, their mean is no number, nor is a softmax of hidden scores.
    assumed = has_rows(plan.assumed) or hides_scores(plan.assumed)
    return None if assumed and not np.isfinite(off) else off
