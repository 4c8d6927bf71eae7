"""Operators of layers and losses as `torch.export` leaves them: whole, where recorded steps have
their parts."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from math import prod
from typing import Any

from shardproof.engine.errors import Unsupported
from shardproof.frontends.aten.choices import _gather, _sort
from shardproof.frontends.aten.convolution import _convolution
from shardproof.frontends.aten.ids import Ids, Narrow, is_own
from shardproof.frontends.aten.ids import ids as known_ids
from shardproof.frontends.aten.losses import MEAN, NONE, _nll_loss
from shardproof.frontends.aten.lowering import (
    Const,
    Lowered,
    Lowering,
    dimensions,
    floating,
    fraction,
)
from shardproof.frontends.aten.movement import _expand
from shardproof.frontends.aten.pointwise import _cast, _pad
from shardproof.frontends.aten.rows import _log_softmax
from shardproof.frontends.aten.rules import lowers, rule_of
from shardproof.frontends.aten.statistics import _group_norm, _native_batch_norm


def _labelled(
    lo: Lowering,
    logs: Lowered,
    target: Lowered,
    weight: Lowered | None,
    reduction: int,
    ignored: int,
) -> Any:
    """The loss of log-probabilities [rows, classes, positions...] (or of one row alone)."""
    if len(logs.shape) == 1:
        row = lo.reshape(logs, (1, *logs.shape)), lo.reshape(target, (1,))
        loss = _nll_loss(lo, *row, weight, reduction, ignored)[0]
        return lo.reshape(loss, target.shape) if reduction == NONE else loss
    if target.shape != (logs.shape[0], *logs.shape[2:]):
        raise Unsupported("a loss of labels that are probabilities")
    rank = len(logs.shape)
    last = logs if rank == 2 else lo.permute(logs, (0, *range(2, rank), 1))
    count = prod(target.shape)
    rows = lo.reshape(last, (count, logs.shape[1])), lo.reshape(target, (count,))
    loss = _nll_loss(lo, *rows, weight, reduction, ignored)[0]
    return lo.reshape(loss, target.shape) if reduction == NONE else loss


@lowers("aten.cross_entropy_loss.default")
def _cross_entropy(
    lo: Lowering,
    x: Lowered,
    target: Lowered,
    weight: Lowered | None = None,
    reduction: int = 1,
    ignored: int = -100,
    smoothing: float = 0.0,
) -> Any:
    """Of labels, or of probabilities of classes; smoothed, each class has its share of the mean of
    all log-probabilities of a row."""
    classes = 1 if len(x.shape) > 1 else 0
    if weight is not None and (smoothing or floating(target.dtype)):
        raise Unsupported("weights of classes beside smoothed labels or probabilities")
    logs = _log_softmax(lo, x, classes)
    part = fraction(max(smoothing, 0.0))  # PyTorch smooths by what is above zero
    if not floating(target.dtype):
        if part:
            logs = lo.add(lo.scale(logs, 1 - part), lo.mean(logs, (classes,), True), part)
        return _labelled(lo, logs, target, weight, reduction, ignored)
    if target.shape != x.shape:
        raise Unsupported("a loss of labels that are probabilities of other classes")
    smooth = lo.shift(lo.scale(target, 1 - part), part / x.shape[classes]) if part else target
    each = lo.scale(lo.sum(lo.mul(smooth, logs), (classes,)), Fraction(-1))
    if reduction == NONE:
        return each
    every = tuple(range(len(each.shape)))
    return lo.mean(each, every) if reduction == MEAN else lo.sum(each, every)


@lowers("aten.nll_loss_nd.default", "aten.nll_loss.default")
def _negative_log(
    lo: Lowering,
    logs: Lowered,
    target: Lowered,
    weight: Lowered | None = None,
    reduction: int = 1,
    ignored: int = -100,
) -> Any:
    return _labelled(lo, logs, target, weight, reduction, ignored)


def _each(x: Lowered, weight: Lowered, *given: Sequence[int]) -> list[tuple[int, ...]]:
    """What is given for every dimension of a convolution, or once for all of them, for each."""
    if len(x.shape) != len(weight.shape):
        raise Unsupported("a convolution without a batch")
    rank = len(x.shape) - 2
    return [tuple(n) * rank if len(n) == 1 else tuple(n) for n in given]


@lowers("aten.conv1d.default", "aten.conv2d.default", "aten.conv3d.default")
def _conv(
    lo: Lowering,
    x: Lowered,
    weight: Lowered,
    bias: Lowered | None = None,
    stride: Sequence[int] = (1,),
    padding: Sequence[int] = (0,),
    dilation: Sequence[int] = (1,),
    groups: int = 1,
) -> Any:
    steps, around, apart = _each(x, weight, stride, padding, dilation)
    return _convolution(lo, x, weight, bias, steps, around, apart, False, (0,) * len(steps), groups)


@lowers("aten.conv1d.padding", "aten.conv2d.padding", "aten.conv3d.padding")
def _conv_padded(
    lo: Lowering,
    x: Lowered,
    weight: Lowered,
    bias: Lowered | None = None,
    stride: Sequence[int] = (1,),
    padding: str = "valid",
    dilation: Sequence[int] = (1,),
    groups: int = 1,
) -> Any:
    """ "valid" pads nothing; "same" as much as the taps reach over, the odd position behind."""
    if padding == "valid":
        return _conv(lo, x, weight, bias, stride, (0,), dilation, groups)
    if padding != "same" or any(n != 1 for n in stride):
        raise Unsupported(f"a convolution padded {padding!r} in steps of {list(stride)}")
    (apart,) = _each(x, weight, dilation)
    over = [d * (n - 1) for d, n in zip(apart, weight.shape[2:], strict=True)]
    behind = [n for size in reversed(over) for n in (0, size % 2)]
    wide = _pad(lo, x, behind) if any(behind) else x
    return _conv(lo, wide, weight, bias, stride, [n // 2 for n in over], dilation, groups)


@lowers(
    "aten.conv_transpose1d.default", "aten.conv_transpose2d.input", "aten.conv_transpose3d.input"
)
def _conv_transposed(
    lo: Lowering,
    x: Lowered,
    weight: Lowered,
    bias: Lowered | None = None,
    stride: Sequence[int] = (1,),
    padding: Sequence[int] = (0,),
    output_padding: Sequence[int] = (0,),
    groups: int = 1,
    dilation: Sequence[int] = (1,),
) -> Any:
    steps, around, apart, more = _each(x, weight, stride, padding, dilation, output_padding)
    return _convolution(lo, x, weight, bias, steps, around, apart, True, more, groups)


@lowers("aten.batch_norm.default")
def _batch_norm(
    lo: Lowering,
    x: Lowered,
    weight: Lowered | None,
    bias: Lowered | None,
    mean: Lowered | None,
    variance: Lowered | None,
    training: bool,
    momentum: float,
    eps: float,
    cudnn: bool = True,
) -> Any:
    """What it writes into running statistics is no result (`frontends.fx.written`)."""
    statistics = (None, None) if training else (mean, variance)
    return _native_batch_norm(lo, x, weight, bias, *statistics, training, momentum, eps)[0]


@lowers("aten.instance_norm.default")
def _instance_norm(
    lo: Lowering,
    x: Lowered,
    weight: Lowered | None,
    bias: Lowered | None,
    mean: Lowered | None,
    variance: Lowered | None,
    own: bool,
    momentum: float,
    eps: float,
    cudnn: bool = True,
) -> Any:
    """Every channel of every sample by its own statistics, or by the running ones."""
    if not own:
        return _native_batch_norm(lo, x, weight, bias, mean, variance, False, momentum, eps)[0]
    if mean is not None or variance is not None:
        raise Unsupported("instance norm that writes running statistics")
    n, channels, *rest = x.shape
    return _group_norm(lo, x, weight, bias, n, channels, prod(rest), channels, eps)[0]


@lowers("aten.group_norm.default")
def _grouped(
    lo: Lowering,
    x: Lowered,
    groups: int,
    weight: Lowered | None = None,
    bias: Lowered | None = None,
    eps: float = 1e-5,
    cudnn: bool = True,
) -> Any:
    n, channels, *rest = x.shape
    return _group_norm(lo, x, weight, bias, n, channels, prod(rest), groups, eps)[0]


# -- views -----------------------------------------------------------------------------------------


@lowers("aten.narrow.default")
def _narrow(lo: Lowering, x: Lowered, dim: int, start: int, size: int) -> Any:
    (at,) = dimensions(x.shape, dim)
    return lo.slice(x, at, start % x.shape[at] if start < 0 else start, size)


@lowers("aten.unflatten.int")
def _unflatten(lo: Lowering, x: Lowered, dim: int, sizes: Sequence[int]) -> Any:
    (at,) = dimensions(x.shape, dim)
    known = -prod(sizes)
    split = [x.shape[at] // known if n == -1 else n for n in sizes]
    return lo.reshape(x, (*x.shape[:at], *split, *x.shape[at + 1 :]))


@lowers("aten.movedim.int")
def _movedim(lo: Lowering, x: Lowered, source: int, target: int) -> Any:
    (old,), (new,) = dimensions(x.shape, source), dimensions(x.shape, target)
    order = [d for d in range(len(x.shape)) if d != old]
    order.insert(new, old)
    return lo.permute(x, tuple(order))


@lowers("aten.mT.default")
def _swapped(lo: Lowering, x: Lowered) -> Any:
    return lo.transpose(x, -2, -1)


@lowers("aten.swapaxes.default")
def _swapaxes(lo: Lowering, x: Lowered, one: int, other: int) -> Any:
    return lo.transpose(x, one, other)


@lowers("aten.view_as.default", "aten.reshape_as.default")
def _view_as(lo: Lowering, x: Lowered, other: Lowered) -> Any:
    return lo.reshape(x, other.shape)


@lowers("aten.expand_as.default")
def _expand_as(lo: Lowering, x: Lowered, other: Lowered) -> Any:
    return _expand(lo, x, other.shape)


@lowers("aten.type_as.default")
def _type_as(lo: Lowering, x: Lowered, other: Lowered) -> Any:
    return _cast(lo, x, other.dtype)


@lowers("aten.to.dtype_layout")
def _to_layout(lo: Lowering, x: Lowered, dtype: str = "", **_: Any) -> Any:
    return _cast(lo, x, dtype)


# -- choices ---------------------------------------------------------------------------------------


@lowers("aten.argsort.default")
def _argsort(lo: Lowering, x: Lowered, dim: int = -1, descending: bool = False) -> Any:
    return _sort(lo, x, dim, descending)[1]


@lowers("aten.take_along_dim.default")
def _take_along(lo: Lowering, x: Lowered, indices: Lowered, dim: int | None = None) -> Any:
    """`gather`, with other dimensions repeated as far as the other operand has more of them."""
    if dim is None:
        x, indices = (lo.reshape(z, (prod(z.shape),)) for z in (x, indices))
        dim = 0
    (at,) = dimensions(x.shape, dim)
    own, others = list(x.shape), list(indices.shape)
    for d in range(len(own)):
        if d != at:
            own[d] = others[d] = max(own[d], others[d])
    return _gather(lo, lo.expand(x, tuple(own)), at, lo.expand(indices, tuple(others)))


def _may_be_more(lo: Lowering, own: Ids, classes: int) -> bool:
    """Whether the single side's ids, as they are given, may be more than there are classes."""
    given = own.origin.number in lo.origins and is_own(own, classes)
    return given and lo.unwritten is None and own.span()[1] > classes


@lowers("aten.one_hot.default")
def _one_hot(lo: Lowering, ids: Lowered, classes: int = -1) -> Any:
    """1 at the place of each id, as it is scattered into zeros; PyTorch takes no other ids than
    classes, so the single side's are among them."""
    if classes < 1:
        raise Unsupported("one_hot of as many classes as there are ids")
    own = known_ids(ids)
    if own is not None and _may_be_more(lo, own, classes):
        raise Narrow(own.origin.number, classes)
    shape = (*ids.shape, classes)
    lo.expected = [(shape, "int64")]
    places = lo.reshape(ids, (*ids.shape, 1))
    scatter = rule_of("aten.scatter.value")
    return scatter(lo, Const(Fraction(0), shape, "int64"), -1, places, 1)  # type: ignore[misc]
