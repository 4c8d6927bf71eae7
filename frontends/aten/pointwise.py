"""Elementwise operators, constants, sums and products of ATen."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction
from math import inf, prod
from typing import Any

from shardproof.engine.errors import Unsupported
from shardproof.frontends.aten import cancelled, ids, indicators, rounded
from shardproof.frontends.aten.attention import added as added_mask
from shardproof.frontends.aten.bits import Additive, Bits
from shardproof.frontends.aten.filled import Filled, cast
from shardproof.frontends.aten.flat import flat
from shardproof.frontends.aten.hidden import is_nothing, masked, operand, position_flags
from shardproof.frontends.aten.infinite import finite
from shardproof.frontends.aten.joined import Joined, catenation
from shardproof.frontends.aten.lessened import lessened
from shardproof.frontends.aten.lookups import computed_ids
from shardproof.frontends.aten.losses import plus
from shardproof.frontends.aten.lowering import (
    Const,
    Lowered,
    Lowering,
    Operand,
    Real,
    Undefined,
    dimensions,
    floating,
    fraction,
    reduced,
)
from shardproof.frontends.aten.masks import compared, flags, numbers, rectified
from shardproof.frontends.aten.merges import merged
from shardproof.frontends.aten.one_hot import Choices, OneHot
from shardproof.frontends.aten.positions import Compared, added
from shardproof.frontends.aten.roots import square
from shardproof.frontends.aten.rules import NARROW, lowers, number_as, rule_of
from shardproof.frontends.aten.scores import Hidden, nothing
from shardproof.frontends.aten.shifted import cut, how_many
from shardproof.frontends.aten.spread_sums import note_sum
from shardproof.frontends.aten.stretched import exponential, largest

# -- movement ----------------------------------------------------------------------------------


@lowers("move.reshape")
def _reshape(lo: Lowering, x: Lowered, shape: Sequence[int]) -> Any:
    return lo.reshape(x, tuple(shape))


@lowers("move.slice")
def _slice(lo: Lowering, x: Lowered, dim: int, start: int, size: int) -> Any:
    own = cut(lo, x, dim, start, size) if isinstance(x, Joined) and lo.moved else None
    return lo.slice(x, dim, start, size) if own is None else own


@lowers("move.permute")
def _permute(lo: Lowering, x: Lowered, order: Sequence[int]) -> Any:
    return lo.permute(x, order)


@lowers("move.expand")
def _expand(lo: Lowering, x: Lowered, shape: Sequence[int]) -> Any:
    return lo.expand(x, tuple(shape))


@lowers("move.concat")
def _concat(lo: Lowering, xs: Sequence[Lowered], dim: int) -> Any:
    return catenation(lo, xs, dim)


@lowers("aten.cat.default")
def _cat(lo: Lowering, xs: Sequence[Lowered], dim: int = 0) -> Any:
    """Empty tensors of one dimension may stand among others of any."""
    xs = [x for x in xs if x.shape != (0,)] or xs[:1]
    return catenation(lo, xs, dimensions(xs[0].shape, dim)[0])


@lowers("aten.stack.default")
def _stack(lo: Lowering, xs: Sequence[Lowered], dim: int = 0) -> Any:
    at = dim % (len(xs[0].shape) + 1)
    parts = [lo.reshape(x, (*x.shape[:at], 1, *x.shape[at:])) for x in xs]
    return lo.concat(parts, at)


def _padded(lo: Lowering, x: Lowered, dim: int, before: int, after: int, value: float) -> Any:
    """More positions of one number on both sides of a dimension; fewer where it is negative."""
    size = x.shape[dim]
    start, stop = max(0, -before), size - max(0, -after)
    if start > stop:
        raise Unsupported(f"padding of {list(x.shape)} by {before} and {after}")
    parts: list[Any] = [lo.slice(x, dim, start, stop - start)]
    for count, place in ((before, 0), (after, len(parts) + (before > 0))):
        if count > 0:
            shape = (*x.shape[:dim], count, *x.shape[dim + 1 :])
            parts.insert(place, Const(fraction(number_as(value, x.dtype)), shape, x.dtype))
    return catenation(lo, parts, dim)


@lowers("aten.constant_pad_nd.default")
def _pad(lo: Lowering, x: Lowered, padding: Sequence[int], value: float = 0) -> Any:
    for i in range(len(padding) // 2):
        dim = len(x.shape) - 1 - i
        if padding[2 * i] or padding[2 * i + 1]:
            x = _padded(lo, x, dim, padding[2 * i], padding[2 * i + 1], value)
    return x


@lowers("aten.select_backward.default")
def _select_backward(
    lo: Lowering, gradient: Lowered, sizes: Sequence[int], dim: int, index: int
) -> Any:
    at, *_ = dimensions(tuple(sizes), dim)
    row = lo.reshape(gradient, (*gradient.shape[:at], 1, *gradient.shape[at:]))
    place = index % sizes[at]
    return _padded(lo, row, at, place, sizes[at] - place - 1, 0)


@lowers("move.cast", "aten._to_copy.default")
def _cast(lo: Lowering, x: Lowered, dtype: str = "", **_: Any) -> Any:
    dtype = dtype or x.dtype
    if isinstance(x, (Additive, Hidden)) and floating(dtype):
        return replace(x, dtype=dtype)
    if isinstance(x, Const):
        integral = x.value.denominator == 1 or "float" in dtype
        if not integral or (dtype in NARROW and x.value not in (0, 1)):
            raise Unsupported(f"a cast of {x.value} to {dtype}")
        return Const(x.value, x.shape, dtype)
    if isinstance(x, (OneHot, Choices)):  # Zeros and ones of any type are those of any other.
        return replace(x, dtype=dtype)
    if isinstance(x, (Compared, Bits)) and dtype != "bool":
        x = position_flags(lo, x)
    of_ids = x if dtype != "bool" else ids.ids(x)
    if isinstance(of_ids, ids.Ids) and of_ids.dtype in _WHOLE and "float" in dtype:
        return _between_kinds(lo, lo.real(of_ids), dtype)
    if isinstance(of_ids, (ids.Ids, Filled)):
        return cast(lo, of_ids, dtype)
    if "float" not in dtype or "float" not in x.dtype:
        return x if dtype == x.dtype else _between_kinds(lo, computed_ids(lo, x), dtype)
    number = lo.real(x)
    if number.dtype == dtype:
        return number
    return lo.emits("to", [number], {"dtype": dtype}, dtype)[0]


#: Bits of the numbers of types that ids have.
_WHOLE = {"int32": 32, "int64": 64}


def _fits(domain: tuple[int, int] | None, dtype: str) -> bool:
    """Whether a type holds all whole numbers of a domain that is known."""
    most = 1 << _WHOLE[dtype] - 1
    return domain is not None and -most <= domain[0] and domain[1] <= most


def _between_kinds(lo: Lowering, x: Lowered, dtype: str) -> Any:
    """A cast of a mask or of whole numbers, or to these."""
    if isinstance(x, Real) and x.dtype == "bool" and ("float" in dtype or dtype.startswith("int")):
        return numbers(lo, x, dtype)
    if isinstance(x, Real) and dtype in ("int64", "int32") and "float" in x.dtype:
        return replace(lo.unary("trunc", x), dtype=dtype)
    if isinstance(x, Real) and x.dtype.startswith("int") and "float" in dtype:
        return replace(x, dtype=dtype)
    if isinstance(x, Real) and dtype in _WHOLE and _fits(x.domain, dtype):
        return replace(x, dtype=dtype)
    if isinstance(x, Real) and dtype == "bool" and "float" in x.dtype:
        return flags(x) if x.number in lo.hot else compared(lo, "ne", x, 0)
    raise Unsupported(f"a cast from {x.dtype} to {dtype}")


# -- constants ---------------------------------------------------------------------------------


def _full(lo: Lowering, number: float) -> Const | Hidden:
    shape, dtype = lo.expected[0]
    if number == -inf and floating(dtype):
        return nothing(lo, shape, dtype)
    return Const(fraction(number_as(number, dtype)), shape, dtype)


@lowers("aten.ones_like.default", "aten.ones.default", "aten.new_ones.default")
def _ones(lo: Lowering, *_: Any, **__: Any) -> Any:
    return _full(lo, 1)


@lowers(
    "aten.zeros_like.default", "aten.zeros.default", "aten.new_zeros.default", "aten.zero.default"
)
def _zeros(lo: Lowering, *_: Any, **__: Any) -> Any:
    return _full(lo, 0)


@lowers("aten.full.default", "aten.full_like.default", "aten.fill.Scalar")
def _filled(lo: Lowering, _: Any, number: float, *__: Any, **___: Any) -> Any:
    return _full(lo, number)


@lowers("aten.fill.Tensor")
def _filled_by(lo: Lowering, x: Lowered, number: Lowered) -> Any:
    return lo.expand(_cast(lo, number, x.dtype), x.shape)


@lowers("aten.new_full.default")
def _new_full(lo: Lowering, _: Any, shape: Sequence[int], number: float, **__: Any) -> Any:
    return _full(lo, number)


@lowers("aten.scalar_tensor.default")
def _scalar(lo: Lowering, number: float, **_: Any) -> Any:
    return _full(lo, number)


@lowers("move.undefined")
def _undefined(lo: Lowering) -> Any:
    return Undefined(*lo.expected[0])


# -- arithmetic --------------------------------------------------------------------------------


def _wide(lo: Lowering) -> None:
    """Raise `Unsupported` where a result is of a type that is no number."""
    if lo.expected and lo.expected[0][1] in NARROW:
        raise Unsupported(f"arithmetic of {lo.expected[0][1]}")


def _whole(lo: Lowering, x: Operand, y: Operand, factor: Fraction) -> Any:
    """x + factor * y of positions, or of ids; None: it is something else."""
    positions = added(x, y, factor) or lessened(x, y, factor)
    return positions or flat(lo, x, y, factor) or ids.computed(lo, "add", x, y, factor)


def _of_masks(lo: Lowering) -> bool:
    """Whether a result is a mask: of two masks the sum is "or", the product is "and"."""
    return bool(lo.expected) and lo.expected[0][1] == "bool"


@lowers("aten.add.Tensor", "aten.add.Scalar")
def _add(lo: Lowering, x: Lowered, y: Operand, alpha: float = 1) -> Any:
    if _of_masks(lo) and alpha == 1:
        return rule_of("aten.logical_or.default")(lo, x, y)  # type: ignore[misc]
    _wide(lo)
    y, factor = rounded.decimal(lo, y), fraction(alpha)
    symbolic = _whole(lo, x, y, factor) or (added_mask(lo, x, y) if factor == 1 else None)
    symbolic = symbolic or plus(x, y, factor)
    made = symbolic or lo.add(operand(lo, x), operand(lo, y), factor)
    if factor == 1:
        note_sum(lo, x, y, made)
    return made


@lowers("aten.sub.Tensor", "aten.sub.Scalar")
def _sub(lo: Lowering, x: Lowered, y: Operand, alpha: float = 1) -> Any:
    _wide(lo)
    factor = -fraction(alpha)
    symbolic = _whole(lo, x, y, factor)
    if is_nothing(x):
        finite(lo, y, "what is subtracted from minus infinity,")
        return lo.expand(x, lo.expected[0][0])
    if masked(lo, x) is not None and masked(lo, y) is None:
        symbolic = added_mask(lo, x, lo.scale(lo.operands(y, 0)[0], factor))
    symbolic = symbolic or (merged(lo, x, y) if alpha == 1 else None)
    return symbolic or lo.add(operand(lo, x), operand(lo, y), factor)


@lowers("aten.rsub.Tensor", "aten.rsub.Scalar")
def _rsub(lo: Lowering, x: Lowered, y: Operand, alpha: float = 1) -> Any:
    _wide(lo)
    factor = -fraction(alpha)
    symbolic = _whole(lo, y, x, factor)
    return symbolic or lo.add(operand(lo, y), operand(lo, x), factor)


@lowers("aten.mul.Tensor", "aten.mul.Scalar")
def _mul(lo: Lowering, x: Lowered, y: Operand) -> Any:
    if _of_masks(lo):
        return rule_of("aten.logical_and.default")(lo, x, y)  # type: ignore[misc]
    _wide(lo)
    product = ids.computed(lo, "multiply", x, y, Fraction(1))
    if product is None:
        product = indicators.times(lo, x, y)
    a, b = operand(lo, x), operand(lo, y)
    return product or rectified(lo, a, b) or cancelled.product(lo, a, b)


@lowers("aten.div.Tensor", "aten.div.Scalar")
def _div(lo: Lowering, x: Lowered, y: Operand) -> Any:
    return cancelled.quotient(lo, operand(lo, x), operand(lo, y))


@lowers("aten.neg.default")
def _neg(lo: Lowering, x: Lowered) -> Any:
    _wide(lo)
    return ids.computed(lo, "multiply", x, -1, Fraction(1)) or lo.scale(x, Fraction(-1))


@lowers("aten.reciprocal.default")
def _reciprocal(lo: Lowering, x: Lowered) -> Any:
    return lo.div(Const(Fraction(1), x.shape, x.dtype), x)


@lowers("aten.square.default")
def _square(lo: Lowering, x: Lowered) -> Any:
    _wide(lo)
    return lo.mul(x, x)


@lowers("aten.pow.Tensor_Scalar", "aten.pow_.Scalar")
def _pow(lo: Lowering, x: Lowered, exponent: float) -> Any:
    _wide(lo)
    power = fraction(exponent)
    if power == 1:
        return x
    if power == 0:
        return Const(Fraction(1), x.shape, x.dtype)
    if isinstance(x, Const) and power.denominator == 1 and x.value:
        return Const(x.value ** int(power), x.shape, x.dtype)
    if power == 2 and (squared := square(lo, x)) is not None:
        return squared
    if power == -1:
        return _reciprocal(lo, x)
    if power == Fraction(1, 2):
        return lo.unary("sqrt", x)
    if power == Fraction(-1, 2):
        return lo.unary("rsqrt", x)
    return lo.unary("pow", x, exponent=power)


def _function(name: str) -> None:
    @lowers(f"aten.{name}.default", f"aten.{name}.out")
    def rule(lo: Lowering, x: Lowered) -> Any:
        return lo.unary(name, x)


for _name in (
    *("silu", "sin", "cos", "atan"),
    *("floor", "ceil", "trunc", "round"),
):
    _function(_name)


@lowers("aten.exp.default", "aten.exp.out")
def _exp(lo: Lowering, x: Lowered) -> Any:
    """Of minus infinity it is 0."""
    return Const(Fraction(0), x.shape, x.dtype) if is_nothing(x) else exponential(lo, x)


@lowers("aten.silu_backward.default")
def _silu_backward(lo: Lowering, gradient: Lowered, x: Lowered) -> Any:
    return lo.derivative("silu", [lo.real(x)], lo.real(gradient))


@lowers("aten.gelu.default")
def _gelu(lo: Lowering, x: Lowered, approximate: str = "none") -> Any:
    if approximate == "none":
        return lo.unary("gelu", x)
    return lo.scale(lo.mul(x, lo.shift(_gelu_tanh(lo, x), Fraction(1))), Fraction(1, 2))


#: sqrt(2 / pi) as ATen's kernel has it: a double.
_BETA = Fraction("0.7978845608028654")
_KAPPA = Fraction("0.044715")


def _gelu_tanh(lo: Lowering, x: Lowered) -> Any:
    cube = lo.unary("pow", x, exponent=Fraction(3))
    return lo.unary("tanh", lo.scale(lo.add(x, lo.scale(cube, _KAPPA)), _BETA))


@lowers("aten.gelu_backward.default")
def _gelu_backward(lo: Lowering, gradient: Lowered, x: Lowered, approximate: str = "none") -> Any:
    if approximate == "none":
        return lo.derivative("gelu", [lo.real(x)], lo.real(gradient))
    y = _gelu_tanh(lo, x)
    left = lo.scale(lo.shift(y, Fraction(1)), Fraction(1, 2))
    slope = lo.shift(lo.scale(lo.mul(y, y), Fraction(-1)), Fraction(1))
    inner = lo.scale(lo.shift(lo.scale(lo.mul(x, x), 3 * _KAPPA), Fraction(1)), _BETA)
    right = lo.scale(lo.mul(lo.mul(x, slope), inner), Fraction(1, 2))
    return lo.mul(gradient, lo.add(left, right))


@lowers("aten.sigmoid_backward.default")
def _sigmoid_backward(lo: Lowering, gradient: Lowered, y: Lowered) -> Any:
    return lo.mul(gradient, lo.sub(y, lo.mul(y, y)))


@lowers("aten.tanh_backward.default")
def _tanh_backward(lo: Lowering, gradient: Lowered, y: Lowered) -> Any:
    return lo.mul(gradient, lo.shift(lo.scale(lo.mul(y, y), Fraction(-1)), Fraction(1)))


@lowers("aten.addcmul.default")
def _addcmul(lo: Lowering, x: Lowered, y: Lowered, z: Lowered, value: float = 1) -> Any:
    return lo.add(x, lo.mul(y, z), fraction(value))


@lowers("aten.addcdiv.default")
def _addcdiv(lo: Lowering, x: Lowered, y: Lowered, z: Lowered, value: float = 1) -> Any:
    return lo.add(x, lo.div(y, z), fraction(value))


@lowers("aten.lerp.Scalar")
def _lerp(lo: Lowering, x: Lowered, y: Lowered, weight: float) -> Any:
    part = fraction(weight)
    return lo.add(lo.scale(x, 1 - part), y, part)


# -- sums --------------------------------------------------------------------------------------


@lowers("aten.sum.default", "aten.sum.dim_IntList")
def _sum(
    lo: Lowering, x: Lowered, dim: object = None, keepdim: bool = False, dtype: str = ""
) -> Any:
    dims = dimensions(x.shape, dim)
    if 0 in x.shape:
        return Const(Fraction(0), reduced(x.shape, dims, keepdim), lo.expected[0][1])
    counted = x.dtype == "bool" and not isinstance(x, Const)
    if counted and (many := how_many(lo, x, len(dims) == len(x.shape))) is not None:
        return Const(Fraction(many), reduced(x.shape, dims, keepdim), lo.expected[0][1])
    summand = numbers(lo, lo.real(x), "float32") if counted else operand(lo, x)
    total = _total(lo, summand, dims, keepdim)
    count = prod(x.shape[d] for d in dims)
    if counted:
        return lo.whole(total, (0, count + 1), lo.expected[0][1])
    if isinstance(total, Real) and (bounds := ids.bounds(x)) is not None:
        return replace(total, domain=(bounds[0] * count, (bounds[1] - 1) * count + 1))
    return total


@lowers("aten.mean.default", "aten.mean.dim")
def _mean(
    lo: Lowering, x: Lowered, dim: object = None, keepdim: bool = False, dtype: str = ""
) -> Any:
    dims = dimensions(x.shape, dim)
    count = prod(x.shape[d] for d in dims)
    return lo.scale(_total(lo, x, dims, keepdim), Fraction(1, count))


def _total(lo: Lowering, x: Lowered, dims: Sequence[int], keepdim: bool) -> Any:
    """A sum; of entries in another order, of these as they were; one of a log-softmax over its
    classes as that of the scores, less one logarithm times how many there are, as programs write it
    whose classes are divided over ranks."""
    if isinstance(x, Real) and (before := lo.reordered.get(x.number)) and before[1] in dims:
        return lo.sum(before[0], dims, keepdim)
    parts = lo.exponentials.get(x.number) if isinstance(x, Real) else None
    if parts is None or len(x.shape) - 1 not in dims:
        return lo.sum(x, dims, keepdim)
    shifted, _, total, *_ = parts
    log = lo.reshape(lo.unary("log", total), (*x.shape[:-1], 1))
    less = lo.sum(lo.expand(log, x.shape), dims, keepdim)
    return lo.sub(lo.sum(shifted, dims, keepdim), less)


@lowers("aten.amax.default")
def _amax(lo: Lowering, x: Lowered, dim: object = None, keepdim: bool = False) -> Any:
    return largest(lo, x, dimensions(x.shape, dim), keepdim)


# -- products ----------------------------------------------------------------------------------


@lowers("aten.mm.default", "aten.bmm.default")
def _mm(lo: Lowering, x: Lowered, y: Lowered) -> Any:
    _wide(lo)
    return lo.emit("matmul", lo.real(x), lo.real(y))


@lowers("aten.addmm.default", "aten.baddbmm.default")
def _addmm(
    lo: Lowering, bias: Lowered, x: Lowered, y: Lowered, beta: float = 1, alpha: float = 1
) -> Any:
    product = lo.scale(lo.emit("matmul", lo.real(x), lo.real(y)), fraction(alpha))
    if fraction(beta) == 0:
        return product
    return lo.add(product, lo.scale(bias, fraction(beta)))


@lowers("aten.dot.default")
def _dot(lo: Lowering, x: Lowered, y: Lowered) -> Any:
    return lo.sum(lo.mul(x, y), (0,))


@lowers("aten.mv.default")
def _mv(lo: Lowering, x: Lowered, y: Lowered) -> Any:
    (columns,) = y.shape
    product = lo.emit("matmul", lo.real(x), lo.reshape(lo.real(y), (columns, 1)))
    return lo.reshape(product, (x.shape[0],))
