"""Comparisons of floating-point values, what chooses by them, and functions with a kink.

A mask is a value of 0 and 1.  At a kink ``step`` is 0 and ``sign`` is 0, as PyTorch has them.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from dataclasses import replace
from fractions import Fraction
from math import inf, isinf
from typing import Any

from shardproof.engine.errors import Unsupported
from shardproof.frontends.aten import guarded
from shardproof.frontends.aten.infinite import finite
from shardproof.frontends.aten.lowering import (
    Const,
    Lowered,
    Lowering,
    Operand,
    Real,
    broadcast,
    dimensions,
    floating,
    fraction,
    reduced,
)
from shardproof.frontends.aten.positive import FINDS_NUMBERS, is_positive, note_if_none
from shardproof.frontends.aten.roots import maker, origin, square, value
from shardproof.frontends.aten.rules import lowers, number_as, scratch
from shardproof.frontends.aten.scores import Hidden

ONE = Fraction(1)
#: The domain of a mask.
FLAGS = (0, 2)


def slope(lo: Lowering, function: str, x: Lowered) -> Real:
    """The derivative of an elementwise function at ``x``.

    Example: of "abs" it is the sign, 0 at 0; of "relu" it is `step`.
    """
    real = lo.real(x)
    return lo.derivative(function, [real], lo.real(Const(ONE, real.shape, real.dtype)))


def step(lo: Lowering, x: Lowered) -> Real:
    """1 where ``x`` is positive, else 0.

    Example: of [-2, 0, 3] it is [0, 0, 1].
    """
    return slope(lo, "relu", x)


def inverse(lo: Lowering, mask: Lowered) -> Any:
    """1 - mask.

    Example: of [0, 1, 1] it is [1, 0, 0], as ``mask * -1 + 1``.
    """
    return lo.shift(lo.scale(mask, -ONE), ONE)


def flags(mask: Real) -> Real:
    """A value of 0 and 1, as a mask.

    Example: the 0 and 1 of ``x > 0.5``, computed in float32, are a tensor of type bool with the
    domain (0, 2).
    """
    return replace(mask, dtype="bool", domain=FLAGS)


def numbers(lo: Lowering, mask: Operand, dtype: str) -> Any:
    """A mask as 0 and 1 of an element type; raises `Unsupported` for what is no such mask.

    Example: ``x > 0.5`` as float32 is the value it was computed as; an int64 input is refused.
    """
    if isinstance(mask, Const) and mask.dtype == "bool":
        return replace(mask, dtype=dtype)
    if not isinstance(mask, Real) or mask.dtype != "bool" or mask.domain != FLAGS:
        raise Unsupported("a mask that is an input, or of positions, as numbers")
    if lo.values[mask.number].dtype == dtype:
        return replace(mask, dtype=dtype, domain=None)
    if dtype.startswith("int"):
        number = numbers(lo, mask, "float32")
        return lo.whole(lo.emit("mul", number, other=ONE), FLAGS, dtype)
    return lo.emits("to", [mask], {"dtype": dtype}, dtype)[0]


def is_number(x: Operand) -> bool:
    """Whether an operand is a floating-point value, or a constant.

    Example: 0.5 and a float32 input are; True and an int64 input are not.
    """
    if isinstance(x, Real):
        return floating(x.dtype)
    return isinstance(x, (Const, int, float)) and not isinstance(x, bool)


#: Comparisons of d = x - y with zero.
COMPARISONS: dict[str, Callable[[Lowering, Lowered], Any]] = {
    "gt": lambda lo, d: step(lo, d),
    "lt": lambda lo, d: step(lo, lo.scale(d, -ONE)),
    "ge": lambda lo, d: inverse(lo, step(lo, lo.scale(d, -ONE))),
    "le": lambda lo, d: inverse(lo, step(lo, d)),
    "ne": lambda lo, d: lo.mul(slope(lo, "abs", d), slope(lo, "abs", d)),
    "eq": lambda lo, d: inverse(lo, lo.mul(slope(lo, "abs", d), slope(lo, "abs", d))),
}


def compared(lo: Lowering, name: str, x: Operand, y: Operand) -> Real | Const:
    """A comparison of two floating-point values, known where one is positive by how it is made and
    the other one 0; raises `Unsupported` for others.

    Example: ``x > 0.5`` is the slope of ``relu`` at ``x - 1/2``, ``x.softmax(-1) == 0`` is false;
    ``ids > 3`` is refused here (`ids.compared` has it).
    """
    if isinstance(x, Hidden) and isinstance(y, (int, float)):
        return _of_hidden(lo, name, x, y)
    if not is_number(x) or not is_number(y):
        raise Unsupported(f"{name} of whole numbers or masks that depend on the input")
    if isinstance(y, float) and isinf(y):  # No number is infinite, but for hidden scores.
        finite(lo, x, f"{name} with {y}")
        note_if_none(lo, x, note=FINDS_NUMBERS)
        holds = name in ("ne", *(("lt", "le") if y > 0 else ("gt", "ge")))
        _, _, shape = lo.operands(x, 0)
        return flags(lo.real(Const(Fraction(int(holds)), shape, "float32")))
    if isinstance(x, Real) and isinstance(y, Real) and x.number == y.number:
        note_if_none(lo, x, note=FINDS_NUMBERS)
    if isinstance(y, (int, float)) and y == 0 and is_positive(lo, x):
        return Const(Fraction(int(name in ("gt", "ge", "ne"))), lo.operands(x, 0)[2], "bool")
    return flags(lo.real(COMPARISONS[name](lo, lo.sub(x, y))))


def _of_hidden(lo: Lowering, name: str, x: Hidden, y: float) -> Real:
    """A comparison of masked scores with a number: what is hidden is minus infinity."""
    holds = getattr(operator, name)
    scores: Any = x.scores
    if isinf(y) or isinstance(scores, Const):
        number = scores.value if isinstance(scores, Const) else 0  # Any number, beside infinity.
        shown: Any = Const(Fraction(int(holds(number, y))), x.shape, x.dtype)
    else:
        shown = numbers(lo, compared(lo, name, scores, y), x.dtype)
    shown = lo.mul(shown, x.kept)
    return flags(lo.real(lo.add(shown, inverse(lo, x.kept)) if holds(-inf, y) else shown))


def chosen(lo: Lowering, mask: Lowered, x: Operand, y: Operand) -> Any:
    """x where the mask is 1, y where it is 0.

    Example: ``torch.where(mask, x, y)`` is ``x * mask + y * (1 - mask)``.
    """
    shape, dtype = lo.expected[0]
    if not floating(dtype):
        return _chosen_wholes(lo, mask, x, y)
    undivided = guarded.quotient(lo, mask, x, y)
    if undivided is not None:
        return lo.expand(undivided, shape)
    holds = lo.expand(numbers(lo, mask, dtype), shape)
    note_if_none(lo, x, y)
    first, second = rectified(lo, x, holds), _fallen(lo, y, holds)
    first = lo.mul(x, holds) if first is None else first
    return lo.add(first, lo.mul(y, inverse(lo, holds)) if second is None else second)


def _chosen_wholes(lo: Lowering, mask: Lowered, x: Operand, y: Operand) -> Real:
    """One of two whole numbers; raises `Unsupported` for others.

    Example: ``torch.where(x > 0, 1, -1)``, the classes of a contrastive loss.
    """
    shape, dtype = lo.expected[0]
    first, second = (v.value if isinstance(v, Const) else v for v in (x, y))
    known = (int, Fraction)
    if dtype == "bool" or not isinstance(first, known) or not isinstance(second, known):
        raise Unsupported(f"a choice between values of {dtype}")
    holds = lo.expand(numbers(lo, mask, "float32"), shape)
    made = lo.real(lo.shift(lo.scale(holds, Fraction(first - second)), Fraction(second)))
    low, high = int(min(first, second)), int(max(first, second))
    return lo.whole(lo.emit("mul", made, other=ONE), (low, high + 1), dtype)


def _fallen(lo: Lowering, y: Operand, holds: Operand) -> Any:
    """``c x`` where a mask that is 1 where ``x`` is positive is 0, 0 elsewhere, as ``c x`` less ``c
    relu(x)``; None where it is another value or mask."""
    op = maker(lo, y.number) if isinstance(y, Real) else None
    if op is None or op.name != "mul" or len(op.inputs) != 1:
        return None
    factor, x = op.attrs.get("other"), value(lo, op.inputs[0])
    if not isinstance(factor, Fraction | int):
        return None
    above = rectified(lo, x, holds)
    return None if above is None else lo.sub(y, lo.scale(above, Fraction(factor)))


def rectified(lo: Lowering, x: Operand, y: Operand) -> Any:
    """The product of a number and of where it is positive, as ``relu``, which it is at all real
    numbers, with the same derivative; None of any other product.

    Example: ``x * (x > 0)`` and ``torch.where(x > 0, x, 0)`` are ``relu(x)``.
    """
    for number, mask in ((x, y), (y, x)):
        if not isinstance(number, Real) or not isinstance(mask, Real):
            continue
        op = maker(lo, mask.number)
        if op is None or op.name != "relu" or not op.backward or number.shape != mask.shape:
            continue
        if op.inputs[0] == number.number and _is_one(lo, op.inputs[1]):
            return relu(lo, number)
    return None


def _is_one(lo: Lowering, number: int) -> bool:
    """Whether a value is 1 at all places, as constants are made: an input times 0, plus 1."""
    op = origin(lo, number)
    if op is None or op.name != "add" or op.attrs.get("other") != 1:
        return False
    zero = origin(lo, op.inputs[0])
    return zero is not None and zero.name == "mul" and zero.attrs.get("other") == 0


# -- functions with a kink -----------------------------------------------------------------------


def _elementwise(name: str) -> None:
    @lowers(f"aten.{name}.default")
    def rule(lo: Lowering, x: Lowered) -> Any:
        return lo.unary(name, x)


for _name in ("abs", "erf", "erfinv", "lgamma", "digamma"):
    _elementwise(_name)


def relu(lo: Lowering, x: Lowered) -> Any:
    """max(x, 0), of which is kept what it was taken of.

    Example: of [-1, 2] it is [0, 2], which is positive where [-1, 2] is.
    """
    result = lo.unary("relu", x)
    lo.rectified[result.number] = x
    return result


@lowers("aten.sgn.default", "aten.sign.default")
def _sign(lo: Lowering, x: Lowered) -> Any:
    return slope(lo, "abs", x)


@lowers("aten.threshold_backward.default")
def _threshold_backward(lo: Lowering, gradient: Lowered, x: Lowered, threshold: float) -> Any:
    limit = fraction(number_as(threshold, x.dtype))
    if not limit and isinstance(x, Real):
        x = lo.rectified.get(x.number, x)  # max(x, 0) is positive where x is
    return lo.mul(gradient, step(lo, lo.shift(x, -limit)))


@lowers("aten.leaky_relu.default")
def _leaky_relu(lo: Lowering, x: Lowered, negative: float = 0.01) -> Any:
    above = lo.unary("relu", x)
    return lo.add(above, lo.sub(x, above), fraction(negative))


@lowers("aten.leaky_relu_backward.default")
def _leaky_relu_backward(
    lo: Lowering, gradient: Lowered, x: Lowered, negative: float, of_result: bool
) -> Any:
    if of_result and negative < 0:
        raise Unsupported(f"the derivative of leaky_relu in place, with slope {negative}")
    rest = fraction(negative)
    return lo.mul(gradient, lo.shift(lo.scale(step(lo, x), 1 - rest), rest))


@lowers("aten.maximum.default")
def _maximum(lo: Lowering, x: Lowered, y: Lowered) -> Any:
    """The larger one; beside minus infinity the other one."""
    for one, other in ((x, y), (y, x)):
        if isinstance(one, Hidden) and one.keeps_nothing:
            return lo.expand(other, broadcast(x.shape, y.shape))
    return lo.add(lo.unary("relu", lo.sub(x, y)), y)


@lowers("aten.minimum.default")
def _minimum(lo: Lowering, x: Lowered, y: Lowered) -> Any:
    return lo.sub(x, lo.unary("relu", lo.sub(x, y)))


#: The lowest number of an element type: no tensor has a lower one.
_LOWEST = {
    "float16": -65504.0,
    "bfloat16": -3.3895313892515355e38,
    "float32": -3.4028234663852886e38,
    "float64": -1.7976931348623157e308,
}


def clamped(lo: Lowering, x: Lowered, least: float | None = None, most: float | None = None) -> Any:
    """min(max(x, least), most).

    Example: of [-1, 0.5, 3] between 0 and 1 it is [0, 0.5, 1].
    """
    lowest = _LOWEST.get(x.dtype, -inf)
    least = None if least is not None and least <= lowest else least
    most = None if most is not None and most >= -lowest else most
    if least is not None:
        x = lo.shift(lo.unary("relu", lo.shift(x, -fraction(least))), fraction(least))
    if most is not None:
        above = lo.unary("relu", lo.shift(lo.scale(x, -ONE), fraction(most)))
        x = lo.shift(lo.scale(above, -ONE), fraction(most))
    return x


@lowers("aten.hardtanh.default")
def _hardtanh(lo: Lowering, x: Lowered, least: float = -1, most: float = 1) -> Any:
    return clamped(lo, x, least, most)


@lowers("aten.hardtanh_backward.default")
def _hardtanh_backward(
    lo: Lowering, gradient: Lowered, x: Lowered, least: float, most: float
) -> Any:
    above = step(lo, lo.shift(x, -fraction(least)))
    below = step(lo, lo.shift(lo.scale(x, -ONE), fraction(most)))
    return lo.mul(gradient, lo.mul(above, below))


# -- other functions -----------------------------------------------------------------------------


@lowers("aten.log_sigmoid_forward.default")
def _log_sigmoid(lo: Lowering, x: Lowered) -> Any:
    return lo.unary("log_sigmoid", x), scratch(lo, 1)


@lowers("aten.log_sigmoid_backward.default")
def _log_sigmoid_backward(lo: Lowering, gradient: Lowered, x: Lowered, _: Any) -> Any:
    return lo.derivative("log_sigmoid", [lo.real(x)], lo.real(gradient))


@lowers("aten.log1p.default")
def _log1p(lo: Lowering, x: Lowered) -> Any:
    return lo.unary("log", lo.shift(x, ONE))


@lowers("aten.expm1.default")
def _expm1(lo: Lowering, x: Lowered) -> Any:
    return lo.shift(lo.unary("exp", x), -ONE)


@lowers("aten.linalg_vector_norm.default")
def _vector_norm(
    lo: Lowering,
    x: Lowered,
    order: float = 2,
    dim: Sequence[int] | None = None,
    keepdim: bool = False,
    dtype: str | None = None,
) -> Any:
    dims = dimensions(x.shape, dim)
    if 0 in x.shape and 0 < order < inf:
        return Const(Fraction(0), reduced(x.shape, dims, keepdim), x.dtype)
    if order == inf:
        sizes = lo.real(lo.unary("abs", x))
        return lo.emit("amax", sizes, dim=dims, keepdim=keepdim)
    if order == -inf:
        nearest = lo.emit(
            "amax", lo.real(lo.scale(lo.unary("abs", x), -ONE)), dim=dims, keepdim=keepdim
        )
        return lo.scale(nearest, -ONE)
    if order == 1:
        return lo.sum(lo.unary("abs", x), dims, keepdim)
    if order == 0:
        return lo.sum(step(lo, lo.unary("abs", x)), dims, keepdim)
    if order != 2:
        power = fraction(order)
        each = lo.unary("pow", lo.unary("abs", x), exponent=power)
        return lo.unary("pow", lo.sum(each, dims, keepdim), exponent=1 / power)
    return lo.unary("sqrt", lo.sum(square(lo, x) or lo.mul(x, x), dims, keepdim))


@lowers("aten.norm.Scalar")
def _norm(lo: Lowering, x: Lowered, order: float = 2, dtype: str | None = None) -> Any:
    return _vector_norm(lo, x, order)
