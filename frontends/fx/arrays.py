"""What operators of ATen give for known numbers, by NumPy.

A rule takes the node, whose shape and element type are the result's, and the operator's arguments
by the names of its schema; other arguments are refused by Python itself.  What says how a tensor
lies in memory is left out before.  A result is an array, or a list of them; `computed.fitting`
gives it the node's element type.  For example the rule of ``aten.triu.default`` is ``numpy.triu``
of the operand and the diagonal.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import ceil
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from shardproof.frontends.fx.records import Node

Array = NDArray[Any]
Rule = Callable[..., Any]

#: Arguments that change nothing about the numbers of a result, whose element type the node has.
IRRELEVANT: Final = frozenset(
    {"dtype", "device", "layout", "pin_memory", "memory_format", "non_blocking", "copy"}
)
RULES: Final[dict[str, Rule]] = {}


def _rule(*names: str) -> Callable[[Rule], Rule]:
    def register(rule: Rule) -> Rule:
        RULES.update((f"aten.{name}", rule) for name in names)
        return rule

    return register


def _shape(node: Node) -> tuple[int, ...]:
    return tuple(node.shape or ())


# -- tensors of nothing --------------------------------------------------------------------------


@_rule("arange.default")
def _arange(node: Node, end: float) -> Any:
    return _steps(node, 0, end, 1)


@_rule("arange.start", "arange.start_step")
def _arange_from(node: Node, start: float, end: float, step: float = 1) -> Any:
    return _steps(node, start, end, step)


def _steps(node: Node, start: float, end: float, step: float) -> Any:
    if _shape(node) != (max(0, ceil((end - start) / step)),):
        raise ValueError("another number of positions than the node has")
    return start + step * np.arange(*_shape(node))


@_rule("full.default", "new_full.default")
def _full(node: Node, *sizes_and_number: Any) -> Any:
    return np.full(_shape(node), sizes_and_number[-1])


@_rule("full_like.default")
def _full_like(node: Node, x: Array, number: Any) -> Any:
    return np.full(x.shape, number)


@_rule("zeros.default", "zeros_like.default", "new_zeros.default")
def _zeros(node: Node, *_: Any) -> Any:
    return np.zeros(_shape(node))


@_rule("ones.default", "ones_like.default", "new_ones.default")
def _ones(node: Node, *_: Any) -> Any:
    return np.ones(_shape(node))


@_rule("scalar_tensor.default")
def _scalar(node: Node, number: Any) -> Any:
    return np.asarray(number)


@_rule("eye.default", "eye.m")
def _eye(node: Node, *_: int) -> Any:
    rows, columns = _shape(node)
    return np.eye(rows, columns)


@_rule("linspace.default")
def _linspace(node: Node, start: float, end: float, steps: int) -> Any:
    return np.linspace(start, end, steps)


@_rule("tril_indices.default")
def _tril_indices(node: Node, row: int, col: int, offset: int = 0) -> Any:
    return np.stack(np.tril_indices(row, offset, col))


@_rule("triu_indices.default")
def _triu_indices(node: Node, row: int, col: int, offset: int = 0) -> Any:
    return np.stack(np.triu_indices(row, offset, col))


# -- entry by entry ------------------------------------------------------------------------------


def _unary(function: Callable[[Any], Any], *names: str) -> None:
    @_rule(*(f"{name}.default" for name in names))
    def rule(node: Node, x: Array) -> Any:
        # Of whole numbers of few bits NumPy's functions give floats of few bits.
        wide = x.dtype.kind in "iub" and "float" in (node.dtype or "")
        return function(x.astype(np.float64) if wide else x)


for _function, _names in (
    (np.abs, ("abs",)),
    (np.negative, ("neg",)),
    (np.cos, ("cos",)),
    (np.sin, ("sin",)),
    (np.tan, ("tan",)),
    (np.arcsin, ("asin",)),
    (np.arccos, ("acos",)),
    (np.arctan, ("atan",)),
    (np.sinh, ("sinh",)),
    (np.cosh, ("cosh",)),
    (np.tanh, ("tanh",)),
    (np.exp, ("exp",)),
    (np.exp2, ("exp2",)),
    (np.expm1, ("expm1",)),
    (np.log, ("log",)),
    (np.log2, ("log2",)),
    (np.log10, ("log10",)),
    (np.log1p, ("log1p",)),
    (np.sqrt, ("sqrt",)),
    (lambda x: 1 / x, ("reciprocal",)),
    (np.square, ("square",)),
    (np.floor, ("floor",)),
    (np.ceil, ("ceil",)),
    (np.trunc, ("trunc",)),
    (np.rint, ("round",)),
    (np.sign, ("sign", "sgn")),
    (np.logical_not, ("logical_not",)),
    (np.invert, ("bitwise_not",)),
):
    _unary(_function, *_names)


@_rule("rsqrt.default")
def _rsqrt(node: Node, x: Array) -> Any:
    return 1 / np.sqrt(x.astype(np.float64))


@_rule("sigmoid.default")
def _sigmoid(node: Node, x: Array) -> Any:
    return 1 / (1 + np.exp(-x.astype(np.float64)))


@_rule("relu.default")
def _relu(node: Node, x: Array) -> Any:
    return np.maximum(x, 0)


def _binary(function: Callable[[Any, Any], Any], *names: str) -> None:
    @_rule(*names)
    def rule(node: Node, x: Any, y: Any) -> Any:
        return function(x, y)


def _whole(*numbers: Any) -> bool:
    return all(np.asarray(n).dtype.kind in "iub" for n in numbers)


def _no_zero(x: Any, y: Any) -> None:
    """Whole numbers by zero are an error, where NumPy has a number."""
    if _whole(x, y) and not np.all(y):
        raise ZeroDivisionError


def _remainder(x: Any, y: Any) -> Any:
    _no_zero(x, y)
    return np.remainder(x, y)


def _fmod(x: Any, y: Any) -> Any:
    _no_zero(x, y)
    return np.fmod(x, y)


def _floor_divide(x: Any, y: Any) -> Any:
    _no_zero(x, y)
    return np.floor_divide(x, y)


def _both(name: str) -> tuple[str, str]:
    return f"{name}.Tensor", f"{name}.Scalar"


for _pair, _named in (
    (np.multiply, _both("mul")),
    (_remainder, (*_both("remainder"), "remainder.Scalar_Tensor")),
    (_fmod, _both("fmod")),
    (_floor_divide, ("floor_divide.default", "floor_divide.Scalar")),
    (np.power, ("pow.Tensor_Scalar", "pow.Tensor_Tensor", "pow.Scalar")),
    (np.maximum, ("maximum.default", "max.other")),
    (np.minimum, ("minimum.default", "min.other")),
    (np.arctan2, ("atan2.default",)),
    (np.equal, _both("eq")),
    (np.not_equal, _both("ne")),
    (np.less, _both("lt")),
    (np.less_equal, _both("le")),
    (np.greater, _both("gt")),
    (np.greater_equal, _both("ge")),
    (np.logical_and, ("logical_and.default",)),
    (np.logical_or, ("logical_or.default",)),
    (np.logical_xor, ("logical_xor.default",)),
    (np.bitwise_and, (*_both("bitwise_and"), *_both("__and__"))),
    (np.bitwise_or, (*_both("bitwise_or"), *_both("__or__"))),
    (np.bitwise_xor, (*_both("bitwise_xor"), *_both("__xor__"))),
    (np.matmul, ("matmul.default", "mm.default", "bmm.default", "mv.default", "dot.default")),
    (np.multiply.outer, ("outer.default",)),
):
    _binary(_pair, *_named)


@_rule("add.Tensor", "add.Scalar")
def _add(node: Node, x: Any, y: Any, alpha: float = 1) -> Any:
    return x + alpha * y if alpha != 1 else x + y


@_rule("sub.Tensor", "sub.Scalar")
def _sub(node: Node, x: Any, y: Any, alpha: float = 1) -> Any:
    return x - alpha * y


@_rule("rsub.Tensor", "rsub.Scalar")
def _rsub(node: Node, x: Any, y: Any, alpha: float = 1) -> Any:
    return y - alpha * x


@_rule("div.Tensor", "div.Scalar", "div.Tensor_mode", "div.Scalar_mode")
def _div(node: Node, x: Any, y: Any, rounding_mode: str | None = None) -> Any:
    if rounding_mode == "floor":
        return _floor_divide(x, y)
    if rounding_mode == "trunc" and _whole(x, y):
        return np.sign(x) * np.sign(y) * _floor_divide(np.abs(x), np.abs(y))
    quotient = np.true_divide(x, y)
    return quotient if rounding_mode is None else {"trunc": np.trunc}[rounding_mode](quotient)


@_rule("clamp.default", "clamp.Tensor")
def _clamp(node: Node, x: Array, min: Any = None, max: Any = None) -> Any:
    return np.clip(x, min, max)


@_rule("clamp_min.default")
def _clamp_min(node: Node, x: Array, min: Any) -> Any:
    return np.maximum(x, min)


@_rule("clamp_max.default")
def _clamp_max(node: Node, x: Array, max: Any) -> Any:
    return np.minimum(x, max)


@_rule("where.self", "where.ScalarSelf", "where.ScalarOther", "where.Scalar")
def _where(node: Node, condition: Array, x: Any, y: Any) -> Any:
    return np.where(condition, x, y)


@_rule("masked_fill.Scalar", "masked_fill.Tensor")
def _masked_fill(node: Node, x: Array, mask: Array, number: Any) -> Any:
    return np.where(mask, number, x)


@_rule("tril.default")
def _tril(node: Node, x: Array, diagonal: int = 0) -> Any:
    return np.tril(x, diagonal)


@_rule("triu.default")
def _triu(node: Node, x: Array, diagonal: int = 0) -> Any:
    return np.triu(x, diagonal)


# -- the same numbers in another shape or order --------------------------------------------------


@_rule(
    *("_to_copy.default", "to.dtype", "clone.default", "detach.default"),
    *("alias.default", "contiguous.default", "lift_fresh_copy.default"),
    *("type_as.default", "to.dtype_layout", "to.device"),
)
def _same(node: Node, x: Array, *_: Any) -> Any:
    return x


@_rule(*("view.default", "_unsafe_view.default", "reshape.default", "flatten.using_ints"))
@_rule(*("unsqueeze.default", "squeeze.default", "squeeze.dim", "squeeze.dims"))
@_rule("unflatten.int", "view_as.default", "reshape_as.default")
def _in_order(node: Node, x: Array, *_: Any) -> Any:
    return x.reshape(_shape(node))


@_rule("expand.default", "expand_as.default", "broadcast_to.default")
def _expand(node: Node, x: Array, *_: Any) -> Any:
    return np.broadcast_to(x, _shape(node))


@_rule("permute.default")
def _permute(node: Node, x: Array, dims: Sequence[int]) -> Any:
    return x.transpose(dims)


@_rule("transpose.int")
def _transpose(node: Node, x: Array, dim0: int, dim1: int) -> Any:
    return x.swapaxes(dim0, dim1)


@_rule("t.default", "numpy_T.default")
def _t(node: Node, x: Array) -> Any:
    return x.T


@_rule("slice.Tensor")
def _slice(
    node: Node,
    x: Array,
    dim: int = 0,
    start: int | None = None,
    end: int | None = None,
    step: int = 1,
) -> Any:
    return np.moveaxis(np.moveaxis(x, dim, 0)[start:end:step], 0, dim)


@_rule("select.int")
def _select(node: Node, x: Array, dim: int, index: int) -> Any:
    return np.take(x, index, dim)


@_rule("narrow.default")
def _narrow(node: Node, x: Array, dim: int, start: int, length: int) -> Any:
    return np.moveaxis(np.moveaxis(x, dim, 0)[start : start + length], 0, dim)


@_rule("split.Tensor")
def _split(node: Node, x: Array, size: int, dim: int = 0) -> Any:
    return np.split(x, range(size, x.shape[dim], size), dim)


@_rule("split_with_sizes.default")
def _split_with_sizes(node: Node, x: Array, sizes: Sequence[int], dim: int = 0) -> Any:
    return np.split(x, np.cumsum(sizes)[:-1], dim)


@_rule("chunk.default")
def _chunk(node: Node, x: Array, chunks: int, dim: int = 0) -> Any:
    return _split(node, x, -(-x.shape[dim] // chunks), dim)


@_rule("unbind.int")
def _unbind(node: Node, x: Array, dim: int = 0) -> Any:
    return list(np.moveaxis(x, dim, 0))


@_rule("cat.default")
def _cat(node: Node, xs: Sequence[Array], dim: int = 0) -> Any:
    # A tensor of no entries and one dimension counts for nothing, whatever the others are.
    return np.concatenate([x for x in xs if x.shape != (0,)] or xs, dim)


@_rule("stack.default")
def _stack(node: Node, xs: Sequence[Array], dim: int = 0) -> Any:
    return np.stack(xs, dim)


@_rule("repeat.default")
def _repeat(node: Node, x: Array, repeats: Sequence[int]) -> Any:
    return np.tile(x, repeats)


@_rule("repeat_interleave.self_int")
def _repeat_interleave(node: Node, x: Array, repeats: int, dim: int | None = None) -> Any:
    return np.repeat(x, repeats, dim)


@_rule("flip.default")
def _flip(node: Node, x: Array, dims: Sequence[int]) -> Any:
    return np.flip(x, tuple(dims))


@_rule("roll.default")
def _roll(node: Node, x: Array, shifts: Sequence[int], dims: Sequence[int] = ()) -> Any:
    return np.roll(x, shifts, dims) if dims else np.roll(x, shifts[0])


@_rule("meshgrid.default", "meshgrid.indexing")
def _meshgrid(node: Node, xs: Sequence[Array], indexing: str = "ij") -> Any:
    return list(np.meshgrid(*xs, indexing=indexing))  # type: ignore[call-overload]


@_rule("index.Tensor")
def _index(node: Node, x: Array, indices: Sequence[Array | None]) -> Any:
    return x[tuple(slice(None) if n is None else n for n in indices)]


@_rule("index_select.default")
def _index_select(node: Node, x: Array, dim: int, index: Array) -> Any:
    if index.size and index.min() < 0:
        raise IndexError
    return np.take(x, index, dim)


@_rule("slice_scatter.default")
def _slice_scatter(
    node: Node,
    x: Array,
    part: Array,
    dim: int = 0,
    start: int | None = None,
    end: int | None = None,
    step: int = 1,
) -> Any:
    made = x.copy()
    np.moveaxis(made, dim, 0)[start:end:step] = np.moveaxis(part, dim, 0)
    return made


@_rule("select_scatter.default")
def _select_scatter(node: Node, x: Array, part: Array, dim: int, index: int) -> Any:
    made = x.copy()
    np.moveaxis(made, dim, 0)[index] = part
    return made


@_rule("copy.default")
def _copy(node: Node, x: Array, other: Array) -> Any:
    return np.broadcast_to(other, x.shape)


@_rule("constant_pad_nd.default")
def _pad(node: Node, x: Array, pad: Sequence[int], value: float = 0) -> Any:
    pairs = [(pad[n], pad[n + 1]) for n in range(0, len(pad), 2)]
    every = [(0, 0)] * (x.ndim - len(pairs)) + pairs[::-1]
    cut = tuple(slice(max(0, -a), n - max(0, -b)) for n, (a, b) in zip(x.shape, every, strict=True))
    wider = [(max(0, a), max(0, b)) for a, b in every]
    return np.pad(x[cut], wider, constant_values=value)


# -- over a dimension ----------------------------------------------------------------------------


def _over(function: Callable[..., Any], *names: str) -> None:
    @_rule(*names)
    def rule(
        node: Node, x: Array, dim: Sequence[int] | int | None = None, keepdim: bool = False
    ) -> Any:
        axes = dim if isinstance(dim, int) else tuple(dim or ()) or None
        return function(x, axis=axes, keepdims=keepdim)


for _reduce, _overloads in (
    (np.sum, ("sum.default", "sum.dim_IntList")),
    (np.mean, ("mean.default", "mean.dim")),
    (np.max, ("amax.default",)),
    (np.min, ("amin.default",)),
    (np.all, ("all.default", "all.dim", "all.dims")),
    (np.any, ("any.default", "any.dim", "any.dims")),
):
    _over(_reduce, *_overloads)


@_rule("max.default")
def _max(node: Node, x: Array) -> Any:
    return np.max(x)


@_rule("min.default")
def _min(node: Node, x: Array) -> Any:
    return np.min(x)


@_rule("einsum.default")
def _einsum(node: Node, equation: str, xs: Sequence[Array]) -> Any:
    return np.einsum(equation, *xs)


@_rule("cumsum.default")
def _cumsum(node: Node, x: Array, dim: int) -> Any:
    return np.cumsum(x, dim) if x.ndim else x
