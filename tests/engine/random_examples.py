"""Examples of operators that draw (`engine.ops.random`), each with its meaning in PyTorch."""

from __future__ import annotations

from fractions import Fraction

from tests.engine.library_examples import EXAMPLES
from tests.engine.operator_examples import Call, Draw, example

__all__ = ["EXAMPLES"]


def _dropout(d: Draw) -> Call:
    shape = d.sizes(3)
    return [d.real(*shape), d.ids(2, *shape).astype(float)], {"p": Fraction(1, 5)}


example("dropout", _dropout, lambda a, x, mask: x * mask / (1 - float(a["p"])))
