"""Operators of PyTorch's library beyond what models are written in by hand: contractions,
rearrangements, joins and cuts, constants, further functions.  What frontends lower calls onto.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from math import prod
from typing import Any

from shardproof.engine.algebra.affine import Affine
from shardproof.engine.errors import ShapeMismatch, Unsupported
from shardproof.engine.ops.basic import ONE, _reduced, view_shape
from shardproof.engine.ops.declare import (
    Attrs,
    dimension,
    integer,
    integers,
    number,
    operator,
    position,
)
from shardproof.engine.ops.model import keep_dim, softmax
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


# -- elementwise -----------------------------------------------------------------------------------


@operator("affine", "... -> ...", "x", "factor:number shift:number")
def _affine(r: R, inputs: Sequence[Any], attrs: Attrs) -> list[Any]:
    """factor x + shift."""
    return [r.combine([inputs[0]], [number(attrs, "factor")], number(attrs, "shift"))]


@operator("reciprocal", "... -> ...", "x", "numerator:number")
def _reciprocal(r: R, inputs: Sequence[Any], attrs: Attrs) -> list[Any]:
    """numerator / x."""
    return [scale(r, number(attrs, "numerator"), r.unary("inv", inputs[0]))]


def _elementwise(function: str) -> None:
    @operator(function, "... -> ...", "x")
    def forward(r: R, inputs: Sequence[Any], attrs: Attrs) -> list[Any]:
        return [r.unary(function, inputs[0])]


for _name in (
    "sin",
    "cos",
    "atan",
    "erf",
    "erfinv",
    "lgamma",
    "digamma",
    "trigamma",
    "relu",
    "abs",
    "step",
    "floor",
    "ceil",
    "trunc",
    "round",
):
    _elementwise(_name)


@operator("log_sigmoid", "... -> ...", "x")
def _log_sigmoid(r: R, inputs: Sequence[Any], attrs: Attrs) -> list[Any]:
    return [r.unary("log", r.unary("sigmoid", inputs[0]))]


@operator("masked_fill", "..., ... -> ...", "x mask", "value:number", data=(1,))
def _masked_fill(r: R, inputs: Sequence[Any], attrs: Attrs) -> list[Any]:
    """``value`` where the mask is 1, x where it is 0."""
    x, mask = inputs
    full = expand_as(r, mask, r.shape(x))
    kept = r.combine([full], [-ONE], ONE)
    return [r.combine([multiply(r, x, kept), full], [ONE, number(attrs, "value")], Fraction(0))]


# -- contractions ----------------------------------------------------------------------------------


@operator("einsum", "a k+, k+ n -> a n", "xs+", "equation:text")
def _einsum(r: R, inputs: Sequence[Any], attrs: Attrs) -> list[Any]:
    """A sum of products, ``ab,bc->ac``, without repeated letters in an operand."""
    equation = attrs.get("equation")
    left, arrow, right = equation.partition("->") if isinstance(equation, str) else ("", "", "")
    operands = left.split(",")
    letters = [*operands, right]
    if not arrow or not all(x == "" or (x.isalpha() and x.isascii()) for x in letters):
        raise Unsupported(f"einsum {equation!r}")
    if any(len(set(x)) < len(x) for x in letters) or set(right) - set(left):
        raise Unsupported(f"einsum {equation!r}")
    if [len(r.shape(x)) for x in inputs] != [len(x) for x in operands]:
        raise ShapeMismatch(f"einsum {equation} of {[list(r.shape(x)) for x in inputs]}")
    sizes: dict[str, int] = {}
    for names, x in zip(operands, inputs, strict=True):
        for name, size in zip(names, r.shape(x), strict=True):
            if sizes.setdefault(name, size) != size:
                raise ShapeMismatch(f"einsum {equation} of {[list(r.shape(x)) for x in inputs]}")
    return [r.einsum(str(equation), *inputs)]


@operator("addmm", "m n, m k!, k! n -> m n", "x y z", "alpha:number beta:number")
def _addmm(r: R, inputs: Sequence[Any], attrs: Attrs) -> list[Any]:
    """beta x + alpha (y z), over leading dimensions alike."""
    x, y, z = inputs
    a, b = r.shape(y), r.shape(z)
    if len(a) < 2 or len(a) != len(b) or a[:-2] != b[:-2] or a[-1] != b[-2]:
        raise ShapeMismatch(f"addmm of {list(a)} and {list(b)}")
    lead = labels(len(a) - 2)
    product = r.einsum(f"{lead}xy,{lead}yz->{lead}xz", y, z)
    added = expand_as(r, x, r.shape(product))
    factors = [number(attrs, "beta"), number(attrs, "alpha")]
    return [r.combine([added, product], factors, Fraction(0))]


@operator("log_softmax", "a k! -> a k!", "x", "dim:integer")
def _log_softmax(r: R, inputs: Sequence[Any], attrs: Attrs) -> list[Any]:
    """x - max - log sum exp(x - max)."""
    x = inputs[0]
    shape = r.shape(x)
    dim = dimension(integer(attrs, "dim"), len(shape))
    top = held_constant(r, r.amax(x, dim))
    shifted = r.combine([x, keep_dim(r, top, shape, dim)], [ONE, -ONE], Fraction(0))
    total = r.unary("log", sum_dims(r, r.unary("exp", shifted), [dim]))
    return [r.combine([shifted, keep_dim(r, total, shape, dim)], [ONE, -ONE], Fraction(0))]


@operator("norm", "a k! -> a", "x", "dim:integers? keepdim:flag?")
def _norm(r: R, inputs: Sequence[Any], attrs: Attrs) -> list[Any]:
    """The root of the sum of squares."""
    x = inputs[0]
    dims, after = _reduced(r, x, attrs)
    return [r.unary("sqrt", r.reshape(sum_dims(r, multiply(r, x, x), dims), after))]


@operator(
    "scaled_dot_product_attention",
    "... q! d!, ... k! d!, ... k! e -> ... q! e",
    "query key value",
    "scale:number is_causal:flag?",
)
def _attention(r: R, inputs: Sequence[Any], attrs: Attrs) -> list[Any]:
    """softmax(scale q kᵀ) v, where ``is_causal`` over no later key."""
    q, k, v = inputs
    a, b, c = (r.shape(x) for x in inputs)
    if len(a) < 2 or a[:-2] != b[:-2] or b[:-1] != c[:-1] or a[-1] != b[-1]:
        raise ShapeMismatch(f"attention of {list(a)}, {list(b)} and {list(c)}")
    lead = labels(len(a) - 2)
    scores = r.einsum(f"{lead}xy,{lead}zy->{lead}xz", q, k)
    scores = scale(r, number(attrs, "scale"), scores)
    if attrs.get("is_causal"):
        mask = expand_as(r, r.causal(a[-2], b[-2]), r.shape(scores))
        scores = r.combine([scores, mask], [ONE, ONE], Fraction(0))
    weights = softmax(r, scores, len(a) - 1)
    return [r.einsum(f"{lead}xz,{lead}zw->{lead}xw", weights, v)]


# -- shapes ----------------------------------------------------------------------------------------


@operator("broadcast_to", "a b -> y! a b", "x", "size:integers")
def _broadcast_to(r: R, inputs: Sequence[Any], attrs: Attrs) -> list[Any]:
    """Repeated to ``size``, which may have more leading dimensions (-1 keeps one)."""
    shape, size = r.shape(inputs[0]), integers(attrs, "size")
    lead = len(size) - len(shape)
    if lead < 0 or any(n < 0 for n in size[:lead]) or any(n < -1 for n in size):
        raise ShapeMismatch(f"{list(shape)} broadcast to {list(size)}")
    kept = tuple(n if m == -1 else m for n, m in zip(shape, size[lead:], strict=True))
    return [expand_as(r, inputs[0], (*size[:lead], *kept))]


@operator(
    "rearrange",
    "a (b c!) -> (c! a) b",
    "x",
    "split:integers groups:integers equation:text sizes:integers merge:integers divisor:integer?",
)
def _rearrange(r: R, inputs: Sequence[Any], attrs: Attrs) -> list[Any]:
    """Dimensions split, permuted, summed, repeated and merged, as einops says it.

    ``groups``: into how many parts each dimension is split, ``split``: their sizes (-1: what is
    left); ``equation``: ``abc->cad`` over the parts, what it drops is summed, what is new has its
    size in ``sizes``, in order; ``merge``: how many parts each dimension of the result is made of;
    ``divisor``: divided by this.
    """
    x = inputs[0]
    shape, groups, parts = r.shape(x), integers(attrs, "groups"), integers(attrs, "split")
    merge, equation = integers(attrs, "merge"), attrs.get("equation")
    if len(groups) != len(shape) or sum(groups) != len(parts) or not isinstance(equation, str):
        raise ShapeMismatch(f"rearrangement of {list(shape)} in {list(groups)} parts")
    split: list[int] = []
    for size, count in zip(shape, groups, strict=True):
        split += view_shape((size,), parts[len(split) : len(split) + count])
    left, _, right = equation.partition("->")
    if len(left) != len(split) or sum(merge) != len(right) or min(merge, default=0) < 0:
        raise ShapeMismatch(f"rearrangement {equation} of {len(split)} parts into {sum(merge)}")
    new = [name for name in right if name not in left]
    extents = integers(attrs, "sizes")
    if len(new) != len(extents) or min(extents, default=0) < 0:
        raise ShapeMismatch(f"rearrangement {equation} with new sizes {list(extents)}")
    if len(set(left)) < len(left) or len(set(right)) < len(right):
        raise ShapeMismatch(f"rearrangement {equation} names a part twice")
    sizes = dict(zip(new, extents, strict=True))
    y = r.einsum(equation, r.reshape(x, tuple(split)), sizes=sizes)
    if attrs.get("divisor") is not None:
        if number(attrs, "divisor") == 0:
            raise ShapeMismatch("division by the constant zero")
        y = scale(r, 1 / number(attrs, "divisor"), y)
    inner, after = list(r.shape(y)), []
    for count in merge:
        after.append(prod(inner[:count]))
        inner = inner[count:]
    return [r.reshape(y, tuple(after))]


@operator("stack", "a b, a b -> a y! b", "xs+", "dim:integer")
def _stack(r: R, inputs: Sequence[Any], attrs: Attrs) -> list[Any]:
    """Tensors of one shape along a new dimension."""
    shape = r.shape(inputs[0])
    dim = dimension(integer(attrs, "dim"), len(shape) + 1)
    if any(r.shape(x) != shape for x in inputs):
        raise ShapeMismatch(f"stack of {[list(r.shape(x)) for x in inputs]}")
    wider = (*shape[:dim], 1, *shape[dim:])
    return [r.concat([r.reshape(x, wider) for x in inputs], dim)]


@operator(
    "split", "a k# -> a k#, a k#", "x", "sizes:integers dim:integer parts:integer", results="parts"
)
def _split(r: R, inputs: Sequence[Any], attrs: Attrs) -> list[Any]:
    """Cut along a dimension into ``parts`` parts of these sizes."""
    shape, sizes = r.shape(inputs[0]), integers(attrs, "sizes")
    dim = dimension(integer(attrs, "dim"), len(shape))
    if sum(sizes) != shape[dim] or min(sizes, default=0) < 0 or len(sizes) != attrs["parts"]:
        raise ShapeMismatch(f"split of {list(shape)} into {list(sizes)} along {dim}")
    starts = [sum(sizes[:i]) for i in range(len(sizes))]
    cuts = zip(starts, sizes, strict=True)
    return [r.slice(inputs[0], dim, Affine(start), size) for start, size in cuts]


@operator("index", "a k# -> a", "x", "starts:integers sizes:integers kept:integers")
def _index(r: R, inputs: Sequence[Any], attrs: Attrs) -> list[Any]:
    """A box: of each dimension ``sizes`` positions (-1: all that follow) from ``starts`` on; then
    the dimensions that are ``kept``, in order (-1: a new one)."""
    x = inputs[0]
    shape, starts, sizes = r.shape(x), integers(attrs, "starts"), integers(attrs, "sizes")
    kept = integers(attrs, "kept")
    if not len(shape) == len(starts) == len(sizes):
        raise ShapeMismatch(f"a box of {len(starts)} dimensions in {list(shape)}")
    for dim, (start, size) in enumerate(zip(starts, sizes, strict=True)):
        size = shape[dim] - start if size == -1 else size
        if start < 0 or size < 0 or start + size > shape[dim]:
            raise ShapeMismatch(f"positions {start} to {start + size} of {shape[dim]}")
        if (start, size) != (0, shape[dim]):
            x = r.slice(x, dim, Affine(start), size)
    inner = r.shape(x)
    if any(not -1 <= dim < len(inner) for dim in kept):
        raise ShapeMismatch(f"dimensions {list(kept)} of {len(inner)}")
    if any(n != 1 for dim, n in enumerate(inner) if dim not in kept):
        raise ShapeMismatch(f"dimensions of {list(inner)} dropped that have more than one position")
    return [r.reshape(x, tuple(1 if dim == -1 else inner[dim] for dim in kept))]


@operator("full", " -> a", "", "size:integers value:number")
def _full(r: R, inputs: Sequence[Any], attrs: Attrs) -> list[Any]:
    """A tensor of one number."""
    if min(integers(attrs, "size"), default=0) < 0:
        raise ShapeMismatch(f"a tensor of size {list(integers(attrs, 'size'))}")
    table = r.constant("complex_product")
    single = r.combine([r.einsum("abc->", table)], [Fraction(0)], number(attrs, "value"))
    return [expand_as(r, single, integers(attrs, "size"))]


@operator("onehot", "b s -> b s v!", "ids", "start:position size:integer", data=(0,))
def _onehot(r: R, inputs: Sequence[Any], attrs: Attrs) -> list[Any]:
    """1 where an id is ``start`` plus the position along a new last dimension, else 0."""
    if integer(attrs, "size") < 0:
        raise ShapeMismatch(f"a one-hot of {attrs['size']} classes")
    return [r.onehot(inputs[0], position(attrs, "start"), integer(attrs, "size"))]
