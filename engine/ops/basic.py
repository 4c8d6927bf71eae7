"""Elementwise, shape and reduction operators, as in PyTorch."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from math import prod
from typing import Any

from shardproof.engine.algebra.affine import Affine
from shardproof.engine.errors import ShapeMismatch, Unsupported
from shardproof.engine.ops.declare import (
    Attrs,
    dimension,
    integer,
    integers,
    number,
    operator,
    position,
)
from shardproof.engine.ops.laws import power
from shardproof.engine.ops.primitives import (
    Interpreter,
    Selection,
    expand_as,
    labels,
    multiply,
    scale,
    sum_dims,
)

R = Interpreter[Any]
ONE = Fraction(1)


#: Types between which a cast is the identity over the reals.
FLOATING = frozenset({"float16", "bfloat16", "float32", "float64", "half", "float", "double"})


def _identity(r: R, inputs: Sequence[Any], attrs: Attrs) -> list[Any]:
    dtype = attrs.get("dtype")
    if dtype is not None and str(dtype).removeprefix("torch.") not in FLOATING:
        raise Unsupported(f"a cast to {dtype}, which is not the identity over the reals")
    return [inputs[0]]


for _name in ("identity", "contiguous"):
    operator(_name, "... -> ...", "x")(_identity)


def _no_gradient(r: R, inputs: Sequence[Any], gradients: Sequence[Any], attrs: Attrs) -> list[Any]:
    return [None]


#: The value, of which no gradient goes on: its operand is data, like ids.
operator("detach", "... -> ...", "x", backward=_no_gradient, data=(0,), differentiable=False)(
    _identity
)
for _name in ("float", "to"):
    operator(_name, "... -> ...", "x", "dtype:text?")(_identity)


def _multiref_backward(
    r: R, inputs: Sequence[Any], gradients: Sequence[Any], attrs: Attrs
) -> list[Any]:
    present = [g for g in gradients if g is not None]
    return [r.combine(present, [ONE] * len(present), Fraction(0))]


@operator(
    "multiref",
    "... -> ..., ...",
    "x",
    "times:integer",
    results="times",
    backward=_multiref_backward,
)
def _multiref(r: R, inputs: Sequence[Any], attrs: Attrs) -> list[Any]:
    return [inputs[0]] * integer(attrs, "times")


def broadcast(r: R, x: Any, y: Any) -> tuple[Any, Any]:
    """Both operands at their common shape, by NumPy's rules.

    Example: of shapes (2, 1) and (3,) both at (2, 3).
    """
    a, b = r.shape(x), r.shape(y)
    rank = max(len(a), len(b))
    padded = [(1,) * (rank - len(s)) + s for s in (a, b)]
    common = tuple(n if m == 1 else m for m, n in zip(*padded, strict=True))
    return expand_as(r, x, common), expand_as(r, y, common)


@operator("add", "..., ... -> ...", "x y|other", "alpha:number? other:number?")
def _add(r: R, inputs: Sequence[Any], attrs: Attrs) -> list[Any]:
    alpha = number(attrs, "alpha") if "alpha" in attrs else ONE
    if len(inputs) == 1:
        return [r.combine([inputs[0]], [ONE], alpha * number(attrs, "other"))]
    x, y = broadcast(r, inputs[0], inputs[1])
    return [r.combine([x, y], [ONE, alpha], Fraction(0))]


@operator("sub", "..., ... -> ...", "x y|other", "other:number?")
def _sub(r: R, inputs: Sequence[Any], attrs: Attrs) -> list[Any]:
    if len(inputs) == 1:
        return [r.combine([inputs[0]], [ONE], -number(attrs, "other"))]
    x, y = broadcast(r, inputs[0], inputs[1])
    return [r.combine([x, y], [ONE, -ONE], Fraction(0))]


@operator("add_n", "..., ..., ... -> ...", "xs+")
def _add_n(r: R, inputs: Sequence[Any], attrs: Attrs) -> list[Any]:
    return [r.combine(list(inputs), [ONE] * len(inputs), Fraction(0))]


@operator("mul", "..., ... -> ...", "x y|other", "other:number?")
def _mul(r: R, inputs: Sequence[Any], attrs: Attrs) -> list[Any]:
    if len(inputs) == 1:
        return [scale(r, number(attrs, "other"), inputs[0])]
    return [multiply(r, *broadcast(r, inputs[0], inputs[1]))]


@operator("div", "..., ... -> ...", "x y|other", "other:number? rounding_mode:text?")
def _div(r: R, inputs: Sequence[Any], attrs: Attrs) -> list[Any]:
    if attrs.get("rounding_mode") is not None:
        raise Unsupported(f"div with rounding_mode {attrs['rounding_mode']!r}")
    if len(inputs) == 1:
        divisor = number(attrs, "other")
        if divisor == 0:
            raise ShapeMismatch("division by the constant zero")
        return [scale(r, 1 / divisor, inputs[0])]
    x, y = broadcast(r, inputs[0], inputs[1])
    return [multiply(r, x, r.unary("inv", y))]


@operator("pow", "... -> ...", "x", "exponent:number")
def _pow(r: R, inputs: Sequence[Any], attrs: Attrs) -> list[Any]:
    exponent = number(attrs, "exponent")
    if exponent.denominator == 1 and 1 <= exponent <= 8:
        return [multiply(r, *([inputs[0]] * int(exponent))) if exponent > 1 else inputs[0]]
    return [r.unary(power(exponent), inputs[0])]


def _elementwise(function: str) -> None:
    @operator(function, "... -> ...", "x")
    def forward(r: R, inputs: Sequence[Any], attrs: Attrs) -> list[Any]:
        return [r.unary(function, inputs[0])]


for _name in ("exp", "log", "sqrt", "rsqrt", "sigmoid", "tanh"):
    _elementwise(_name)


@operator("silu", "... -> ...", "x")
def _silu(r: R, inputs: Sequence[Any], attrs: Attrs) -> list[Any]:
    return [multiply(r, inputs[0], r.unary("sigmoid", inputs[0]))]


@operator("gelu", "... -> ...", "x")
def _gelu(r: R, inputs: Sequence[Any], attrs: Attrs) -> list[Any]:
    """x * Phi(x), Phi the normal distribution function (1 / sqrt 2 is no rational number)."""
    return [multiply(r, inputs[0], r.unary("normal_cdf", inputs[0]))]


@operator("transpose", "a b -> b a", "x", "dim0:integer dim1:integer")
def _transpose(r: R, inputs: Sequence[Any], attrs: Attrs) -> list[Any]:
    rank = len(r.shape(inputs[0]))
    order = list(labels(rank))
    i, j = (dimension(integer(attrs, key), rank) for key in ("dim0", "dim1"))
    order[i], order[j] = order[j], order[i]
    return [r.einsum(labels(rank) + "->" + "".join(order), inputs[0])]


@operator("permute", "a b c -> c a b", "x", "dims:integers")
def _permute(r: R, inputs: Sequence[Any], attrs: Attrs) -> list[Any]:
    names = labels(len(r.shape(inputs[0])))
    order = [dimension(d, len(names)) for d in integers(attrs, "dims")]
    if sorted(order) != list(range(len(names))):
        raise ShapeMismatch(f"permutation {order} of {len(names)} dimensions")
    return [r.einsum(names + "->" + "".join(names[i] for i in order), inputs[0])]


def view_shape(shape: tuple[int, ...], size: Sequence[int]) -> tuple[int, ...]:
    """The target of a view, with at most one -1 inferred; raises `ShapeMismatch`.

    Example: of [4, 6], the size (2, -1) is (2, 12).
    """
    known = prod(n for n in size if n != -1)
    total = prod(shape)
    if list(size).count(-1) > 1 or (-1 in size and (known == 0 or total % known)):
        raise ShapeMismatch(f"view of {list(shape)} as {list(size)}")
    result = tuple(total // known if n == -1 else n for n in size)
    if prod(result) != total or any(n < 0 for n in result):
        raise ShapeMismatch(f"view of {list(shape)} as {list(size)}")
    return result


def _view_backward(
    r: R, inputs: Sequence[Any], gradients: Sequence[Any], attrs: Attrs
) -> list[Any]:
    shape = r.shape(inputs[0])
    target = view_shape(shape, integers(attrs, "size"))
    if tuple(r.shape(gradients[0])) != target:
        raise ShapeMismatch(
            f"a view has shape {list(target)}, its gradient {list(r.shape(gradients[0]))}"
        )
    return [r.reshape(gradients[0], shape)]


@operator("view", "b (h d) -> b h d", "x", "size:integers", backward=_view_backward)
def _view(r: R, inputs: Sequence[Any], attrs: Attrs) -> list[Any]:
    shape = r.shape(inputs[0])
    return [r.reshape(inputs[0], view_shape(shape, integers(attrs, "size")))]


def _reduced(r: R, x: Any, attrs: Attrs) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The reduced dimensions, and the shape afterwards (a full reduction keeps ``[1]``)."""
    shape = r.shape(x)
    if attrs.get("dim") is None:
        return tuple(range(len(shape))), (1,)
    dims = tuple(dimension(d, len(shape)) for d in integers(attrs, "dim"))
    if len(set(dims)) < len(dims):
        raise ShapeMismatch(f"dimensions {list(dims)} are reduced, one of them twice")
    if attrs.get("keepdim"):
        return dims, tuple(1 if i in dims else n for i, n in enumerate(shape))
    return dims, tuple(n for i, n in enumerate(shape) if i not in dims)


@operator("sum", "a k+ -> a", "x", "dim:integers? keepdim:flag?")
def _sum(r: R, inputs: Sequence[Any], attrs: Attrs) -> list[Any]:
    dims, after = _reduced(r, inputs[0], attrs)
    return [r.reshape(sum_dims(r, inputs[0], dims), after)]


@operator("mean", "a k+ -> a", "x", "dim:integers? keepdim:flag? count:number?")
def _mean(r: R, inputs: Sequence[Any], attrs: Attrs) -> list[Any]:
    dims, after = _reduced(r, inputs[0], attrs)
    count = (
        number(attrs, "count")
        if "count" in attrs
        else Fraction(prod(r.shape(inputs[0])[i] for i in dims))
    )
    if count == 0:
        raise ShapeMismatch(f"a mean of {list(r.shape(inputs[0]))} over no entries")
    return [scale(r, 1 / count, r.reshape(sum_dims(r, inputs[0], dims), after))]


def _amax_backward(
    r: R, inputs: Sequence[Any], gradients: Sequence[Any], attrs: Attrs
) -> list[Any]:
    """The gradient goes to the largest entry, which is a choice of one from the row.  (Where two
    are the largest, a maximum has no derivative.)"""
    x = inputs[0]
    shape = r.shape(x)
    dims, after = _reduced(r, x, attrs)
    if after != tuple(r.shape(gradients[0])):
        raise ShapeMismatch(
            f"the maximum has shape {list(after)}, its gradient {list(r.shape(gradients[0]))}"
        )
    kept = tuple(i for i in range(len(shape)) if i not in dims)
    names = labels(len(shape))
    rows, row = "".join(names[i] for i in kept), "".join(names[i] for i in sorted(dims))
    outer, inner = ([shape[names.index(name)] for name in part] for part in (rows, row))
    if prod(inner) == 1:
        return [r.reshape(gradients[0], shape)]
    scores = r.reshape(r.einsum(f"{names}->{rows}{row}", x), (prod(outer), prod(inner)))
    largest = r.onehot(r.select(scores, Selection(topk=1)), Affine(), prod(inner))
    chosen = r.reshape(largest, (*outer, *inner))
    return [r.einsum(f"{rows}{row},{rows}->{names}", chosen, r.reshape(gradients[0], tuple(outer)))]


@operator("amax", "a k^ -> a", "x", "dim:integers? keepdim:flag?", backward=_amax_backward)
def _amax(r: R, inputs: Sequence[Any], attrs: Attrs) -> list[Any]:
    """Over several dimensions it is one maximum, over what they are joined: a part along any of
    them is a part of it."""
    x = inputs[0]
    dims, after = _reduced(r, x, attrs)
    if not dims:
        return [r.reshape(x, after)]
    at = min(dims)
    if len(dims) > 1:
        shape = tuple(r.shape(x))
        names, at = labels(len(shape)), len(shape) - len(dims)
        order = sorted(range(len(shape)), key=lambda dim: dim in dims)
        sizes = [shape[dim] for dim in order]
        turned = r.einsum(f"{names}->{''.join(names[dim] for dim in order)}", x)
        x = r.reshape(turned, (*sizes[:at], prod(sizes[at:])))
    return [r.reshape(r.amax(x, at), after)]


@operator("slice", "a k# -> a k#", "x", "dim:integer start:position size:integer")
def _slice(r: R, inputs: Sequence[Any], attrs: Attrs) -> list[Any]:
    shape = r.shape(inputs[0])
    dim = dimension(integer(attrs, "dim"), len(shape))
    size = integer(attrs, "size")
    if size < 0:
        raise ShapeMismatch(f"a slice of {size} positions")
    return [r.slice(inputs[0], dim, position(attrs, "start"), size)]


@operator("concat", "a k#, a k# -> a k#", "xs+", "dim:integer")
def _concat(r: R, inputs: Sequence[Any], attrs: Attrs) -> list[Any]:
    shapes = [tuple(r.shape(x)) for x in inputs]
    rank = len(shapes[0])
    if any(len(shape) != rank for shape in shapes):
        raise ShapeMismatch(f"concatenation of {[list(shape) for shape in shapes]}")
    return [r.concat(list(inputs), dimension(integer(attrs, "dim"), rank))]
