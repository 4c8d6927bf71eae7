"""How far both sides of a plan agree on numbers, every rank by itself at the plan's sizes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import numpy as np

from shardproof.engine.errors import ShapeMismatch, Unsupported
from shardproof.engine.plan.ir import Plan
from shardproof.engine.reference_runtime.compare import Undefined, errors
from shardproof.engine.reference_runtime.exchange import Stuck
from shardproof.engine.reference_runtime.lots import exact
from shardproof.engine.reference_runtime.values import Values

#: Relative differences up to this one are rounding.
TOLERANCE: Final = 1e-6


def agree_on(plan: Plan, contents: Mapping[str, Any], seed: int, scale: int = 1) -> bool | None:
    """Whether both sides compute the same with these numbers of some inputs, and random numbers of
    the others; None: they are no numbers.

    Example: with a table of slopes [4], and weights that are drawn.
    """
    count = differing(plan, contents, seed, scale)
    return None if count is None else count == 0


def differing(plan: Plan, contents: Mapping[str, Any], seed: int, scale: int = 1) -> int | None:
    """How many results differ with these numbers of some inputs, and random numbers of the others;
    None: they are no numbers.

    Example: 0 of ranks that agree with the single device; with a table of slopes [4], and weights
    that are drawn, 1 where the gradient of the table alone is another.
    """
    lots = {name: exact(np.asarray(x, dtype=float)) for name, x in contents.items()}
    values = Values(plan, np.random.default_rng(seed), scale=scale, lots=lots)
    try:
        every = errors(plan, plan, values, together=False)
    except (Undefined, Unsupported, ShapeMismatch, Stuck):
        return None
    return sum(not error <= TOLERANCE for error, _ in every) if every else 1
