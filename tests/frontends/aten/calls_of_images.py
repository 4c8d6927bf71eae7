"""Random calls of pooling, resampling, padding by what is there, and gradients of parts."""

from __future__ import annotations

from typing import Any

import torch

from tests.frontends.aten.calls import Call, Draw, call

ATEN: Any = torch.ops.aten


def _image(d: Draw, rank: int, least: int = 4) -> torch.Tensor:
    """With or without a batch."""
    space = [least + d.below(2) for _ in range(rank)]
    return d.real(*([2] if d.below(3) or rank == 1 else []), 2, *space)


def _pooling(d: Draw, rank: int) -> tuple[list[int], ...]:
    """Taps, stride, padding."""
    taps = [1 + d.below(3) for _ in range(rank)]
    stride = ([], [1 + d.below(3) for _ in range(rank)], list(taps))[d.below(3)]
    return taps, stride, [d.below(k // 2 + 1) for k in taps]


def _to(d: Draw, x: torch.Tensor, rank: int) -> list[int]:
    """Results of an adaptive pooling."""
    return [1 + d.below(n) for n in x.shape[-rank:]]


def _like(d: Draw, y: Any) -> torch.Tensor:
    return d.real(*y.shape)


def _means(rank: int) -> None:
    def given(d: Draw) -> list[Any]:
        more = [] if rank == 1 else [(None, 3)[d.below(2)]]
        return [*_pooling(d, rank), bool(d.below(2)), bool(d.below(2)), *more]

    @call(f"aten.avg_pool{rank}d.default")
    def _(d: Draw) -> Call:
        return (_image(d, rank), *given(d)), {}

    @call(f"aten.adaptive_avg_pool{rank}d.default")
    def _(d: Draw) -> Call:
        x = _image(d, rank)
        return (x, _to(d, x, rank)), {}

    if rank == 1:
        return

    @call(f"aten.avg_pool{rank}d_backward.default")
    def _(d: Draw) -> Call:
        x, own = _image(d, rank), given(d)
        return (_like(d, getattr(ATEN, f"avg_pool{rank}d")(x, *own)), x, *own), {}

    @call(f"aten._adaptive_avg_pool{rank}d.default")
    def _(d: Draw) -> Call:
        x = _image(d, rank)
        return (x, _to(d, x, rank)), {}

    @call(f"aten._adaptive_avg_pool{rank}d_backward.default")
    def _(d: Draw) -> Call:
        x = _image(d, rank)
        return (d.real(*x.shape[:-rank], *_to(d, x, rank)), x), {}


def _maxima(rank: int) -> None:
    def given(d: Draw) -> list[Any]:
        return [*_pooling(d, rank), [1 + d.below(2) for _ in range(rank)], bool(d.below(2))]

    @call(f"aten.max_pool{rank}d.default", f"aten.max_pool{rank}d_with_indices.default")
    def _(d: Draw) -> Call:
        return (_image(d, rank, 5), *given(d)), {}

    @call(f"aten.adaptive_max_pool{rank}d.default")
    def _(d: Draw) -> Call:
        x = _image(d, rank)
        return (x, _to(d, x, rank)), {}

    if rank == 1:
        return

    @call(f"aten.max_pool{rank}d_with_indices_backward.default")
    def _(d: Draw) -> Call:
        x, own = _image(d, rank, 5), given(d)
        y, places = getattr(ATEN, f"max_pool{rank}d_with_indices")(x, *own)
        return (_like(d, y), x, *own, places), {}

    @call(f"aten.adaptive_max_pool{rank}d_backward.default")
    def _(d: Draw) -> Call:
        x = _image(d, rank)
        y, places = getattr(ATEN, f"adaptive_max_pool{rank}d")(x, _to(d, x, rank))
        return (_like(d, y), x, places), {}


def _resampled(name: str, rank: int, corners: bool) -> None:
    def given(d: Draw) -> tuple[list[int], list[int], list[Any]]:
        """The sizes before, the sizes after, whether corners are aligned, scales."""
        own, factors = d.sizes(2 + rank), [0.5 + d.below(6) / 2 for _ in range(rank)]
        size = [max(1, int(n * k)) for n, k in zip(own[2:], factors, strict=True)]
        aligned = [bool(d.below(2))] if corners else []
        return list(own), size, [*aligned, *(factors if d.below(2) else [])]

    @call(f"aten.{name}.default")
    def _(d: Draw) -> Call:
        own, size, more = given(d)
        return (d.real(*own), size, *more), {}

    @call(f"aten.{name}_backward.default")
    def _(d: Draw) -> Call:
        own, size, more = given(d)
        return (d.real(*own[:2], *size), size, own, *more), {}


def _padded(kind: str, rank: int) -> None:
    def given(d: Draw) -> tuple[torch.Tensor, list[int]]:
        shape = [*d.sizes(2), *(n + 1 for n in d.sizes(rank))]
        padding = [d.below(n) for n in reversed(shape[2:]) for _ in range(2)]
        if d.below(3) == 0:
            padding[d.below(2)] = -1
        return d.real(*shape), padding

    @call(f"aten.{kind}_pad{rank}d.default")
    def _(d: Draw) -> Call:
        return given(d), {}

    @call(f"aten.{kind}_pad{rank}d_backward.default")
    def _(d: Draw) -> Call:
        x, padding = given(d)
        return (_like(d, getattr(ATEN, f"{kind}_pad{rank}d")(x, padding)), x, padding), {}


for _rank, _linear in ((1, "linear"), (2, "bilinear"), (3, "trilinear")):
    _means(_rank)
    _maxima(_rank)
    _resampled(f"upsample_nearest{_rank}d", _rank, False)
    _resampled(f"_upsample_nearest_exact{_rank}d", _rank, False)
    _resampled(f"upsample_{_linear}{_rank}d", _rank, True)
    for _kind in ("reflection", "replication"):
        _padded(_kind, _rank)
for _name in ("upsample_bicubic2d", "_upsample_bilinear2d_aa", "_upsample_bicubic2d_aa"):
    _resampled(_name, 2, True)


@call("aten.unfold_backward.default")
def _(d: Draw) -> Call:
    shape = [n + 1 for n in d.sizes(2)]
    dim = d.below(2)
    size, step = 1 + d.below(shape[dim]), 1 + d.below(3)
    windows = d.real(*shape).unfold(dim, size, step)
    return (_like(d, windows), shape, dim, size, step), {}


@call("aten.diagonal_backward.default")
def _(d: Draw) -> Call:
    shape = list(d.sizes(3))
    first = d.below(3)
    second = (first + 1 + d.below(2)) % 3
    offset = d.below(min(2, shape[second])) * (-1 if d.below(2) and shape[first] > 1 else 1)
    part = d.real(*shape).diagonal(offset, first, second)
    return (_like(d, part), shape, offset, first, second - 3 if d.below(2) else second), {}


@call("aten.rot90.default")
def _(d: Draw) -> Call:
    return (d.real(*d.sizes(3)), d.below(7) - 2, [(0, 2), (2, 1), (-1, 0)][d.below(3)]), {}


def _sampled(name: str, rank: int) -> None:
    @call(name)
    def _(d: Draw) -> Call:
        x = d.real(2, 2, *(2 + d.below(3) for _ in range(rank)))
        grid = d.real(2, *(1 + d.below(3) for _ in range(rank)), rank)
        return (x, grid, 0, d.below(2), bool(d.below(2))), {}


_sampled("aten.grid_sampler.default", 2)
_sampled("aten.grid_sampler_2d.default", 2)
_sampled("aten.grid_sampler_3d.default", 3)


@call("aten.affine_grid_generator.default")
def _(d: Draw) -> Call:
    rank = 2 + d.below(2)
    size = [2, 3, *(1 + d.below(4) for _ in range(rank))]
    return (d.real(2, rank, rank + 1), size, bool(d.below(2))), {}
