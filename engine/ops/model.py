"""Operators of transformer models: projections, attention, normalisation, losses, embeddings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import Any

from shardproof.engine.algebra.affine import Affine
from shardproof.engine.errors import ShapeMismatch, Unsupported
from shardproof.engine.ops.basic import ONE
from shardproof.engine.ops.declare import (
    Attrs,
    dimension,
    integer,
    number,
    operator,
    position,
    sized,
)
from shardproof.engine.ops.primitives import (
    Interpreter,
    expand_as,
    held_constant,
    labels,
    multiply,
    scale,
    sum_dims,
)

R = Interpreter[Any]


@operator("linear", "... k+, n k+ -> ... n", "x weight bias?")
def _linear(r: R, inputs: Sequence[Any], attrs: Attrs) -> list[Any]:
    """x w^T + bias."""
    x, w = inputs[0], inputs[1]
    rank = len(sized(r, x, 1, "the operand of linear"))
    if len(r.shape(w)) != 2 or r.shape(x)[-1] != r.shape(w)[1]:
        raise ShapeMismatch(f"linear of {list(r.shape(x))} with weight {list(r.shape(w))}")
    lead = labels(rank - 1)
    y = r.einsum(f"{lead}y,zy->{lead}z", x, w)
    if len(inputs) == 3:
        y = r.combine([y, expand_as(r, inputs[2], r.shape(y))], [ONE, ONE], Fraction(0))
    return [y]


@operator("matmul", "... m k+, ... k+ n -> ... m n", "x y")
def _matmul(r: R, inputs: Sequence[Any], attrs: Attrs) -> list[Any]:
    """Products of matrices, as in PyTorch: what stands before their dimensions is broadcast, an
    operand of one dimension is a row or a column that the result does not have."""
    x, y = inputs
    a, b = sized(r, x, 1, "a factor of matmul"), sized(r, y, 1, "a factor of matmul")
    if a[-1] != b[max(len(b) - 2, 0)]:
        raise ShapeMismatch(f"matmul of {list(a)} and {list(b)}")
    row, column = "x" if len(a) > 1 else "", "z" if len(b) > 1 else ""
    axes = labels(max(len(a), len(b), 2) - 2)
    shapes = a[:-2], b[:-2]
    sizes: dict[str, int] = {}
    for shape in shapes:
        for label, size in zip(axes[len(axes) - len(shape) :], shape, strict=True):
            if size != 1 and sizes.get(label, 1) != 1 and sizes[label] != size:
                raise ShapeMismatch(f"matmul of {list(a)} and {list(b)}")
            sizes[label] = sizes[label] if sizes.get(label, 1) != 1 else size
    x, left = _without_repeated(r, x, shapes[0], axes, sizes)
    y, right = _without_repeated(r, y, shapes[1], axes, sizes)
    return [r.einsum(f"{left}{row}y,{right}y{column}->{axes}{row}{column}", x, y)]


def _without_repeated(
    r: R, x: Any, lead: tuple[int, ...], axes: str, sizes: Mapping[str, int]
) -> tuple[Any, str]:
    """A factor without those of its leading dimensions that are broadcast, and the labels of the
    others."""
    names = axes[len(axes) - len(lead) :]
    kept = [i for i, name in enumerate(names) if lead[i] == sizes[name]]
    if len(kept) < len(lead):
        x = r.reshape(x, (*(lead[i] for i in kept), *r.shape(x)[len(lead) :]))
    return x, "".join(names[i] for i in kept)


@operator(
    "create_mask", "b s#, b s# h -> 1 1 s# s#", "ids hidden", data=(0, 1), differentiable=False
)
def _create_mask(r: R, inputs: Sequence[Any], attrs: Attrs) -> list[Any]:
    """ids, h -> [1, 1, s, s]: minus infinity above the diagonal."""
    length = sized(r, inputs[0], 2, "what a mask is made for")[1]
    return [r.reshape(r.causal(length, length), (1, 1, length, length))]


def _apply_mask_backward(
    r: R, inputs: Sequence[Any], gradients: Sequence[Any], attrs: Attrs
) -> list[Any]:
    return [gradients[0], None]


@operator(
    "apply_mask",
    "b h q k, q k -> b h q k",
    "x mask",
    backward=_apply_mask_backward,
    data=(1,),
)
def _apply_mask(r: R, inputs: Sequence[Any], attrs: Attrs) -> list[Any]:
    """x + mask, where the mask is 0 or minus infinity."""
    x, mask = inputs
    return [r.combine([x, expand_as(r, mask, r.shape(x))], [ONE, ONE], Fraction(0))]


def _order(r: R, x: Any) -> Any:
    """1 where the column of a matrix does not come after its row, else 0, in the shape of ``x``."""
    shape = r.shape(x)
    if len(shape) < 2:
        raise ShapeMismatch(f"rows and columns of a tensor of shape {list(shape)}")
    return expand_as(r, r.order(*shape[-2:]), shape)


@operator("tril", "b q# k# -> b q# k#", "x")
def _tril(r: R, inputs: Sequence[Any], attrs: Attrs) -> list[Any]:
    """x, and 0 where the column comes after the row."""
    return [multiply(r, inputs[0], _order(r, inputs[0]))]


@operator("fill_after", "b q# k# -> b q# k#", "x", "value:number")
def _fill_after(r: R, inputs: Sequence[Any], attrs: Attrs) -> list[Any]:
    """x, and ``value`` where the column comes after the row: a finite mask is the number that it
    is."""
    mask, value = _order(r, inputs[0]), number(attrs, "value")
    return [r.combine([multiply(r, inputs[0], mask), mask], [ONE, -value], value)]


def keep_dim(r: R, reduced: Any, shape: tuple[int, ...], dim: int) -> Any:
    """A tensor reduced over ``dim``, broadcast back to ``shape``.

    Example: (1, 2) reduced over dimension 1 of (2, 3) is [[1, 1, 1], [2, 2, 2]].
    """
    axes = labels(len(shape))
    kept = axes[:dim] + axes[dim + 1 :]
    return r.einsum(kept + "->" + axes, reduced, sizes={axes[dim]: shape[dim]})


def softmax(r: R, x: Any, dim: int) -> Any:
    """exp(x - max) / sum exp(x - max): the maximum cancels, it is what the framework subtracts.

    Example: of [[0, 0]] along dimension 1 [[1/2, 1/2]].
    """
    shape = r.shape(x)
    top = held_constant(r, r.amax(x, dim))
    shifted = r.combine([x, keep_dim(r, top, shape, dim)], [ONE, -ONE], Fraction(0))
    e = r.unary("exp", shifted)
    total = r.unary("inv", sum_dims(r, e, [dim]))
    return multiply(r, e, keep_dim(r, total, shape, dim))


def softmax_pullback(r: R, y: Any, gradient: Any, dim: int) -> Any:
    """y * (g - sum(g * y)): the derivative of softmax at its output ``y``.

    Example: at [[1/2, 1/2]] with the gradient [[1, 0]] it is [[1/4, -1/4]].
    """
    shape = r.shape(y)
    weighted = multiply(r, gradient, y)
    total = keep_dim(r, sum_dims(r, weighted, [dim]), shape, dim)
    return r.combine([weighted, multiply(r, y, total)], [ONE, -ONE], Fraction(0))


def _softmax_dim(r: R, x: Any, attrs: Attrs) -> int:
    if attrs.get("dtype") is not None:
        raise Unsupported(f"softmax with dtype {attrs['dtype']!r}")
    return dimension(integer(attrs, "dim"), len(r.shape(x)))


def _softmax_backward(
    r: R, inputs: Sequence[Any], gradients: Sequence[Any], attrs: Attrs
) -> list[Any]:
    dim = _softmax_dim(r, inputs[0], attrs)
    return [softmax_pullback(r, softmax(r, inputs[0], dim), gradients[0], dim)]


@operator("softmax", "a k! -> a k!", "x", "dim:integer dtype:text?", backward=_softmax_backward)
def _softmax(r: R, inputs: Sequence[Any], attrs: Attrs) -> list[Any]:
    return [softmax(r, inputs[0], _softmax_dim(r, inputs[0], attrs))]


@operator(
    "apply_rotary_emb",
    "b s h (p c!), b s h (p c!), s p c! -> b s h (p c!)",
    "xs+ frequencies",
    results="xs",
    data=(-1,),
)
def _apply_rotary_emb(r: R, inputs: Sequence[Any], attrs: Attrs) -> list[Any]:
    """Consecutive pairs (x[2i], x[2i+1]) as complex numbers, times ``freqs[position, i]``.

    The frequencies are stored as [s, d/2, 2]: real and imaginary part.
    """
    frequencies = inputs[-1]
    return [_rotate(r, x, frequencies) for x in inputs[:-1]]


def _rotate(r: R, x: Any, frequencies: Any) -> Any:
    b, s, h, d = sized(r, x, 4, "rotary embedding", 4)
    if r.shape(frequencies) != (s, d // 2, 2) or d % 2:
        raise ShapeMismatch(
            f"rotary embedding of {[b, s, h, d]} by frequencies {list(r.shape(frequencies))}"
        )
    pairs = r.reshape(x, (b, s, h, d // 2, 2))
    table = r.constant("complex_product")
    turned = r.einsum("bshpf,spe,ecf->bshpc", pairs, frequencies, table)
    return r.reshape(turned, (b, s, h, d))


@operator(
    "embedding",
    "b s, v+ h -> b s h",
    "ids table",
    "padding_idx:integer? start:position? stop:position?",
    data=(0,),
)
def _embedding(r: R, inputs: Sequence[Any], attrs: Attrs) -> list[Any]:
    """Rows of a table whose row 0 is id ``start``; other ids give zero rows."""
    ids, table = inputs
    if attrs.get("padding_idx") is not None:
        raise Unsupported(f"embedding with padding_idx {attrs['padding_idx']!r}")
    rows, _ = sized(r, table, 2, "the table of an embedding", 2)
    offset = position(attrs, "start")
    stop = attrs.get("stop")
    if stop is not None and position(attrs, "stop") != offset + rows:
        raise ShapeMismatch(f"embedding of ids {offset} to {stop} in a table of {rows} rows")
    axes = labels(len(r.shape(ids)))
    return [r.einsum(f"{axes}y,yz->{axes}z", r.onehot(ids, offset, rows), table)]


@operator("pick", "b s v+, b s -> b s", "x ids", "start:position?", data=(1,))
def _pick(r: R, inputs: Sequence[Any], attrs: Attrs) -> list[Any]:
    """``x[..., id - start]``, or 0 where the id is not in this part of the vocabulary."""
    x, ids = inputs
    offset = position(attrs, "start")
    axes = labels(len(r.shape(ids)))
    chosen = r.onehot(ids, offset, sized(r, x, 1, "what pick picks from")[-1])
    return [r.einsum(f"{axes}y,{axes}y->{axes}", x, chosen)]


def _shifted_exponentials(r: R, logits: Any) -> tuple[Any, Any, Any]:
    """logits - max, their exponentials, the sum of those over the vocabulary."""
    shape = sized(r, logits, 1, "logits")
    last = len(shape) - 1
    top = keep_dim(r, r.amax(logits, last), shape, last)
    shifted = r.combine([logits, top], [ONE, -ONE], Fraction(0))
    e = r.unary("exp", shifted)
    return shifted, e, sum_dims(r, e, [last])


def cross_entropy_gradient(r: R, e: Any, total: Any, ids: Any, gradient: Any, start: Affine) -> Any:
    """(softmax - onehot) * g, from exponentials and their sum.

    Example: of exponentials [[1, 1]], their sum [2], the class 1 and the gradient 1, [[1/2, -1/2]].
    """
    shape = sized(r, e, 1, "exponentials of logits")
    last = len(shape) - 1
    y = multiply(r, e, keep_dim(r, r.unary("inv", total), shape, last))
    g = keep_dim(r, gradient, shape, last)
    chosen = r.onehot(ids, start, shape[last])
    return r.combine([multiply(r, y, g), multiply(r, chosen, g)], [ONE, -ONE], Fraction(0))


def _cross_entropy_backward(
    r: R, inputs: Sequence[Any], gradients: Sequence[Any], attrs: Attrs
) -> list[Any]:
    _, e, total = _shifted_exponentials(r, inputs[0])
    return [cross_entropy_gradient(r, e, total, inputs[1], gradients[0], Affine()), None]


@operator(
    "cross_entropy",
    "b s v!, b s -> b s",
    "logits ids",
    backward=_cross_entropy_backward,
    data=(1,),
)
def _cross_entropy(r: R, inputs: Sequence[Any], attrs: Attrs) -> list[Any]:
    """Per-token loss: log sum exp(x - max) - (x[id] - max)."""
    shifted, _, total = _shifted_exponentials(r, inputs[0])
    axes = labels(len(r.shape(inputs[1])))
    chosen = r.onehot(inputs[1], Affine(), r.shape(inputs[0])[-1])
    picked = r.einsum(f"{axes}y,{axes}y->{axes}", shifted, chosen)
    return [r.combine([r.unary("log", total), picked], [ONE, -ONE], Fraction(0))]


@operator(
    "cross_entropy_grad",
    "b s v#, b s, b s, b s -> b s v#",
    "exponentials total ids gradient",
    "start:position?",
    data=(2,),
)
def _cross_entropy_grad(r: R, inputs: Sequence[Any], attrs: Attrs) -> list[Any]:
    """Gradient of the logits of a vocabulary shard, from exponentials e, their sum over the whole
    vocabulary, ids and the gradient of the per-token loss."""
    e, total, ids, gradient = inputs
    offset = position(attrs, "start")
    return [cross_entropy_gradient(r, e, total, ids, gradient, offset)]


def _normalised(r: R, inputs: Sequence[Any]) -> tuple[int, ...]:
    """The shape of what is normalised over its last dimension, which weight and bias have alone."""
    shape = sized(r, inputs[0], 1, "a norm")
    for other in inputs[1:]:
        if tuple(r.shape(other)) != shape[-1:] or not shape[-1]:
            raise ShapeMismatch(f"a norm of {list(shape)} with a weight {list(r.shape(other))}")
    return shape


@operator("rms_norm", "... k!, k! -> ... k!", "x weight", "eps:number")
def _rms_norm(r: R, inputs: Sequence[Any], attrs: Attrs) -> list[Any]:
    """x * rsqrt(mean(x^2) + eps) * weight over the last dimension."""
    x = inputs[0]
    shape = _normalised(r, inputs)
    last = len(shape) - 1
    square = sum_dims(r, multiply(r, x, x), [last])
    variance = r.combine([square], [Fraction(1, shape[last])], number(attrs, "eps"))
    y = multiply(r, x, keep_dim(r, r.unary("rsqrt", variance), shape, last))
    return [multiply(r, y, expand_as(r, inputs[1], shape))]


@operator("layernorm", "... k!, k!, k! -> ... k!", "x weight bias?", "eps:number")
def _layernorm(r: R, inputs: Sequence[Any], attrs: Attrs) -> list[Any]:
    """(x - mean) * rsqrt(var + eps) * weight + bias over the last dimension."""
    x = inputs[0]
    shape = _normalised(r, inputs)
    last = len(shape) - 1
    count = Fraction(1, shape[last])
    mean = keep_dim(r, scale(r, count, sum_dims(r, x, [last])), shape, last)
    centred = r.combine([x, mean], [ONE, -ONE], Fraction(0))
    square = sum_dims(r, multiply(r, centred, centred), [last])
    variance = r.combine([square], [count], number(attrs, "eps"))
    y = multiply(r, centred, keep_dim(r, r.unary("rsqrt", variance), shape, last))
    scaled = multiply(r, y, expand_as(r, inputs[1], shape))
    if len(inputs) < 3:
        return [scaled]
    return [r.combine([scaled, expand_as(r, inputs[2], shape)], [ONE, ONE], Fraction(0))]
