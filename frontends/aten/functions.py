"""Functions of single entries and their derivatives, with the kinks of ATen's kernels; layers that
only move entries or take means of blocks.

Source: the kernels' formulas in PyTorch's documentation of each function; the values at a kink are
those of the CPU kernels, read off by calling them there.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from math import ceil, floor, log, prod
from typing import Any

from shardproof.engine.errors import Unsupported
from shardproof.frontends.aten.choices import largest
from shardproof.frontends.aten.criteria import _elu, _scaled
from shardproof.frontends.aten.hidden import as_numbers
from shardproof.frontends.aten.losses import NONE, _nll_loss, _nll_loss_backward
from shardproof.frontends.aten.lowering import (
    Lowered,
    Lowering,
    Operand,
    dimensions,
    floating,
    fraction,
    reduced,
)
from shardproof.frontends.aten.masks import _vector_norm, clamped, flags, inverse, relu, step
from shardproof.frontends.aten.quotients import rest
from shardproof.frontends.aten.rules import lowers
from shardproof.frontends.aten.stretched import limited

ONE, HALF = Fraction(1), Fraction(1, 2)

# -- activations -----------------------------------------------------------------------------------


def _with_a_limit(name: str) -> None:
    @lowers(f"aten.{name}.default", f"aten.{name}.out")
    def rule(lo: Lowering, x: Lowered) -> Any:
        made = limited(lo, name, x)
        return lo.unary(name, x) if made is None else made


for _name in ("sigmoid", "tanh"):
    _with_a_limit(_name)


@lowers("aten.relu.default")
def _relu(lo: Lowering, x: Lowered) -> Any:
    made = limited(lo, "relu", x)
    return relu(lo, x) if made is None else made


def _below(lo: Lowering, x: Lowered) -> Any:
    """min(x, 0)."""
    return lo.sub(x, lo.unary("relu", x))


@lowers("aten._prelu_kernel.default")
def _prelu(lo: Lowering, x: Lowered, weight: Lowered) -> Any:
    return lo.add(lo.unary("relu", x), lo.mul(_below(lo, x), weight))


@lowers("aten.prelu.default")
def _prelu_by_channel(lo: Lowering, x: Lowered, weight: Lowered) -> Any:
    """One slope for all, or one for each position of the second dimension."""
    count = prod(weight.shape)
    after = (1,) * max(0, len(x.shape) - 2)
    shape = (1, count, *after) if len(x.shape) > 1 else (count,)
    return _prelu(lo, x, lo.reshape(weight, () if count == 1 else shape))


@lowers("aten.relu6.default")
def _relu6(lo: Lowering, x: Lowered) -> Any:
    return clamped(lo, x, 0, 6)


#: What `selu` scales by, and what its curve is multiplied by before.
_SELU = (1.0507009873554804934193349852946, 1.6732632423543772848170429916717)


@lowers("aten.selu.default")
def _selu(lo: Lowering, x: Lowered) -> Any:
    scale, alpha = _SELU
    return _elu(lo, x, alpha, scale)


@lowers("aten.log_sigmoid.default")
def _log_of_sigmoid(lo: Lowering, x: Lowered) -> Any:
    return lo.unary("log_sigmoid", x)


@lowers("aten._prelu_kernel_backward.default")
def _prelu_backward(lo: Lowering, gradient: Lowered, x: Lowered, weight: Lowered) -> Any:
    above = step(lo, x)
    slope = lo.add(above, lo.mul(weight, inverse(lo, above)))
    return lo.mul(gradient, slope), lo.mul(gradient, _below(lo, x))


@lowers("aten.celu.default")
def _celu(lo: Lowering, x: Lowered, alpha: float = 1.0) -> Any:
    """x above 0, alpha (exp(x / alpha) - 1) below."""
    curve = lo.unary("exp", lo.scale(_below(lo, x), 1 / fraction(alpha)))
    return lo.add(lo.unary("relu", x), lo.shift(curve, -ONE), fraction(alpha))


@lowers("aten.hardsigmoid_backward.default")
def _hardsigmoid_backward(lo: Lowering, gradient: Lowered, x: Lowered) -> Any:
    """A sixth, where -3 < x < 3."""
    inside = lo.mul(step(lo, lo.shift(x, Fraction(3))), step(lo, _from(lo, x, Fraction(3))))
    return lo.mul(gradient, lo.scale(inside, Fraction(1, 6)))


def _from(lo: Lowering, x: Lowered, number: Fraction) -> Any:
    """number - x."""
    return lo.shift(lo.scale(x, -ONE), number)


@lowers("aten.hardswish_backward.default")
def _hardswish_backward(lo: Lowering, gradient: Lowered, x: Lowered) -> Any:
    """0 up to -3, 1 from 3 on, x / 3 + 1 / 2 between."""
    low = step(lo, lo.shift(x, Fraction(3)))
    high = inverse(lo, step(lo, _from(lo, x, Fraction(3))))
    line = lo.shift(lo.scale(x, Fraction(1, 3)), HALF)
    return lo.mul(gradient, lo.add(high, lo.mul(line, lo.mul(low, inverse(lo, high)))))


def _outside(lo: Lowering, x: Lowered, limit: float) -> Any:
    """1 where x is below -limit or above it."""
    width = fraction(limit)
    if width < 0:
        raise Unsupported(f"a shrinkage by {limit}")
    return lo.add(step(lo, lo.shift(x, -width)), step(lo, _from(lo, x, -width)))


@lowers("aten.softshrink.default")
def _softshrink(lo: Lowering, x: Lowered, limit: float = 0.5) -> Any:
    """x - limit above it, x + limit below -limit, 0 between."""
    width = fraction(limit)
    if width < 0:
        raise Unsupported(f"a shrinkage by {limit}")
    above = lo.unary("relu", lo.shift(x, -width))
    return lo.sub(above, lo.unary("relu", _from(lo, x, -width)))


@lowers("aten.hardshrink.default")
def _hardshrink(lo: Lowering, x: Lowered, limit: float = 0.5) -> Any:
    return lo.mul(x, _outside(lo, x, limit))


@lowers("aten.softshrink_backward.default", "aten.hardshrink_backward.default")
def _shrink_backward(lo: Lowering, gradient: Lowered, x: Lowered, limit: float) -> Any:
    return lo.mul(gradient, _outside(lo, x, limit))


@lowers("aten.mish_backward.default")
def _mish_backward(lo: Lowering, gradient: Lowered, x: Lowered) -> Any:
    """t + x sigmoid(x) (1 - t^2), t = tanh(log(1 + exp(x)))."""
    soft = lo.scale(lo.unary("log_sigmoid", lo.scale(x, -ONE)), -ONE)
    t = lo.unary("tanh", soft)
    slope = lo.mul(lo.mul(x, lo.unary("sigmoid", x)), inverse(lo, lo.mul(t, t)))
    return lo.mul(gradient, lo.add(t, slope))


def _halves(lo: Lowering, x: Lowered, dim: int) -> tuple[int, Any, Any]:
    (at,) = dimensions(x.shape, dim)
    size = x.shape[at] // 2
    return at, lo.slice(x, at, 0, size), lo.slice(x, at, size, size)


@lowers("aten.glu.default")
def _glu(lo: Lowering, x: Lowered, dim: int = -1) -> Any:
    _, first, second = _halves(lo, x, dim)
    return lo.mul(first, lo.unary("sigmoid", second))


@lowers("aten.glu_backward.default")
def _glu_backward(lo: Lowering, gradient: Lowered, x: Lowered, dim: int) -> Any:
    at, first, second = _halves(lo, x, dim)
    gate = lo.unary("sigmoid", second)
    slope = lo.mul(first, lo.mul(gate, inverse(lo, gate)))
    return lo.concat([lo.mul(gradient, gate), lo.mul(gradient, slope)], at)


# -- functions -------------------------------------------------------------------------------------


def _exponentials(name: str, sign: int) -> None:
    @lowers(f"aten.{name}.default")
    def rule(lo: Lowering, x: Lowered) -> Any:
        falling = lo.unary("exp", lo.scale(x, -ONE))
        return lo.scale(lo.add(lo.unary("exp", x), falling, Fraction(sign)), HALF)


_exponentials("cosh", 1)
_exponentials("sinh", -1)


def _of_base(name: str, base: int) -> None:
    @lowers(f"aten.{name}.default")
    def rule(lo: Lowering, x: Lowered) -> Any:
        return lo.scale(lo.unary("log", x), fraction(1 / log(base)))


_of_base("log2", 2)
_of_base("log10", 10)


@lowers("aten.exp2.default")
def _exp2(lo: Lowering, x: Lowered) -> Any:
    return lo.unary("exp", lo.scale(x, fraction(log(2))))


@lowers("aten.pow.Scalar")
def _power(lo: Lowering, base: float, x: Lowered) -> Any:
    """base ** x = exp(log(base) x)."""
    if not base > 0:
        raise Unsupported(f"powers of {base}")
    return lo.unary("exp", lo.scale(x, fraction(log(base))))


@lowers("aten.tan.default")
def _tan(lo: Lowering, x: Lowered) -> Any:
    return lo.div(lo.unary("sin", x), lo.unary("cos", x))


@lowers("aten.erfc.default")
def _erfc(lo: Lowering, x: Lowered) -> Any:
    return inverse(lo, lo.unary("erf", x))


@lowers("aten.polygamma.default")
def _polygamma(lo: Lowering, order: int, x: Lowered) -> Any:
    """The derivative of digamma, and digamma itself."""
    if order not in (0, 1):
        raise Unsupported(f"polygamma of order {order}")
    return lo.unary("trigamma" if order else "digamma", x)


@lowers("aten.hypot.default")
def _hypot(lo: Lowering, x: Lowered, y: Lowered) -> Any:
    return lo.unary("sqrt", lo.add(lo.mul(x, x), lo.mul(y, y)))


def _rest(name: str, rounding: str) -> None:
    @lowers(f"aten.{name}.Scalar", f"aten.{name}.Tensor")
    def rule(lo: Lowering, x: Lowered, y: Operand) -> Any:
        """x - y times x / y, rounded."""
        if not floating(lo.expected[0][1]):
            return rest(lo, x, y, rounding)
        return lo.sub(x, lo.mul(y, lo.unary(rounding, lo.div(x, y))))


_rest("remainder", "floor")
_rest("fmod", "trunc")


@lowers("aten.soft_margin_loss_backward.default")
def _soft_margin_backward(
    lo: Lowering, gradient: Lowered, x: Lowered, y: Lowered, reduction: int
) -> Any:
    """-y sigmoid(-y x)."""
    fall = lo.scale(y, -ONE)
    each = lo.mul(fall, lo.unary("sigmoid", lo.mul(fall, x)))
    return _scaled(lo, each, gradient, reduction)


# -- flags and order -------------------------------------------------------------------------------


def _quantified(name: str, every: bool) -> None:
    @lowers(f"aten.{name}.default", f"aten.{name}.dim", f"aten.{name}.dims")
    def rule(lo: Lowering, x: Lowered, dim: object = None, keepdim: bool = False) -> Any:
        """Whether any flag (or every one) is set along dimensions."""
        mask = as_numbers(lo, x)
        count = lo.sum(inverse(lo, mask) if every else mask, dimensions(x.shape, dim), keepdim)
        some = step(lo, count)
        return flags(lo.real(inverse(lo, some) if every else some))


_quantified("any", False)
_quantified("all", True)


@lowers("aten.kthvalue.default")
def _kthvalue(lo: Lowering, x: Lowered, k: int, dim: int = -1, keepdim: bool = False) -> Any:
    (at,) = dimensions(x.shape, dim)
    shape = reduced(x.shape, (at,), keepdim)
    return tuple(
        lo.reshape(lo.slice(every, at, k - 1, 1), shape) for every in largest(lo, x, k, at, True)
    )


@lowers("aten.median.dim")
def _median(lo: Lowering, x: Lowered, dim: int, keepdim: bool = False) -> Any:
    """The lower one of two in the middle."""
    (at,) = dimensions(x.shape, dim)
    return _kthvalue(lo, x, (x.shape[at] + 1) // 2, at, keepdim)


@lowers("aten.quantile.scalar")
def _quantile(
    lo: Lowering,
    x: Lowered,
    q: float,
    dim: int | None = None,
    keepdim: bool = False,
    *,
    interpolation: str = "linear",
) -> Any:
    """Between the two entries, in their order, that are nearest to a share of the way from the
    smallest to the largest one."""
    if not 0 <= q <= 1:
        raise Unsupported(f"the quantile {q}")
    after = reduced(x.shape, dimensions(x.shape, dim), keepdim)
    x = x if dim is not None else lo.reshape(x, (prod(x.shape),))
    (at,) = dimensions(x.shape, dim or 0)
    place = fraction(q) * (x.shape[at] - 1)
    low, part = floor(place), place - floor(place)
    part = {
        "lower": Fraction(0),
        "higher": Fraction(ceil(part)),
        "midpoint": Fraction(ceil(part), 2),
        "nearest": Fraction(round(place) - low),
    }.get(interpolation, part)
    ordered = largest(lo, x, low + 2 if part else low + 1, at, True)[0]
    first = lo.reshape(lo.slice(ordered, at, low, 1), after)
    if part == 0:
        return first
    gap = lo.sub(lo.reshape(lo.slice(ordered, at, low + 1, 1), after), first)
    return lo.add(first, lo.scale(gap, part))


@lowers("aten.norm.ScalarOpt_dim")
def _norm(
    lo: Lowering, x: Lowered, order: float | None, dim: Sequence[int], keepdim: bool = False
) -> Any:
    return _vector_norm(lo, x, 2 if order is None else order, dim, keepdim)


# -- weights as lengths and directions -------------------------------------------------------------


def _others(shape: Sequence[int], dim: int) -> tuple[int, ...]:
    return tuple(d for d in range(len(shape)) if d != dim)


@lowers("aten._weight_norm_interface.default")
def _weight_norm(lo: Lowering, v: Lowered, g: Lowered, dim: int = 0) -> Any:
    """g v / |v|, and |v|, by the entries of one dimension."""
    length = lo.unary("sqrt", lo.sum(lo.mul(v, v), _others(v.shape, dim), True))
    return lo.mul(v, lo.div(g, length)), length


@lowers("aten._weight_norm.default")
def _weight_norm_whole(lo: Lowering, v: Lowered, g: Lowered, dim: int = 0) -> Any:
    return _weight_norm(lo, v, g, dim)[0]


@lowers("aten._weight_norm_interface_backward.default")
def _weight_norm_backward(
    lo: Lowering, gradient: Lowered, v: Lowered, g: Lowered, length: Lowered, dim: int
) -> Any:
    over = _others(v.shape, dim)
    along = lo.div(lo.sum(lo.mul(gradient, v), over, True), length)
    rest = lo.sub(gradient, lo.mul(v, lo.div(along, length)))
    return lo.mul(lo.div(g, length), rest), along


# -- images ----------------------------------------------------------------------------------------


@lowers("aten.nll_loss2d_forward.default")
def _pixels(
    lo: Lowering,
    logs: Lowered,
    target: Lowered,
    weight: Lowered | None,
    reduction: int,
    ignored: int,
) -> Any:
    rows, labels = _rows(lo, logs), lo.reshape(target, (prod(target.shape),))
    loss, count = _nll_loss(lo, rows, labels, weight, reduction, ignored)
    return (lo.reshape(loss, target.shape) if reduction == NONE else loss), count


def _rows(lo: Lowering, logs: Lowered) -> Any:
    """[n, classes, height, width] as rows of classes."""
    n, classes, *space = logs.shape
    return lo.reshape(lo.permute(logs, (0, 2, 3, 1)), (n * prod(space), classes))


@lowers("aten.nll_loss2d_backward.default")
def _pixels_backward(
    lo: Lowering,
    gradient: Lowered,
    logs: Lowered,
    target: Lowered,
    weight: Lowered | None,
    reduction: int,
    ignored: int,
    count: Lowered,
) -> Any:
    n, classes, *space = logs.shape
    rows, labels = _rows(lo, logs), lo.reshape(target, (prod(target.shape),))
    each = lo.reshape(gradient, labels.shape) if reduction == NONE else gradient
    moved = lo.real(_nll_loss_backward(lo, each, rows, labels, weight, reduction, ignored, count))
    return lo.permute(lo.reshape(moved, (n, *space, classes)), (0, 3, 1, 2))


@lowers("aten.pixel_shuffle.default")
def _pixel_shuffle(lo: Lowering, x: Lowered, factor: int) -> Any:
    """[..., c f f, h, w] to [..., c, h f, w f]."""
    *lead, channels, height, width = x.shape
    count, k = channels // factor**2, len(lead)
    split = lo.reshape(x, (*lead, count, factor, factor, height, width))
    order = (*range(k + 1), k + 3, k + 1, k + 4, k + 2)
    return lo.reshape(lo.permute(split, order), (*lead, count, height * factor, width * factor))


@lowers("aten.pixel_unshuffle.default")
def _pixel_unshuffle(lo: Lowering, x: Lowered, factor: int) -> Any:
    """[..., c, h f, w f] to [..., c f f, h, w]."""
    *lead, channels, height, width = x.shape
    rows, columns, k = height // factor, width // factor, len(lead)
    split = lo.reshape(x, (*lead, channels, rows, factor, columns, factor))
    order = (*range(k + 1), k + 2, k + 4, k + 1, k + 3)
    return lo.reshape(lo.permute(split, order), (*lead, channels * factor**2, rows, columns))


@lowers("aten.channel_shuffle.default")
def _channel_shuffle(lo: Lowering, x: Lowered, groups: int) -> Any:
    n, channels, *space = x.shape
    split = lo.reshape(x, (n, groups, channels // groups, *space))
    return lo.reshape(lo.transpose(split, 1, 2), x.shape)
