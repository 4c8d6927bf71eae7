"""Rules for functions that are made of others: what they are over the reals, where defined.

HLO's ``cbrt``, ``tan``, ``atan2``, ``power``, ``remainder`` and roundings, and those that StableHLO
has beside it (CHLO: ``sinh``, ``erfc``, ``erf_inv`` ...), which XLA writes out in its own ways.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from math import inf, pi
from typing import Final

import numpy as np

from shardproof.engine.errors import Unsupported
from shardproof.engine.plan.assumption import Assumption
from shardproof.frontends.graphs.graph import Node
from shardproof.frontends.hlo import elementwise, erf_inv
from shardproof.frontends.hlo.elementwise import finite
from shardproof.frontends.hlo.items import Item, Tensor
from shardproof.frontends.hlo.known import Known
from shardproof.frontends.hlo.positive import nonnegative
from shardproof.frontends.hlo.state import Lowering, Rule

HALF: Final = Fraction(1, 2)
_POSITIVE: Final = "what is raised to a power that is no constant is positive"


@dataclass(frozen=True, slots=True)
class Number:
    """A value of the body, with which Python's operators compute.

    Example: ``Number(low, 3) * 2 + 1`` appends ``mul`` with ``other=2`` and ``add`` with
    ``other=1``.
    """

    low: Lowering
    value: int

    def of(self, operator: str, *others: Number, **attrs: Fraction) -> Number:
        """A declared operator of this value and others.  Example: ``x.of("exp")``."""
        values = (self.value, *(other.value for other in others))
        return Number(self.low, self.low.op(operator, *values, **attrs).value)

    def _with(self, operator: str, other: Number | Fraction | int) -> Number:
        if isinstance(other, Number):
            return self.of(operator, other)
        return self.of(operator, other=Fraction(other))

    def __add__(self, other: Number | Fraction | int) -> Number:
        return self._with("add", other)

    def __mul__(self, other: Number | Fraction | int) -> Number:
        return self._with("mul", other)

    def __sub__(self, other: Number) -> Number:
        return self.of("sub", other)

    def __truediv__(self, other: Number) -> Number:
        return self.of("div", other)

    def __neg__(self) -> Number:
        return self * -1

    def sign(self) -> Number:
        """1, 0 or -1."""
        return self.of("step") - (-self).of("step")


#: Functions of one number, by the word of HLO or of CHLO.
FORMS: Final[Mapping[str, Callable[[Number], Number]]] = {
    "tan": lambda x: x.of("sin") / x.of("cos"),
    "sinh": lambda x: (x.of("exp") - (-x).of("exp")) * HALF,
    "cosh": lambda x: (x.of("exp") + (-x).of("exp")) * HALF,
    "asin": lambda x: (x / ((-(x * x) + 1).of("sqrt") + 1)).of("atan") * 2,
    "atan": lambda x: x.of("atan"),
    "asinh": lambda x: (x + (x * x + 1).of("sqrt")).of("log"),
    "acosh": lambda x: (x + (x * x + -1).of("sqrt")).of("log"),
    "atanh": lambda x: ((x + 1) / (-x + 1)).of("log") * HALF,
    "erfc": lambda x: -x.of("erf") + 1,
    "lgamma": lambda x: x.of("lgamma"),
    "digamma": lambda x: x.of("digamma"),
    "cbrt": lambda x: x.sign() * x.of("abs").of("pow", exponent=Fraction(1, 3)),
    "round-nearest-afz": lambda x: x.sign() * (x.of("abs") + HALF).of("floor"),
}


def of_one(form: Callable[[Number], Number]) -> Rule:
    """The rule of a function of one number.

    Example: that of ``sinh`` makes half of ``exp(x) - exp(-x)``.
    """

    def rule(low: Lowering, node: Node, xs: Sequence[Item]) -> Item:
        return Tensor(form(Number(low, low.tensor(xs[0]))).value)

    return rule


def power(low: Lowering, node: Node, xs: Sequence[Item]) -> Item:
    """x ** c for a known exponent, and by the exponential c ** x for a known positive base, and
    x ** y; that x is positive there is an assumption where nothing says so, since it may be raised
    to whole numbers.

    Example: ``power(x, 3)`` is ``pow`` with exponent 3, ``power(3, x)`` is ``exp(x * log(3))``;
    ``power(beta, count)`` of two inputs (a step of Adam) is ``exp(count * log(beta))``.
    """
    base, exponent = (finite(x) for x in xs)
    if exponent is not None:
        return low.op("pow", low.tensor(xs[0]), exponent=exponent)
    of = low.tensor(xs[0])
    if base is not None and base <= 0:
        raise Unsupported("a power of a number that is not positive")
    if base is None and not nonnegative(low.recorder, of):
        low.recorder.notes.append(Assumption("inferred", "powers", "", _POSITIVE))
    power_of = Number(low, low.tensor(xs[1]))
    return Tensor((power_of * Number(low, of).of("log")).of("exp").value)


def remainder(low: Lowering, node: Node, xs: Sequence[Item]) -> Item:
    """What a division of floats towards zero leaves, with the sign of the dividend.

    Example: of -7 and 3 it is -1.
    """
    if finite(xs[1]) == 0:
        raise Unsupported("a division by the constant zero")
    x, y = (Number(low, low.tensor(i)) for i in xs)
    return Tensor((x - y * (x / y).of("trunc")).value)


def atan2(low: Lowering, node: Node, xs: Sequence[Item]) -> Item:
    """The angle of a point: 2 atan(y / (r + |x|)) with its distance r from the origin; where x is
    negative, that less half a turn to its side.  Of the origin it is 0; the sign of 0 is plus.

    Example: ``atan2(y, 1)``, which is the arc tangent in HLO, is ``atan(y)``.
    """
    number = finite(xs[1])
    y, x = (Number(low, low.tensor(i)) for i in xs)
    if number > 0 if number is not None else nonnegative(low.recorder, x.value):
        return Tensor((y / x).of("atan").value)
    distance = (x * x + y * y).of("sqrt")
    origin = (-(x.sign() * x.sign()) + 1) * (-(y.sign() * y.sign()) + 1)
    half = (y / (distance + x.of("abs") + origin)).of("atan")
    side = (-y).of("step") * -2 + 1
    turn = (-x).of("step") * (side * Fraction(str(pi)) - half * 4)
    return Tensor((half * 2 + turn).value)


def inverse_of_erf(low: Lowering, node: Node, xs: Sequence[Item]) -> Item:
    """As XLA writes it out, in the same operators.

    Example: of ``x`` two polynomials of ``w = -log(1 - x x)``, a choice between these by ``w < 5``,
    and one of plus or minus infinity where the magnitude of ``x`` is 1.
    """
    shape = low.shape(node)

    def known(number: float) -> Known:
        return Known((np.broadcast_to(np.array(number, dtype="float32"), shape),), "float32")

    def rule(opcode: str, *operands: Item, **attrs: str) -> Item:
        return _RULES[opcode](low, replace(node, target=opcode, attrs=attrs), operands)

    x = xs[0]
    w = rule("negate", rule("log-plus-one", rule("multiply", x, rule("negate", x))))
    below = rule("compare", w, known(erf_inv.BOUND), direction="LT")
    centres = erf_inv.CENTRES
    at = rule(
        "select",
        below,
        rule("subtract", w, known(centres[0])),
        rule("subtract", rule("sqrt", w), known(centres[1])),
    )
    total: Item | None = None
    for pair in erf_inv.COEFFICIENTS:
        own = rule("select", below, *map(known, pair))
        total = own if total is None else rule("add", own, rule("multiply", total, at))
    assert total is not None
    ends = rule("compare", rule("abs", x), known(1), direction="EQ")
    return rule("select", ends, rule("multiply", x, known(inf)), rule("multiply", total, x))


#: What the inverse of the error function is written out in.
_RULES: Final[Mapping[str, Rule]] = {
    "abs": elementwise.abs,
    "add": elementwise.add,
    "compare": elementwise.compare,
    "log-plus-one": elementwise.shifted("log", 1, 0),
    "multiply": elementwise.multiply,
    "negate": elementwise.negate,
    "select": elementwise.select,
    "sqrt": elementwise.function("sqrt"),
    "subtract": elementwise.subtract,
}
