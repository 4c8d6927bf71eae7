"""Differences that are rounding: both sides are run again beside their inputs, or with more digits.

Which runs are needed is decided here; what each of them says of a difference is in
`engine.simulation.comparisons`.
"""

from __future__ import annotations

from typing import Protocol

from shardproof.engine.schedule.instances import Unrolled
from shardproof.engine.simulation.comparisons import (
    Comparison,
    is_firm,
    may_be_left,
    seen_again,
    settled,
    straight,
)
from shardproof.engine.simulation.inputs import BEND, NUDGE
from shardproof.engine.simulation.nearer import nearer

#: On how many ways it is looked at whether a small difference is rounding.
WAYS = 4

Comparisons = tuple[Comparison, ...]
#: Both sides of a plan, the single-device one first.
Sides = tuple[Unrolled, ...]


class Again(Protocol):
    """Both sides run again: on inputs ``nudge`` away on a way, in other forms, or of numbers with
    more digits.

    Example: ``again(1, 1e-12)`` is what both sides make of inputs a part in 10^12 off.
    """

    def __call__(
        self, way: int = ..., nudge: float = ..., sides: Sides = ..., long: bool = ...
    ) -> Comparisons:
        """What is compared, in the order of the first run."""


def without_rounding(
    comparisons: Comparisons, again: Again, sides: Sides, *, small: bool, longer: bool
) -> Comparisons:
    """Comparisons, without differences that are rounding.

    ``small``: what may be rounding is smaller than elsewhere, as in plans that are too large to be
    run often; ``longer``: they are small enough to be run with more digits.

    Example: of 1.1e-16 beside 0, which ``1 / s - s / s^2`` makes of numbers near 1, nothing is
    left.
    """
    if not _any_differs(comparisons):
        return comparisons
    comparisons = tuple(map(settled, comparisons, again(1, NUDGE)))
    left = any(may_be_left(c, small=small) for c in comparisons)
    if left and not (longer and _all_firm(comparisons, again(long=True))):
        ways = ((again(n, BEND), again(n, -BEND)) for n in range(1, WAYS + 1))
        comparisons = straight(comparisons, ways)
    if _any_differs(comparisons) and (closer := nearer(*sides)):
        comparisons = seen_again(comparisons, again(sides=closer))
    return comparisons


def _any_differs(comparisons: Comparisons) -> bool:
    return any(comparison.differs for comparison in comparisons)


def _all_firm(comparisons: Comparisons, longer: Comparisons) -> bool:
    """Whether all differences that may be rounding are as large with more digits: one run says so
    of them, where ways beside the inputs take eight."""
    pairs = zip(comparisons, longer, strict=True)
    return all(is_firm(c, more) for c, more in pairs if may_be_left(c, small=False))
