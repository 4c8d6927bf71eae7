"""Operators that repeat elements along a dimension."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from shardproof.engine.errors import ShapeMismatch
from shardproof.engine.ops.declare import Attrs, dimension, integer, integers, operator
from shardproof.engine.ops.primitives import Interpreter, expand_as, labels

R = Interpreter[Any]


@operator("repeat_interleave", "a k -> a (k r)", "x", "repeats:integer dim:integer")
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


@operator("expand", "a b 1 d -> a b c d", "x", "size:integers")
def _expand(r: R, inputs: Sequence[Any], attrs: Attrs) -> list[Any]:
    """Dimensions of size 1 repeated to ``size`` (-1 keeps a dimension), and as many in front of
    them as ``size`` has more: how all heads share one key."""
    shape, size = r.shape(inputs[0]), integers(attrs, "size")
    lead = len(size) - len(shape)
    if lead < 0 or any(n < -1 for n in size) or -1 in size[:lead]:
        raise ShapeMismatch(f"expand of {list(shape)} to {list(size)}")
    # A size that stays is that of the operand's own dimension, however it is represented.
    kept = [n if m in (-1, n) else m for n, m in zip(shape, size[lead:], strict=True)]
    return [expand_as(r, inputs[0], (*size[:lead], *kept))]
