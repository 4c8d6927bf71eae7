"""Losses of single entries: absolute, smooth, Huber's, of two classes, of probabilities."""

from __future__ import annotations

from fractions import Fraction
from math import prod
from typing import Any

from shardproof.engine.errors import Unsupported
from shardproof.frontends.aten.losses import MEAN, NONE
from shardproof.frontends.aten.lowering import Lowered, Lowering, Operand, Real, fraction
from shardproof.frontends.aten.masks import COMPARISONS, inverse, slope, step
from shardproof.frontends.aten.positive import is_positive
from shardproof.frontends.aten.rules import lowers

ONE = Fraction(1)
#: What a logarithm of a probability is at least, in ATen's loss of two classes.
LEAST = Fraction(100)


def _reduced(lo: Lowering, each: Lowered, reduction: int) -> Any:
    if reduction == NONE:
        return each
    every = tuple(range(len(each.shape)))
    return lo.mean(each, every) if reduction == MEAN else lo.sum(each, every)


def _scaled(lo: Lowering, each: Lowered, gradient: Lowered, reduction: int) -> Any:
    """The gradient of every entry, from that of the reduced loss."""
    count = prod(each.shape) if reduction == MEAN else 1
    return lo.mul(lo.scale(each, Fraction(1, count)), gradient)


@lowers("aten.smooth_l1_loss.default")
def _smooth_l1(
    lo: Lowering, x: Lowered, y: Lowered, reduction: int = MEAN, beta: float = 1.0
) -> Any:
    """gap^2 / (2 beta) below beta, gap - beta / 2 from there on."""
    width = fraction(beta)
    gap = lo.unary("abs", lo.sub(x, y))
    if width == 0:
        return _reduced(lo, gap, reduction)
    return _reduced(lo, lo.scale(_huber(lo, gap, width), 1 / width), reduction)


def _huber(lo: Lowering, gap: Lowered, width: Fraction) -> Any:
    """gap^2 / 2 - max(gap - width, 0)^2 / 2, which is width (gap - width / 2) from width on."""
    over = lo.unary("relu", lo.shift(gap, -width))
    return lo.scale(lo.sub(lo.mul(gap, gap), lo.mul(over, over)), Fraction(1, 2))


def _huber_slope(lo: Lowering, x: Lowered, y: Lowered, width: Fraction) -> Any:
    """x - y, between -width and width."""
    gap = lo.sub(x, y)
    low = lo.unary("relu", lo.shift(gap, width))
    high = lo.unary("relu", lo.shift(lo.scale(low, -ONE), 2 * width))
    return lo.shift(lo.scale(high, -ONE), width)


@lowers("aten.smooth_l1_loss_backward.default")
def _smooth_l1_backward(
    lo: Lowering, gradient: Lowered, x: Lowered, y: Lowered, reduction: int, beta: float
) -> Any:
    width = fraction(beta)
    if width == 0:
        each: Any = slope(lo, "abs", lo.sub(x, y))
    else:
        each = lo.scale(_huber_slope(lo, x, y, width), 1 / width)
    return _scaled(lo, each, gradient, reduction)


@lowers("aten.huber_loss.default")
def _huber_loss(
    lo: Lowering, x: Lowered, y: Lowered, reduction: int = MEAN, delta: float = 1.0
) -> Any:
    gap = lo.unary("abs", lo.sub(x, y))
    return _reduced(lo, _huber(lo, gap, fraction(delta)), reduction)


@lowers("aten.huber_loss_backward.default")
def _huber_loss_backward(
    lo: Lowering, gradient: Lowered, x: Lowered, y: Lowered, reduction: int, delta: float
) -> Any:
    return _scaled(lo, _huber_slope(lo, x, y, fraction(delta)), gradient, reduction)


@lowers("aten.soft_margin_loss.default")
def _soft_margin(lo: Lowering, x: Lowered, y: Lowered, reduction: int = MEAN) -> Any:
    """log(1 + exp(-y x))."""
    each = lo.scale(lo.unary("log_sigmoid", lo.mul(x, y)), -ONE)
    return _reduced(lo, each, reduction)


# -- two classes ---------------------------------------------------------------------------------


@lowers("aten.binary_cross_entropy_with_logits.default")
def _with_logits(
    lo: Lowering,
    x: Lowered,
    target: Lowered,
    weight: Lowered | None = None,
    positive: Lowered | None = None,
    reduction: int = MEAN,
) -> Any:
    """(1 - target) x - w log(sigmoid(x)), w = 1 + (positive - 1) target."""
    log = lo.unary("log_sigmoid", lo.real(x))
    if positive is not None:
        extra = lo.mul(lo.shift(positive, -ONE), target)
        log = lo.mul(lo.shift(extra, ONE), log)
    each = lo.sub(lo.mul(inverse(lo, target), x), log)
    if weight is not None:
        each = lo.mul(each, weight)
    return _reduced(lo, each, reduction)


def _log(lo: Lowering, x: Lowered) -> Any:
    """The logarithm, at least -100."""
    return lo.shift(lo.unary("relu", lo.shift(lo.unary("log", x), LEAST)), -LEAST)


@lowers("aten.binary_cross_entropy.default")
def _binary(
    lo: Lowering, x: Lowered, target: Lowered, weight: Lowered | None = None, reduction: int = MEAN
) -> Any:
    below = lo.mul(inverse(lo, target), _log(lo, inverse(lo, x)))
    each = lo.scale(lo.add(lo.mul(target, _log(lo, x)), below), -ONE)
    if weight is not None:
        each = lo.mul(each, weight)
    return _reduced(lo, each, reduction)


@lowers("aten.binary_cross_entropy_backward.default")
def _binary_backward(
    lo: Lowering,
    gradient: Lowered,
    x: Lowered,
    target: Lowered,
    weight: Lowered | None = None,
    reduction: int = MEAN,
) -> Any:
    """(x - target) / max(x (1 - x), 1e-12)."""
    least = fraction(1e-12)
    spread = lo.unary("relu", lo.shift(lo.mul(x, inverse(lo, x)), -least))
    each = lo.div(lo.sub(x, target), lo.shift(spread, least))
    if weight is not None:
        each = lo.mul(each, weight)
    return _scaled(lo, each, gradient, reduction)


# -- entries -------------------------------------------------------------------------------------


@lowers("aten.xlogy.Tensor", "aten.xlogy.Scalar_Self", "aten.xlogy.Scalar_Other")
def _xlogy(lo: Lowering, x: Operand, y: Operand) -> Any:
    """x log(y), and 0 where x is 0, whatever y is: the logarithm is of 1 there, unless x or y is
    positive by how it is made, and that is what a product gives, too."""
    if not any(is_positive(lo, z) for z in (x, y)):
        none = COMPARISONS["eq"](lo, lo.real(x))
        y = lo.add(y, none if x is y else lo.sub(none, lo.mul(none, y)))
    return lo.mul(x, lo.unary("log", y))


@lowers("aten.softplus.default")
def _softplus(lo: Lowering, x: Lowered, beta: float = 1, threshold: float = 20) -> Any:
    """log(1 + exp(beta x)) / beta, x where beta x is above the threshold: read without the
    threshold, which is a rounding of the same function."""
    factor = fraction(beta)
    if fraction(threshold) < 20:
        raise Unsupported(f"softplus with the threshold {threshold}")
    log = lo.unary("log_sigmoid", lo.scale(x, -factor))
    return lo.scale(log, -1 / factor)


@lowers("aten.softplus_backward.default")
def _softplus_backward(
    lo: Lowering, gradient: Lowered, x: Lowered, beta: float, threshold: float
) -> Any:
    if fraction(threshold) < 20:
        raise Unsupported(f"softplus with the threshold {threshold}")
    return lo.mul(gradient, lo.unary("sigmoid", lo.scale(x, fraction(beta))))


@lowers("aten.elu.default")
def _elu(
    lo: Lowering, x: Lowered, alpha: float = 1, scale: float = 1, input_scale: float = 1
) -> Any:
    """scale (x above 0, alpha (exp(input_scale x) - 1) below)."""
    above = lo.unary("relu", x)
    below = lo.sub(x, above)
    curve = lo.shift(lo.unary("exp", lo.scale(below, fraction(input_scale))), -ONE)
    return lo.scale(lo.add(above, curve, fraction(alpha)), fraction(scale))


@lowers("aten.elu_backward.default")
def _elu_backward(
    lo: Lowering,
    gradient: Lowered,
    alpha: float,
    scale: float,
    input_scale: float,
    of_result: bool,
    x: Lowered,
) -> Any:
    if of_result:
        raise Unsupported("the derivative of elu by its result")
    above = step(lo, x)
    below = lo.sub(x, lo.unary("relu", x))
    curve = lo.unary("exp", lo.scale(below, fraction(input_scale)))
    falls = lo.scale(lo.mul(curve, inverse(lo, above)), fraction(alpha) * fraction(input_scale))
    return lo.mul(gradient, lo.scale(lo.add(above, falls), fraction(scale)))


def _sixth(lo: Lowering, x: Lowered) -> Any:
    """min(max(x + 3, 0), 6) / 6."""
    low = lo.unary("relu", lo.shift(x, Fraction(3)))
    high = lo.unary("relu", lo.shift(lo.scale(low, -ONE), Fraction(6)))
    return lo.scale(lo.shift(lo.scale(high, -ONE), Fraction(6)), Fraction(1, 6))


@lowers("aten.hardsigmoid.default")
def _hardsigmoid(lo: Lowering, x: Lowered) -> Any:
    return _sixth(lo, x)


@lowers("aten.hardswish.default")
def _hardswish(lo: Lowering, x: Lowered) -> Any:
    return lo.mul(x, _sixth(lo, x))


@lowers("aten.mish.default")
def _mish(lo: Lowering, x: Lowered) -> Any:
    """x tanh(log(1 + exp(x)))."""
    real: Real = lo.real(x)
    soft = lo.scale(lo.unary("log_sigmoid", lo.scale(real, -ONE)), -ONE)
    return lo.mul(real, lo.unary("tanh", soft))


@lowers("aten.frac.default")
def _frac(lo: Lowering, x: Lowered) -> Any:
    return lo.sub(x, lo.unary("trunc", x))


@lowers("aten.lerp.Tensor")
def _lerp(lo: Lowering, x: Lowered, y: Lowered, weight: Lowered) -> Any:
    return lo.add(x, lo.mul(weight, lo.sub(y, x)))


@lowers("aten.clamp.Tensor", "aten.clamp_min.Tensor")
def _clamp(lo: Lowering, x: Lowered, least: Lowered | None = None, most: Any = None) -> Any:
    """min(max(x, least), most)."""
    if least is not None:
        x = lo.add(lo.unary("relu", lo.sub(x, least)), least)
    if most is not None:
        x = lo.sub(x, lo.unary("relu", lo.sub(x, most)))
    return x


@lowers("aten.clamp_max.Tensor")
def _clamp_max(lo: Lowering, x: Lowered, most: Lowered) -> Any:
    return _clamp(lo, x, None, most)
