"""Masks of positions that are known while a program is read, and minus infinity under them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from fractions import Fraction
from math import inf, prod
from typing import Final

import numpy as np

from shardproof.engine.errors import Unsupported
from shardproof.engine.plan.assumption import Assumption
from shardproof.frontends.hlo import endless
from shardproof.frontends.hlo.endless import Endless
from shardproof.frontends.hlo.extended import HIDDEN, May
from shardproof.frontends.hlo.items import Item, Tensor
from shardproof.frontends.hlo.known import Known, compact
from shardproof.frontends.hlo.module import Array
from shardproof.frontends.hlo.orders import is_causal
from shardproof.frontends.hlo.state import Lowering

ASSUMED: Final = (
    "minus infinity that hides entries is taken for -1e30, of which every exponential is zero: "
    "that no row, and no rank's part of one, is hidden altogether is not shown"
)


def hidden(low: Lowering, mask: Item, item: Item) -> Item:
    """One of two tensors between which a mask chooses, with minus infinity as a large negative
    number; so is a product with infinity, where the mask is computed of numbers.

    Example: ``broadcast(constant(-inf))`` is -1e30, with a printed assumption; other items are as
    they are.
    """
    if isinstance(item, Endless) and isinstance(mask, Tensor):
        low.recorder.notes.append(Assumption("inferred", "infinity", "", endless.ASSUMED))
        return low.op("mul", item.value, other=Fraction(item.sign * endless.LARGE))
    if not isinstance(item, Known) or item.number() != -inf:
        return item
    low.recorder.notes.append(Assumption("inferred", "minus infinity", "", ASSUMED))
    return Tensor(low.values.full(item.shape, Fraction(HIDDEN)))


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


def added(low: Lowering, xs: Sequence[Item], sign: int) -> tuple[Known, list[Item], Known] | None:
    """What a sum is of which one operand is a constant that is minus infinity at some entries:
    where the sum is shown, its operands without these, and minus infinity; None: another sum.

    Example: of ``scores + triu(full(-inf), 1)`` the lower triangle, scores and a table of zeros.
    """
    for place, item in enumerate(xs):
        if not isinstance(item, Known) or not item.dtype.startswith(("float", "bfloat")):
            continue
        if item.number() is not None:
            continue
        endless = sign * inf if place else inf
        cores = [compact(array) for array in item.arrays]
        if not any(np.any(core == -endless) for core in cores):
            continue
        if any(np.any((core == endless) | np.isnan(core)) for core in cores):
            raise Unsupported(
                "a sum with a constant that is plus infinity, or no number, somewhere"
            )
        finite(low, xs[1 - place], "a sum with minus infinity", lowest=True)

        def of(arrays: Iterable[Array], dtype: str, item: Known = item) -> Known:
            return Known(tuple(np.broadcast_to(a, item.shape) for a in arrays), dtype)

        rest = list(xs)
        rest[place] = of(
            (np.where(np.isfinite(c), c, 0).astype(c.dtype) for c in cores), item.dtype
        )
        shown = of((np.isfinite(core) for core in cores), "bool")
        return shown, rest, of([np.array(-inf, dtype=cores[0].dtype)], item.dtype)
    return None


def assume_finite(low: Lowering) -> None:
    """Assume that numbers are finite wherever a program asks.  Example: ``is-finite`` of a loss."""
    text = "numbers are finite wherever a program asks (is-finite)"
    low.recorder.notes.append(Assumption("inferred", "is-finite", "", text))


def finite(low: Lowering, item: Item, question: str, lowest: bool = False) -> None:
    """Raise `Unsupported` where a value may be infinite or no number, since a mask hides it or a
    constant is zero; ``question``: what wants to know; ``lowest``: minus infinity alone is no harm.

    Example: of ``select(mask, scores, -inf)``, or of the logarithm of its softmax; its softmax is
    finite, and so is the largest score of each row.
    """
    if isinstance(item, Known):
        return
    may = low.reaches.of(low.tensor(item)).may
    if May.WILD in may or (May.LOW in may and not lowest):
        raise Unsupported(
            f"{question} of what may be minus infinity where a mask hides it or a constant is zero"
        )
