"""Which entries of a tensor a chain of movements reads, as offsets in its memory.

Two chains that read the same entries in the same order are the same places, in whatever way they
were written: ``ids.t().unsqueeze(-1)`` reads what ``ids.unsqueeze(-1).transpose(0, 1)`` does.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from shardproof.frontends.aten.lowering import Shape

#: How a tensor was moved: the name of a movement of `Lowering`, and what it was given.
Move = tuple[str, tuple[int, ...]]


class Places(NamedTuple):
    """Entry (i, j, ...) is what is at ``offset + i * strides[0] + j * strides[1] + ...`` of a
    contiguous tensor; a dimension of one position has the stride 0.

    Example: all of [2, 3], turned and unsqueezed, is ``Places(0, (1, 3, 0), (3, 2, 1))``.
    """

    offset: int
    strides: Shape
    shape: Shape


def contiguous(shape: Shape) -> Shape:
    """The strides of a tensor whose last dimension runs fastest.

    Example: of [2, 3, 4] they are (12, 4, 1).
    """
    return tuple(math.prod(shape[i + 1 :]) for i in range(len(shape)))


def places(shape: Shape, moves: Sequence[Move]) -> Places | None:
    """What movements read of a contiguous tensor; None: a reshape that no strides say.

    Example: of [2, 3], ("permute", (1, 0)) then ("reshape", (3, 1, 2)) has the strides (1, 0, 3).
    """
    offset, strides = 0, contiguous(shape)
    for name, given in moves:
        if name == "permute":
            shape, strides = (tuple(t[i] for i in given) for t in (shape, strides))
        elif name == "slice":
            dim, start, size = given
            offset += start * strides[dim]
            shape = (*shape[:dim], size, *shape[dim + 1 :])
        elif name == "expand":
            lead = len(given) - len(shape)
            kept = (
                s if m == n else 0 for s, m, n in zip(strides, shape, given[lead:], strict=True)
            )
            strides, shape = (*(0,) * lead, *kept), given
        else:
            regrouped = reshaped(shape, strides, given)
            if regrouped is None:
                return None
            shape, strides = given, regrouped
    once = tuple(0 if n == 1 else s for n, s in zip(shape, strides, strict=True))
    return Places(offset, once, shape)


def reshaped(shape: Shape, strides: Shape, new: Shape) -> Shape | None:
    """The strides of the same entries, in their order, in another shape; None: there are none.

    Example: [4, 6] with strides (6, 1) as [2, 2, 6] has (12, 6, 1); with (1, 4), as [24], none.
    """
    runs = _runs(shape, strides)
    if math.prod(new) == 0:
        return (0,) * len(new)
    result: list[int] = []
    size = stride = 1
    for n in reversed(new):
        if n == 1:
            result.append(0)
            continue
        if size == 1:
            if not runs:
                return None
            size, stride = runs.pop()
        if size % n:
            return None
        result.append(stride)
        size, stride = size // n, stride * n
    return tuple(reversed(result))


def _runs(shape: Shape, strides: Shape) -> list[tuple[int, int]]:
    """Neighbouring dimensions that one stride runs through, as sizes and strides."""
    runs: list[tuple[int, int]] = []
    for n, s in zip(shape, strides, strict=True):
        if n == 1:
            continue
        if runs and runs[-1][1] == n * s:
            runs[-1] = (runs[-1][0] * n, s)
        else:
            runs.append((n, s))
    return runs
