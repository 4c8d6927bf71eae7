"""An eye of the checker's own on structure: both sides run rank by rank, and compared.

Prover and checker share how a plan is unrolled, matched, claimed and concluded.  This shares none
of it: `engine.reference_runtime` runs every rank by the plan alone.  A small plan is run as it is;
a large one at small sizes, a very large one with fewer replicas and rounds, and then what was left
out is said: it was not looked at.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple

import numpy as np

from shardproof.checker.result import Problems
from shardproof.checker.runtime.small import Sized, shapes_of
from shardproof.engine.errors import InvalidInput, ShapeMismatch, Unsupported
from shardproof.engine.plan.ir import Plan
from shardproof.engine.reference_runtime.compare import Undefined, compared, fits, worst
from shardproof.engine.reference_runtime.exchange import COLLECTIVES, OTHERS, Stuck
from shardproof.engine.reference_runtime.reduced import Reduced, reduced

#: Relative differences up to this one are rounding.
TOLERANCE: Final = 1e-6
#: Inputs that are tried until both sides are defined.
SEEDS: Final = 4
#: Operators (`_cost`) up to which a plan is run with all its ranks.
WHOLE: Final = 20_000
#: And up to which it is run at all.
MOST: Final = 60_000


class Compared(NamedTuple):
    """How far both sides of a plan are apart: ``error``, the largest relative difference, at
    ``where``; ``notes``: what was not looked at.

    Example: ``Compared(1.8e-15, "gradient of layers.0.attention_norm.weight on rank 3")``.
    """

    error: float
    where: str
    notes: tuple[str, ...] = ()


def look(plan: Plan, problems: Problems) -> tuple[str, ...]:
    """Run both sides; what differs is a problem, what was not looked at is returned in words.

    Example: a GPT whose attention lacks its all-reduce: "run rank by rank: gradient of
    h.0.ln_2.weight on rank 0 differs by 0.76".
    """
    try:
        seen = _compared(plan)
    except (Stuck, ShapeMismatch, InvalidInput) as error:
        problems.add("runtime", f"run rank by rank: {error}")
        return ()
    except Unsupported as error:
        return (f"not run rank by rank: {error}",)
    except MemoryError:
        return ("not run rank by rank: its arrays do not fit into memory",)
    if not seen.error <= TOLERANCE:
        problems.add("runtime", f"run rank by rank: {seen.where} differs by {seen.error:.2g}")
    return seen.notes


def _compared(plan: Plan) -> Compared:
    if fits(plan):
        return _tried(lambda seed: worst(plan, seed))
    few = reduced(plan) if _cost(plan) > WHOLE else Reduced(plan, {}, ())
    smaller, kept, left_out = few.plan, few.kept, few.left_out
    if _cost(smaller) > MOST:
        raise Unsupported(f"{smaller.ranks} of {plan.ranks} ranks have too much to do")
    shapes = shapes_of(plan, smaller)

    def run(seed: int) -> tuple[float, str]:
        values = Sized(plan, np.random.default_rng(seed), declared=False, shapes=shapes, kept=kept)
        return compared(smaller, plan, values, together=True)

    outcome = _tried(run)
    if not left_out:
        return outcome
    note = f"run rank by rank without {' and '.join(left_out)}: these were not looked at that way"
    return outcome._replace(notes=(note,))


def _tried(run: Callable[[int], tuple[float, str]]) -> Compared:
    """What the first inputs show at which the single-device program is defined."""
    for seed in range(SEEDS):
        try:
            return Compared(*run(seed))
        except Undefined:
            continue
    raise Unsupported("the single-device program is undefined at every input that was tried")


def _cost(plan: Plan) -> int:
    """What a run costs, in operators of one rank: the ranks of a program are evaluated together,
    and cost little more than one; who meets whom is worked out for each."""
    joining = COLLECTIVES.keys() | OTHERS.keys()
    total = sum(len(body.ops) for body in plan.single.bodies)
    for program in plan.programs:
        each = [
            sum(1 + program.ranks // (8 if op.name in joining else 64) for op in body.ops)
            for body in program.bodies
        ]
        total += sum(each[call.body] for call in program.calls)
    return total
