"""Functions that are several declared operators: their steps, with shapes by the declarations."""

from __future__ import annotations

from fractions import Fraction
from math import isfinite

from shardproof.engine.errors import ShapeMismatch, Unsupported
from shardproof.engine.plan.ir import Attr
from shardproof.frontends.builder.shapes import Inference
from shardproof.frontends.nnscaler.calls import Composed, Drawn, Refused, SharedInput, Step, shown
from shardproof.frontends.nnscaler.records import Constant, Tensor


class Chain:
    """Steps one after the other; a step is known by its number, operands come first.

    For example ``mean(x * x)`` of operand 0::

        chain = Chain(x)
        chain("mean", chain("mul", 0, 0))
        chain.done()
    """

    def __init__(self, *operands: Tensor | Drawn | SharedInput) -> None:
        self.operands = operands
        self.shapes = [_shape(x) for x in operands]
        self.steps: list[Step] = []
        self.inference = Inference()

    def __call__(self, name: str, *operands: int, **attrs: Attr) -> int:
        """Append an operator of one result; raises `Refused` where operands do not fit."""
        try:
            (shape,) = self.inference.forward(name, [self.shapes[i] for i in operands], attrs)
        except (ShapeMismatch, Unsupported) as error:
            raise Refused(str(error)) from None
        self.steps.append(Step(name, operands, attrs, shape))
        self.shapes.append(shape)
        return len(self.shapes) - 1

    def done(self, assumed: str = "") -> Composed:
        """The function; ``assumed``: of what it is given."""
        return Composed(self.operands, tuple(self.steps), (assumed,) if assumed else ())


def _shape(x: Tensor | Drawn | SharedInput) -> tuple[int, ...]:
    if isinstance(x, Tensor) and x.dtype.startswith("complex"):
        # Pairs (real, imaginary).
        return (*x.shape, 2)
    return x.shape if not isinstance(x, Drawn) else tuple(high - low for low, high in x.box)


def exact_number(value: Constant) -> int | Fraction:
    """A finite number as it is written: 0.1 is 1/10.

    Example: True, "2", infinity and None are refused.
    """
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not isfinite(value):
        raise Refused(shown(value))
    return value if isinstance(value, int) else Fraction(repr(value))
