"""The decision on a plan that is not proved: what was seen to differ, and why."""

from __future__ import annotations

from typing import Final

from shardproof.diagnosis.outcome import diagnosed
from shardproof.diagnosis.search import Diagnosis
from shardproof.engine.findings import Finding
from shardproof.engine.records.run import StageRecord
from shardproof.engine.simulation.simulate import Simulation, simulate_again
from shardproof.partition.stages.partition import Partition
from shardproof.run.optional import is_all, partials
from shardproof.run.verdict import Decision, decide

#: How a difference was seen of a plan that is too large to be run.
SEEN_SMALLER: Final = (
    "the plan is too large to be run: values are those of the same plan with fewer positions and "
    "classes; with the repairs below it holds at its true size, and so does what was run"
)


def explained(
    result: Partition,
    open_stages: list[tuple[StageRecord, str]],
    simulation: Simulation | None,
    search: Diagnosis,
) -> Decision:
    """The decision on a plan that is not proved, with causes if it was seen to differ.

    Example: a GPT whose last all-reduce is missing, and whose loss was seen to differ: "refuted",
    with the operator and the repair.
    """
    causes: tuple[Finding, ...] = ()
    summed = partials(result)
    itself = simulation
    simulation = _believed(result, simulation, search)
    search.agreeing = frozenset() if simulation is None else simulation.agreeing
    if result.faults or (simulation is not None and simulation.differs):
        known = not result.faults and summed and is_all(result, summed)
        causes = () if known else diagnosed(result, simulation, search=search)
    others = (f._replace(group=f.group + len(summed)) if f.group else f for f in causes)
    decision = decide(result, open_stages, (*summed, *others), simulation)
    decision = decision._replace(agreeing=search.agreeing)
    if simulation is not itself and decision.verdict == "refuted":
        return decision._replace(reason=SEEN_SMALLER)
    return decision


def _believed(
    result: Partition, simulation: Simulation | None, search: Diagnosis
) -> Simulation | None:
    """What was run of a plan; of one that is too large, what was run with fewer positions, though
    the plan counts them, if there are repairs with which the plan holds at its true size, and with
    which that has no difference either: then they are what differs, and not that there are fewer.
    """
    smaller = None if simulation is None else simulation.smaller
    if smaller is None or not search.run():
        return simulation
    repaired = search.state
    again = simulate_again(smaller, repaired.plan, result.derived, repaired.parallel.unrolled)
    return simulation if again.failure or again.undefined or again.differs else smaller
