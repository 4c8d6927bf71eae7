"""What a refutation takes, begun before it is known that there is one.

A plan whose own records say that its groups have another order than by rank is likely to be wrong.
So it is run at its true size beside the partition; its tables are written, its records compared,
and the place is looked up where its values begin to diverge, beside the diagnosis.  Another large
plan is run so when its losses are seen not to be concluded.  The partition of either leaves out
what is made of values that are none of the single device's any more, until it is known that this is
not explained by what lies before them.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from typing import Final

from shardproof.diagnosis.locate.divergences import Begun, begun, remember
from shardproof.diagnosis.search import CHUNK_POSITION
from shardproof.engine.findings import Finding
from shardproof.engine.plan.expectations import LOSS
from shardproof.engine.plan.ir import Plan
from shardproof.engine.schedule.instances import Unrolled
from shardproof.engine.simulation.simulate import FAINT, Simulation
from shardproof.engine.simulation.true_size import outright
from shardproof.engine.specification.gradients import Derived
from shardproof.engine.storage.closing import Closing
from shardproof.partition.stages.partition import Partition
from shardproof.run.beside import Beside

#: Rows of both sides from which on a plan that contradicts its records, or whose losses are not
#: concluded, is run at its true size at once: what it takes to see at small sizes what to look at
#: is more than to look.
LARGE: Final = 20_000


class EarlySimulation(Closing):
    """A plan's own run at its true size; ``alone``: nothing may run beside this process, for its
    memory is bounded; ``whole``: all of it is to be read, strays and what is made of them too.

    Example: of the 671B pair of files, whose records order groups otherwise, the run begins while
    its claims are still inferred; of a plan of 1392 operators it does not begin.
    """

    def __init__(self, plan: Plan, *, alone: bool, whole: bool = False) -> None:
        self._plan = plan
        self._alone = alone
        self._whole = whole
        self._resources = ExitStack()
        self._itself: Beside[Simulation] | None = None
        self._faint: Beside[Simulation] | None = None
        self._evidence: Callable[[], list[Finding]] = list
        self._writing: Beside[tuple[list[Finding], Begun | None, dict[str, str]]] | None = None
        self._tables: dict[str, str] | None = None

    def begin(self, single: Derived, parallel: Unrolled) -> bool:
        """The plan is unrolled: begin, if its records have chunks elsewhere; whether what is made
        of strays need not be read, as in any large plan: strays tell that it is likely wrong."""
        rows = len(single.unrolled.instances) + len(parallel.instances)
        if rows <= LARGE or parallel.faults or parallel.unsupported:
            return False
        if any(finding.kind == CHUNK_POSITION for finding in parallel.findings):
            self._itself = Beside(lambda: outright(self._plan, single, parallel))
            if not self._alone:
                self._resources.enter_context(self._itself)
        return not self._whole

    def go_on(self, result: Partition) -> None:
        """The plan is partitioned: begin, if it is large and a loss of it is not concluded."""
        if self._alone or self._itself is not None or not _is_lost(result):
            return
        single, parallel = result.derived, result.parallel.unrolled
        faint = Beside(lambda: outright(result.plan, single, parallel, FAINT))
        self._faint = self._resources.enter_context(faint)

    def is_of_records(self, result: Partition) -> bool:
        """Whether the plan of ``result`` is being run for what its records say."""
        begun = self._itself is not None and result.plan is self._plan
        return begun and not result.faults and any(not c.holds for c in result.conclusions)

    def is_under_way(self, result: Partition) -> bool:
        """Whether the plan of ``result`` is being run, so that there is time for something else."""
        return self.is_of_records(result) or self._faint is not None

    def simulation(self, result: Partition) -> Simulation | None:
        """Both programs at their true sizes, if that shows a difference; None where it does not.
        What was not begun is run now, where the plan is large and a loss of it is not concluded:
        on faint inputs, for a constant that is wrong on one rank of many shows on few others."""
        if self._itself is not None and result.plan is self._plan:
            simulation = self._itself.outcome()
            if simulation.differs:
                return simulation
        if self._faint is not None:
            simulation = self._faint.outcome()
        elif _is_lost(result):
            simulation = outright(result.plan, result.derived, result.parallel.unrolled, FAINT)
        else:
            return None
        return simulation if simulation.differs else None

    def compare(self, evidence: Callable[[], list[Finding]], result: Partition) -> None:
        """Add what is found beside the verdict to ``result``, or leave it to `write` to begin."""
        if self.is_under_way(result) and not self._alone:
            self._evidence = evidence
        else:
            result.findings += evidence()

    def write(self, tables: Callable[[], dict[str, str]], result: Partition) -> None:
        """Begin to look for what is beside the verdict and for where values begin to diverge, and
        to write the tables of a run, if it is one that is likely to be refuted."""
        if self.is_under_way(result) and not self._alone:
            evidence = self._evidence
            of_records = self.is_of_records(result)
            every = Beside(lambda: (evidence(), begun(result) if of_records else None, tables()))
            self._writing = self._resources.enter_context(every)

    def finish(self, result: Partition) -> None:
        """Wait for what `write` began, and add what was found beside the verdict."""
        writing, self._writing = self._writing, None
        if writing is not None:
            findings, where, self._tables = writing.outcome()
            result.findings += findings
            if where is not None:
                remember(result, where)

    def written(self) -> dict[str, str] | None:
        """What was written, if it was begun."""
        return self._tables

    def close(self) -> None:
        """End what is still under way."""
        self._resources.close()


def _is_lost(result: Partition) -> bool:
    """Whether a plan is large, and a loss of it is not concluded that could be run."""
    single, parallel = result.derived.unrolled, result.parallel.unrolled
    lost = any(c.kind == LOSS and not c.holds for c in result.conclusions)
    lost = lost and not single.unsupported and not parallel.unsupported
    return lost and len(single.instances) + len(parallel.instances) > LARGE
