"""One operator: what it computes, from which shapes and derivatives follow."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

from shardproof.engine.ops.declare import operator
from shardproof.engine.ops.primitives import multiply


@operator("example_gated", "..., ... -> ...", "x gate")
def example_gated(r: Any, inputs: Any, attrs: Any) -> list[Any]:
    """x * sigmoid(gate) + x"""
    x, gate = inputs
    product = multiply(r, x, r.unary("sigmoid", gate))
    return [r.combine([product, x], [Fraction(1), Fraction(1)], Fraction(0))]
