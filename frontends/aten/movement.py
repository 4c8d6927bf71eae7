"""Views and copies of ATen, for graphs that name them (a recorder of steps resolves them)."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

from shardproof.engine.errors import ShapeMismatch, Unsupported
from shardproof.frontends.aten.lowering import (
    Lowered,
    Lowering,
    Real,
    Shape,
    Undefined,
    broadcast,
    dimensions,
)
from shardproof.frontends.aten.refolded import refolded
from shardproof.frontends.aten.rules import lowers, written_as


def sized(shape: Shape, size: Sequence[int]) -> Shape:
    """A shape as ATen's views name it, where one extent may be -1.

    Example: of (4, 6) as [2, -1] it is (2, 12); as [5, -1] it is refused.
    """
    if any(n < -1 for n in size) or sum(n == -1 for n in size) > 1:
        raise ShapeMismatch(f"view of {list(shape)} as {list(size)}")
    known = prod(n for n in size if n != -1)
    if -1 in size and (not known or prod(shape) % known):
        raise ShapeMismatch(f"view of {list(shape)} as {list(size)}")
    return tuple(prod(shape) // known if n == -1 else n for n in size)


@lowers("aten.view.default", "aten.reshape.default", "aten._unsafe_view.default")
def _view(lo: Lowering, x: Lowered, size: Sequence[int]) -> Any:
    shape = sized(x.shape, size)
    folded = refolded(x, shape) if isinstance(x, Real) else None
    return lo.reshape(x, shape) if folded is None else folded


@lowers(
    "aten.clone.default",
    "aten.detach.default",
    "aten.alias.default",
    "aten.contiguous.default",
    "aten.lift_fresh_copy.default",
)
def _same(lo: Lowering, x: Lowered, memory_format: object = None) -> Any:
    """A copy; a graph may say that it has another type of numbers."""
    dtype = lo.expected[0][1] if lo.expected else ""
    if isinstance(x, Real) and dtype.startswith(("float", "bfloat")) and dtype != x.dtype:
        return lo.emits("to", [x], {"dtype": dtype}, dtype)[0]
    return x


@lowers("aten.copy.default")
def _copy(lo: Lowering, x: Lowered, source: Lowered, non_blocking: bool = False) -> Any:
    """What ``x`` is after ``source`` was written over all of it."""
    return lo.expand(source, x.shape)


@lowers("aten.t.default")
def _t(lo: Lowering, x: Lowered) -> Any:
    return x if len(x.shape) < 2 else lo.transpose(x, 0, 1)


@lowers("aten.transpose.int")
def _transpose(lo: Lowering, x: Lowered, dim0: int, dim1: int) -> Any:
    (i,), (j,) = dimensions(x.shape, dim0), dimensions(x.shape, dim1)
    return lo.transpose(x, i, j)


@lowers("aten.permute.default")
def _permute(lo: Lowering, x: Lowered, dims: Sequence[int]) -> Any:
    order = dimensions(x.shape, dims) if x.shape else ()
    if sorted(order) != list(range(len(x.shape))):
        raise ShapeMismatch(f"permute of {list(x.shape)} by {list(dims)}")
    return lo.permute(x, order)


@lowers("aten.expand.default")
def _expand(lo: Lowering, x: Lowered, size: Sequence[int], implicit: bool = False) -> Any:
    lead = len(size) - len(x.shape)
    if lead < 0 or any(n == -1 for n in size[:lead]):
        raise ShapeMismatch(f"expand of {list(x.shape)} to {list(size)}")
    full = tuple(x.shape[i - lead] if n == -1 else n for i, n in enumerate(size))
    if broadcast(x.shape, full) != full:
        raise ShapeMismatch(f"expand of {list(x.shape)} to {list(size)}")
    return lo.expand(x, full)


@lowers("aten.unsqueeze.default")
def _unsqueeze(lo: Lowering, x: Lowered, dim: int) -> Any:
    rank = len(x.shape) + 1
    if not -rank <= dim < rank:
        raise ShapeMismatch(f"unsqueeze of {list(x.shape)} at {dim}")
    at = dim % rank
    return lo.reshape(x, (*x.shape[:at], 1, *x.shape[at:]))


@lowers("aten.squeeze.dim", "aten.squeeze.dims")
def _squeeze(lo: Lowering, x: Lowered, dim: object) -> Any:
    dims = dimensions(x.shape, dim)
    return lo.reshape(x, tuple(n for i, n in enumerate(x.shape) if i not in dims or n != 1))


# -- parts -------------------------------------------------------------------------------------


def bounds(size: int, start: int | None, end: int | None) -> tuple[int, int]:
    """A slice's start and end as Python counts them: negative from the end, clamped.

    Example: ``[-3:]`` of 8 positions is (5, 8), ``[2:100]`` is (2, 8).
    """

    def place(n: int) -> int:
        return min(max(n + size if n < 0 else n, 0), size)

    low = place(0 if start is None else start)
    return low, max(low, place(size if end is None else end))


def spaced(lo: Lowering, x: Lowered, dim: int, start: int, count: int, step: int) -> Any:
    """``count`` positions of a dimension, from ``start`` on and ``step`` apart, which is positive.

    Example: of 8 rows, 4 from 1 on and 2 apart are rows 1, 3, 5 and 7: the second ones of each of
    4 blocks, which begin at multiples of the step as those of every other rank do.
    """
    if step == 1 or count < 2:
        return lo.slice(x, dim, start, count)
    block, place = divmod(start, step)
    whole = min(count, x.shape[dim] // step - block)
    lead, rest = x.shape[:dim], x.shape[dim + 1 :]
    parts = []
    if whole:
        blocks = lo.slice(x, dim, block * step, whole * step)
        blocks = lo.reshape(blocks, (*lead, whole, step, *rest))
        part = lo.slice(blocks, dim + 1, place, 1)
        parts.append(lo.reshape(part, (*lead, whole, *rest)))
    if whole < count:
        # The last block is cut short by the end of the dimension.
        parts.append(lo.slice(x, dim, start + step * (count - 1), 1))
    return lo.concat(parts, dim)


@lowers("aten.slice.Tensor")
def _slice(
    lo: Lowering,
    x: Lowered,
    dim: int = 0,
    start: int | None = None,
    end: int | None = None,
    step: int = 1,
) -> Any:
    (at,) = dimensions(x.shape, dim)
    low, high = bounds(x.shape[at], start, end)
    return spaced(lo, x, at, low, -((low - high) // step), step)


@lowers("aten.select.int")
def _select(lo: Lowering, x: Lowered, dim: int, index: int) -> Any:
    (at,) = dimensions(x.shape, dim)
    size = x.shape[at]
    if not -size <= index < size:
        raise ShapeMismatch(f"select of {index} of {size} positions")
    part = lo.slice(x, at, index % size, 1)
    return lo.reshape(part, (*x.shape[:at], *x.shape[at + 1 :]))


@lowers("aten.split_with_sizes.default")
def _split_with_sizes(lo: Lowering, x: Lowered, sizes: Sequence[int], dim: int = 0) -> Any:
    (at,) = dimensions(x.shape, dim)
    if sum(sizes) != x.shape[at] or any(n < 0 for n in sizes):
        raise ShapeMismatch(f"parts {list(sizes)} of {x.shape[at]} positions")
    starts = [sum(sizes[:i]) for i in range(len(sizes))]
    return tuple(lo.slice(x, at, s, n) for s, n in zip(starts, sizes, strict=True))


@lowers("aten.split.Tensor")
def _split(lo: Lowering, x: Lowered, size: int, dim: int = 0) -> Any:
    (at,) = dimensions(x.shape, dim)
    if size < 1:
        raise ShapeMismatch(f"parts of {size} positions")
    total = x.shape[at]
    starts = range(0, total, size)
    return tuple(lo.slice(x, at, s, min(size, total - s)) for s in starts)


@lowers("aten.slice_scatter.default")
def _slice_scatter(
    lo: Lowering,
    x: Lowered,
    source: Lowered,
    dim: int = 0,
    start: int | None = None,
    end: int | None = None,
    step: int = 1,
) -> Any:
    """``x`` with ``source`` written over a part of it."""
    if step != 1:
        raise Unsupported(f"a slice with step {step} that is written over")
    (at,) = dimensions(x.shape, dim)
    size = x.shape[at]
    low, high = bounds(size, start, end)
    if source.shape != (*x.shape[:at], high - low, *x.shape[at + 1 :]):
        raise ShapeMismatch(f"{list(source.shape)} written over {list(x.shape)}")
    before = [lo.slice(x, at, 0, low)] if low else []
    after = [lo.slice(x, at, high, size - high)] if high < size else []
    return lo.concat([*before, written_as(lo, source, x.dtype), *after], at)


# -- memory ------------------------------------------------------------------------------------


@lowers(
    "aten.empty.memory_format",
    "aten.empty_like.default",
    "aten.new_empty.default",
    "aten.new_empty_strided.default",
)
def _empty(lo: Lowering, *_: Any, **__: Any) -> Any:
    return Undefined(*lo.expected[0])
