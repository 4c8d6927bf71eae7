"""Which of two placements of fused inputs is meant, where both fit: numbers decide.

A weight whose parts (q, k, v) are interleaved has the shape of a contiguous shard.  Both programs
are run at small size with either placement: the one under which they agree is taken, and that is an
assumption which names the other.  Where they agree under none, or under both, a difference that is
found later may come from the placement: it is then a stand-in, and nothing is refuted under it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from shardproof.engine.plan.assumption import Assumption
from shardproof.engine.plan.ir import Plan
from shardproof.engine.schedule.unroll import unroll
from shardproof.engine.simulation.simulate import simulate
from shardproof.engine.specification.gradients import derive
from shardproof.frontends.fx.inputs import Inputs

#: Positions of an axis beyond the fewest, so that attention over few keys is no mean of them.
MORE = 1


def chosen(make: Callable[[bool], tuple[Plan, Inputs]]) -> Plan:
    """The plan with the placement of fused inputs that numbers pick; ``make``: the plan with inputs
    of which two placements fit in pieces (True), or as contiguous shards.

    Example: a fused weight [3072, 64] of which rank 0 has [1536, 64]: where only the plan with
    1024, 256 and 256 rows of q, k and v gives the single device's numbers, it is that, with the
    assumption "taken as ...; ... fits, too (numbers agree so: state one in a relations file)".
    """
    fused, inputs = make(True)
    if not inputs.open:
        return fused
    if agrees(fused):
        return _with_assumptions(fused, inputs, "inferred", 0, 1)
    plain, _ = make(False)
    if agrees(plain):
        return _with_assumptions(plain, inputs, "inferred", 1, 0)
    return _with_assumptions(fused, inputs, "stand-in", 0, 1)


def agrees(plan: Plan) -> bool:
    """Whether both sides give the same numbers, at small size.

    Example: an MLP under tensor parallelism whose weights are divided as its ranks compute does;
    with a fused weight taken as contiguous that is interleaved it does not.
    """
    single = unroll([plan.single], 1)
    parallel = unroll(plan.programs, plan.microbatches)
    simulation = simulate(plan, derive(plan, single), parallel, more=MORE)
    return not simulation.failure and not simulation.undefined and not simulation.differs


def _with_assumptions(plan: Plan, inputs: Inputs, kind: str, chosen: int, other: int) -> Plan:
    """The plan with what is assumed of its open inputs."""
    why = "numbers agree so" if kind == "inferred" else "numbers agree with neither"
    assumptions = tuple(
        Assumption(
            "inferred" if kind == "inferred" else "stand-in",
            name,
            "",
            f"input {name} is taken as {words[chosen]}; {words[other]} fits, too ({why}: state one "
            "in a relations file)",
        )
        for name, words in inputs.open.items()
    )
    return replace(plan, assumed=(*plan.assumed, *assumptions))
