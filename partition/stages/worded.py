"""A partition in which logistic functions are one, whatever each side writes them as.

Example: the single device has ``sigmoid(x)``, the ranks ``1 / (1 + exp(-x))``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from shardproof.engine.plan.ir import Plan
from shardproof.engine.schedule.instances import Unrolled
from shardproof.engine.specification.gradients import Derived
from shardproof.partition.inference.logistic import Logistic, says_otherwise
from shardproof.partition.stages.partition import Partition, partition
from shardproof.partition.stages.single import SingleSide
from shardproof.partition.templates.memo import Memo

#: Rows of both sides above which a plan is read once.
MOST_ROWS: Final = 20_000


def partition_in_words(
    plan: Plan,
    more: int = 0,
    memo: Memo | None = None,
    tell: Callable[[int, int], None] = lambda done, total: None,
    begun: Callable[[Derived, Unrolled], bool] = lambda single, parallel: False,
    ahead: SingleSide | None = None,
) -> Partition:
    """`partition.stages.partition.partition` of a plan; where a conclusion does not hold, and the
    sides write logistic functions in other words, of both sides in the same ones, if all hold then.

    Example: of ``x - softplus(x)`` beside ``logsigmoid(x)``, the second reading.
    """
    result = partition(plan, more, memo, tell, begun, ahead)
    if not _may_be_worded(result):
        return result
    again = partition(plan, more, memo, reading=Logistic)
    if again.conclusions and all(c.holds for c in again.conclusions):
        return again
    if memo is not None:
        memo.begin(result.nodes, result.reference_size)
    return result


def _may_be_worded(result: Partition) -> bool:
    """Whether a plan that is not concluded may be, in other words."""
    rows = len(result.single.unrolled.instances) + len(result.parallel.unrolled.instances)
    if rows > MOST_ROWS or result.unsupported or result.faults or result.unread:
        return False
    open_ones = any(not c.holds for c in result.conclusions)
    return open_ones and says_otherwise(result.nodes, result.reference_size)
