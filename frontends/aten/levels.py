"""Tensors of known values that are a number in some places and zero in the others.

A mask that multiplies, such as ``torch.ones(4, 4).tril()``, is known in each of its blocks.  As a
table, a named input, it would be any numbers there.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from shardproof.frontends.aten.constants import KNOWN, mask, number_of, values
from shardproof.frontends.aten.constants import constant as constant_or_table
from shardproof.frontends.aten.hidden import in_pieces
from shardproof.frontends.aten.lowering import Lowering, Shape
from shardproof.frontends.aten.masks import numbers
from shardproof.frontends.aten.tables import Array, is_part, note_level


def constant(lo: Lowering, data: bytes, shape: Shape, dtype: str) -> Any:
    """A tensor of known values, as `constants.constant` has it; one of zero and one other number is
    that number times a mask in pieces, where it has them.  A rank's that the single side has in
    tables alone is a part of these.

    Example: ``torch.ones(4, 4).tril()`` is a triangle of ones, [0, 0, 2, 2] two zeros and two times
    two ones; [0.1, 0.3] is a table, and so is [0, 1] beside [0, 1, 2, 3] on the single side.
    """
    # Ones and zeros are made of an input: of a step that has none so far they are a table.
    reads = dtype in KNOWN and "float" in dtype and lo.bound
    array = values(data, shape, dtype) if reads else None
    level = None if array is None or is_part(lo, array) else _level(array)
    if array is not None and level is not None:
        number, holds = level
        joined = in_pieces(lo, mask(holds))
        if joined is not None:
            note_level(lo, array)
            return lo.scale(numbers(lo, joined, dtype), number_of(number))
    return constant_or_table(lo, data, shape, dtype)


def _level(array: Array) -> tuple[Any, Array] | None:
    """The one number beside zero that entries are, and where; None: they are others."""
    holds = array != 0
    if not holds.any() or holds.all():
        return None
    number = array[holds][0]
    return (number, holds) if np.isfinite(number) and (array[holds] == number).all() else None
