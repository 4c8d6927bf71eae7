"""Operators of graphs that are no ATen ones: vLLM's fused ones, and HLO's under a converter.

Operators that write their operands (`_C.*`) give what was written, in order.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from math import prod, sqrt
from typing import Any

from shardproof.engine.errors import ShapeMismatch, Unsupported
from shardproof.frontends.aten.lookups import rows_of
from shardproof.frontends.aten.lowering import (
    Const,
    Lowered,
    Lowering,
    Operand,
    dimensions,
    fraction,
)
from shardproof.frontends.aten.rules import lowers


def _rms(lo: Lowering, x: Lowered, weight: Lowered, eps: float, dim: int) -> Any:
    mean = lo.mean(lo.mul(x, x), (dim,), True)
    scale = lo.unary("rsqrt", lo.shift(mean, fraction(eps)))
    wide = tuple(n if d == dim else 1 for d, n in enumerate(x.shape))
    return lo.mul(lo.mul(x, scale), lo.reshape(weight, wide))


@lowers("_C.rms_norm.default")
def _rms_norm(
    lo: Lowering, result: Lowered, input: Lowered, weight: Lowered, epsilon: float
) -> Any:
    return _rms(lo, input, weight, epsilon, len(input.shape) - 1)


@lowers("_C.fused_add_rms_norm.default")
def _add_rms_norm(
    lo: Lowering, input: Lowered, residual: Lowered, weight: Lowered, epsilon: float
) -> Any:
    total = lo.add(input, residual)
    return _rms(lo, total, weight, epsilon, len(input.shape) - 1), total


@lowers("_C.silu_and_mul.default")
def _silu_and_mul(lo: Lowering, out: Lowered, input: Lowered) -> Any:
    last = len(input.shape) - 1
    half = input.shape[last] // 2
    gate, up = lo.slice(input, last, 0, half), lo.slice(input, last, half, half)
    return lo.mul(lo.unary("silu", gate), up)


@lowers("_C.rotary_embedding.default")
def _rotary(
    lo: Lowering,
    positions: Lowered,
    query: Lowered,
    key: Lowered,
    head_size: int,
    cos_sin_cache: Lowered,
    is_neox: bool,
) -> Any:
    """Halves of every head turned by the angle of the token's position."""
    if not is_neox or cos_sin_cache.shape[1] != head_size:
        raise Unsupported("rotary embedding of consecutive pairs, or of a part of a head")
    half = head_size // 2
    rows = lo.real(rows_of(lo, cos_sin_cache, positions))
    tokens = positions.shape[0]
    cos, sin = (
        lo.reshape(lo.slice(rows, 1, start, half), (tokens, 1, half)) for start in (0, half)
    )

    def turned(x: Lowered) -> Any:
        heads = lo.reshape(x, (tokens, x.shape[1] // head_size, head_size))
        a, b = lo.slice(heads, 2, 0, half), lo.slice(heads, 2, half, half)
        parts = [lo.sub(lo.mul(a, cos), lo.mul(b, sin)), lo.add(lo.mul(b, cos), lo.mul(a, sin))]
        return lo.reshape(lo.concat(parts, 2), x.shape)

    return turned(query), turned(key)


@lowers("vllm.unified_attention_with_output.default")
def _unified_attention(
    lo: Lowering, query: Lowered, key: Lowered, value: Lowered, output: Lowered, layer_name: str
) -> Any:
    """Attention of an inference engine, with a cache that the graph does not have: [t, h, d]."""
    if lo.standins is None:
        raise Unsupported("attention over a cache that is not in the graph")
    lo.standins.setdefault(
        "vllm.unified_attention_with_output",
        "is read as softmax attention over all tokens, scaled by the root of the head's size",
    )
    tokens, heads, size = query.shape
    groups = key.shape[1]
    if heads % groups:
        raise ShapeMismatch(f"{heads} query heads over {groups} key heads")

    q = lo.real(lo.reshape(query, (tokens, groups, heads // groups, size)))
    scores = lo.emit("einsum", q, lo.real(key), equation="qghd,kgd->ghqk")
    p = lo.emit("softmax", lo.real(lo.scale(scores, fraction(1 / sqrt(size)))), dim=3)
    result = lo.emit("einsum", p, lo.real(value), equation="ghqk,kgd->qghd")
    return lo.reshape(result, query.shape)


# -- HLO under a converter ---------------------------------------------------------------------


@lowers("hlo.dot")
def _dot(
    lo: Lowering,
    x: Lowered,
    y: Lowered,
    summed: Sequence[int],
    others: Sequence[int],
    batch: Sequence[int],
    rows: Sequence[int],
) -> Any:
    """Batch dimensions first, then the left operand's, then the right one's."""
    left = [""] * len(x.shape)
    right = [""] * len(y.shape)
    letters = iter("abcdefghijklmnopqrstuvwxyz")
    for pairs in (zip(batch, rows, strict=True), zip(summed, others, strict=True)):
        for i, j in pairs:
            left[i] = right[j] = next(letters)
    left = [c or next(letters) for c in left]
    right = [c or next(letters) for c in right]
    first = [left[i] for i in batch]
    free = [c for i, c in enumerate(left) if i not in (*batch, *summed)]
    last = [c for j, c in enumerate(right) if j not in (*rows, *others)]
    equation = f"{''.join(left)},{''.join(right)}->{''.join([*first, *free, *last])}"
    return lo.emit("einsum", lo.real(x), lo.real(y), equation=equation)


@lowers("hlo.broadcast")
def _broadcast(lo: Lowering, x: Operand, dims: Sequence[int], shape: Sequence[int]) -> Any:
    if isinstance(x, (int, float)):
        return Const(fraction(x), tuple(shape), lo.expected[0][1])
    wide = [1] * len(shape)
    for i, d in enumerate(dims):
        wide[d] = x.shape[i]
    if list(dims) != sorted(dims):
        raise Unsupported("a broadcast that permutes")
    return lo.expand(lo.reshape(x, tuple(wide)), tuple(shape))


@lowers("hlo.select")
def _select(lo: Lowering, mask: Lowered, x: Lowered, y: Lowered) -> Any:
    """The mask is 0 or 1: m x + (1 - m) y."""
    real = lo.real(mask)
    rest = lo.shift(lo.scale(real, Fraction(-1)), Fraction(1))
    return lo.add(lo.mul(x, real), lo.mul(rest, y))


@lowers("hlo.reduce_max")
def _reduce_max(lo: Lowering, x: Lowered, dim: int) -> Any:
    return lo.emit("amax", lo.real(x), dim=dimensions(x.shape, dim), keepdim=False)


@lowers("hlo.logistic")
def _logistic(lo: Lowering, x: Lowered) -> Any:
    return lo.unary("sigmoid", x)


@lowers("hlo.AwsNeuronRmsNorm")
def _neuron_rms_norm(lo: Lowering, x: Lowered, weight: Lowered, eps: float) -> Any:
    """Over the first dimension, as the weight is long."""
    if weight.shape != x.shape[:1]:
        raise Unsupported("a norm over other than the first dimension")
    return _rms(lo, x, weight, eps, 0)


@lowers("hlo.gather")
def _gather(
    lo: Lowering,
    x: Lowered,
    ids: Lowered,
    offsets: Sequence[int],
    collapsed: Sequence[int],
    mapped: Sequence[int],
    vector: int,
    sizes: Sequence[int],
) -> Any:
    """Rows by ids that exist (HLO clamps others)."""
    whole = [1, *x.shape[1:]]
    places = [list(offsets), list(collapsed), list(mapped), list(sizes)]
    if places != [list(range(1, len(x.shape))), [0], [0], whole] or vector != len(ids.shape):
        raise Unsupported("a gather of other boxes than whole rows")
    flat = lo.reshape(lo.real(x), (x.shape[0], prod(x.shape[1:])))
    return lo.reshape(lo.real(rows_of(lo, flat, ids)), (*ids.shape, *x.shape[1:]))
