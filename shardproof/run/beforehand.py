"""What can be done of a plan while a child still reads the larger side of it."""

from __future__ import annotations

from shardproof.engine.plan.ir import Program
from shardproof.partition.stages.single import SingleSide, read_single


class ReadAhead:
    """The single-device side of a plan, read as soon as it is there.

    Example: of two files of a planner, of which the second takes ten times as long to read, the
    first is read over lineages meanwhile.
    """

    def __init__(self) -> None:
        self._single: SingleSide | None = None

    def begin(self, program: Program, loss: str) -> None:
        """Read a single-device side.  What goes wrong goes wrong again where the plan is
        partitioned, and is told there."""
        try:
            self._single = read_single(program, loss)
        except Exception:  # noqa: BLE001 - as the docstring says
            self._single = None

    def take(self) -> SingleSide | None:
        """What was read, once: a partition adds to it."""
        single, self._single = self._single, None
        return single
