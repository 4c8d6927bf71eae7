"""Products and sums of exponentials along a dimension, powers, quotients that are rounded, and
further functions of single entries.

Source: PyTorch's documentation of each function; values at a kink are those of the CPU kernels.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from math import log, pi, prod
from typing import Any

from shardproof.engine.errors import Unsupported
from shardproof.frontends.aten.choices import _cumsum
from shardproof.frontends.aten.criteria import _xlogy
from shardproof.frontends.aten.hidden import masked
from shardproof.frontends.aten.infinite import finite
from shardproof.frontends.aten.lowering import (
    Const,
    Lowered,
    Lowering,
    Operand,
    dimensions,
    floating,
    fraction,
)
from shardproof.frontends.aten.masks import _maximum, _minimum, clamped, inverse, numbers, step
from shardproof.frontends.aten.pointwise import _pow
from shardproof.frontends.aten.positive import CHANGES_NOTHING, FINDS_NUMBERS, note_if_none
from shardproof.frontends.aten.quotients import quotient
from shardproof.frontends.aten.rules import lowers, number_as, rule_of
from shardproof.frontends.aten.statistics import _prod

ONE, HALF = Fraction(1), Fraction(1, 2)

# -- along a dimension -----------------------------------------------------------------------------


@lowers("aten.prod.default")
def _product(lo: Lowering, x: Lowered, dtype: str = "") -> Any:
    return _prod(lo, lo.reshape(x, (prod(x.shape),)), 0)


@lowers("aten.cumprod.default")
def _cumprod(lo: Lowering, x: Lowered, dim: int, dtype: str = "") -> Any:
    """Products up to each place."""
    if not x.shape:
        return x
    (at,) = dimensions(x.shape, dim)
    products: list[Any] = [lo.slice(x, at, 0, 1)]
    for i in range(1, x.shape[at]):
        products.append(lo.mul(products[-1], lo.slice(x, at, i, 1)))
    return lo.concat(products, at)


@lowers("aten.logcumsumexp.default")
def _logcumsumexp(lo: Lowering, x: Lowered, dim: int) -> Any:
    """log(exp(x_1) + ... + exp(x_i)); what is minus infinity adds nothing."""
    if not x.shape:
        return x
    hidden = masked(lo, x)
    each = lo.unary("exp", x) if hidden is None else _kept(lo, hidden)
    return lo.unary("log", _cumsum(lo, each, dim))


def _kept(lo: Lowering, hidden: Any) -> Any:
    return lo.mul(hidden.kept, lo.unary("exp", hidden.scores))


# -- two operands ----------------------------------------------------------------------------------


def _added_exponentials(name: str, base: float) -> None:
    @lowers(f"aten.{name}.default")
    def rule(lo: Lowering, x: Lowered, y: Lowered) -> Any:
        """log(base ** x + base ** y) to the base."""
        factor = fraction(base)
        total = lo.add(*(lo.unary("exp", lo.scale(z, factor)) for z in (x, y)))
        return lo.scale(lo.unary("log", total), 1 / factor)


_added_exponentials("logaddexp", 1)
_added_exponentials("logaddexp2", log(2))


@lowers("aten.fmax.default")
def _fmax(lo: Lowering, x: Lowered, y: Lowered) -> Any:
    note_if_none(lo, x, y, note=FINDS_NUMBERS)
    return _maximum(lo, x, y)


@lowers("aten.fmin.default")
def _fmin(lo: Lowering, x: Lowered, y: Lowered) -> Any:
    note_if_none(lo, x, y, note=FINDS_NUMBERS)
    return _minimum(lo, x, y)


@lowers("aten.div.Tensor_mode", "aten.div.Scalar_mode")
def _divided(lo: Lowering, x: Lowered, y: Operand, *, rounding_mode: str | None = None) -> Any:
    if not floating(lo.expected[0][1]):
        return quotient(lo, x, y, rounding_mode or "")
    exact = lo.div(x, y)
    return exact if rounding_mode is None else lo.unary(rounding_mode, exact)


@lowers("aten.floor_divide.default", "aten.floor_divide.Scalar")
def _floor_divided(lo: Lowering, x: Lowered, y: Operand) -> Any:
    return _divided(lo, x, y, rounding_mode="floor")


@lowers("aten.pow.Tensor_Tensor")
def _power(lo: Lowering, x: Lowered, y: Lowered) -> Any:
    """exp(y log(x)) of a positive number x; x to the power of one number."""
    if isinstance(y, Const):
        return lo.expand(_pow(lo, x, float(y.value)), lo.operands(x, y)[2])
    if isinstance(x, Const) and x.value > 0:
        return lo.unary("exp", lo.scale(lo.expand(y, lo.expected[0][0]), fraction(log(x.value))))
    raise Unsupported("powers of a tensor that may be negative")


@lowers("aten.copysign.Tensor", "aten.copysign.Scalar")
def _copysign(lo: Lowering, x: Lowered, y: Operand) -> Any:
    """The sign of 0 is plus: real numbers have one zero."""
    sign = Const(fraction(y), (), "float64") if isinstance(y, (int, float)) else y
    below = step(lo, lo.scale(sign, -ONE))
    return lo.mul(lo.unary("abs", x), lo.shift(lo.scale(below, Fraction(-2)), ONE))


@lowers("aten.atan2.default")
def _atan2(lo: Lowering, y: Lowered, x: Lowered) -> Any:
    """The angle of a point: 2 atan(y / (r + |x|)) with its distance r from the origin; where x is
    negative, that less half a turn to its side.  Of the origin it is 0; the sign of 0 is plus."""
    size = lo.unary("abs", x)
    signs = [rule_of("aten.sign.default")(lo, z) for z in (x, y)]  # type: ignore[misc]
    origin = lo.mul(*(inverse(lo, lo.mul(z, z)) for z in signs))
    distance = lo.unary("sqrt", lo.add(lo.mul(x, x), lo.mul(y, y)))
    half = lo.unary("atan", lo.div(y, lo.add(lo.add(distance, size), origin)))
    behind = step(lo, lo.scale(x, -ONE))
    side = lo.shift(lo.scale(step(lo, lo.scale(y, -ONE)), Fraction(-2)), ONE)
    turn = lo.mul(behind, lo.sub(lo.scale(side, fraction(pi)), lo.scale(half, Fraction(4))))
    return lo.add(lo.scale(half, Fraction(2)), turn)


@lowers("aten.special_xlog1py.default")
def _xlog1py(lo: Lowering, x: Operand, y: Lowered) -> Any:
    return _xlogy(lo, x, lo.shift(y, ONE))


# -- one operand -----------------------------------------------------------------------------------


@lowers("aten.asinh.default")
def _asinh(lo: Lowering, x: Lowered) -> Any:
    """sign(x) log(|x| + sqrt(x^2 + 1))."""
    size = lo.unary("abs", x)
    root = lo.unary("sqrt", lo.shift(lo.mul(x, x), ONE))
    return lo.mul(rule_of("aten.sign.default")(lo, x), lo.unary("log", lo.add(size, root)))  # type: ignore[misc]


@lowers("aten.acosh.default")
def _acosh(lo: Lowering, x: Lowered) -> Any:
    return lo.unary("log", lo.add(x, lo.unary("sqrt", lo.shift(lo.mul(x, x), -ONE))))


@lowers("aten.atanh.default")
def _atanh(lo: Lowering, x: Lowered) -> Any:
    ratio = lo.div(lo.shift(x, ONE), inverse(lo, x))
    return lo.scale(lo.unary("log", ratio), HALF)


@lowers("aten.asin.default")
def _asin(lo: Lowering, x: Lowered) -> Any:
    """2 atan(x / (1 + sqrt(1 - x^2)))."""
    root = lo.unary("sqrt", inverse(lo, lo.mul(x, x)))
    return lo.scale(lo.unary("atan", lo.div(x, lo.shift(root, ONE))), Fraction(2))


@lowers("aten.acos.default")
def _acos(lo: Lowering, x: Lowered) -> Any:
    return lo.shift(lo.scale(_asin(lo, x), -ONE), fraction(pi / 2))


@lowers("aten.round.decimals")
def _rounded(lo: Lowering, x: Lowered, *, decimals: int) -> Any:
    factor = Fraction(10) ** decimals
    return lo.scale(lo.unary("round", lo.scale(x, factor)), 1 / factor)


@lowers("aten.deg2rad.default")
def _radians(lo: Lowering, x: Lowered) -> Any:
    return lo.scale(x, fraction(pi / 180))


@lowers("aten.rad2deg.default")
def _degrees(lo: Lowering, x: Lowered) -> Any:
    return lo.scale(x, fraction(180 / pi))


@lowers("aten.special_entr.default")
def _entropy(lo: Lowering, x: Lowered) -> Any:
    """-x log(x)."""
    return lo.scale(_xlogy(lo, x, x), -ONE)


@lowers("aten.special_log_ndtr.default")
def _log_normal(lo: Lowering, x: Lowered) -> Any:
    return lo.unary("log", lo.scale(_erf_from(lo, x), HALF))


def _erf_from(lo: Lowering, x: Lowered) -> Any:
    """1 + erf(x / sqrt(2))."""
    return lo.shift(lo.unary("erf", lo.scale(x, fraction(2**-0.5))), ONE)


@lowers("aten.logit.default")
def _logit(lo: Lowering, x: Lowered, eps: float | None = None) -> Any:
    """log(x / (1 - x)) of x in [eps, 1 - eps]."""
    inner = x if eps is None else clamped(lo, x, eps, 1 - eps)
    return lo.unary("log", lo.div(inner, inverse(lo, inner)))


@lowers("aten.logit_backward.default")
def _logit_backward(lo: Lowering, gradient: Lowered, x: Lowered, eps: float | None = None) -> Any:
    slope = lo.div(gradient, lo.mul(x, inverse(lo, x)))
    if eps is None:
        return slope
    low, high = fraction(eps), fraction(1 - eps)
    below, above = step(lo, lo.shift(lo.scale(x, -ONE), low)), step(lo, lo.shift(x, -high))
    return lo.mul(slope, lo.mul(inverse(lo, below), inverse(lo, above)))


@lowers("aten.threshold.default")
def _threshold(lo: Lowering, x: Lowered, limit: float, value: float) -> Any:
    """x above the limit, else the value."""
    above = step(lo, lo.shift(x, -fraction(number_as(limit, x.dtype))))
    below = lo.scale(inverse(lo, above), fraction(number_as(value, x.dtype)))
    return lo.add(lo.mul(x, above), below)


@lowers("aten.nan_to_num.default")
def _numbers(
    lo: Lowering,
    x: Lowered,
    nan: float | None = None,
    posinf: float | None = None,
    neginf: float | None = None,
) -> Any:
    """Real numbers are numbers; hidden scores are not."""
    finite(lo, x, "nan_to_num")
    lo.notes.setdefault(CHANGES_NOTHING)
    return x if isinstance(x, Const) else lo.real(x)


@lowers("aten.nansum.default")
def _nansum(
    lo: Lowering, x: Lowered, dim: object = None, keepdim: bool = False, *, dtype: str = ""
) -> Any:
    note_if_none(lo, x, note=FINDS_NUMBERS)
    return lo.sum(x, dimensions(x.shape, dim), keepdim)


@lowers("aten.aminmax.default")
def _extremes(lo: Lowering, x: Lowered, *, dim: int | None = None, keepdim: bool = False) -> Any:
    dims: Sequence[int] = dimensions(x.shape, dim)
    real = lo.real(x)
    least = lo.emit("amax", lo.real(lo.scale(real, -ONE)), dim=tuple(dims), keepdim=keepdim)
    most = lo.emit("amax", real, dim=tuple(dims), keepdim=keepdim)
    return lo.scale(least, -ONE), most


@lowers("aten.masked_fill.Tensor")
def _masked_fill(lo: Lowering, x: Lowered, mask: Lowered, value: Lowered) -> Any:
    if isinstance(value, Const):
        fill = rule_of("aten.masked_fill.Scalar")
        return fill(lo, x, mask, float(value.value))  # type: ignore[misc]
    return rule_of("aten.where.self")(lo, mask, value, x)  # type: ignore[misc]


@lowers("aten.count_nonzero.default", "aten.count_nonzero.dim_IntList")
def _nonzero(lo: Lowering, x: Lowered, dim: object = None) -> Any:
    """How many entries are not 0, as whole numbers."""
    dims = dimensions(x.shape, dim)
    size = prod(x.shape[d] for d in dims)
    mask = numbers(lo, x, "float32") if x.dtype == "bool" else None
    if mask is None:
        mask = step(lo, lo.unary("abs", x))
    total = lo.real(lo.sum(mask, dims))
    return lo.whole(total, (0, size + 1), "int64")


@lowers("aten.addmv.default")
def _addmv(
    lo: Lowering, x: Lowered, m: Lowered, v: Lowered, *, beta: float = 1, alpha: float = 1
) -> Any:
    wide = lo.reshape(lo.real(v), (*v.shape, 1))
    product = lo.reshape(lo.emit("matmul", lo.real(m), wide), m.shape[:1])
    return lo.add(lo.scale(x, fraction(beta)), product, fraction(alpha))


@lowers("aten.addr.default")
def _addr(
    lo: Lowering, x: Lowered, a: Lowered, b: Lowered, *, beta: float = 1, alpha: float = 1
) -> Any:
    outer = lo.mul(lo.reshape(a, (*a.shape, 1)), lo.reshape(b, (1, *b.shape)))
    return lo.add(lo.scale(x, fraction(beta)), outer, fraction(alpha))


@lowers("aten.addbmm.default")
def _addbmm(
    lo: Lowering, x: Lowered, a: Lowered, b: Lowered, *, beta: float = 1, alpha: float = 1
) -> Any:
    total = lo.sum(lo.emit("matmul", lo.real(a), lo.real(b)), (0,))
    return lo.add(lo.scale(x, fraction(beta)), total, fraction(alpha))


@lowers("aten._trilinear.default")
def _trilinear(
    lo: Lowering,
    x: Lowered,
    y: Lowered,
    z: Lowered,
    expand1: Sequence[int],
    expand2: Sequence[int],
    expand3: Sequence[int],
    sumdim: Sequence[int],
    unroll_dim: int = 1,
) -> Any:
    """The product of three, each with dimensions of size 1 at the places of its list, summed."""
    wide: list[Any] = []
    for operand, places in ((x, expand1), (y, expand2), (z, expand3)):
        shape = list(operand.shape)
        for place in sorted(places):
            shape.insert(place, 1)
        wide.append(lo.reshape(operand, tuple(shape)))
    return lo.sum(lo.mul(lo.mul(wide[0], wide[1]), wide[2]), tuple(sumdim))


# -- distances -------------------------------------------------------------------------------------


def _differences(lo: Lowering, x: Lowered, y: Lowered) -> Any:
    """[..., n, m, d] of [..., n, d] and [..., m, d]."""
    *lead, n, d = x.shape
    m, other = y.shape[-2], y.shape[:-2]
    return lo.sub(lo.reshape(x, (*lead, n, 1, d)), lo.reshape(y, (*other, 1, m, d)))


@lowers("aten._cdist_forward.default")
def _cdist(lo: Lowering, x: Lowered, y: Lowered, p: float, mode: int | None = None) -> Any:
    gap = _differences(lo, x, y)
    norm = rule_of("aten.linalg_vector_norm.default")
    return norm(lo, gap, p, [len(gap.shape) - 1])  # type: ignore[misc]


@lowers("aten._euclidean_dist.default")
def _euclidean(lo: Lowering, x: Lowered, y: Lowered) -> Any:
    return _cdist(lo, x, y, 2)


@lowers("aten._cdist_backward.default")
def _cdist_backward(
    lo: Lowering, gradient: Lowered, x: Lowered, y: Lowered, p: float, cdist: Lowered
) -> Any:
    """Nothing, where two points are one."""
    if p not in (1, 2):
        raise Unsupported(f"the gradient of distances of order {p}")
    gap = _differences(lo, x, y)
    wide = lo.reshape(gradient, (*gradient.shape, 1))
    if p == 1:
        each = lo.mul(wide, rule_of("aten.sign.default")(lo, gap))  # type: ignore[misc]
    else:
        alone = inverse(lo, step(lo, cdist))
        each = lo.mul(gap, lo.div(wide, lo.reshape(lo.add(cdist, alone), wide.shape)))
    summed = lo.sum(each, (len(each.shape) - 2,))
    lead = len(summed.shape) - len(x.shape)
    return lo.reshape(lo.sum(summed, tuple(range(lead))), x.shape) if lead else summed
