"""Whether both sides of a plan agree on numbers, every rank by itself at the sizes of the plan."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import numpy as np

from shardproof.engine.errors import ShapeMismatch, Unsupported
from shardproof.engine.plan.ir import Plan
from shardproof.engine.reference_runtime.compare import Undefined, compared
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
    lots = {name: exact(np.asarray(x, dtype=float)) for name, x in contents.items()}
    values = Values(plan, np.random.default_rng(seed), scale=scale, lots=lots)
    try:
        error, _ = compared(plan, plan, values, together=False)
    except (Undefined, Unsupported, ShapeMismatch, Stuck):
        return None
    return error <= TOLERANCE
