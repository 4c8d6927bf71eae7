"""The order of positions: one where a key does not come after a query, zero elsewhere."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from fractions import Fraction

import numpy as np

from shardproof.frontends.graphs.graph import Shape
from shardproof.frontends.graphs.recorder import Recorder
from shardproof.frontends.hlo.known import Known, compact


def is_causal(mask: Known) -> bool:
    """Whether a predicate is true exactly where the key (the last dimension) does not come after
    the query (the one before), on every rank.

    Example: the lower triangle of ``pred[4,4]``, repeated for heads or not; the upper one is not.
    """
    if len(mask.shape) < 2 or mask.shape[-1] != mask.shape[-2]:
        return False
    count = mask.shape[-1]
    below = np.tril(np.ones((count, count), dtype=bool))
    for array in mask.arrays:
        core = compact(array)
        if core.shape[-2:] != (count, count) or not np.array_equal(
            core, np.broadcast_to(below, core.shape)
        ):
            return False
    return True


def triangle(recorder: Recorder, count: int) -> int:
    """The order of so many positions, as a matrix: queries, then keys.

    Example: of 2 positions [[1, 0], [1, 1]].
    """
    ones = recorder.op("full", size=(1, count, count), value=Fraction(1))
    lower = recorder.op("tril", ones)
    dtype = recorder.values[lower].dtype
    return recorder.op("view", lower, size=(count, count), dtype=dtype)


def repeated(
    recorder: Recorder, shape: Shape, broadcast: Callable[[int, Sequence[int], Shape], int]
) -> int:
    """The order of queries and keys, the last two dimensions of a shape, for all that is before;
    ``broadcast``: a value whose dimensions are some of another shape's, in that shape.

    Example: of ``(2, 4, 4)`` two triangles of 4 by 4.
    """
    return broadcast(triangle(recorder, shape[-1]), range(len(shape))[-2:], shape)
