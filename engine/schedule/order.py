"""How the programs of one side meet, and what flows between their calls: all that decides in which
order a plan runs, whatever its operators compute.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from shardproof.engine.findings import Finding
from shardproof.engine.plan.ir import Program
from shardproof.engine.schedule.dataflow import Flow, Structure, flow, is_symbolic, label
from shardproof.engine.schedule.liveness import Waits, deadlock, waiting
from shardproof.engine.schedule.messages import Matching, match


@dataclass(slots=True)
class Order:
    """The order of one side.

    Example: of two replicas with two microbatches each, which flow alike, ``labels`` is
    ``[[0, 0, 1, 1, -1], [0, 0, 1, 1, -1]]`` and ``symbolic`` is true.

    ``flows``: of each program; ``labels``: the microbatch of each call of each program (-1: none);
    ``symbolic``: one microbatch stands for all; ``waits``: where programs would wait for ever if
    sends waited (None where that was not asked); ``faults``: why there is no order, and then
    nothing else counts.
    """

    matching: Matching
    flows: list[Flow] = field(default_factory=list)
    labels: list[list[int]] = field(default_factory=list)
    symbolic: bool = True
    waits: tuple[Waits, ...] | None = None
    faults: list[Finding] = field(default_factory=list)


def order(programs: Sequence[Program], microbatches: int) -> Order:
    """The order of the programs of one side.

    Example: of two ranks that both receive before they send, ``faults`` says that they wait for
    each other.
    """
    result = Order(match(programs))
    result.faults += result.matching.findings
    if result.faults:
        return result
    result.waits = waiting(programs, result.matching)
    # What gets on where sends wait gets on where they do not.
    stuck = deadlock(programs, result.matching) if result.waits else None
    if stuck:
        result.faults.append(stuck)
        return result
    try:
        result.flows = [flow(program) for program in programs]
    except Structure as error:
        result.faults.append(error.finding)
        return result
    labels = label(programs, result.flows, result.matching)
    result.symbolic = labels is not None and is_symbolic(
        programs, result.flows, result.matching, labels, microbatches
    )
    result.labels = labels or [[0] * len(program.calls) for program in programs]
    return result
