"""Masks of positions that are known while a program is read, and minus infinity under them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from fractions import Fraction
from math import inf, prod
from typing import Final

import numpy as np

from shardproof.engine.errors import Unsupported
from shardproof.engine.plan.assumption import HIDDEN_SCORES, Assumption
from shardproof.frontends.hlo import endless, origins
from shardproof.frontends.hlo.endless import Endless
from shardproof.frontends.hlo.extended import HIDDEN, May
from shardproof.frontends.hlo.items import Item, Tensor, table_of
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
    low.recorder.notes.append(Assumption("inferred", HIDDEN_SCORES, "", ASSUMED))
    return Tensor(low.values.full(item.shape, Fraction(HIDDEN)))


def causal(low: Lowering, mask: Known, item: Item) -> Tensor | None:
    """Scores with minus infinity where the key comes after the query; so are those of the queries
    and keys that a rank has, by their positions, where the single device has such a mask and each
    query sees a key; None: another mask.

    Example: scores ``f32[1,2,4,4]`` are ``apply_mask`` of these and ``create_mask``; rows 4 to 7 of
    eight, beside all keys, with what ``create_mask`` gives for eight positions, from row 4 on.
    """
    if is_causal(mask):
        return _masked(low, low.tensor(item), _of_positions(low, mask.shape[-1]))
    rows, columns = len(mask.shape) - 2, len(mask.shape) - 1
    # The largest of scores that are all minus infinity is no number.
    sees = all(compact(array).any(axis=-1).all() for array in mask.arrays)
    for size in low.other.causal if sees else ():
        made = origins.parts(mask, [np.tril(np.ones((size, size)))])
        if made is not None and made.dims == (rows, columns):
            whole = low.values.view(_of_positions(low, size), (size, size))
            own = made.joined(low.recorder, [_cut(low, whole, block) for block in made.blocks])
            return _masked(low, low.tensor(item), low.values.view(own, (1, 1, *mask.shape[rows:])))
    return None


def _of_positions(low: Lowering, size: int) -> int:
    """The causal mask of so many positions, [1, 1, size, size]."""
    line = low.values.full((1, size), Fraction(0))
    return low.recorder.op("create_mask", line, line)


def _cut(low: Lowering, whole: int, block: origins.Block) -> int:
    """A block of a mask, which begins elsewhere on each rank."""
    for dim, size in enumerate(block.arrays[0].shape):
        start = table_of([begin[dim] for begin in block.begins])
        whole = low.recorder.op("slice", whole, dim=dim, start=start, size=size)
    return whole


def _masked(low: Lowering, scores: int, mask: int) -> Tensor:
    """Scores [..., queries, keys] and a mask [1, 1, queries, keys]."""
    shape = low.recorder.shape(scores)
    *lead, queries, keys = shape
    four = shape if len(lead) == 2 else (1, prod(lead), queries, keys)
    masked = low.recorder.op("apply_mask", low.values.view(scores, four), mask)
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


def assume_left_out(low: Lowering, *chosen: Item) -> None:
    """Assume that what a choice leaves out is a number, where it may be none.  Example: of
    ``where(x > 0, log(x), 0)``, which another program may compute as a product with the mask."""
    if any(isinstance(x, Tensor) and low.reaches.may_be_none(x.value) for x in chosen):
        text = "what a select leaves out is a number, also of logarithms, roots and quotients"
        low.recorder.notes.append(Assumption("inferred", "numbers", "", text))


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
