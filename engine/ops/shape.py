"""Operators that repeat elements along a dimension."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from engine.errors import ShapeMismatch
from engine.ops.declare import Attrs, dimension, integer, operator
from engine.reading import Reading, labels

R = Reading[Any]


@operator("repeat_interleave", "a k -> a (k r)", attrs="repeats dim")
def _repeat_interleave(r: R, inputs: Sequence[Any], attrs: Attrs) -> list[Any]:
    """Every position of ``dim`` ``repeats`` times in a row: how grouped-query attention gives each
    group of query heads its key and value head."""
    shape = r.shape(inputs[0])
    dim = dimension(integer(attrs, "dim"), len(shape))
    repeats = integer(attrs, "repeats")
    if repeats < 1:
        raise ShapeMismatch(f"repeat_interleave of {list(shape)}, {repeats} times")
    names = labels(len(shape))
    spread = names[: dim + 1] + "y" + names[dim + 1 :]
    y = r.einsum(f"{names}->{spread}", inputs[0], sizes={"y": repeats})
    return [r.reshape(y, (*shape[:dim], shape[dim] * repeats, *shape[dim + 1 :]))]
