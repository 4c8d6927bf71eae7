"""Tensors made larger by repeating entries."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from shardproof.engine.errors import Unsupported
from shardproof.frontends.aten.lowering import Lowered, Lowering, Shape
from shardproof.frontends.aten.rules import lowers


def _times(sizes: Shape, after: Sequence[int], scales: Sequence[float | None]) -> list[int]:
    """How often entries are repeated along each dimension; raises `Unsupported` for parts."""
    times = []
    for size, larger, scale in zip(sizes, after, scales, strict=True):
        count, rest = divmod(larger, size)
        if rest or count < 1 or (scale is not None and scale != count):
            raise Unsupported(f"{size} positions made {larger}")
        times.append(count)
    return times


def _split(sizes: Sequence[int], times: Sequence[int]) -> Shape:
    return tuple(n for pair in zip(sizes, times, strict=True) for n in pair)


def _nearest(rank: int) -> None:
    @lowers(f"aten.upsample_nearest{rank}d.default")
    def rule(lo: Lowering, x: Lowered, after: Sequence[int], *scales: float | None) -> Any:
        lead, sizes = x.shape[:2], x.shape[2:]
        times = _times(sizes, after, scales or (None,) * rank)
        one = lo.reshape(lo.real(x), (*lead, *_split(sizes, (1,) * rank)))
        return lo.reshape(lo.expand(one, (*lead, *_split(sizes, times))), (*lead, *after))

    @lowers(f"aten.upsample_nearest{rank}d_backward.default")
    def backward(
        lo: Lowering,
        gradient: Lowered,
        after: Sequence[int],
        before: Sequence[int],
        *scales: float | None,
    ) -> Any:
        lead, sizes = tuple(before[:2]), tuple(before[2:])
        times = _times(sizes, after, scales or (None,) * rank)
        split = lo.reshape(lo.real(gradient), (*lead, *_split(sizes, times)))
        return lo.sum(split, tuple(range(3, 2 + 2 * rank, 2)))


for _rank in (1, 2, 3):
    _nearest(_rank)
