"""Operators that draw random numbers, as functions of what was drawn.

A mask is an operand: an input that a reader names and places, of which an assumption says what the
two sides have in common.  Nothing is known of its entries (any real numbers), so a proof holds for
every draw; that what is kept is divided by 1 - p is computed, and no part of the mask.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from shardproof.engine.errors import ShapeMismatch, Unsupported
from shardproof.engine.ops.declare import Attrs, number, operator
from shardproof.engine.ops.primitives import Interpreter, multiply, scale

R = Interpreter[Any]


@operator("dropout", "..., ... -> ...", "x mask", "p:number", data=(1,))
def _dropout(r: R, inputs: Sequence[Any], attrs: Attrs) -> list[Any]:
    """x * mask / (1 - p)."""
    x, mask = inputs
    rate = number(attrs, "p")
    if not 0 <= rate < 1:
        raise Unsupported(f"dropout with p {rate}")
    if r.shape(mask) != r.shape(x):
        raise ShapeMismatch(f"a mask {list(r.shape(mask))} of {list(r.shape(x))}")
    return [scale(r, 1 / (1 - rate), multiply(r, x, mask))]
