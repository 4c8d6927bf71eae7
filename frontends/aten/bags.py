"""Bags of embeddings: sums, means and maxima over intervals of ids whose ends are known.

Example: ids [6] with the offsets [0, 2] are a bag of two and a bag of four rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from math import prod
from typing import Any

import numpy as np

from shardproof.engine.errors import Unsupported
from shardproof.frontends.aten.losses import _embedding, _embedding_backward
from shardproof.frontends.aten.lowering import Const, Lowered, Lowering, Real
from shardproof.frontends.aten.positions import Positions
from shardproof.frontends.aten.rules import lowers, scratch

SUM, MEAN, MAX = 0, 1, 2


def _known(lo: Lowering, x: Lowered) -> list[int]:
    """Whole numbers that depend on no input; raises `Unsupported` for others."""
    if isinstance(x, Const):
        return [int(x.value)] * prod(x.shape)
    if isinstance(x, Positions) and len(x.shape) == 1:
        return [x.const + x.steps[0] * i for i in range(x.shape[0])]
    if isinstance(x, Real) and x.number in lo.origins:
        known = lo.contents.get(lo.shards[lo.origins[x.number]].name)
        if known is not None and np.shape(known) == (prod(x.shape),):
            return [int(n) for n in known]
    raise Unsupported("bags whose ends depend on the input")


def _bags(lo: Lowering, indices: Lowered, offsets: Lowered, last: bool) -> list[tuple[int, int]]:
    """Where every bag begins, and how many ids it has."""
    starts, total = _known(lo, offsets), prod(indices.shape)
    if last and starts[-1] != total:
        raise Unsupported(f"bags of which the last one ends at {starts[-1]} of {total} ids")
    ends = starts[1:] if last else [*starts[1:], total]
    return [(a, b - a) for a, b in zip(starts, ends, strict=not last)]


def _refused(frequency: bool, padding: int) -> None:
    if frequency or padding >= 0:
        raise Unsupported("bags with a padding id, or scaled by frequency")


@lowers("aten._embedding_bag.default", "aten._embedding_bag_forward_only.default")
def _bag(
    lo: Lowering,
    weight: Lowered,
    indices: Lowered,
    offsets: Lowered,
    scale_grad_by_freq: bool = False,
    mode: int = SUM,
    sparse: bool = False,
    per_sample_weights: Lowered | None = None,
    include_last_offset: bool = False,
    padding_idx: int = -1,
) -> Any:
    _refused(scale_grad_by_freq, padding_idx)
    if mode == MAX:
        raise Unsupported("bags by their maximum")
    bags = _bags(lo, indices, offsets, include_last_offset)
    rows: Any = lo.real(_embedding(lo, weight, indices))
    if per_sample_weights is not None:
        rows = lo.mul(rows, lo.reshape(per_sample_weights, (*per_sample_weights.shape, 1)))
    return _summed(lo, rows, bags, mode), *(scratch(lo, n) for n in (1, 2, 3))


def _summed(lo: Lowering, rows: Any, bags: Sequence[tuple[int, int]], mode: int) -> Any:
    """[bags, d] of rows [n, d]; where all bags are equally long, at once."""
    width, sizes = rows.shape[1], {size for _, size in bags}
    if len(sizes) == 1 and (size := max(sizes)) and bags[0][0] == 0:
        used = lo.slice(rows, 0, 0, size * len(bags))
        total = lo.sum(lo.reshape(used, (len(bags), size, width)), (1,))
        return lo.scale(total, Fraction(1, size)) if mode == MEAN else total
    sums: list[Any] = []
    for start, size in bags:
        if not size:
            sums.append(Const(Fraction(0), (1, width), rows.dtype))
            continue
        total = lo.sum(lo.slice(rows, 0, start, size), (0,), True)
        sums.append(lo.scale(total, Fraction(1, size)) if mode == MEAN else total)
    return lo.concat(sums, 0)


def _spread(lo: Lowering, gradient: Lowered, indices: Lowered, offsets: Lowered, mode: int) -> Any:
    """Every id's row of the gradient of its bag; the last bag has the rest of the ids."""
    total, (count, width) = prod(indices.shape), gradient.shape
    starts = _known(lo, offsets)[:count]
    sizes = [b - a for a, b in zip(starts, [*starts[1:], total], strict=True)]
    rows: list[Any] = []
    for i, size in enumerate(sizes):
        if size:
            row = lo.slice(gradient, 0, i, 1)
            row = lo.scale(row, Fraction(1, size)) if mode == MEAN else row
            rows.append(lo.expand(row, (size, width)))
    if len(set(sizes)) == 1 and sizes[0]:
        wide = lo.reshape(lo.real(gradient), (count, 1, width))
        alone = lo.reshape(lo.expand(wide, (count, sizes[0], width)), (total, width))
        return lo.scale(alone, Fraction(1, sizes[0])) if mode == MEAN else alone
    return lo.concat(rows, 0)


@lowers("aten._embedding_bag_backward.default")
def _bag_backward(
    lo: Lowering,
    gradient: Lowered,
    indices: Lowered,
    offsets: Lowered,
    offset2bag: Lowered | None,
    bag_size: Lowered | None,
    maximum_indices: Lowered | None,
    num_weights: int,
    scale_grad_by_freq: bool,
    mode: int,
    sparse: bool,
    per_sample_weights: Lowered | None,
    padding_idx: int = -1,
) -> Any:
    _refused(scale_grad_by_freq, padding_idx)
    if mode == MAX or sparse:
        raise Unsupported("the gradient of bags by their maximum, or a sparse one")
    each = _spread(lo, gradient, indices, offsets, mode)
    if per_sample_weights is not None:
        each = lo.mul(each, lo.reshape(per_sample_weights, (*per_sample_weights.shape, 1)))
    return _embedding_backward(lo, lo.real(each), indices, num_weights, -1, False)


@lowers("aten._embedding_bag_per_sample_weights_backward.default")
def _weights_backward(
    lo: Lowering,
    gradient: Lowered,
    weight: Lowered,
    indices: Lowered,
    offsets: Lowered,
    offset2bag: Lowered | None,
    mode: int,
    padding_idx: int = -1,
) -> Any:
    _refused(False, padding_idx)
    each = _spread(lo, gradient, indices, offsets, mode)
    rows = lo.real(_embedding(lo, weight, indices))
    return lo.sum(lo.mul(each, rows), (1,))
