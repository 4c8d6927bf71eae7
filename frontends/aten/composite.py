"""Operators that ATen itself makes of others, as `torch.export` leaves them in a program."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from math import inf, prod
from typing import Any

from shardproof.engine.errors import ShapeMismatch, Unsupported
from shardproof.frontends.aten.attention import _attention, _where
from shardproof.frontends.aten.einsums import _einsum
from shardproof.frontends.aten.lowering import (
    Const,
    Lowered,
    Lowering,
    Shape,
    broadcast,
    dimensions,
)
from shardproof.frontends.aten.masks import _leaky_relu, _vector_norm, inverse, step
from shardproof.frontends.aten.pointwise import _cast
from shardproof.frontends.aten.products import _cdist
from shardproof.frontends.aten.rearranged import repeat_each
from shardproof.frontends.aten.rows import (
    _dropout,
    _layer_norm,
    _log_softmax,
    _rms_norm,
    _softmax,
)
from shardproof.frontends.aten.rules import lowers


@lowers("aten.linear.default")
def _linear(lo: Lowering, x: Lowered, weight: Lowered, bias: Lowered | None = None) -> Any:
    *lead, inner = x.shape
    rows = lo.real(lo.reshape(x, (prod(lead), inner)))
    y = lo.emit("matmul", rows, lo.real(lo.transpose(weight, 0, 1)))
    y = lo.reshape(y, (*lead, weight.shape[0]))
    return y if bias is None else lo.add(y, bias)


@lowers("aten.matmul.default")
def _matmul(lo: Lowering, x: Lowered, y: Lowered) -> Any:
    """Of matrices, of stacks of them (one of a stack beside many of the other is every one's), and
    of vectors."""
    if len(x.shape) == len(y.shape) >= 2 and x.shape[:-2] == y.shape[:-2]:
        return lo.emit("matmul", lo.real(x), lo.real(y))
    if len(x.shape) > 2 and len(y.shape) == 2:
        *lead, inner = x.shape
        rows = lo.real(lo.reshape(x, (prod(lead), inner)))
        return lo.reshape(lo.emit("matmul", rows, lo.real(y)), (*lead, y.shape[1]))
    if not x.shape or not y.shape:
        raise Unsupported(f"matmul of {list(x.shape)} and {list(y.shape)}")
    left, right = "b" if len(x.shape) == 1 else "...ab", "b" if len(y.shape) == 1 else "...bc"
    kept = ("a" if len(x.shape) > 1 else "") + ("c" if len(y.shape) > 1 else "")
    many = "..." if max(len(x.shape), len(y.shape)) > 1 else ""
    return _einsum(lo, f"{left},{right}->{many}{kept}", (x, y))


@lowers("aten.layer_norm.default")
def _normed(
    lo: Lowering,
    x: Lowered,
    shape: Sequence[int],
    weight: Lowered | None = None,
    bias: Lowered | None = None,
    eps: float = 1e-5,
    cudnn: bool = True,
) -> Any:
    return _layer_norm(lo, x, shape, weight, bias, eps)[0]


@lowers("aten.rms_norm.default")
def _root_mean_square(
    lo: Lowering,
    x: Lowered,
    shape: Sequence[int],
    weight: Lowered | None = None,
    eps: float | None = None,
) -> Any:
    return _rms_norm(lo, x, shape, weight, eps)[0]


@lowers("aten.softmax.int")
def _soft(lo: Lowering, x: Lowered, dim: int, dtype: str | None = None) -> Any:
    return _softmax(lo, x, dim)


@lowers("aten.log_softmax.int")
def _log_soft(lo: Lowering, x: Lowered, dim: int, dtype: str | None = None) -> Any:
    return _log_softmax(lo, x, dim)


@lowers("aten.dropout.default")
def _dropped(lo: Lowering, x: Lowered, p: float, train: bool) -> Any:
    return _dropout(lo, x, p, train)[0]


def _led(lo: Lowering, x: Lowered, lead: Shape, flat: Shape) -> Any:
    """[..., n, m] with what stands before, broadcast to ``lead``, in the dimensions ``flat``."""
    wide = lo.expand(x, (*lead, *x.shape[-2:])) if x.shape[:-2] != lead else x
    return lo.reshape(wide, (*flat, *x.shape[-2:]))


@lowers("aten.scaled_dot_product_attention.default")
def _attended(
    lo: Lowering,
    q: Lowered,
    k: Lowered,
    v: Lowered,
    attn_mask: Lowered | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Any:
    """Queries [..., tokens, size]; what stands before these broadcasts, and is batch and heads.
    With ``enable_gqa`` each head of keys and values is that of as many heads of queries, one after
    the other.  A mask of truth values says which keys are seen, any other is added to the
    scores."""
    if min(len(x.shape) for x in (q, k, v)) < 2:
        raise Unsupported("attention of other than [..., tokens, size]")
    if enable_gqa and len(q.shape) == len(k.shape) > 2 and q.shape[-3] % k.shape[-3] == 0:
        heads = len(q.shape) - 3
        k, v = (repeat_each(lo, x, q.shape[-3] // x.shape[-3], heads) for x in (k, v))
    lead = broadcast(*(x.shape[:-2] for x in (q, k, v)))
    if len(lead) != 2:
        flat = (prod(lead[:-1]), lead[-1]) if len(lead) > 2 else (*lead, *(1, 1)[len(lead) :])
        one = [_led(lo, x, lead, flat) for x in (q, k, v)]
        if attn_mask is not None and len(attn_mask.shape) > 2:
            attn_mask = _led(lo, attn_mask, lead, flat)
        ((shape, dtype),) = lo.expected
        lo.expected = [((*flat, *shape[-2:]), dtype)]
        made = _attended(lo, one[0], one[1], one[2], attn_mask, dropout_p, is_causal, scale)
        return lo.reshape(made, shape)
    q, k, v = (_led(lo, x, lead, lead) for x in (q, k, v))
    result = lo.expected[0]
    if attn_mask is not None and attn_mask.dtype == "bool":
        lo.expected = [(attn_mask.shape, q.dtype)]
        attn_mask = _where(lo, attn_mask, Const(Fraction(0), (), q.dtype), -inf)
    lo.expected = [result, ((), "float32")]
    return _attention(lo, q, k, v, dropout_p, is_causal, attn_mask, scale)[0]


@lowers("aten.flatten.using_ints")
def _flatten(lo: Lowering, x: Lowered, start: int = 0, end: int = -1) -> Any:
    (first,), (last,) = dimensions(x.shape, start), dimensions(x.shape, end)
    joined = prod(x.shape[first : last + 1])
    return lo.reshape(x, (*x.shape[:first], joined, *x.shape[last + 1 :]))


@lowers("aten.chunk.default")
def _chunk(lo: Lowering, x: Lowered, chunks: int, dim: int = 0) -> Any:
    (at,) = dimensions(x.shape, dim)
    total = x.shape[at]
    size = -(-total // chunks)
    if size < 1:
        raise ShapeMismatch(f"{chunks} parts of {total} positions")
    starts = range(0, total, size)
    return tuple(lo.slice(x, at, s, min(size, total - s)) for s in starts)


@lowers("aten.unbind.int")
def _unbind(lo: Lowering, x: Lowered, dim: int = 0) -> Any:
    (at,) = dimensions(x.shape, dim)
    left = (*x.shape[:at], *x.shape[at + 1 :])
    return tuple(lo.reshape(lo.slice(x, at, i, 1), left) for i in range(x.shape[at]))


@lowers("aten.numpy_T.default")
def _turned(lo: Lowering, x: Lowered) -> Any:
    return lo.permute(x, tuple(reversed(range(len(x.shape)))))


@lowers("aten.to.dtype")
def _to(lo: Lowering, x: Lowered, dtype: str, *_: Any, **__: Any) -> Any:
    return _cast(lo, x, dtype)


@lowers("aten.to.device")
def _to_device(lo: Lowering, x: Lowered, *given: Any, dtype: str = "", **_: Any) -> Any:
    """To a device, which archives leave out and others may name, and an element type behind it."""
    texts = [text for text in given[:2] if isinstance(text, str)]
    return _cast(lo, x, dtype or texts[-1])


@lowers("aten.cdist.default")
def _distances(
    lo: Lowering, x: Lowered, y: Lowered, p: float = 2.0, compute_mode: int | None = None
) -> Any:
    return _cdist(lo, x, y, p, compute_mode)


@lowers("aten.dist.default")
def _distance(lo: Lowering, x: Lowered, y: Lowered, p: float = 2.0) -> Any:
    """The norm of all that two tensors differ in."""
    return _vector_norm(lo, lo.sub(x, y), p)


@lowers("aten.cross.default")
def _crossed_somewhere(lo: Lowering, x: Lowered, y: Lowered, dim: int | None = None) -> Any:
    """Along the first dimension of size 3 where none is named."""
    if dim is None:
        dim = next((d for d, n in enumerate(x.shape) if n == 3), -1)
    return _crossed(lo, x, y, dim)


@lowers("aten.linalg_cross.default")
def _crossed(lo: Lowering, x: Lowered, y: Lowered, dim: int = -1) -> Any:
    """(x1 y2 - x2 y1, x2 y0 - x0 y2, x0 y1 - x1 y0) of vectors along a dimension."""
    (at,) = dimensions(x.shape, dim)
    if x.shape[at] != 3 or y.shape[at] != 3:
        raise ShapeMismatch(f"a cross product of {list(x.shape)} along {at}")
    a, b = ([lo.slice(v, at, i, 1) for i in range(3)] for v in (x, y))
    parts = [lo.sub(lo.mul(a[i], b[j]), lo.mul(a[j], b[i])) for i, j in ((1, 2), (2, 0), (0, 1))]
    return lo.concat(parts, at)


@lowers("aten.heaviside.default")
def _heaviside(lo: Lowering, x: Lowered, values: Lowered) -> Any:
    """1 where x is positive, 0 where it is negative, and ``values`` where it is 0."""
    above, below = step(lo, x), step(lo, lo.scale(x, Fraction(-1)))
    return lo.add(above, lo.mul(values, inverse(lo, lo.add(above, below))))


@lowers("aten.nanmean.default")
def _nanmean(
    lo: Lowering, x: Lowered, dim: object = None, keepdim: bool = False, *, dtype: str = ""
) -> Any:
    """Real numbers are numbers: all of them count."""
    return lo.mean(lo.real(x), dimensions(x.shape, dim), keepdim)


@lowers("aten.alpha_dropout.default")
def _alpha_dropped(lo: Lowering, x: Lowered, p: float, train: bool) -> Any:
    if train and p:
        raise Unsupported("alpha dropout")
    return x


@lowers("aten.rrelu.default")
def _random_slope(
    lo: Lowering,
    x: Lowered,
    lower: float = 0.125,
    upper: float = 1 / 3,
    training: bool = False,
    generator: object = None,
) -> Any:
    """Outside of training the slope is the middle of both bounds."""
    if training:
        raise Unsupported("a slope that is drawn")
    return _leaky_relu(lo, x, (lower + upper) / 2)
