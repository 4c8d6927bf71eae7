"""Statistics of ATen: sums of logarithms, variances, and the norms that are made of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from fractions import Fraction
from math import prod
from typing import Any

from shardproof.engine.errors import Unsupported
from shardproof.frontends.aten.hidden import logsumexp, masked
from shardproof.frontends.aten.lowering import Const, Lowered, Lowering, dimensions, fraction
from shardproof.frontends.aten.rules import lowers

ONE = Fraction(1)


@lowers("aten.logsumexp.default")
def _logsumexp(lo: Lowering, x: Lowered, dim: Sequence[int], keepdim: bool = False) -> Any:
    """log(sum(exp(x - most))) + most."""
    dims = dimensions(x.shape, dim)
    if (scores := masked(lo, x)) is not None:
        return logsumexp(lo, scores, dims, keepdim)
    real = lo.real(x)
    most = lo.emit("amax", real, dim=dims, keepdim=True)
    lo.shifts.add(most.number)
    total = lo.sum(lo.unary("exp", lo.sub(real, most)), dims, True)
    result = lo.add(lo.unary("log", total), most)
    return lo.reshape(result, _after(x.shape, dims, keepdim))


def _after(shape: Sequence[int], dims: Sequence[int], keepdim: bool) -> tuple[int, ...]:
    if keepdim:
        return tuple(1 if i in dims else n for i, n in enumerate(shape))
    return tuple(n for i, n in enumerate(shape) if i not in dims)


@lowers("aten.prod.dim_int")
def _prod(lo: Lowering, x: Lowered, dim: int, keepdim: bool = False, dtype: str = "") -> Any:
    (at,) = dimensions(x.shape, dim)
    if not x.shape[at]:
        raise Unsupported("a product of nothing")
    total: Any = lo.slice(x, at, 0, 1)
    for i in range(1, x.shape[at]):
        total = lo.mul(total, lo.slice(x, at, i, 1))
    return lo.reshape(total, _after(x.shape, (at,), keepdim))


# -- variances -----------------------------------------------------------------------------------


def _moments(
    lo: Lowering, x: Lowered, dim: object, correction: float | None, keepdim: bool
) -> tuple[Any, Any]:
    """Variance and mean; ``correction`` is taken from the number of entries (None: 1)."""
    dims = dimensions(x.shape, dim)
    count = fraction(prod(x.shape[d] for d in dims)) - fraction(
        1 if correction is None else correction
    )
    if count <= 0:
        raise Unsupported(f"a variance of {prod(x.shape[d] for d in dims)} entries")
    mean = lo.mean(x, dims, True)
    centred = lo.sub(x, mean)
    square = lo.sum(lo.mul(centred, centred), dims, True)
    after = _after(x.shape, dims, keepdim)
    return lo.reshape(lo.scale(square, 1 / count), after), lo.reshape(mean, after)


#: What an overload gives of the variance and the mean.
_RESULTS: dict[str, Callable[[Lowering, Any, Any], Any]] = {
    "aten.var.correction": lambda lo, variance, mean: variance,
    "aten.std.correction": lambda lo, variance, mean: lo.unary("sqrt", variance),
    "aten.var_mean.correction": lambda lo, variance, mean: (variance, mean),
    "aten.std_mean.correction": lambda lo, variance, mean: (lo.unary("sqrt", variance), mean),
}


def _of_moments(function: Callable[[Lowering, Any, Any], Any]) -> Callable[..., Any]:
    """The lowering of an overload: the four have the same operands."""

    def lowered(
        lo: Lowering,
        x: Lowered,
        dim: object = None,
        correction: float | None = None,
        keepdim: bool = False,
    ) -> Any:
        return function(lo, *_moments(lo, x, dim, correction, keepdim))

    return lowered


def _of_flag(function: Callable[[Lowering, Any, Any], Any]) -> Callable[..., Any]:
    """As `_of_moments`, where a flag says whether one is taken from the number of entries."""

    def lowered(
        lo: Lowering, x: Lowered, dim: object, unbiased: bool = True, keepdim: bool = False
    ) -> Any:
        return function(lo, *_moments(lo, x, dim, int(unbiased), keepdim))

    return lowered


def _of_all(function: Callable[[Lowering, Any, Any], Any]) -> Callable[..., Any]:
    """As `_of_flag`, of all entries."""

    def lowered(lo: Lowering, x: Lowered, unbiased: bool = True) -> Any:
        return function(lo, *_moments(lo, x, None, int(unbiased), False))

    return lowered


for _overload, _result in _RESULTS.items():
    lowers(_overload)(_of_moments(_result))
    lowers(_overload.replace("correction", "dim"))(_of_flag(_result))
    lowers(_overload.replace("correction", "default"))(_of_all(_result))


# -- norms over the batch ------------------------------------------------------------------------


def _channels(x: Lowered) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """All dimensions but the second, and the shape of one number for every channel."""
    dims = (0, *range(2, len(x.shape)))
    return dims, (1, x.shape[1], *(1 for _ in x.shape[2:]))


def _batch_norm(
    lo: Lowering, x: Lowered, weight: Lowered | None, bias: Lowered | None, eps: float
) -> tuple[Any, Any, Any, Any]:
    """Normalised by its own statistics; mean, one over the deviation and variance by channel."""
    dims, wide = _channels(x)
    mean = lo.mean(x, dims, True)
    centred = lo.sub(x, mean)
    variance = lo.mean(lo.mul(centred, centred), dims, True)
    scale = lo.unary("rsqrt", lo.shift(variance, fraction(eps)))
    y = _affine(lo, lo.mul(centred, scale), weight, bias, wide)
    flat = (x.shape[1],)
    return y, lo.reshape(mean, flat), lo.reshape(scale, flat), lo.reshape(variance, flat)


def _affine(
    lo: Lowering, y: Any, weight: Lowered | None, bias: Lowered | None, wide: tuple[int, ...]
) -> Any:
    if weight is not None:
        y = lo.mul(y, lo.reshape(weight, wide))
    return y if bias is None else lo.add(y, lo.reshape(bias, wide))


def _running(lo: Lowering, old: Lowered, new: Lowered, momentum: float) -> Any:
    part = fraction(momentum)
    return lo.add(lo.scale(old, 1 - part), new, part)


def _with_running(
    lo: Lowering,
    x: Lowered,
    weight: Lowered | None,
    bias: Lowered | None,
    mean: Lowered,
    variance: Lowered,
    eps: float,
) -> Any:
    """Normalised by statistics that are given."""
    _, wide = _channels(x)
    scale = lo.unary("rsqrt", lo.shift(variance, fraction(eps)))
    y = lo.mul(lo.sub(x, lo.reshape(mean, wide)), lo.reshape(scale, wide))
    return _affine(lo, y, weight, bias, wide)


_NOTHING = Const(Fraction(0), (0,), "float32")


@lowers("aten.native_batch_norm.default", "aten._native_batch_norm_legit.no_stats")
def _native_batch_norm(
    lo: Lowering,
    x: Lowered,
    weight: Lowered | None,
    bias: Lowered | None,
    *rest: Any,
) -> Any:
    """Running statistics that are given would be written; an operator that names what it writes
    says so (`_native_batch_norm_legit`)."""
    if len(rest) == 5:
        mean, variance, training, _, eps = rest
    else:
        (training, _, eps), mean, variance = rest, None, None
    if not training:
        if mean is None or variance is None:
            raise Unsupported("batch norm of an evaluation without statistics")
        y = _with_running(lo, x, weight, bias, mean, variance, eps)
        return y, _NOTHING, _NOTHING
    if mean is not None:
        raise Unsupported("batch norm that writes running statistics which nobody names")
    return _batch_norm(lo, x, weight, bias, eps)[:3]


@lowers("aten._native_batch_norm_legit_functional.default")
def _legit(
    lo: Lowering,
    x: Lowered,
    weight: Lowered | None,
    bias: Lowered | None,
    mean: Lowered,
    variance: Lowered,
    training: bool,
    momentum: float,
    eps: float,
) -> Any:
    """The last results: the running statistics, the unbiased variance among them."""
    if not training:
        y = _with_running(lo, x, weight, bias, mean, variance, eps)
        return y, _NOTHING, _NOTHING, mean, variance
    y, own, scale, spread = _batch_norm(lo, x, weight, bias, eps)
    count = prod(x.shape) // x.shape[1]
    if count < 2:
        raise Unsupported("running statistics of one entry")
    unbiased = lo.scale(spread, Fraction(count, count - 1))
    return (
        y,
        own,
        scale,
        _running(lo, mean, own, momentum),
        _running(lo, variance, unbiased, momentum),
    )


@lowers("aten._native_batch_norm_legit_no_training.default")
def _no_training(
    lo: Lowering,
    x: Lowered,
    weight: Lowered | None,
    bias: Lowered | None,
    mean: Lowered,
    variance: Lowered,
    momentum: float,
    eps: float,
) -> Any:
    return _with_running(lo, x, weight, bias, mean, variance, eps), _NOTHING, _NOTHING


@lowers("aten.native_batch_norm_backward.default")
def _batch_norm_backward(
    lo: Lowering,
    gradient: Lowered,
    x: Lowered,
    weight: Lowered | None,
    running_mean: Lowered | None,
    running_variance: Lowered | None,
    mean: Lowered | None,
    scale: Lowered | None,
    train: bool,
    eps: float,
    mask: Sequence[bool],
) -> Any:
    dims, wide = _channels(x)
    if train:
        if mean is None or scale is None:
            raise Unsupported("the gradient of a batch norm without what it kept")
        factor: Any = lo.reshape(scale, wide)
        y = lo.mul(lo.sub(x, lo.reshape(mean, wide)), factor)
    else:
        if running_mean is None or running_variance is None:
            raise Unsupported("the gradient of a batch norm without its statistics")
        inverse = lo.unary("rsqrt", lo.shift(running_variance, fraction(eps)))
        factor = lo.reshape(inverse, wide)
        y = lo.mul(lo.sub(x, lo.reshape(running_mean, wide)), factor)
    inner = gradient if weight is None else lo.mul(gradient, lo.reshape(weight, wide))
    return normalised_gradients(lo, gradient, inner, y, factor, dims, dims if train else (), mask)


def normalised_gradients(
    lo: Lowering,
    gradient: Lowered,
    inner: Lowered,
    y: Lowered,
    scale: Lowered,
    over: tuple[int, ...],
    means: tuple[int, ...],
    mask: Sequence[bool],
) -> tuple[Any, ...]:
    """The gradients of what was normalised to ``y``, of the weight and of the bias.

    Example: of ``F.batch_norm(x, None, None, weight, bias, training=True)`` with x [n, c, h, w],
    ``over`` and ``means`` are both (0, 2, 3); with running statistics ``means`` is ().

    Those of weight and bias are sums over ``over``; mean and variance were taken over ``means``
    (none: they are constants), ``scale`` is 1 / sqrt(variance + eps), ``inner`` the ``gradient``
    times the weight; ``mask``: which of the three are asked for.
    """
    gradients: list[Any] = [None, None, None]
    if mask[0]:
        own: Any = inner
        if means:
            along = lo.mul(y, lo.mean(lo.mul(inner, y), means, True))
            own = lo.sub(lo.sub(inner, lo.mean(inner, means, True)), along)
        gradients[0] = lo.mul(own, scale)
    if mask[1]:
        gradients[1] = lo.sum(lo.mul(gradient, y), over)
    if mask[2]:
        gradients[2] = lo.sum(gradient, over)
    return tuple(gradients)


# -- norms over groups of channels ---------------------------------------------------------------


@lowers("aten.native_group_norm.default")
def _group_norm(
    lo: Lowering,
    x: Lowered,
    weight: Lowered | None,
    bias: Lowered | None,
    n: int,
    channels: int,
    positions: int,
    groups: int,
    eps: float,
) -> Any:
    split = (n, groups, channels // groups * positions)
    rows = lo.reshape(lo.real(x), split)
    mean = lo.mean(rows, (2,), True)
    centred = lo.sub(rows, mean)
    variance = lo.mean(lo.mul(centred, centred), (2,), True)
    scale = lo.unary("rsqrt", lo.shift(variance, fraction(eps)))
    _, wide = _channels(x)
    y = _affine(lo, lo.reshape(lo.mul(centred, scale), x.shape), weight, bias, wide)
    return y, lo.reshape(mean, (n, groups)), lo.reshape(scale, (n, groups))


@lowers("aten.native_group_norm_backward.default")
def _group_norm_backward(
    lo: Lowering,
    gradient: Lowered,
    x: Lowered,
    mean: Lowered,
    scale: Lowered,
    weight: Lowered | None,
    n: int,
    channels: int,
    positions: int,
    groups: int,
    mask: Sequence[bool],
) -> Any:
    split = (n, groups, channels // groups * positions)
    over, wide = _channels(x)
    factor = lo.reshape(scale, (n, groups, 1))
    centred = lo.sub(lo.reshape(lo.real(x), split), lo.reshape(mean, (n, groups, 1)))
    y = lo.mul(centred, factor)
    inner = gradient if weight is None else lo.mul(gradient, lo.reshape(weight, wide))
    first = None
    if mask[0]:
        rows = lo.reshape(lo.real(inner), split)
        (first, _, _) = normalised_gradients(
            lo, rows, rows, y, factor, (), (2,), (True, False, False)
        )
        first = lo.reshape(first, x.shape)
    whole = lo.reshape(y, x.shape)
    second = lo.sum(lo.mul(gradient, whole), over) if mask[1] else None
    third = lo.sum(gradient, over) if mask[2] else None
    return first, second, third
