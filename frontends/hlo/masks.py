"""Masks of positions that are known while a program is read, and minus infinity under them."""

from __future__ import annotations

from fractions import Fraction
from math import inf, prod
from typing import Final

import numpy as np

from shardproof.engine.errors import Unsupported
from shardproof.engine.plan.assumption import Assumption
from shardproof.frontends.hlo.items import Item, Tensor
from shardproof.frontends.hlo.known import Known, compact
from shardproof.frontends.hlo.state import Lowering

#: What hides an entry, in place of minus infinity.
HIDDEN: Final = -(10**30)
ASSUMED: Final = (
    "minus infinity that hides entries is taken for -1e30, of which every exponential is zero: "
    "that no row, and no rank's part of one, is hidden altogether is not shown"
)


def hidden(low: Lowering, item: Item) -> Item:
    """One of two tensors between which a mask chooses, with minus infinity as a large negative
    number.

    Example: ``broadcast(constant(-inf))`` is -1e30, with a printed assumption; other items are as
    they are.
    """
    if not isinstance(item, Known) or item.number() != -inf:
        return item
    low.recorder.notes.append(Assumption("inferred", "minus infinity", "", ASSUMED))
    return Tensor(low.values.full(item.shape, Fraction(HIDDEN)))


def is_causal(mask: Known) -> bool:
    """Whether a predicate is true exactly where the key (the last dimension) does not come after
    the query (the one before), on every rank.

    Example: the lower triangle of ``pred[4,4]``, repeated for heads or not; the upper one is not.
    """
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
    """Scores with minus infinity where the key comes after the query.

    Example: scores ``f32[1,2,4,4]`` are ``apply_mask`` of these and ``create_mask``.
    """
    assert is_causal(mask)
    shape = low.recorder.shape(scores)
    *lead, queries, keys = shape
    line = low.values.full((1, queries), Fraction(0))
    made = low.recorder.op("create_mask", line, line)
    four = shape if len(lead) == 2 else (1, prod(lead), queries, keys)
    masked = low.recorder.op("apply_mask", low.values.view(scores, four), made)
    return Tensor(low.values.view(masked, shape))


#: What is finite of minus infinity, too; of a maximum it is assumed that something is shown
#: (`ASSUMED`).
FINITE: Final = frozenset({"exp", "sigmoid", "tanh", "erf", "relu", "amax"})


def finite(low: Lowering, item: Item, question: str) -> None:
    """Raise `Unsupported` where a value may be minus infinity, since a mask hides it; ``question``:
    what wants to know.

    Example: of ``select(mask, scores, -inf)``, or of twice that; its softmax is finite, and so is
    the largest score of each row.
    """
    endless: set[int] = set()
    for op in low.recorder.ops:
        read = (value in endless for value in op.inputs)
        constant = op.name == "full" and op.attrs.get("value") == HIDDEN
        if op.name == "apply_mask" or constant or (op.name not in FINITE and any(read)):
            endless.update(op.outputs)
    if isinstance(item, Tensor) and item.value in endless:
        raise Unsupported(f"{question} of what may be minus infinity where a mask hides it")
