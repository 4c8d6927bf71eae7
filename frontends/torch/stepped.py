"""Views of a value by a recipe, and what a value is after one of its views was written."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from msgspec.structs import replace

from shardproof.frontends.torch.geometry import Recipe
from shardproof.frontends.torch.trace import StridedTensor


class Mover(Protocol):
    """What moves values, such as `shardproof.frontends.torch.memory.Memory`."""

    def shape_of(self, value: int) -> tuple[int, ...]:
        """The shape of a value, by number."""

    def reshape(self, value: int, shape: Sequence[int]) -> int:
        """The same entries in another shape."""

    def slice(self, value: int, dim: int, start: int, size: int) -> int:
        """``size`` positions of a dimension from ``start`` on."""

    def permute(self, value: int, order: Sequence[int]) -> int:
        """The value with its dimensions in another order."""

    def expand(self, value: int, shape: Sequence[int]) -> int:
        """The value broadcast to a shape."""

    def concat(self, values: Sequence[int], dim: int) -> int:
        """Values one after the other."""


def viewed(work: Mover, value: int, made: Recipe) -> int:
    """The view of a value that a recipe describes.

    Example: of [5, 4] with the slices ((0, 3), (1, 2)) and the steps (2, 1) it is ``x[::2, 1:3]``.
    """
    value = work.reshape(value, made.factors)
    for dim, ((start, size), step) in enumerate(zip(made.slices, made.steps, strict=True)):
        value = _every(work, value, dim, start, size, step)
    moved = [i for i in made.order if made.merged[i] != 1]
    if work.shape_of(value) == made.shape and moved == sorted(moved):
        return value
    value = work.permute(work.reshape(value, made.merged), made.order)
    return work.expand(value, made.shape)


def _every(work: Mover, value: int, dim: int, start: int, size: int, step: int) -> int:
    """``size`` positions ``step`` apart: the same place of each of as many rows; the last one by
    itself where its row is not whole."""
    if step == 1 or size == 1:
        return work.slice(value, dim, start, size)
    shape = work.shape_of(value)
    # Rows begin at multiples of the step, as those of other ranks do, where they are all whole.
    place = start % step
    if start - place + size * step > shape[dim]:
        place = max(0, start + size * step - shape[dim])
    if place > min(start, step - 1):
        ends = [
            _every(work, value, dim, start, size - 1, step),
            work.slice(value, dim, start + (size - 1) * step, 1),
        ]
        return work.concat(ends, dim)
    rows = work.slice(value, dim, start - place, size * step)
    rows = work.reshape(rows, (*shape[:dim], size, step, *shape[dim + 1 :]))
    return work.reshape(
        work.slice(rows, dim + 1, place, 1), (*shape[:dim], size, *shape[dim + 1 :])
    )


def scattered(work: Mover, value: int, made: Recipe, part: int) -> int:
    """The value with the view that a recipe describes replaced by ``part``.

    Example: of [4] with the slice (1, 2) and the step 2, entries 1 and 3 are those of ``part``.
    """
    inverse = [0] * len(made.order)
    for position, source in enumerate(made.order):
        inverse[source] = position
    new = work.reshape(work.permute(part, inverse), tuple(n for _, n in made.slices))

    def put(old: int, new: int, dim: int) -> int:
        """``old`` with dimensions from ``dim`` on still whole."""
        if dim == len(made.slices):
            return new
        (start, size), step = made.slices[dim], made.steps[dim]
        if size == made.factors[dim]:
            return put(old, new, dim + 1)
        parts = []
        at = 0
        runs = [(start, size)] if step == 1 else [(start + i * step, 1) for i in range(size)]
        for number, (first, count) in enumerate(runs):
            if at < first:
                parts.append(work.slice(old, dim, at, first - at))
            own = work.slice(new, dim, number, 1) if step > 1 else new
            parts.append(put(work.slice(old, dim, first, count), own, dim + 1))
            at = first + count
        if at < made.factors[dim]:
            parts.append(work.slice(old, dim, at, made.factors[dim] - at))
        return work.concat(parts, dim)

    shape = work.shape_of(value)
    return work.reshape(put(work.reshape(value, made.factors), new, 0), shape)


def sliced(work: Mover, parts: Sequence[int], joined: int, dim: int, start: int, size: int) -> int:
    """A slice of values that are one after the other along dimension ``joined``: of each, or of
    those that it meets.

    Example: positions 1 to 3 of [2] and [2], joined along dimension 0, are the last of the first
    value and the first of the second.
    """
    if joined != dim:
        return work.concat([work.slice(part, dim, start, size) for part in parts], joined)
    kept, at = [], 0
    for part in parts:
        own = work.shape_of(part)[dim]
        first, last = max(start, at), min(start + size, at + own)
        if first < last:
            kept.append(work.slice(part, dim, first - at, last - first))
        at += own
    return work.concat(kept, dim)


def entries(tensor: StridedTensor, dim: int) -> list[StridedTensor]:
    """Every entry along a dimension, by itself.

    Example: of a tensor [2, 3] along dimension 0, two tensors [1, 3].
    """
    shape = (*tensor.shape[:dim], 1, *tensor.shape[dim + 1 :])
    return [
        replace(tensor, offset=tensor.offset + i * tensor.strides[dim], shape=shape)
        for i in range(tensor.shape[dim])
    ]
