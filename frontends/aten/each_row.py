"""Positions of the second dimension that ids choose in each row: ``x[arange(n)[:, None], ids]``.

They are read, and written, as `gather` and `scatter` along that dimension have it.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any, NamedTuple

from shardproof.engine.errors import Unsupported
from shardproof.frontends.aten import ids
from shardproof.frontends.aten.lowering import Const, Lowered, Lowering, Shape, broadcast
from shardproof.frontends.aten.positions import Positions, whole
from shardproof.frontends.aten.rules import rule_of


class _Places(NamedTuple):
    """``x`` [n, m, ...] with its second dimension last, ids [n, ..., k] of entries there, and the
    shape [n, ...] that the ids had, of k for each row."""

    turned: Any
    at: Any
    shape: Shape


def chosen(lo: Lowering, x: Lowered, indices: Sequence[Lowered | None]) -> Any:
    """``x[arange(n)[:, None], ids]`` of x [n, m, ...] by ids [n, k]: [n, k, ...]; one for each row
    by ids [n].

    Example: the masked words of each row, ``h[torch.arange(len(h))[:, None], places]``.
    """
    places = _places(lo, x, indices)
    if places is None:
        raise Unsupported("an index by other than ids of rows")
    last = len(x.shape) - 1
    picked = rule_of("aten.gather.default")(lo, places.turned, last, places.at)  # type: ignore[misc]
    picked = lo.permute(picked, (0, last, *range(1, last)))
    return lo.reshape(picked, (*places.shape, *x.shape[2:]))


def written(
    lo: Lowering, x: Lowered, indices: Sequence[Lowered | None], values: Lowered, name: str
) -> Any | None:
    """x [n, m, ...] with values written at, or added to (the rule ``name``), such positions; None:
    the index is another.

    Example: of zeros [4, 9, 8] and values [4, 2, 8] the gradient of what `chosen` picks.
    """
    places = _places(lo, x, indices)
    if places is None:
        return None
    last = len(x.shape) - 1
    own = lo.expand(values, (*places.shape, *x.shape[2:]))
    source = lo.reshape(own, (x.shape[0], places.at.shape[-1], *x.shape[2:]))
    source = lo.permute(source, (0, *range(2, last + 1), 1))
    put = rule_of(name)(lo, places.turned, last, places.at, source)  # type: ignore[misc]
    return lo.permute(put, (0, last, *range(1, last)))


def _places(lo: Lowering, x: Lowered, indices: Sequence[Lowered | None]) -> _Places | None:
    """Where the ids of each row are; None: the index is another."""
    if len(indices) != 2 or len(x.shape) < 2:
        return None
    every, others = indices
    if every is None or others is None or "bool" in (every.dtype, others.dtype):
        return None
    shape = broadcast(every.shape, others.shape)
    every, others = lo.expand(every, shape), lo.expand(others, shape)
    rows = whole(every) if isinstance(every, Const) else every
    if not isinstance(rows, Positions) or rows.const or shape[:1] != x.shape[:1]:
        return None
    if any(step != (d == 0) for d, step in enumerate(rows.steps) if shape[d] > 1):
        return None
    index = ids.ids(others) or ids.ids(lo.real(others))
    place = others if index is None else ids.placed_at(index, x.shape[1])
    rest, count = x.shape[2:], prod(shape[1:])
    wide = lo.reshape(place, (x.shape[0], *(1 for _ in rest), count))
    at = lo.expand(wide, (x.shape[0], *rest, count))
    return _Places(lo.permute(x, (0, *range(2, len(x.shape)), 1)), at, shape)
