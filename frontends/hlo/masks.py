"""Masks of positions that are known while a program is read, and minus infinity under them."""

from __future__ import annotations

from fractions import Fraction
from math import prod

import numpy as np

from shardproof.engine.errors import Unsupported
from shardproof.frontends.hlo.items import Tensor
from shardproof.frontends.hlo.known import Known, compact
from shardproof.frontends.hlo.state import Lowering


def is_causal(mask: Known) -> bool:
    """Whether a predicate is true exactly where the key (the last dimension) does not come after
    the query (the one before), on every rank."""
    if len(mask.shape) < 2 or mask.shape[-1] != mask.shape[-2]:
        return False
    count = mask.shape[-1]
    below = np.tril(np.ones((count, count), dtype=bool))
    for array in mask.arrays:
        core = compact(array)
        if core.shape[-2:] != (count, count) or not np.array_equal(
            core.astype(bool), np.broadcast_to(below, core.shape)
        ):
            return False
    return True


def causal(low: Lowering, mask: Known, scores: int) -> Tensor:
    """Scores with minus infinity where the key comes after the query; raises `Unsupported` for any
    other mask."""
    if not is_causal(mask):
        raise Unsupported("minus infinity under a mask that is not causal")
    shape = low.recorder.shape(scores)
    *lead, queries, keys = shape
    line = low.values.full((1, queries), Fraction(0))
    made = low.recorder.op("create_mask", line, line)
    four = shape if len(lead) == 2 else (1, prod(lead), queries, keys)
    found = low.recorder.op("apply_mask", low.values.view(scores, four), made)
    return Tensor(low.values.view(found, shape))
