"""Two tensors of ids that choose entries of the first two dimensions together: ``x[ids, others]``.

Rows are chosen by the first ids, and of each of these rows an entry by the second ones; entries
are added in the opposite order.

Example: the steps of a path between tags, ``transitions[tags[:, :-1], tags[:, 1:]]``.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from math import prod
from typing import Any, NamedTuple

from shardproof.frontends.aten.lowering import Const, Lowered, Lowering, Shape, broadcast
from shardproof.frontends.aten.positions import Positions
from shardproof.frontends.aten.rules import rule_of


class _Pairs(NamedTuple):
    """Ids [n] of two dimensions, all positions [n], and the shape that the ids had."""

    first: Lowered
    second: Lowered
    every: Positions
    shape: Shape


def _pairs(lo: Lowering, x: Lowered, indices: Sequence[Lowered | None]) -> _Pairs | None:
    """The ids of ``x[ids, others]``; None: the index is another, or known in part."""
    if len(indices) != 2 or len(x.shape) < 2:
        return None
    first, second = indices
    if first is None or second is None or isinstance(first, (Const, Positions)):
        return None
    if "bool" in (first.dtype, second.dtype):
        return None
    shape = broadcast(first.shape, second.shape)
    count = prod(shape)
    flat = [lo.reshape(lo.expand(i, shape), (count,)) for i in (first, second)]
    return _Pairs(flat[0], flat[1], Positions(0, (1,), (count,), "int64"), shape)


def chosen(lo: Lowering, x: Lowered, indices: Sequence[Lowered | None]) -> Any | None:
    """``x[ids, others]`` of x [n, m, ...]: an entry of a row for each pair; None for another index.

    Example: of transitions [5, 5] by tags [2, 3] and tags [2, 3] the numbers [2, 3].
    """
    pairs = _pairs(lo, x, indices)
    if pairs is None:
        return None
    rows = rule_of("aten.index.Tensor")(lo, x, [pairs.first])  # type: ignore[misc]
    picked = rule_of("aten.index.Tensor")(lo, rows, [pairs.every, pairs.second])  # type: ignore[misc]
    return lo.reshape(picked, (*pairs.shape, *x.shape[2:]))


def added(
    lo: Lowering, x: Lowered, indices: Sequence[Lowered | None], values: Lowered
) -> Any | None:
    """x [n, m, ...] with a value added at each pair of ids, which may come again; None for another
    index.

    Example: the gradient of transitions [5, 5], zeros with what comes to each step added up.
    """
    pairs = _pairs(lo, x, indices)
    if pairs is None:
        return None
    count, rest = pairs.every.shape[0], x.shape[2:]
    put: Any = rule_of("aten.index_put.default")
    own = lo.reshape(lo.expand(values, (*pairs.shape, *rest)), (count, *rest))
    rows = put(
        lo,
        Const(Fraction(0), (count, *x.shape[1:]), x.dtype),
        [pairs.every, pairs.second],
        own,
        True,
    )
    return put(lo, x, [pairs.first], rows, True)
