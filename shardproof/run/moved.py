"""Inputs that are others, moved, such as shifted labels of a program that reads its tokens too.

A proof takes them for any numbers, and holds.  A difference may need numbers that have nothing to
do with the others, so that such inputs are stand-ins, unless both sides differ with their own.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

import numpy as np

from shardproof.engine.plan.ir import Plan
from shardproof.engine.reference_runtime.agreement import agree_on
from shardproof.engine.reference_runtime.compare import fits
from shardproof.frontends.aten.lowering import Derived
from shardproof.frontends.graphs.replayed import drawn

#: How often inputs are drawn, and how often both sides have to differ: once may be rounding at a
#: kink, and ranks of random labels may count as many by chance.
SEEDS: Final = 4
ENOUGH: Final = 2


def unexcused(plan: Plan, moved: Mapping[str, Derived]) -> Plan:
    """The plan without stand-ins for inputs that are ``moved``, where both sides are seen to differ
    with the numbers that these are, and those of its tables, more than once.

    Example: tokens that are their own labels, shifted, and a loss that is divided by twice the
    number of them: no choice of the labels is needed to see that.
    """
    excuses = [a for a in plan.assumed if a.kind == "stand-in" and a.about in moved]
    if not excuses or not fits(plan):
        return plan
    seen = [_agree(plan, moved, seed) for seed in range(SEEDS)]
    if seen.count(False) < ENOUGH:
        return plan
    return replace(plan, assumed=tuple(a for a in plan.assumed if a not in excuses))


def agree_when_moved(plan: Plan, moved: Mapping[str, Derived]) -> bool:
    """Whether both sides are seen to compute the same, with the numbers that moved inputs and
    tables have, on all inputs that are drawn.

    Example: the mean of two losses of one row each, whose labels are its tokens, shifted.
    """
    return fits(plan) and all(_agree(plan, moved, seed) for seed in range(SEEDS))


def _agree(plan: Plan, moved: Mapping[str, Derived], seed: int) -> bool | None:
    """Whether both sides compute the same on random inputs; None: that cannot be seen."""
    values: dict[str, Any] = {**drawn(plan, np.random.default_rng(seed)), **plan.tables}
    for name, by in moved.items():
        if by.base not in values or name not in values:
            return None
        values[name] = np.roll(values[by.base], -by.by, by.dim)
    return agree_on(plan, values, seed)
