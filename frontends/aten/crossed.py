"""Known indices that go along dimensions of their own: ``x[arange(4)[:, None], arange(6)]``.

So masks are made that libraries write entry by entry (transformers' masks of padding): they are
boxes of what they index, moved and repeated.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from shardproof.frontends.aten.lowering import Const, Lowered, Lowering, Shape, broadcast
from shardproof.frontends.aten.positions import Positions, whole


class _Along(NamedTuple):
    """Positions [start, start + size) of a dimension, along a dimension of the result (-1: one
    position everywhere)."""

    start: int
    size: int
    result: int


def crossed(lo: Lowering, x: Lowered, indices: Sequence[Lowered | None]) -> Any | None:
    """Entries of x by indices of its first dimensions, each of which goes along a dimension of its
    own, or none; None for other indices.

    Example: of a mask [2, 6] by ``arange(2)[:, None, None, None]`` and ``arange(6)`` the mask as
    [2, 1, 1, 6]; by ``arange(6)`` and ``arange(6)`` None: that is its diagonal.
    """
    known = [whole(i) if isinstance(i, Const) and i.dtype != "bool" else i for i in indices]
    positions = [i for i in known if isinstance(i, Positions)]
    if len(positions) < len(known):
        return None
    shape: Shape = ()
    for index in positions:
        shape = broadcast(shape, index.shape)
    ways = [_along(i, n, len(shape)) for i, n in zip(positions, x.shape, strict=False)]
    boxes = [way for way in ways if way is not None]
    moving = sorted((way.result, dim) for dim, way in enumerate(boxes) if way.result >= 0)
    if len(boxes) < len(ways) or len({result for result, _ in moving}) < len(moving):
        return None
    for dim, way in enumerate(boxes):
        x = lo.slice(x, dim, way.start, way.size)
    order = [dim for _, dim in moving]
    x = lo.permute(x, (*order, *(d for d in range(len(x.shape)) if d not in order)))
    rest = x.shape[len(boxes) :]
    sizes = {way.result: way.size for way in boxes}
    x = lo.reshape(x, (*(sizes.get(d, 1) for d in range(len(shape))), *rest))
    return lo.expand(x, (*shape, *rest))


def _along(index: Positions, size: int, rank: int) -> _Along | None:
    """Where an index of a dimension of ``size`` goes, in a result of ``rank`` dimensions."""
    lead = rank - len(index.shape)
    steps = [(d, s) for d, s in enumerate(index.steps) if s and index.shape[d] > 1]
    if len(steps) > 1 or any(step != 1 for _, step in steps):
        return None
    count = index.shape[steps[0][0]] if steps else 1
    start = index.const
    if -size <= start < 0:
        start += size
    if start < 0 or start + count > size:
        return None
    return _Along(start, count, lead + steps[0][0] if steps else -1)
