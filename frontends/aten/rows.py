"""Operators over rows of ATen: norms, softmax, and their derivatives."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from math import prod
from typing import Any

from shardproof.engine.errors import Unsupported
from shardproof.frontends.aten import stretched
from shardproof.frontends.aten.hidden import log_softmax, masked, opened, softmax
from shardproof.frontends.aten.losses import Picked, Plus, Unmoved
from shardproof.frontends.aten.lowering import (
    Const,
    Lowered,
    Lowering,
    Real,
    dimensions,
    fraction,
)
from shardproof.frontends.aten.masks import flags
from shardproof.frontends.aten.merges import gathered_logarithms
from shardproof.frontends.aten.one_hot import spread_by
from shardproof.frontends.aten.rules import lowers
from shardproof.frontends.aten.scores import Hidden
from shardproof.frontends.aten.statistics import _logsumexp, normalised_gradients

ONE = Fraction(1)


@lowers("aten._softmax.default")
def _softmax(lo: Lowering, x: Lowered, dim: int, half: bool = False) -> Any:
    (at,) = dimensions(x.shape, dim)
    if (scores := masked(lo, x)) is not None:
        return softmax(lo, scores, at, safe=False)
    real = lo.real(x)
    if gathered_logarithms(lo, real):
        total = _logsumexp(lo, real, [at], True)
        return lo.unary("exp", lo.sub(real, total))
    if (shown := stretched.softmax(lo, real, at)) is not None:
        return shown
    y = lo.emit("softmax", real, dim=at)
    if real.number in lo.hides:
        lo.zeros[y.number] = lo.hides[real.number][1]
    return y


@lowers("aten._safe_softmax.default")
def _safe_softmax(lo: Lowering, x: Lowered, dim: int, dtype: str | None = None) -> Any:
    """A softmax that is 0 in rows of which everything is masked."""
    if (scores := masked(lo, x)) is not None:
        (at,) = dimensions(x.shape, dim)
        return softmax(lo, scores, at, safe=True)
    return _softmax(lo, x, dim)


def _softmax_backward(
    lo: Lowering, gradient: Lowered, y: Lowered, dim: int, dtype: str = ""
) -> Any:
    at = dimensions(y.shape, dim)
    weighted = lo.mul(gradient, y)
    made = lo.sub(weighted, lo.mul(y, lo.sum(weighted, at, True)))
    if isinstance(y, Real) and isinstance(made, Real) and y.number in lo.zeros:
        lo.zeros[made.number] = lo.zeros[y.number]
    return made


@lowers("aten._log_softmax.default")
def _log_softmax(lo: Lowering, x: Lowered, dim: int, half: bool = False) -> Any:
    at = dimensions(x.shape, dim)
    if (scores := masked(lo, opened(lo, x))) is not None:
        return log_softmax(lo, scores, at[0], x if isinstance(x, Real) else None)
    real = lo.real(x)
    most = lo.emit("amax", real, dim=at, keepdim=True)
    lo.shifts.add(most.number)
    shifted = lo.real(lo.sub(real, most))
    e = lo.unary("exp", shifted)
    total = lo.real(lo.sum(e, at, True))
    y = lo.sub(shifted, lo.unary("log", total))
    if at == (len(x.shape) - 1,):
        flat = (lo.reshape(total, x.shape[:-1]), real, lo.reshape(most, x.shape[:-1]))
        lo.exponentials[y.number] = (shifted, e, *flat)
    return y


@lowers("aten._log_softmax_backward_data.default")
def _log_softmax_backward(
    lo: Lowering, gradient: Lowered, y: Lowered, dim: int, dtype: str = ""
) -> Any:
    at = dimensions(y.shape, dim)
    y, kept = (y.scores, y.kept) if isinstance(y, Hidden) else (y, 1)
    gathered = lo.spread.get(gradient.number) if isinstance(gradient, Real) else None
    chosen = gathered or spread_by(lo, gradient)
    if chosen is not None and at == (len(y.shape) - 1,):
        # Of one entry of each row: as that of a loss which picks it.
        ids, each, other = chosen
        picked = Picked(lo.scale(each, Fraction(-1)), ids, y.shape, gradient.dtype)
        gradient = picked if other is None else Plus(picked, other, y.shape, gradient.dtype)
    if isinstance(gradient, Unmoved):
        return gradient.through_log_softmax(lo, y)
    softmax_of = lo.mul(lo.unary("exp", y), kept)
    return lo.sub(gradient, lo.mul(softmax_of, lo.sum(gradient, at, True)))


def _last(x: Lowered, shape: Sequence[int]) -> tuple[int, ...]:
    return tuple(range(len(x.shape) - len(shape), len(x.shape)))


@lowers("aten.native_layer_norm.default")
def _layer_norm(
    lo: Lowering,
    x: Lowered,
    shape: Sequence[int],
    weight: Lowered | None,
    bias: Lowered | None,
    eps: float,
) -> Any:
    dims = _last(x, shape)
    mean = lo.mean(x, dims, True)
    centred = lo.sub(x, mean)
    variance = lo.mean(lo.mul(centred, centred), dims, True)
    scale = lo.unary("rsqrt", lo.shift(variance, fraction(eps)))
    y = lo.mul(centred, scale)
    if weight is not None:
        y = lo.mul(y, weight)
    if bias is not None:
        y = lo.add(y, bias)
    return y, mean, scale


@lowers("aten.native_layer_norm_backward.default")
def _layer_norm_backward(
    lo: Lowering,
    gradient: Lowered,
    x: Lowered,
    shape: Sequence[int],
    mean: Lowered,
    scale: Lowered,
    weight: Lowered | None,
    bias: Lowered | None,
    mask: Sequence[bool],
) -> Any:
    dims = _last(x, shape)
    rest = tuple(range(len(x.shape) - len(shape)))
    y = lo.mul(lo.sub(x, mean), scale)
    inner = gradient if weight is None else lo.mul(gradient, weight)
    return normalised_gradients(lo, gradient, inner, y, scale, rest, dims, mask)


@lowers("apex.fused_layer_norm_affine_fwd.default")
def _apex_layer_norm(
    lo: Lowering, x: Lowered, weight: Lowered, bias: Lowered, shape: Sequence[int], eps: float
) -> Any:
    """Statistics are flat: one for every row."""
    y, mean, scale = _layer_norm(lo, x, shape, weight, bias, eps)
    rows = (prod(mean.shape),)
    return y, lo.reshape(mean, rows), lo.reshape(scale, rows)


@lowers("apex.fused_layer_norm_affine_bwd.default")
def _apex_layer_norm_backward(
    lo: Lowering,
    gradient: Lowered,
    mean: Lowered,
    scale: Lowered,
    x: Lowered,
    shape: Sequence[int],
    weight: Lowered,
    bias: Lowered,
    eps: float,
) -> Any:
    """Statistics are flat, as the forward operator gives them."""
    rows = (*x.shape[: len(x.shape) - len(shape)], *(1 for _ in shape))
    mean, scale = lo.reshape(mean, rows), lo.reshape(scale, rows)
    return _layer_norm_backward(lo, gradient, x, shape, mean, scale, weight, bias, (True,) * 3)


@lowers("tg.log_tensor.default")
def _logged(lo: Lowering, x: Lowered, name: str) -> Any:
    """An exporter's mark, which changes nothing."""
    return x


@lowers("tg.inplace_log_tensor.default")
def _logged_in_place(
    lo: Lowering, s: str, _t_base_index: int, _all_bases: Sequence[Lowered]
) -> Any:
    return _all_bases[0]


@lowers("aten.native_dropout.default")
def _dropout(lo: Lowering, x: Lowered, p: float, train: bool | None = True) -> Any:
    """What is kept is divided by 1 - p; the mask is an input that both sides share."""
    rate = fraction(p)
    if not train or rate == 0:
        return x, Const(ONE, x.shape, "bool")
    if not 0 < rate < 1:
        raise Unsupported(f"dropout of {p}")
    if lo.mask is None:
        raise Unsupported("a random operator")
    mask = lo.hold(lo.mask(x.shape))
    return lo.emit("dropout", lo.real(x), mask, p=rate), flags(mask)


@lowers("aten._fused_rms_norm.default")
def _rms_norm(
    lo: Lowering, x: Lowered, shape: Sequence[int], weight: Lowered | None, eps: float | None
) -> Any:
    """Rows over the root of their mean square and an epsilon: without one, the gap behind 1 of the
    type in which it is computed, which is float32 for shorter ones."""
    dims = _last(x, shape)
    if eps is None:
        eps = 2.0 ** (-52 if x.dtype == "float64" else -23)
    scale = lo.unary("rsqrt", lo.shift(lo.mean(lo.mul(x, x), dims, True), fraction(eps)))
    y = lo.mul(x, scale)
    return (y if weight is None else lo.mul(y, weight)), scale


@lowers("aten._fused_rms_norm_backward.default")
def _rms_norm_backward(
    lo: Lowering,
    gradient: Lowered,
    x: Lowered,
    shape: Sequence[int],
    scale: Lowered,
    weight: Lowered | None,
    mask: Sequence[bool],
) -> Any:
    dims = _last(x, shape)
    rest = tuple(range(len(x.shape) - len(shape)))
    y = lo.mul(x, scale)
    inner = gradient if weight is None else lo.mul(gradient, weight)
    gradients: list[Any] = [None, None]
    if mask[0]:
        gradients[0] = lo.mul(
            scale, lo.sub(inner, lo.mul(y, lo.mean(lo.mul(inner, y), dims, True)))
        )
    if mask[1]:
        gradients[1] = lo.sum(lo.mul(gradient, y), rest)
    return tuple(gradients)
