"""Whether a difference of values may come from a stand-in, and not from the plan."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from shardproof.engine.plan.assumption import Assumption
from shardproof.engine.plan.ir import Program
from shardproof.engine.schedule.instances import Unrolled
from shardproof.engine.simulation.simulate import Simulation
from shardproof.partition.stages.partition import Partition


def stand_in(result: Partition, simulation: Simulation) -> Assumption | None:
    """A stand-in that a difference may come from; None: some output differs that depends on none.

    Example: an attention kernel with a stand-in, and a loss that differs: the assumption about the
    kernel; but for a difference in a table that no kernel reads, none.

    A stand-in that is about a named input is one for what depends on that input; any other may be
    one for everything.
    """
    assumptions = [a for a in result.plan.assumed if a.kind == "stand-in"]
    if not assumptions:
        return None
    known = {shard.name for program in _programs(result) for shard in program.shards}
    first: Assumption | None = None
    for comparison in simulation.comparisons:
        if not comparison.differs:
            continue
        single = _inputs([result.plan.single], result.single.unrolled, [comparison.demand.expected])
        values = [v for part in comparison.demand.sums for v in part.tensors]
        names = single | _inputs(result.plan.programs, result.parallel.unrolled, values)
        left = [a for a in assumptions if a.about not in known or a.about in names]
        if not left:
            return None
        first = first or left[0]
    return first


def _programs(result: Partition) -> list[Program]:
    return [result.plan.single, *result.plan.programs]


def _inputs(programs: Sequence[Program], unrolled: Unrolled, values: Iterable[int]) -> set[str]:
    """Names of the inputs that values depend on."""
    needed, names = set(values), set()
    for instance in reversed(unrolled.instances):
        if needed.isdisjoint(instance.outputs):
            continue
        needed.update(instance.inputs)
        number = instance.attrs.get("shard")
        if instance.kind == "shard" and isinstance(number, int):
            names.add(programs[instance.programs[0]].shards[number].name)
    return names
