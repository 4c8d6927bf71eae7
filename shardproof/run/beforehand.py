"""What can be done of a plan while a child still reads the larger side of it."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from shardproof.engine.plan.ir import Program
    from shardproof.partition.stages.single import SingleSide

_LOG: Final = logging.getLogger(__name__)


class ReadAhead:
    """The single-device side of a plan, read as soon as it is there.

    Example: of two files of a planner, of which the second takes ten times as long to read, the
    first is read over lineages meanwhile.
    """

    def __init__(self) -> None:
        self._single: SingleSide | None = None

    def begin(self, program: Program, loss: str) -> None:
        """Read a single-device side.  What goes wrong is logged, and nothing was read then: the
        plan is partitioned from its beginning, and what goes wrong again is told there."""
        # Here, for children begin when this module is there, and need nothing of all that.
        from shardproof.partition.stages import single

        try:
            self._single = single.read_single(program, loss)
        except Exception as error:  # noqa: BLE001 - the partition reads it anew, and decides
            self._single = None
            _LOG.info("the single-device side was not read ahead", exc_info=error)

    def take(self) -> SingleSide | None:
        """What was read, once: a partition adds to it."""
        single, self._single = self._single, None
        return single
