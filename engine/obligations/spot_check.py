"""Whether an obligation holds at one random point of a finite field.

What does not hold there does not follow from arithmetic, and no solver has to be asked whether it
does.  That it holds proves nothing.
"""

from __future__ import annotations

from shardproof.engine.obligations.evaluation import Point
from shardproof.engine.obligations.obligation import Obligation


def holds(obligation: Obligation) -> bool:
    """Whether both sides of every goal have the same value at a random point.

    Example: ``v0 * v4 == v4 * v0`` holds; that half of a sum is the sum does not.
    """
    point = Point()
    return all(point.value(a) == point.value(b) for a, b in obligation.goals)
